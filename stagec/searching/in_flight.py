"""How many microbatches a pipeline's rank has in flight just before each of its backward passes, by its schedule: so often its layers hold what they save."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
"""The two kinds of stages of a rank: one that is at an end of the pipeline, which may have other layers than the rest, and all others. Where a pipeline cuts
several repeats, each stage is a kind of its own."""


def is_looped(schedule: str) -> bool:
    """Whether a schedule places stage s on rank s mod p, for p ranks, and has backward passes. Of other schedules it is not known what ranks hold."""
    entry = CATALOGUE.get(schedule)
    return entry is not None and entry.placement == "loop" and schedule != FORWARD_ONLY


@cache
def in_flight(turns: Turns, ranks: int, microbatches: int, of_several: bool) -> dict[int, Ints]:
    """For each rank that is looked at, the moments that may be its peak: how often each kind of stage holds each of the four things that a layer may hold,
    `[moment, kind of stage, thing]`. `of_several`: the pipeline cuts several repeats.
    """
    virtual = turns.virtual_stages
    rows = CATALOGUE[turns.schedule].rows(ranks, virtual, microbatches)
    found: dict[int, Ints] = {}
    for rank in looked_at(ranks):
        kinds = [*range(virtual)] if of_several else kinds_of_stages(rank, ranks, virtual)
        found[rank] = moments(rows[rank], ranks, kinds, microbatches)
    return found


def kinds_of_stages(rank: int, ranks: int, virtual: int) -> list[int]:
    """The kind of each stage of a rank that has `virtual` of them."""
    kinds = [OTHER] * virtual
    if rank in (0, ranks - 1):
        kinds[0 if rank == 0 else -1] = END
    return kinds


def looked_at(ranks: int) -> Iterator[int]:
    """The ranks that may need most memory: the first two, which have most microbatches in flight, and the last two, which delay most gradients of weights.

    Two at each end are looked at, because the stage at the very end may have fewer layers.
    """
    yield from sorted({0, min(1, ranks - 1), max(ranks - 2, 0), ranks - 1})


def moments(row: ActionColumns, ranks: int, kinds: Sequence[int], microbatches: int) -> Ints:
    """The moments of one rank that may be its peak (see `in_flight`), given what it runs in order (`row`) and of which kind each of its stages is."""
    kind, stage = row.kind, row.stage // ranks
    forward = kind == ActionKind.FORWARD
    inputs = (kind == ActionKind.BACKWARD) | (kind == ActionKind.BACKWARD_INPUT)
    weights = (kind == ActionKind.BACKWARD) | (kind == ActionKind.BACKWARD_WEIGHT)
    is_back = inputs | weights
    found = np.zeros((int(is_back.sum()), max(kinds) + 1, 4), np.int64)
    for number, at in enumerate(kinds):
        own = stage == number
        # How often until then, this action not counted.
        done = [np.cumsum(own & each) - (own & each) for each in (forward, inputs, weights)]
        begun, back, ended = (each[is_back] for each in done)
        found[:, at, SAVED] += begun - back
        found[:, at, LATE] += back - ended
        found[:, at, SUMS] += (ended > 0) & (ended < microbatches)
        # Of few stages all parameters stay; else those of the stage that goes back are there.
        resident = back < microbatches if len(kinds) <= RESIDENT_STAGES else (own & inputs)[is_back]
        found[:, at, GATHERED] += resident
    return distinct(found.reshape(len(found), -1)).reshape(-1, *found.shape[1:])
