# Facts of mlcommons/training_results_v5.1@4da2d1cd71, NVIDIA/benchmarks/llama31_8b/implementations/nemo/config_GB300_128x4x1xtp2pp1cp4_8b.sh.
source $(dirname ${BASH_SOURCE[0]})/config_common.sh
export MINIBS=1
export TENSOR_MODEL_PARALLEL=2
export SEQ_PARALLEL=True
export PIPELINE_MODEL_PARALLEL=1
export INTERLEAVED_PIPELINE=null
export CONTEXT_PARALLEL=4
export MICRO_BATCH_SIZE=1
export BUCKET_SIZE=768000000
export FP8=True
export FP8_PARAM_GATHER=True
export USE_DIST_OPTIMIZER=True
export DGXNNODES=128
export DGXNGPU=4
