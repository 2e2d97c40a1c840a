# Facts of mlcommons/training_results_v3.1@f33f944420, NVIDIA/benchmarks/gpt3/implementations/pytorch/config_DGXH100_96x8x128x4x8_mbs1.sh.
export MINIBS="${MINIBS:=128}"
export TENSOR_MODEL_PARALLEL="${TP:=4}"   #  training.model.tensor_model_parallel_size
export PIPELINE_MODEL_PARALLEL=8 #  training.model.pipeline_model_parallel_size
export DGXNNODES="${DGXNNODES:=96}"
source $(dirname ${BASH_SOURCE[0]})/config_common.sh
export MICRO_BATCH_SIZE=1
export TP_COMM_OVERLAP=True
export SEQ_PARALLEL=True
if [ $MINIBS -eq 128 ]; then
    export VBOOST_VALUE=1
fi
export INTERLEAVED_PIPELINE=4
