"""Changes to IR, one file or folder per pass. `ALL_PASSES` lists them in pipeline order.

A pass is imported when it is used: `stagec --version` needs none of them.
"""

from collections.abc import Callable
from importlib import import_module

from xdsl.passes import ModulePass

ALL_PASSES = (
    "cut-towers",
    "cut-experts",
    "propagate-shardings",
    "localize-shapes",
    "add-biases-first",
    "split-exchanges",
    "gather-tokens",
    "send-weights",
    "quantize-products",
    "build-backward",
    "gather-quantized",
    "split-microbatches",
    "schedule-pipeline",
    "split-stages",
    "sum-over-pools",
    "tie-weights",
    "reduce-gradients",
    "insert-optimizer",
    "clip-gradients",
    "defer-reductions",
    "decompose-statistics",
    "insert-collectives",
    "chunk-loss",
    "recompute-activations",
    "quantize-saved",
    "regather-operands",
    "cast-exchanges",
    "exchange-counts",
    "spread-load",
    "decompose-all-reduce",
    "split-collectives",
    "shard-parameters",
    "bucket-gradients",
    "orthogonalize-updates",
    "precondition-updates",
    "sum-factors",
    "count-attention-pairs",
    "expand-ring-attention",
    "offload-activations",
    "offload-parameters",
    "offload-optimizer",
    "split-products",
    "hand-over-caches",
    "hand-over-activations",
    "split-unevenly",
    "lower-to-tasks",
    "cut-segments",
    "build-programs",
    "prefetch-gathers",
    "fill-buckets",
    "place-reductions",
    "interleave-tasks",
    "plan-memory",
    "chain-streams",
    "order-communication",
    "place-buffers",
)


def load_pass(name: str) -> type[ModulePass]:
    """The class of one of our passes: `build-backward` is `BuildBackward` in `build_backward.py`."""
    module = import_module(f"stagec.passes.{name.replace('-', '_')}")
    return getattr(module, "".join(word.capitalize() for word in name.split("-")))


def pass_factories() -> dict[str, Callable[[], type[ModulePass]]]:
    """What xDSL's registry wants: a function per pass that imports it."""

    def factory(name: str) -> Callable[[], type[ModulePass]]:
        return lambda: load_pass(name)

    return {name: factory(name) for name in ALL_PASSES}
