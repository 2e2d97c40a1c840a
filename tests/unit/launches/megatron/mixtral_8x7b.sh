# Facts of NVIDIA/Megatron-LM@d98e8a64dd, examples/mixtral/train_mixtral_8x7b_distributed.sh, on the 8 nodes that its stages and experts need.
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-"8"}
MOE_ARGS=(--num-experts 8 --moe-router-topk 2 --moe-grouped-gemm --moe-token-dispatcher-type alltoall)
TRAINING_ARGS=(--micro-batch-size 1 --global-batch-size 256 --bf16 --overlap-grad-reduce --overlap-param-gather)
MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size 1
    --pipeline-model-parallel-size 4
    --expert-model-parallel-size 8
    --use-distributed-optimizer
    --sequence-parallel
)
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py --num-layers 32 --seq-length 4096 ${MOE_ARGS[@]} ${TRAINING_ARGS[@]} ${MODEL_PARALLEL_ARGS[@]}
