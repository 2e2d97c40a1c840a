# Facts of mlcommons/training_results_v4.0@62f111b769, NVIDIA/benchmarks/gpt3/implementations/nemo/config_DGXH100_1452x8x6x4x6_mbs1_cg.sh.
export MINIBS="${MINIBS:=6}"
export TENSOR_MODEL_PARALLEL="${TP:=4}"   #  training.model.tensor_model_parallel_size
export PIPELINE_MODEL_PARALLEL=6 #  training.model.pipeline_model_parallel_size
export DGXNNODES="${DGXNNODES:=1452}"
source $(dirname ${BASH_SOURCE[0]})/config_common.sh
export MICRO_BATCH_SIZE=1
export TP_COMM_OVERLAP=True
export SEQ_PARALLEL=True
if [ $MINIBS -eq 128 ]; then
    export VBOOST_VALUE=1
fi
export INTERLEAVED_PIPELINE=8
