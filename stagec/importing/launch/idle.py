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
    "fp8-format": "products in fp8",
    "fp8-hybrid": "products in fp8",
    "fp8-recipe": "products in fp8",
    "fp8-margin": "products in fp8",
    "fp8-amax-history-len": "products in fp8",
    "fp8-amax-compute-algo": "products in fp8",
    "fp8-param-gather": "weights gathered in fp8",
    "fp4-format": "products in fp4",
    "first-last-layers-bf16": "products in fp8",
    "num-layers-at-start-in-bf16": "products in fp8",
    "num-layers-at-end-in-bf16": "products in fp8",
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
    "pipeline-model-parallel-layout": "a layout of stages as text: write `layers = [...]`",
}
"""Of Megatron-LM: what has an effect that no clause says. Said above the plan."""

FIELDS_UNSAID = {
    "fp8": "products in fp8",
    "fp8_recipe": "products in fp8",
    "recompute_method": "how layers to compute again are chosen",
    "recompute_num_layers": "how many layers are computed again",
    "recompute_modules": "which modules are computed again, beyond attention",
    "fp8_param_gather": "weights gathered in fp8",
}
