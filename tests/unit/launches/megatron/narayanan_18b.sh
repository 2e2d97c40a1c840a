# Facts of NVIDIA/Megatron-LM@d98e8a64dd, examples/academic_paper_scripts/sc21/run_table_1.sh.
#SBATCH --nodes=32 --ntasks-per-node=8
TP=8
PP=1
EXTRA="--activations-checkpoint-method uniform"
PARAMS="${EXTRA} --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} \
  --micro-batch-size 8 --global-batch-size 1024 --num-layers 40 --hidden-size 6144 --num-attention-heads 48 \
  --seq-length 2048 --max-position-embeddings 2048 --fp16 --lr 0.0001 --DDP-impl torch"
python pretrain_gpt.py ${PARAMS}
