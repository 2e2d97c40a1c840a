# Facts of mlcommons/training_results_v4.0@62f111b769, NVIDIA/benchmarks/gpt3/implementations/nemo/config_DGXH100_64x8x128x4x8_mbs2.sh.
export MINIBS="${MINIBS:=128}"
export TENSOR_MODEL_PARALLEL="${TP:=4}"   #  training.model.tensor_model_parallel_size
export PIPELINE_MODEL_PARALLEL=8 #  training.model.pipeline_model_parallel_size
export DGXNNODES="${DGXNNODES:=64}"
source $(dirname ${BASH_SOURCE[0]})/config_common.sh
export MICRO_BATCH_SIZE=2
export TP_COMM_OVERLAP=True
export SEQ_PARALLEL=True
if [ $MINIBS -eq 128 ]; then
    export VBOOST_VALUE=1
fi
export INTERLEAVED_PIPELINE=4
