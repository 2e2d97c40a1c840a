# Facts of NVIDIA/Megatron-LM@d98e8a64dd, examples/academic_paper_scripts/sc21/run_table_1.sh.
#SBATCH --nodes=384 --ntasks-per-node=8
TP=8
PP=64
EXTRA="--activations-checkpoint-method uniform"
PARAMS="${EXTRA} --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} \
  --micro-batch-size 1 --global-batch-size 3072 --num-layers 128 --hidden-size 25600 --num-attention-heads 160 \
  --seq-length 2048 --max-position-embeddings 2048 --fp16 --lr 0.0001 --DDP-impl local"
python pretrain_gpt.py ${PARAMS}
