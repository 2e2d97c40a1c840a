# Facts of mlcommons/training_results_v5.1@4da2d1cd71, University-of-Florida/benchmarks/llama31_405b/implementations/hpg.dgxb200x8/config_DGXB200_32x8x144xtp4pp8cp2_cg.sh.
source $(dirname ${BASH_SOURCE[0]})/config_common.sh
export MINIBS=144
export TENSOR_MODEL_PARALLEL=4
export PIPELINE_MODEL_PARALLEL=8
export INTERLEAVED_PIPELINE=8
export CONTEXT_PARALLEL=2
export SEQ_PARALLEL=True
export MICRO_BATCH_SIZE=1
#export TP_COMM_OVERLAP=True
export ASYM_PP_EMBED=True
export ASYM_PP_LOSS=True
export DGXNNODES=32
export DGXNGPU=8
export SEQ_LEN=8192
export USE_DIST_OPTIMIZER=True
export OVERLAP_GRAD_REDUCE=True
export TP_PP_DP_MAPPING=True
