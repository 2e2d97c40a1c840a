# Facts of NVIDIA/Megatron-LM@d98e8a64dd, examples/academic_paper_scripts/sc21/run_table_1.sh.
#SBATCH --nodes=192 --ntasks-per-node=8
TP=8
PP=8
EXTRA="--activations-checkpoint-method uniform --num-layers-per-virtual-pipeline-stage 5"
PARAMS="${EXTRA} --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} \
  --micro-batch-size 2 --global-batch-size 2304 --num-layers 80 --hidden-size 12288 --num-attention-heads 96 \
  --seq-length 2048 --max-position-embeddings 2048 --fp16 --lr 0.0001 --DDP-impl local"
python pretrain_gpt.py ${PARAMS}
