"""What frameworks do under ZeRO where their users set nothing: `zero 3 over dp { like = fsdp2 }`.

A preset fills in settings of `zero` and `gradients` that a plan leaves out. What it does not name holds as without it, and so do frameworks'
own units: `unit` says what is gathered together.

- `fsdp2`: PyTorch's `fully_shard`, whose rows are split, and which gathers one unit ahead (`_fsdp_param_group.py`); pipelines reduce after the last
  backward pass of a stage (`pipelining/stage.py`).
- `deepspeed`: flat parts of buffers; buckets of `reduce_bucket_size` = 5e8 elements at stages 1 and 2, whose `overlap_comm` is false unless set; it is
  true at stage 3, which keeps parameters of up to `param_persistence_threshold` = 1e5 elements whole (`runtime/zero/config.py`).
  A bucket is divided by the number of ranks before it is reduced (`average_tensor` and `allreduce_bucket` in `stage_1_and_2.py`).
- `megatron`: the distributed optimizer of Megatron-LM: flat parts of one buffer of gradients. Only where reductions overlap with the backward pass, which
  they do if it is asked for (`--overlap-grad-reduce`), is the buffer cut into buckets, of 40 million elements or a million for each data-parallel rank,
  whichever is more (`distributed_data_parallel.py`); in a pipeline that of the first stage alone. Buffers of gradients are made once
  and stay (`_ParamAndGradBuffer`), and are multiplied by one over the number of ranks before they are reduced, unless `--ddp-average-in-collective` says
  otherwise (`start_grad_sync` in `param_and_grad_buffer.py`).
  A table that two stages share has a bucket of its own (`DistributedOptimizer._compute_per_buffer_param_layout`).
  In a buffer parameters are in the reverse of the order in which they are registered, each at a
  multiple of 64 elements; buckets end at multiples of 128 and of the ranks (`optimizer/param_layout.py`). Parameters are gathered by bucket after the
  update (`start_param_sync`). What norms have on tensor-parallel ranks under sequence parallelism is summed after the buckets, as one, and a table that
  stages share last (`finalize_model_grads.py`). Each expert of a rank is a parameter by itself (`weight0`, `weight1`, ... of Transformer Engine's
  `GroupedLinear`), unless they are asked for as one (`moe_single_grouped_weight` in `transformer_config.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

PRESETS = ("fsdp2", "deepspeed", "megatron")


@dataclass(frozen=True)
class Buffers:
    """Parameters and their gradients in flat buffers, in the reverse of the order in which parameters are registered.

    Buckets are parts of them. All stages of a pipeline but the first have one bucket, and what stages share is one by itself.
    """

    aligned: int
    """Each parameter begins at a multiple of so many elements."""
    bucket_end: int
    """Each bucket ends at a multiple of so many elements, and of the ranks."""


@dataclass(frozen=True)
class Preset:
    """Settings by level."""

    title: str
    levels: tuple[int, ...]
    zero: Mapping[str, Any]
    overlap: tuple[int, ...] = ()
    """The levels at which gradients are reduced during the backward pass."""
    bucket_elements: Callable[[int, bool, int], int | None] = lambda level, overlap, ranks: None
    """Of a bucket at a level, with or without overlap, over so many ranks. None: gradients of a unit, or one, travel together."""
    pipelines: tuple[int, ...] = ()
    """The levels that it runs in a pipeline."""
    keeps_gradients: bool = False
    """Gradients have buffers from the first step on, whether or not microbatches add up."""
    sums_offloaded: Callable[[int], str] = lambda level: "device"
    """At a level, where gradients add up over microbatches that each reduce them, if the host updates: see `offload-optimizer`."""
    average: str = "collective"
    """What divides gradients by the number of ranks: see `Gradients.average`."""
    buffers: Buffers | None = None
    """How parameters and gradients lie in flat buffers. None: each by itself."""


def deepspeed_bucket(level: int, overlap: bool, ranks: int) -> int | None:
    return None if level == 3 else 500_000_000


def deepspeed_sums(level: int) -> str:
    return "returned" if level == 3 else "several"


def megatron_bucket(level: int, overlap: bool, ranks: int) -> int | None:
    return max(40_000_000, 1_000_000 * ranks) if overlap else ALL


ALL = 1 << 56
"""More elements than a model has: one bucket."""


KNOWN: Mapping[str, Preset] = {
    "fsdp2": Preset(
        "PyTorch's FSDP2",
        levels=(3,),
        zero={"shards": "rows", "prefetch": 1},
        overlap=(3,),
        pipelines=(3,),
        sums_offloaded=lambda level: "host",
    ),
    "deepspeed": Preset(
        "DeepSpeed",
        levels=(1, 2, 3),
        zero={"shards": "flat", "persist": 100_000},
        overlap=(3,),
        bucket_elements=deepspeed_bucket,
        pipelines=(1,),
        sums_offloaded=deepspeed_sums,
        average="before",
    ),
    "megatron": Preset(
        "Megatron-LM's distributed optimizer",
        levels=(1,),
        zero={"shards": "flat", "experts": "apart"},
        bucket_elements=megatron_bucket,
        pipelines=(1,),
        keeps_gradients=True,
        average="before",
        buffers=Buffers(aligned=64, bucket_end=128),
    ),
}
