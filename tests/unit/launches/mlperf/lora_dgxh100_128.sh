# Facts of mlcommons/training_results_v4.0@62f111b769, NVIDIA/benchmarks/llama2_70b_lora/implementations/nemo/config_DGXH100_128x8x1xtp4pp1cp2.sh.
source $(dirname ${BASH_SOURCE[0]})/config_common.sh
export MINIBS=1
export TP=4
export PP=1
export CP=2
export SP=1
export FP8=True
export FP8_AMAX_ALGO=max
export DGXNNODES=128
