# Facts of NVIDIA/Megatron-LM@d98e8a64dd, examples/academic_paper_scripts/sc21/run_table_1.sh.
#SBATCH --nodes=4 --ntasks-per-node=8
TP=1
PP=1
EXTRA="--activations-checkpoint-method uniform"
PARAMS="${EXTRA} --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} \
  --micro-batch-size 16 --global-batch-size 512 --num-layers 24 --hidden-size 2304 --num-attention-heads 24 \
  --seq-length 2048 --max-position-embeddings 2048 --fp16 --lr 0.0001 --DDP-impl torch"
python pretrain_gpt.py ${PARAMS}
