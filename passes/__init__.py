"""Changes to IR: a folder for each subject, in it a file or folder per pass. `ALL_PASSES` lists them in pipeline order, with their folders.

A pass is imported when it is used: `stagec --version` needs none of them.
"""

from collections.abc import Callable
from importlib import import_module

from xdsl.passes import ModulePass

ALL_PASSES = {
    "cut-towers": "pools",
    "cut-experts": "pools",
    "peel-layers": "backward",
    "propagate-shardings": "sharding",
    "localize-shapes": "sharding",
    "add-biases-first": "collectives",
    "split-exchanges": "experts",
    "gather-tokens": "experts",
    "send-weights": "experts",
    "quantize-products": "precision",
    "build-backward": "backward",
    "update-rows": "optimizer",
    "gather-quantized": "precision",
    "split-microbatches": "pipeline",
    "schedule-pipeline": "pipeline",
    "split-stages": "pipeline",
    "sum-over-pools": "pools",
    "tie-weights": "pipeline",
    "reduce-gradients": "optimizer",
    "insert-optimizer": "optimizer",
    "clip-gradients": "optimizer",
    "defer-reductions": "collectives",
    "decompose-statistics": "collectives",
    "insert-collectives": "collectives",
    "chunk-loss": "backward",
    "recompute-activations": "backward",
    "quantize-saved": "precision",
    "regather-operands": "collectives",
    "reduce-maxima": "precision",
    "cast-exchanges": "experts",
    "exchange-counts": "experts",
    "spread-load": "experts",
    "decompose-all-reduce": "collectives",
    "split-collectives": "collectives",
    "shard-parameters": "optimizer",
    "bucket-gradients": "optimizer",
    "orthogonalize-updates": "optimizer",
    "precondition-updates": "optimizer",
    "sum-factors": "optimizer",
    "count-attention-pairs": "attention",
    "expand-ring-attention": "attention",
    "offload-activations": "offload",
    "offload-parameters": "offload",
    "offload-optimizer": "offload",
    "split-products": "collectives",
    "hand-over-caches": "pools",
    "hand-over-activations": "pools",
    "split-unevenly": "sharding",
    "lower-to-tasks": "schedule",
    "cut-segments": "schedule",
    "build-programs": "schedule",
    "prefetch-gathers": "schedule",
    "fill-buckets": "schedule",
    "place-reductions": "schedule",
    "interleave-tasks": "schedule",
    "plan-memory": "memory",
    "chain-streams": "schedule",
    "order-communication": "schedule",
    "place-buffers": "memory",
}


def load_pass(name: str) -> type[ModulePass]:
    """The class of one of our passes: `build-backward` is `BuildBackward` in `backward/build_backward.py`."""
    module = import_module(f"stagec.passes.{ALL_PASSES[name]}.{name.replace('-', '_')}")
    return getattr(module, "".join(word.capitalize() for word in name.split("-")))


def pass_factories() -> dict[str, Callable[[], type[ModulePass]]]:
    """What xDSL's registry wants: a function per pass that imports it."""

    def factory(name: str) -> Callable[[], type[ModulePass]]:
        return lambda: load_pass(name)

    return {name: factory(name) for name in ALL_PASSES}
