# Facts of mlcommons/training_results_v4.0@62f111b769, NVIDIA/benchmarks/llama2_70b_lora/implementations/nemo/config_L40S_96x4x1xtp4pp1cp2.sh.
source $(dirname ${BASH_SOURCE[0]})/config_common.sh
export MINIBS=1
export TP=4
export PP=1
export CP=2
export SP=1
export TP_COMM_OVERLAP=False
export FP8=True
export DGXNNODES=96
export DGXNGPU=4
