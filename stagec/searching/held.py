"""A lower bound on what a rank holds at its peak, without a look at when buffers live: what stays, and what its microbatches have saved.

When the first rank of a pipeline begins its first backward pass, it has what is stored from step to step, and of each microbatch that it has
sent on what the layers save for their backward passes. What is saved are the stacks that a layer's backward pass slices, each value
once however often it is seen in another shape.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from xdsl.ir import Block, SSAValue

from stagec.analysis.buffers import stored_rows
from stagec.dialects import sched
from stagec.dialects.memory import CONTIGUOUS, Kind
from stagec.dialects.types import StackType, tensor_of
from stagec.explaining.names import Names
from stagec.rewriting.saved_values import BlockPair, levels_of
from stagec.searching.outline import Turns, own_turns
from stagec.sweeping.structures import Structure
from stagec.symbolic import Size, ceildiv, total
from stagec.symbolic.columns import Columns

ONE_AT_A_TIME = ("1f1b", "zb_h1")
"""Schedules whose first rank sends as many microbatches on as there are ranks, before it begins a backward pass."""


def saved(structure: Structure, sizes: Columns, turns: Sequence[Turns]) -> np.ndarray:
    """Bytes that the layers of the first rank hold when its first backward pass begins, at least; 0 where nothing is known."""
    names, turns = structure.names, turns or own_turns(structure, sizes)
    program = structure.programs.get(first_kind(names))
    pipeline = structure.plan.pipeline
    nothing = np.zeros(sizes.count)
    if program is None or structure.plan.offload.activations:
        return nothing
    levels = [each for each in levels_of(program) if each.outer is not None]
    if any(each.outer is not None and each.outer.outer is not None for each in levels):
        return nothing
    layer = [(each, per_layer(each)) for each in levels]
    if pipeline is None:
        forms = [names.write(each.repeat.count.data * own, 0) for each, own in layer]
        return sizes.number(ceildiv(total(forms), 1)).astype(float)
    if len(layer) != 1 or names.stages is None or names.virtual_stages != 1:
        return nothing
    (level, own) = layer[0]
    layers = names.write(level.repeat.count.data, 0)
    if not layers.names:
        return nothing
    bytes_of_layer = sizes.number(ceildiv(names.write(own, 0), 1)).astype(float)
    of_rank = sizes.number(layers).astype(float)
    ranks = sizes.names[names.stages.axis.data].astype(float)
    microbatches = sizes.number(names.num_microbatches).astype(float)
    return bytes_of_layer * layers_in_flight(
        turns, of_rank, of_rank - pipeline.first, pipeline.first, ranks, microbatches
    )


def layers_in_flight(
    turns: Sequence[Turns],
    of_rank: np.ndarray,
    even: np.ndarray,
    first: int,
    ranks: np.ndarray,
    microbatches: np.ndarray,
) -> np.ndarray:
    """Layers times microbatches that the first rank has done when its first backward pass begins, at least.

    With v stages of a rank the first microbatch has to go through all p v of them, and each stage runs as many microbatches in a row as there
    are ranks (Narayanan et al. 2021, section 2.2): (v - 1) p passes, and one more. Where ranks divide microbatches, Megatron-LM's
    warm-up is longer by 2 (p - 1).
    """
    schedules = np.array([each.schedule for each in turns], object)
    virtual = np.array([each.virtual_stages for each in turns], float)
    together = np.minimum(ranks, microbatches)
    passes = (virtual - 1) * together + 1
    warm = np.minimum(passes + 2 * (ranks - 1), virtual * microbatches)
    passes = np.where((schedules == "interleaved_1f1b") & (microbatches % ranks == 0), warm, passes)
    # Of the first stage, which has `first` layers more or fewer.
    of_first = together if first > 0 else np.minimum(passes, microbatches)
    looped = passes * even / virtual + first * of_first
    one = np.where(np.isin(schedules, ONE_AT_A_TIME), together, 1.0)
    one = np.where(schedules == "gpipe", microbatches, one)
    return np.maximum(np.where(virtual > 1, looped, one * of_rank), 0)


STORED = (Kind.PARAMETERS, Kind.MASTER, Kind.OPTIMIZER, Kind.CACHE)
"""What is there at any time. Gradients may be freed before the peak."""


def stored(structure: Structure, sizes: Columns, kinds: Collection[Kind] = STORED) -> np.ndarray:
    """Bytes of these kinds that the first rank's device keeps from step to step, at least."""
    names = structure.names
    program = structure.programs.get(first_kind(names))
    if program is None:
        return np.zeros(sizes.count)
    rows = stored_rows(program, CONTIGUOUS)
    kept = [row.num_bytes for row in rows if row.kind in kinds and not row.on_host]
    return sizes.number(ceildiv(total(names.write(size, 0) for size in kept), 1)).astype(float)


def first_kind(names: Names) -> str:
    """Of the first stage's program; without a pipeline there is one program alone."""
    return names.stages.stages.data[0].kind if names.stages is not None else ""


def per_layer(level: BlockPair) -> Size:
    """Bytes that one layer saves for its backward pass."""
    found: dict[SSAValue, Size] = {}
    for value in level.saved().values():
        if isinstance(value.type, StackType):
            continue
        while isinstance(value.owner, sched.ViewOp):
            value = value.owner.operand
        # What the layers slice, weights above all, is no layer's own.
        if isinstance(value.owner, Block) and value not in level.repeat.carry_args:
            continue
        found.setdefault(value, tensor_of(value.type).num_bytes)
    return total(found.values())
