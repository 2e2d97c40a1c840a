# Facts of NVIDIA/Megatron-LM@d98e8a64dd, examples/academic_paper_scripts/sc21/run_table_1.sh.
#SBATCH --nodes=64 --ntasks-per-node=8
TP=8
PP=2
EXTRA="--activations-checkpoint-method uniform"
PARAMS="${EXTRA} --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} \
  --micro-batch-size 4 --global-batch-size 1536 --num-layers 48 --hidden-size 8192 --num-attention-heads 64 \
  --seq-length 2048 --max-position-embeddings 2048 --fp16 --lr 0.0001 --DDP-impl local"
python pretrain_gpt.py ${PARAMS}
