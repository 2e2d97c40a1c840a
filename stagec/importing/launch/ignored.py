"""Names of launchers that change nothing in a plan, and those that say what the language has no word for.

`idle.json` has the former: flags of Megatron-LM (data, learning rates, logging, checkpoints, fusions, and the model's own sizes, which its
text says), and beginnings of names in files of torchtitan and DeepSpeed.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources


@cache
def idle(kind: str) -> tuple[str, ...]:
    """Names of a launcher without effect."""
    text = resources.files("stagec.importing.launch").joinpath("idle.json").read_text()
    return tuple(json.loads(text)[f"{kind} idle"])


MEGATRON_UNSAID = {
    "fp8-recipe": "how products in fp8 are scaled",
    "fp8-margin": "how products in fp8 are scaled",
    "fp8-amax-history-len": "how products in fp8 are scaled",
    "fp8-amax-compute-algo": "how products in fp8 are scaled",
    "first-last-layers-bf16": "how products in fp8 are scaled",
    "num-layers-at-start-in-bf16": "how products in fp8 are scaled",
    "num-layers-at-end-in-bf16": "how products in fp8 are scaled",
    "recompute-num-layers": "how many layers are computed again",
    "recompute-modules": "which modules are computed again, beyond attention",
    "mtp-num-layers": "layers of multi-token prediction: the model's text says them",
    "distribute-saved-activations": "saved activations split over tensor parallelism",
    "optimizer-offload-fraction": "a part of the optimizer's state on the host",
    "moe-expert-capacity-factor": "a capacity of experts: the model's text says it (`dropless = false`)",
    "moe-pad-expert-input-to-capacity": "a capacity of experts: the model's text says it (`dropless = false`)",
    "moe-shared-expert-overlap": "shared experts beside the exchange",
    "rampup-batch-size": "a batch that grows: the plan has the full one",
    "tp-comm-overlap-cfg": "how collectives are cut to overlap",
    "tp-comm-bulk-wgrad": "how collectives are cut to overlap",
    "tp-comm-bulk-dgrad": "how collectives are cut to overlap",
    "main-grads-dtype": "a dtype of its own for main gradients",
    "main-params-dtype": "a dtype of its own for master weights",
    "exp-avg-dtype": "a dtype of its own for moments",
    "exp-avg-sq-dtype": "a dtype of its own for moments",
    "num-distributed-optimizer-instances": "replicas of the sharded optimizer",
    "hierarchical-context-parallel-sizes": "context parallelism in two levels",
    "step-batch-size-schedule": "a batch that grows: the plan has the full one",
    "fp4-param-gather": "weights gathered in fp4",
    "cpu-offloading": "activations or weights of some layers on the host",
    "cpu-offloading-num-layers": "activations or weights of some layers on the host",
    "cpu-offloading-activations": "activations or weights of some layers on the host",
    "cpu-offloading-weights": "activations or weights of some layers on the host",
    "fine-grained-activation-offloading": "activations of some modules on the host",
    "offload-modules": "activations of some modules on the host",
    "moe-layer-recompute": "experts computed again in the backward pass",
    "mhc-recompute-layer-num": "how many layers are computed again",
    "outer-dp-sharding-strategy": "how replicas of shards are sharded again",
    "megatron-fsdp-main-grads-dtype": "a dtype of its own for main gradients",
    "megatron-fsdp-main-params-dtype": "a dtype of its own for master weights",
    "megatron-fsdp-grad-comm-dtype": "a dtype of its own for gradients that travel",
    "fsdp-double-buffer": "two buffers of a fixed size for gathered weights",
    "overlap-param-gather-with-optimizer-step": "weights gathered while the optimizer runs",
    "ddp-num-buckets": "how many buckets gradients are joined into",
    "freeze-all-layers": "weights that are not trained: write `freeze`",
    "hybrid-context-parallel": "context parallelism by the length of sequences",
    "pipeline-model-parallel-layout": "a layout of stages as text: write `layers = [...]`",
}
"""Of Megatron-LM: what has an effect that no clause says. Said above the plan."""

FIELDS_UNSAID = {
    "fp8_recipe": "how products in fp8 are scaled",
    "recompute_method": "how layers to compute again are chosen",
    "recompute_num_layers": "how many layers are computed again",
    "recompute_modules": "which modules are computed again, beyond attention",
    "rampup_batch_size": "a batch that grows: the plan has the full one",
    "activations_checkpoint_method": "how layers to compute again are chosen",
    "activations_checkpoint_num_layers": "how many layers are computed again",
    "cpu_offloading": "activations or weights of some layers on the host",
}

DEEPSPEED_UNSAID = {
    "sparse_attention.": "sparse attention: the model's text says it",
    "activation_checkpointing.partition_activations": "saved activations split over tensor parallelism",
    "activation_checkpointing.cpu_checkpointing": "saved activations on the host",
    "fp16.fp16_master_weights_and_grads": "master weights and gradients in fp16",
    "zero_optimization.zero_hpz_partition_size": "weights sharded again within a node",
    "zero_optimization.zero_quantized": "collectives of quantized values",
    "zero_optimization.mics": "shards over a part of the ranks",
    "zero_optimization.offload_optimizer.nvme_path": "a disk behind the host's memory",
    "zero_optimization.offload_optimizer.ratio": "a part of the optimizer's state on the host",
}
"""Of DeepSpeed, by how names begin."""
