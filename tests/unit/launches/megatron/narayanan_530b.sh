# Facts of NVIDIA/Megatron-LM@d98e8a64dd, examples/academic_paper_scripts/sc21/run_table_1.sh.
#SBATCH --nodes=315 --ntasks-per-node=8
TP=8
PP=35
EXTRA="--activations-checkpoint-method uniform --num-layers-per-virtual-pipeline-stage 1"
PARAMS="${EXTRA} --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} \
  --micro-batch-size 1 --global-batch-size 2520 --num-layers 105 --hidden-size 20480 --num-attention-heads 128 \
  --seq-length 2048 --max-position-embeddings 2048 --fp16 --lr 0.0001 --DDP-impl local"
python pretrain_gpt.py ${PARAMS}
