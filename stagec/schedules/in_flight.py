"""How many microbatches a rank keeps activations of.

A microbatch is in flight on a stage from its F to the end of its whole backward: B, or W where the
backward is split (what W reads is kept until then). Counted in the order of the rank's actions.
"""

from dataclasses import dataclass

import numpy as np

from stagec.arrays import Ints
from stagec.schedules.table import ActionKind, Schedule


@dataclass(frozen=True, eq=False)
class InFlight:
    """Peaks of stage-microbatches in flight.

    `rank_peak[r]` counts all stages of the rank together: microbatches under 1F1B, each once for each of
    its stages where they are interleaved. `stage_peak[r, s]` counts one stage; 0 where the rank has not got it.
    """

    rank_peak: Ints
    stage_peak: Ints
    change: Ints
    """+1, -1 or 0 for each action of the schedule."""


def in_flight(schedule: Schedule) -> InFlight:
    kind, stage, _, _ = schedule.table
    change = (kind == ActionKind.FORWARD).astype(np.int64)
    if schedule.has_backward:
        change -= (kind == ActionKind.BACKWARD) | (kind == ActionKind.BACKWARD_WEIGHT)
    else:
        change[:] = 0
    rank_peak = peaks(change, schedule.rank, schedule.num_ranks)
    cell = schedule.rank * schedule.num_stages + stage
    compute = np.flatnonzero(~schedule.is_transfer)
    order = compute[np.argsort(cell[compute], kind="stable")]
    shape = (schedule.num_ranks, schedule.num_stages)
    stage_peak = peaks(change[order], cell[order], shape[0] * shape[1]).reshape(shape)
    return InFlight(rank_peak, stage_peak, change)


def peaks(change: Ints, cell: Ints, num_cells: int) -> Ints:
    """The highest running sum of each cell; the actions of a cell are adjacent."""
    peak = np.zeros(num_cells, np.int64)
    if len(change):
        first = np.flatnonzero(np.diff(cell, prepend=-1))
        total = np.cumsum(change)
        before = total[first] - change[first]
        peak[cell[first]] = np.maximum.reduceat(total, first) - before
    return peak
