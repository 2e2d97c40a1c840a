"""Whether a step of more microbatches is one of fewer with blocks put in, each of which repeats the one before it.

A node starts when the last of what it waits for ends. So if, on all ranks, everything in a block and behind it is later by one time than in the block before
it and behind that, then it is later by as much with each block more. `docs/decisions/many-microbatches.md` says for which questions that is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stagec.arrays import Bools, Floats
from stagec.backend.program import TraceProgram
from stagec.plans.clauses import Plan
from stagec.schedules.catalogue import CATALOGUE

SAME = 1e-9
"""Relative to the step: times that differ by less are the same."""


@dataclass(frozen=True)
class RepeatedNodes:
    """What the longer step of a rank has that the shorter one has not: nodes `start` to `stop`."""

    start: int
    stop: int


def may_repeat(plan: Plan) -> bool:
    """Whether a plan's schedule goes on evenly with more microbatches. A user's own may do anything, and so may a user's passes."""
    own = plan.pipeline is not None and plan.pipeline.schedule not in CATALOGUE
    return not own and not plan.passes


def pairs(plan: Plan, ranks: int, microbatches: int) -> Iterator[tuple[int, int]]:
    """Numbers of microbatches from which those of a step are reached in whole blocks, the smallest first."""
    pipeline = plan.pipeline
    step, warm_up = 1, 3
    if pipeline is not None:
        step, warm_up = ranks if pipeline.virtual_stages > 1 else 2, ranks + ranks // 4 + 4
    first = microbatches % step + -(-warm_up // step) * step
    while first + step < microbatches // 2:
        yield first, first + step
        first += -(-first // step) * step


def block_of(few: TraceProgram, more: TraceProgram) -> RepeatedNodes | None:
    """The nodes that the longer of two programs has and the shorter one has not, if they repeat those before them."""
    if few.segments != more.segments:
        return None
    before, after = sequence(few), sequence(more)
    start, stop = put_in(before, after)
    block = RepeatedNodes(int(more.first_node[start]), int(more.first_node[stop]))
    size = stop - start
    rows = slice(start - size, start)
    if size <= 0 or start < size or not np.array_equal(after[start:stop], after[rows]):
        return None
    return block if np.array_equal(before[start:], after[stop:]) else None


def sequence(program: TraceProgram) -> np.ndarray:
    """What runs, row by row, without its microbatch: `[n, 3]`."""
    return np.stack([program.segment, program.layer, program.stage], axis=1)


def put_in(before: np.ndarray, after: np.ndarray) -> tuple[int, int]:
    """Where the longer of two tables has what the other has not."""
    differ = np.flatnonzero((after[: len(before)] != before).any(axis=1))
    start = int(differ[0]) if len(differ) else len(before)
    return start, start + len(after) - len(before)


def is_put_in(
    before: np.ndarray,
    after: np.ndarray,
    block: RepeatedNodes,
    delay: Floats | float,
    near: Floats | float = 0.0,
) -> Bools:
    """Whether numbers of nodes are as before, then those of a block as of that before it, and all from then on more by `delay`.

    Of several plans, `[node, plan]`, each for itself. Of nodes whose number is NaN nothing is asked.
    """
    start, stop = block.start, block.stop
    size = stop - start

    def same(one: np.ndarray, other: np.ndarray) -> Bools:
        return ~np.asarray((np.abs(one - other) > near).any(axis=0))

    return (
        same(after[:start], before[:start])
        & same(after[start:stop], after[start - size : start] + delay)
        & same(after[stop:], before[start:] + delay)
    )
