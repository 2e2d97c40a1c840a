"""A step of few microbatches has the situations of one of many, where the order of its tasks goes on."""

from __future__ import annotations

import random

import numpy as np
import pytest

from stagec.dialects.sched.tasks import TASKS, Order
from stagec.estimate.repetition import goes_on
from stagec.rank_orders import plain_order, rank_order
from stagec.schedules import ScheduleError, build, names
from stagec.sweeping.equal_memory import signature
from tests.unit.seldom import some

GROWS = ("gpipe", "looped_bfs")
"""Schedules whose memory grows with each microbatch."""
ENOUGH = 8
"""Orders of ranks that go on, of each schedule."""


def orders(
    name: str, ranks: int, virtual: int, microbatches: int, gathers: bool
) -> list[tuple[Order, int]]:
    """The order of each rank, and its number of stages; `gathers`: stages gather their parameters ahead of passes."""
    rows = {task for task in TASKS if gathers or not task.startswith("GATHER")} - {"pre"}
    if not name:
        return [(plain_order(microbatches, rows, virtual), 1)]
    schedule = build(name, ranks, virtual, microbatches)
    found: list[tuple[Order, int]] = []
    for rank in range(ranks):
        own = schedule.stages_of(rank)
        every = [rows] * len(own), [False] * len(own), [0] * len(own)
        found.append((rank_order(schedule, rank, own, *every), len(own)))
    return found


def steps(
    draw: random.Random, name: str
) -> tuple[list[tuple[Order, int]], list[tuple[Order, int]], list[tuple[Order, int]]] | None:
    """Steps of three numbers of microbatches that differ by whole blocks; nothing where the schedule does not run with them."""
    ranks, virtual = draw.choice((2, 4)), draw.choice((1, 2))
    size = ranks * 2
    first = ranks * draw.randrange(2, 6) + draw.choice((0, 0, 1))
    gathers = draw.random() < 0.3
    numbers = (first, first + size, first + size * draw.randrange(2, 5))
    try:
        few, more, many = (orders(name, ranks, virtual, number, gathers) for number in numbers)
    except ScheduleError:
        return None
    return few, more, many


@pytest.mark.parametrize("name", some(["", *names()]))
def test_the_same_situations(name: str) -> None:
    """Where the order goes on, signatures are equal; one other task in it, and it does not."""
    draw, found = random.Random(name), 0
    for _ in range(60):
        drawn = steps(draw, name)
        if drawn is None:
            continue
        for (few, _), (more, stages), (many, _) in zip(*drawn, strict=True):
            if not goes_on(few, more, many):
                continue
            found += 1
            assert signature(more, stages) == signature(many, stages)
            table = many.table.copy()
            at = draw.randrange(len(table) - 1)
            table[[at, at + 1]] = table[[at + 1, at]]
            assert np.array_equal(table, many.table) or not goes_on(
                few, more, Order.of_table(table)
            )
        if found >= ENOUGH:
            break
    assert (found >= ENOUGH) == (name not in GROWS)


def test_what_came_before_counts() -> None:
    """The first backward pass of all makes the first term of a sum, which the passes of a block that goes on do not: such a block is none."""

    def order(number: int) -> Order:
        return plain_order(number, {"F", "B", "step"})

    assert not goes_on(order(1), order(2), order(3))
    assert not goes_on(order(2), order(2), order(2))
    assert goes_on(order(2), order(3), order(4))
    assert signature(order(2), 1) != signature(order(3), 1) == signature(order(4), 1)
