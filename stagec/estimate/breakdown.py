"""Where a step's time goes, on the rank that computes longest: parts that add up to the step.

Every moment belongs to one part: to what is computed, if anything is; else to the communication that runs, of several to the first in the
order below; else to the host that launches what is next, where no graph does; else to waiting for other ranks, the bubble. So communication
is what is *exposed*: what computation hides costs nothing here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stagec.backend.program import Node, RankClass, TraceSet
from stagec.dialects.sched.actions import Collective, Compute, HostCopy, HostUpdate, Transfer
from stagec.dialects.work import Work
from stagec.estimate import intervals
from stagec.estimate.kernels import Basis
from stagec.estimate.prices import Prices
from stagec.estimate.timeline import Timeline

PRODUCTS, ATTENTION, MEMORY = "products", "attention", "memory-bound"
OPTIMIZER, BUBBLE, HOST, LAUNCHES = "optimizer", "bubble", "host", "launches"
EXPOSED = "exposed"


@dataclass(frozen=True)
class Breakdown:
    """Of one rank of a class."""

    rank_class: str
    """The one that computes longest; empty where all ranks are of one class."""
    parts: Mapping[str, float]
    """µs: `products`, ..., `exposed tp`, ..., `bubble`; they add up to the step."""
    basis: Mapping[Basis, float]
    """Shares of the time that is no bubble."""
    hidden_us: float
    """Communication that computation hides."""

    @property
    def total_us(self) -> float:
        return sum(self.parts.values())


def breakdown(traces: TraceSet, timeline: Timeline, prices: Prices) -> Breakdown:
    """Of the class that computes longest, and so has least to wait for: which ranks end last depends on the schedule. Of several, the first."""
    number = longest(computing_us_of_classes(traces, timeline))
    rank_class = traces.classes[number]
    starts, ends = timeline.of_class(number)
    makespan = timeline.makespan_us
    kinds, basis, streams = labels(rank_class, prices)
    parts: dict[str, float] = defaultdict(float)
    by_basis: dict[Basis, float] = dict.fromkeys(Basis, 0.0)
    names, which = np.unique(kinds, return_inverse=True)
    computing = streams == COMPUTING
    for index, name in enumerate(names.tolist()):
        here = computing & (which == index)
        if here.any():
            parts[name] += float((ends[here] - starts[here]).sum())
    for each in Basis:
        here = computing & (basis == each)
        by_basis[each] += float((ends[here] - starts[here]).sum())
    busy = intervals.union(starts[computing], ends[computing])
    free = intervals.complement(busy, makespan)
    hidden = 0.0
    for name in sorted({n for n in names[which[~computing]].tolist()}, key=order_of):
        here = ~computing & (names[which] == name)
        running = intervals.union(starts[here], ends[here])
        shown = intervals.intersection(free, running)
        exposed = intervals.length(shown)
        hidden += intervals.length(running) - exposed
        free = intervals.difference(free, shown)
        if exposed:
            parts[name] += exposed
            weights = {each: float((ends - starts)[here & (basis == each)].sum()) for each in Basis}
            total = sum(weights.values()) or 1.0
            for each, weight in weights.items():
                by_basis[each] += exposed * weight / total
    waited = intervals.length(intervals.intersection(free, launches(timeline, number)))
    if waited:
        parts[LAUNCHES] = waited
        by_basis[Basis.RULE] += waited
    # What is left of sums in another order is no waiting, and less than nothing where kernels of one stream were rounded.
    rest = makespan - sum(parts.values())
    parts[BUBBLE] = rest if rest > SAME * makespan else 0.0
    total = sum(by_basis.values()) or 1.0
    return Breakdown(
        rank_class.name if len(traces.classes) > 1 else "",
        dict(parts),
        {each: value / total for each, value in by_basis.items()},
        hidden,
    )


def launches(timeline: Timeline, number: int) -> intervals.Intervals:
    """The times in which the host of a class' rank launches what starts as soon as it has."""
    if timeline.launched_us is None:
        return intervals.union(np.zeros(0), np.zeros(0))
    starts, _ = timeline.of_class(number)
    ready = timeline.launched_us[timeline.begins[number] : timeline.begins[number + 1]]
    known = np.flatnonzero(~np.isnan(ready))
    ready, starts = ready[known], starts[known]
    before = np.concatenate([[0.0], ready[:-1]])
    bound = starts <= ready * (1 + SAME)
    return intervals.union(before[bound], ready[bound])


COMPUTING, COMMUNICATING = 0, 1
SAME = 1e-9
"""Relative: sums of the same times in another order."""


def longest(busy_us: np.ndarray) -> int:
    """Which class computes longest; of several, the first."""
    return int(np.argmax(busy_us >= busy_us.max() * (1 - SAME)))


def computing_us_of_classes(traces: TraceSet, timeline: Timeline) -> np.ndarray:
    """How long a rank of each class computes."""
    pairs = ((c, timeline.of_class(number)) for number, c in enumerate(traces.classes))
    return np.array([computing_us(c, *times) for c, times in pairs])


def computing_us(rank_class: RankClass, starts: np.ndarray, ends: np.ndarray) -> float:
    """How long a rank of a class computes."""
    program = rank_class.program
    computes = [
        np.array([node.computes for node in segment.nodes], bool) for segment in program.segments
    ]
    if not computes:
        return 0.0
    computing = np.concatenate([computes[segment] for segment in program.segment])
    return float((ends - starts)[computing].sum())


def labels(rank_class: RankClass, prices: Prices) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of all nodes of a class, in issue order: their part, what their time rests on, and whether they compute."""
    program = rank_class.program
    first = program.first_node
    total = int(first[-1])
    kinds = np.zeros(total, object)
    basis = np.zeros(total, np.int64)
    streams = np.zeros(total, np.int64)
    for index, segment in enumerate(program.segments):
        rows = np.flatnonzero(program.segment == index)
        if not len(rows):
            continue
        priced = prices.segment(rank_class, index)
        for i, node in enumerate(segment.nodes):
            at = first[rows] + i
            kinds[at] = part_of(node)
            basis[at] = priced.basis[i]
            streams[at] = COMPUTING if node.computes else COMMUNICATING
    return kinds.astype(str), basis, streams


def part_of(node: Node) -> str:
    action = node.action
    if isinstance(action, Compute):
        if node.phase == "optim":
            return OPTIMIZER
        if action.kernel is None or action.kernel.kind in (Work.OTHER, Work.QUANTIZE):
            return MEMORY
        return PRODUCTS if action.kernel.kind == "product" else ATTENTION
    if isinstance(action, Collective | Transfer):
        return f"{EXPOSED} {action.over}"
    assert isinstance(action, HostCopy | HostUpdate)
    return HOST


def order_of(name: str) -> tuple[bool, str]:
    """Communication by the name of its axes, copies to and from the host last."""
    return (name == HOST, name)
