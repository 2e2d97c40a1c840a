"""What nodes of a program wait for through others, against the sets of all nodes that each waits for."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from stagec.driver import compile_text
from stagec.estimate.waits import Waits
from tests.unit.explaining.test_sweep import CLAUSES, TINY
from tests.unit.seldom import mostly

CUT = {**CLAUSES, "in_pieces": "shard S over tp\n  overlap { tp = true }\n  microbatch 1"}


def programs(clauses: str) -> Iterator[Waits]:
    text = TINY.replace("CLAUSES", CUT[clauses]).replace("dim L = 12", "dim L = 4")
    text = text.replace("[5, 7]", "[1, 3]").replace("[4, 5, 3, 0]", "[1, 2, 1, 0]")
    for each in compile_text(text).trace_set.classes[:2]:
        yield Waits(each.program)


def closed(waits: Waits, kept: Sequence[bool] | np.ndarray) -> list[int]:
    """For each node all that it waits for, by those waits that are `kept`: a bit of each."""
    found = [0 for _ in waits.stream]
    waiting, awaited = (each[kept] for each in waits.pairs)
    for at in np.argsort(waiting, kind="stable").tolist():
        if awaited[at] >= 0:
            found[waiting[at]] |= 1 << int(awaited[at]) | found[awaited[at]]
    return found


def bits(nodes: np.ndarray) -> int:
    return sum(1 << node for node in nodes.tolist())


@pytest.mark.parametrize(
    "clauses", mostly(lambda name: name in ("interleaved", "zero_3", "in_pieces"), CUT)
)
def test_what_is_left_out_is_waited_for_through_others(clauses: str) -> None:
    rng = random.Random(clauses)
    for waits in programs(clauses):
        every = closed(waits, np.ones(len(waits.implied), bool))
        assert closed(waits, ~waits.implied) == every
        needed = np.flatnonzero(~waits.implied)
        assert len(needed) < 0.7 * len(waits.implied)
        for stream, reached in waits.reached.items():
            own = waits.streams[stream]
            every_own = bits(own)
            for node in rng.sample(range(len(every)), 20):
                assert every[node] & every_own == bits(own[own <= reached[node]])
        # None of the rest is left out for nothing.
        for at in rng.sample(needed.tolist(), 3):
            kept = ~waits.implied
            kept[at] = False
            assert closed(waits, kept) != every


@pytest.mark.parametrize(
    "clauses", mostly(lambda name: name in ("1f1b", "zero_3", "in_pieces"), CUT)
)
def test_nodes_run_beside_those_that_they_do_not_wait_for(clauses: str) -> None:
    rng = random.Random(clauses)
    for waits in programs(clauses):
        every = closed(waits, np.ones(len(waits.implied), bool))
        others = waits.streams[0]
        nodes = np.array(rng.sample(np.concatenate(waits.streams[1:]).tolist(), 20))
        for node, begin, end in zip(nodes.tolist(), *waits.between(nodes, others), strict=True):
            for number, other in enumerate(others.tolist()):
                is_apart = every[node] >> other & 1 or every[other] >> node & 1
                assert bool(is_apart) == (not begin <= number < end)
