# Facts of NVIDIA/Megatron-LM@d98e8a64dd, examples/academic_paper_scripts/sc21/run_table_1.sh.
#SBATCH --nodes=128 --ntasks-per-node=8
TP=8
PP=4
EXTRA="--activations-checkpoint-method uniform --num-layers-per-virtual-pipeline-stage 5"
PARAMS="${EXTRA} --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} \
  --micro-batch-size 2 --global-batch-size 1792 --num-layers 60 --hidden-size 10240 --num-attention-heads 80 \
  --seq-length 2048 --max-position-embeddings 2048 --fp16 --lr 0.0001 --DDP-impl local"
python pretrain_gpt.py ${PARAMS}
