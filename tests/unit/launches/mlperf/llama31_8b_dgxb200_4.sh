# Facts of mlcommons/training_results_v5.1@4da2d1cd71, University-of-Florida/benchmarks/llama31_8b/implementations/hpg.dgxb200x8/config_DGXB200_4x8x1xtp1pp1cp2_8b.sh.
source $(dirname ${BASH_SOURCE[0]})/config_common.sh
export MINIBS=1
export TENSOR_MODEL_PARALLEL=1
export SEQ_PARALLEL=False
export PIPELINE_MODEL_PARALLEL=1
export INTERLEAVED_PIPELINE=null
export CONTEXT_PARALLEL=2
export MICRO_BATCH_SIZE=1
export SEQ_LEN=8192
export USE_DIST_OPTIMIZER=True
export DGXNNODES=4
export DGXNGPU=8
