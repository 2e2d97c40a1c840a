"""Where a step's time goes on the rank that computes longest, in parts that add up to the step.

Every moment belongs to one part. If the rank computes, the moment belongs to the kind of computation. Otherwise, if communication runs, it belongs to that
(of several collectives at once, to the first by the names of their axes, copies to and from the host last). Otherwise, if the host is launching the next
kernel, it belongs to the launch, and else to the *bubble*, in which the rank waits for others. So communication counts only where it is *exposed*: it costs
nothing here while computation hides it.
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
from stagec.estimate.kernels.price import Basis
from stagec.estimate.prices import Prices
from stagec.estimate.timeline import Timeline

PRODUCTS, ATTENTION, SCANS, MEMORY = "products", "attention", "scans", "memory-bound"
PARTS: Mapping[Work, str] = {
    **dict.fromkeys((Work.PRODUCT, Work.CONVOLUTION), PRODUCTS),
    **dict.fromkeys((Work.ORTHOGONALIZATION, Work.PRECONDITIONING), PRODUCTS),
    **dict.fromkeys((Work.ATTENTION, Work.ATTENTION_GRAD, Work.LATENT_ATTENTION), ATTENTION),
    **dict.fromkeys((Work.SCAN, Work.SCAN_GRAD, Work.DELTA_RULE, Work.DELTA_RULE_GRAD), SCANS),
}
"""The part of a step that a kernel belongs to, by its kind; all others are `MEMORY`."""
OPTIMIZER, BUBBLE, HOST, LAUNCHES = "optimizer", "bubble", "host", "launches"
EXPOSED = "exposed"


@dataclass(frozen=True)
class Breakdown:
    """The parts of a step's time on one rank."""

    rank_class: str
    """The name of the rank's class, which is the one that computes longest; empty where all ranks are of one class."""
    parts: Mapping[str, float]
    """The time of each part in µs: `products`, ..., `exposed tp`, ..., `bubble`. They add up to the step."""
    basis: Mapping[Basis, float]
    """For each basis of times, its share of the time outside the bubble. The shares add up to 1."""
    hidden_us: float
    """How long communication runs while the rank computes, in µs."""

    @property
    def total_us(self) -> float:
        """The time of the step in µs."""
        return sum(self.parts.values())


def breakdown(
    traces: TraceSet, timeline: Timeline, prices: Prices, number: int | None = None
) -> Breakdown:
    """Break down the time of the class with this number: by default of the one that computes longest, and so waits least (of several, the first). Which ranks
    end last depends on the schedule.
    """
    if number is None:
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
    parts[BUBBLE] = rest if rest > intervals.SAME * makespan else 0.0
    total = sum(by_basis.values()) or 1.0
    return Breakdown(
        rank_class.name if len(traces.classes) > 1 else "",
        dict(parts),
        {each: value / total for each, value in by_basis.items()},
        hidden,
    )


def launches(timeline: Timeline, number: int) -> intervals.Intervals:
    """The times in which the host of a rank launches a node that starts as soon as it is launched. `number` is that of the rank's class."""
    if timeline.launched_us is None:
        return intervals.union(np.zeros(0), np.zeros(0))
    starts, _ = timeline.of_class(number)
    ready = timeline.launched_us[timeline.begins[number] : timeline.begins[number + 1]]
    known = np.flatnonzero(~np.isnan(ready))
    ready, starts = ready[known], starts[known]
    before = np.concatenate([[0.0], ready[:-1]])
    bound = starts <= ready * (1 + intervals.SAME)
    return intervals.union(before[bound], ready[bound])


COMPUTING, COMMUNICATING = 0, 1


def longest(busy_us: np.ndarray) -> int:
    """The number of the class that computes longest, given the times of all classes; of several, the first."""
    return int(np.argmax(busy_us >= busy_us.max() * (1 - intervals.SAME)))


def computing_us_of_classes(traces: TraceSet, timeline: Timeline) -> np.ndarray:
    """`[class]`: how long a rank of each class computes, in µs."""
    pairs = ((c, timeline.of_class(number)) for number, c in enumerate(traces.classes))
    return np.array([computing_us(c, *times) for c, times in pairs])


def computing_us(rank_class: RankClass, starts: np.ndarray, ends: np.ndarray) -> float:
    """How long a rank of a class computes, in µs, given when its nodes start and end, `[node]` in µs."""
    program = rank_class.program
    computes = [
        np.array([node.computes for node in segment.nodes], bool) for segment in program.segments
    ]
    if not computes:
        return 0.0
    computing = np.concatenate([computes[segment] for segment in program.segment])
    return float((ends - starts)[computing].sum())


def labels(rank_class: RankClass, prices: Prices) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`[node]` each, for the nodes of a class in issue order: the part they belong to, the basis of their time, and whether they compute."""
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
    """The part of a step's time that a node belongs to."""
    action = node.action
    if isinstance(action, Compute):
        if node.phase == "optim":
            return OPTIMIZER
        return MEMORY if action.kernel is None else PARTS.get(action.kernel.kind, MEMORY)
    if isinstance(action, Collective | Transfer):
        return f"{EXPOSED} {action.over}"
    assert isinstance(action, HostCopy | HostUpdate)
    return HOST


def order_of(name: str) -> tuple[bool, str]:
    """The order in which parts of communication that run at once are counted: by the names of axes, copies to and from the host last."""
    return (name == HOST, name)
