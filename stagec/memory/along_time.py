"""Memory along the estimated time of a step, beside that in issue order.

In issue order a buffer lives until the last node that reads it is issued. A communication that lags behind computation still has its buffers
while later nodes run: along time a buffer lives from when the node that makes it starts until the last of its readers ends. What is freed just
before a reader, is freed as that starts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stagec.arrays import Floats, Ints
from stagec.dialects.memory import Kind
from stagec.memory.lifetimes import Lifetimes, lifetimes
from stagec.memory.plan import ClassPlan, Moment, moment

SHORTEST_US = 1e-3
"""What ends so little before another thing starts, ends as it starts: times are sums of floats."""


@dataclass(frozen=True)
class TimedPeak:
    """The most that a rank needs at any time of a step."""

    num_bytes: int
    time_us: float
    at: Moment
    """What starts then."""


def peak_along_time(plan: ClassPlan, start: Floats, end: Floats) -> TimedPeak:
    """The peak of a class whose nodes start and end at these times, in the order in which they are issued."""
    by_end = np.lexsort((np.arange(len(end)), end))
    lives, born, freed, maker = timed(plan, by_end, start, end)
    change = np.concatenate([lives.num_bytes, -lives.num_bytes])
    times = np.concatenate([born, np.maximum(freed - SHORTEST_US, born)])
    # At one time what is freed goes first, unless it is born then.
    is_free = np.arange(len(times)) >= len(born)
    lasts = np.concatenate([np.zeros(len(born), bool), freed - SHORTEST_US > born])
    order = np.lexsort((np.where(is_free, np.where(lasts, 0, 2), 1), times))
    levels = np.cumsum(change[order])
    if not len(levels):
        return TimedPeak(plan.always_bytes, 0.0, plan.peak)
    most = int(np.argmax(levels))
    event = int(order[most])
    return TimedPeak(
        plan.always_bytes + int(levels[most]),
        float(times[event]),
        moment(plan.arrangement, int(maker[event % len(born)])),
    )


def timed(
    plan: ClassPlan, by_end: Ints, start: Floats, end: Floats
) -> tuple[Lifetimes, Floats, Floats, Ints]:
    """The buffers of the device, when each is born and freed, and the node at which it is born.

    Nodes are placed by when they end, at odd numbers: so the last reader of a buffer is the one that ends last, and an even number is
    the start of the node at the next.
    """
    place = np.empty(len(by_end), np.int64)
    place[by_end] = 2 * np.arange(len(by_end)) + 1
    everything = lifetimes(plan.arrangement, plan.tables, place)
    lives = everything.select(everything.kind < Kind.HOST)
    maker, last = by_end[lives.birth // 2], by_end[lives.death // 2]
    before = lives.death % 2 == 0
    return lives, start[maker], np.where(before, start[last], end[last]), maker
