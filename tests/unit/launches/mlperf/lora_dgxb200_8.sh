# Facts of mlcommons/training_results_v5.1@4da2d1cd71, University-of-Florida/benchmarks/llama2_70b_lora/implementations/hpg.dgxb200x8/config_DGXB200_8x8x1xtp1pp1cp8.sh.
source $(dirname ${BASH_SOURCE[0]})/config_common.sh
export MINIBS=1
export CP=8
export SBATCH_NETWORK=${SBATCH_NETWORK:-sharp}
export DGXNNODES=8
export DGXNGPU=8
