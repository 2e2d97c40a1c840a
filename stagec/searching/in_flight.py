"""How many microbatches a pipeline's rank has in flight just before each of its backward passes, by its schedule: so often its layers hold what they save."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

from stagec.arrays import Ints
from stagec.schedules.catalogue import CATALOGUE, FORWARD_ONLY
from stagec.schedules.table import ActionColumns, ActionKind
from stagec.schedules.transfers import RESIDENT_STAGES
from stagec.searching.coarse_times import Turns
from stagec.sweeping.peaks import distinct

SAVED, LATE, SUMS, GATHERED = range(4)
"""The four things that a layer may hold. `SAVED`: what it saved of a microbatch that has gone forward and not yet back. `LATE`: what the gradients of its
weights still read of a microbatch that has gone back. `SUMS`: sums of gradients, from the first microbatch to the last. `GATHERED`: parameters that are
gathered once for all microbatches."""

END, OTHER = 0, 1
"""The two kinds of stages of a rank: one that is at an end of the pipeline, which may have other layers than the rest, and all others."""


def is_looped(schedule: str) -> bool:
    """Whether a schedule places stage s on rank s mod p, for p ranks, and has backward passes. Of other schedules it is not known what ranks hold."""
    entry = CATALOGUE.get(schedule)
    return entry is not None and entry.placement == "loop" and schedule != FORWARD_ONLY


@cache
def in_flight(turns: Turns, ranks: int, microbatches: int) -> dict[int, Ints]:
    """For each rank that is looked at, the moments that may be its peak: how often each kind of stage holds each of the four things that a layer may hold,
    `[moment, kind of stage, thing]`.
    """
    rows = CATALOGUE[turns.schedule].rows(ranks, turns.virtual_stages, microbatches)
    return {
        rank: moments(rows[rank], rank, ranks, turns.virtual_stages, microbatches)
        for rank in looked_at(ranks)
    }


def looked_at(ranks: int) -> Iterator[int]:
    """The ranks that may need most memory: the first two, which have most microbatches in flight, and the last two, which delay most gradients of weights.

    Two at each end are looked at, because the stage at the very end may have fewer layers.
    """
    yield from sorted({0, min(1, ranks - 1), max(ranks - 2, 0), ranks - 1})


def moments(row: ActionColumns, rank: int, ranks: int, virtual: int, microbatches: int) -> Ints:
    """The moments of one rank that may be its peak (see `in_flight`), given what it runs in order (`row`) and its number of stages (`virtual`)."""
    kind, stage = row.kind, row.stage // ranks
    forward = kind == ActionKind.FORWARD
    inputs = (kind == ActionKind.BACKWARD) | (kind == ActionKind.BACKWARD_INPUT)
    weights = (kind == ActionKind.BACKWARD) | (kind == ActionKind.BACKWARD_WEIGHT)
    is_back = inputs | weights
    # The stage of the end, if the rank has it.
    end = 0 if rank == 0 else virtual - 1 if rank == ranks - 1 else -1
    found = np.zeros((int(is_back.sum()), 2, 4), np.int64)
    for number in range(virtual):
        own = stage == number
        # How often until then, this action not counted.
        done = [np.cumsum(own & each) - (own & each) for each in (forward, inputs, weights)]
        begun, back, ended = (each[is_back] for each in done)
        at = END if number == end else OTHER
        found[:, at, SAVED] += begun - back
        found[:, at, LATE] += back - ended
        found[:, at, SUMS] += (ended > 0) & (ended < microbatches)
        # Of few stages all parameters stay; else those of the stage that goes back are there.
        resident = back < microbatches if virtual <= RESIDENT_STAGES else (own & inputs)[is_back]
        found[:, at, GATHERED] += resident
    return distinct(found.reshape(-1, 8)).reshape(-1, 2, 4)
