# Facts of mlcommons/training_results_v4.0@62f111b769, NVIDIA/benchmarks/llama2_70b_lora/implementations/nemo/config_DGXH200_1x8x2xtp2pp1cp1.sh.
source $(dirname ${BASH_SOURCE[0]})/config_common.sh
export MINIBS=2
export TP=2
export PP=1
export SP=1
export CP=1
export FP8=True
export DGXNNODES=1
