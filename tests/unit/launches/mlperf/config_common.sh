# Facts of mlcommons/training_results_v4.0@62f111b769, NVIDIA/benchmarks/llama2_70b_lora/implementations/nemo/configs/config_common.sh.
export DGXNGPU=8
export DGXSYSTEM=$(basename $(readlink -f ${BASH_SOURCE[1]}))
export TP_COMM_OVERLAP=True
export TOKENIZERS_PARALLELISM=False
export MBS=1
