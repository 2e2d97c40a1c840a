# Facts of NVIDIA/Megatron-LM@d98e8a64dd, examples/megatron_fsdp/train_llama3_8b_fsdp_h100_fp8.sh.
TP_SIZE=1
CP_SIZE=1
PP_SIZE=1
MICRO_BATCH_SIZE=1
GLOBAL_BATCH_SIZE=128
NUM_LAYERS=32
DTYPE=${2:-"fp8"}
SEQ_LENGTH=8192
GPUS_PER_NODE=8
NUM_NODES=1
SHARDING_STRATEGY=${SHARDING_STRATEGY:-"optim_grads_params"}
MODEL_ARGS=(--num-layers $NUM_LAYERS --seq-length $SEQ_LENGTH --hidden-size 4096 --ffn-hidden-size 14336 --group-query-attention --num-query-groups 8)
TRAINING_ARGS=(
    --micro-batch-size $MICRO_BATCH_SIZE
    --global-batch-size $GLOBAL_BATCH_SIZE
    --bf16
    --overlap-grad-reduce
    --overlap-param-gather
    --decoupled-min-lr 4.5e-7
)
if [ "${USE_MEGATRON_FSDP}" = 1 ]; then
    TRAINING_ARGS+=(
        --use-megatron-fsdp
        --data-parallel-sharding-strategy ${SHARDING_STRATEGY:-optim_grads_params}
        --fsdp-double-buffer
    )
fi
DTYPE_ARGS=()
if [[ "$DTYPE" == "fp8" ]]; then
    DTYPE_ARGS+=("--fp8-format hybrid" "--fp8-param-gather")
fi
MODEL_PARALLEL_ARGS=(--tensor-model-parallel-size $TP_SIZE --context-parallel-size $CP_SIZE --sequence-parallel)
DDP_ARGS=(
    --use-distributed-optimizer
)
TRAINING_ARGS+=("${DDP_ARGS[@]}")
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES pretrain_gpt.py "${MODEL_ARGS[@]}" "${TRAINING_ARGS[@]}" "${DTYPE_ARGS[@]}" "${MODEL_PARALLEL_ARGS[@]}"
