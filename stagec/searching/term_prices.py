"""How long one run of each op of a structure takes, for all of its plans at once, given the neighbours that it shares kernels with.

A *term* is an op of a rank class with the number of times that it runs (`stagec.explaining.rolled_operations`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Block, Operation

from stagec.analysis.coordinates import SUFFIX
from stagec.analysis.dataflow import behind_views
from stagec.analysis.kernels import SUMS
from stagec.arrays import Floats
from stagec.backend.program import Dep, Node
from stagec.dialects import sched
from stagec.dialects.sched.actions import Compute
from stagec.estimate.prices import NodeCosts, Prices, bytes_of, kernel_prices
from stagec.explaining.job import NamedJob
from stagec.explaining.rolled_operations import ClassOperations, Term
from stagec.sweeping.actions import ActionForm
from stagec.sweeping.op_costs import PriceColumns
from stagec.symbolic import Size, call, constant, product, symbol
from stagec.symbolic.columns import Columns


class TermTime(NamedTuple):
    """The time of one run of a term's op."""

    seconds: Floats
    """`[plan]`."""
    launching: float = 0.0
    """Seconds that the host takes to launch it."""
    adding: Floats | float = 0.0
    """Of the seconds, at most those in which a gradient is added to those of earlier microbatches: `[plan]`, or one for all."""


class SegmentTimes(NamedTuple):
    """The fields of `TermTime` in µs, for each op of a segment."""

    us: Floats
    launching: Sequence[float]
    adding: Sequence[Floats | float]


class TermSizes(NamedTuple):
    """The sizes that a term's price depends on. A gradient that joins a bucket has the sizes of a full bucket, and a share of its price."""

    sizes: tuple[Size, ...] | None
    """The sizes of its `ActionForm`; None for an op that sizes alone do not describe."""
    share: Floats | float
    """The share of the price that the term takes, `[plan]` or one for all; 1 outside of buckets."""


@dataclass
class TermPrices:
    """Computes the times of the terms of all rank classes of a job."""

    job: NamedJob
    sizes: Columns
    """The sizes of the plans, one row each."""
    _forms: dict[int, tuple[Size, ...] | None] = field(default_factory=dict)
    _segments: dict[object, SegmentTimes] = field(default_factory=dict)
    _classes: dict[int, list[TermTime]] = field(default_factory=dict)

    @cached_property
    def columns(self) -> PriceColumns:
        """The prices of single ops in all plans."""
        compiled = self.job.compiled
        kernels = kernel_prices(compiled.plan, compiled.stated.is_training)
        return PriceColumns(compiled.plan, self.sizes, tuple(self.job.names.mesh), kernels)

    @cached_property
    def prices(self) -> Prices:
        """The prices on the mesh of the first plan. They are used for sharing of kernels, which does not depend on the mesh."""
        return self.columns.prices(0)

    @cached_property
    def escaping(self) -> Collection[Operation]:
        """The ops whose results are read outside of their segment."""
        return {op for op in self.job.compiled.module.walk() for op in read_from_outside(op)}

    def of_class(self, each: ClassOperations) -> list[TermTime]:
        """The times of the terms of a rank class, in the order of the terms."""
        if id(each) not in self._classes:
            segments: dict[object, list[int]] = defaultdict(list)
            for at, term in enumerate(each.terms):
                own = term.counted
                key = id(own.stage), number_of(own.op), own.task, own.layer, own.boundary_shift
                segments[key].append(at)
            found: dict[int, TermTime] = {}
            for members in segments.values():
                terms = [each.terms[at] for at in members]
                found.update(zip(members, self.of_segment(terms, each.where), strict=True))
            self._classes[id(each)] = [found[at] for at in range(len(each.terms))]
        return self._classes[id(each)]

    def of_segment(
        self, terms: Sequence[Term], where: Mapping[str, Sequence[int]]
    ) -> Iterator[TermTime]:
        """The times of the terms of one segment. `where` are the coordinates of the ranks of the class."""
        numbers = [self.numbers(term, where) for term in terms]
        key = tuple((id(t.counted.op), n.sizes) for t, n in zip(terms, numbers, strict=True))
        if any(own.sizes is None for own in numbers) or key not in self._segments:
            self._segments[key] = self.among_neighbours(terms, numbers)
        found = self._segments[key]
        for own, us, launching, adding in zip(
            numbers, found.us, found.launching, found.adding, strict=True
        ):
            yield TermTime(own.share * us / 1e6, launching / 1e6, own.share * adding / 1e6)

    def among_neighbours(self, terms: Sequence[Term], numbers: Sequence[TermSizes]) -> SegmentTimes:
        """How long the ops of a segment take where they share kernels with each other."""
        nodes = nodes_of(terms)
        escaping = {at for at, t in enumerate(terms) if t.counted.op in self.escaping}
        costs = self.costs(terms, nodes, numbers)
        self.prices.share(nodes, escaping, costs)
        each_us = self.prices.host_launch_us
        launches = self.prices.launches(nodes, escaping) if each_us else np.zeros(len(nodes))
        adding = map(self.adding, nodes, numbers, costs.us)
        return SegmentTimes(costs.us, (each_us * launches).tolist(), list(adding))

    def adding(self, node: Node, numbers: TermSizes, taken: Floats) -> Floats | float:
        """How many µs fewer than alone an op would take if it added its result to no sum (`SUMS`), and at most what it has `taken`."""
        kernel = node.action.kernel if isinstance(node.action, Compute) else None
        if kernel is None or numbers.sizes is None or not any(n in SUMS for n, _ in kernel.sizes):
            return 0.0
        names = [name for name, _ in kernel.sizes]
        first = len(numbers.sizes) - len(names)
        left = [at for at, name in enumerate(names) if name not in SUMS]
        plain = replace(kernel, sizes=tuple(kernel.sizes[at] for at in left))
        sizes = [*numbers.sizes[:first], *(numbers.sizes[first + at] for at in left)]
        with_sum, without = (
            self.columns.of(each, [(size,) for size in own]).us
            for each, own in (
                (node, numbers.sizes),
                (replace(node, action=replace(node.action, kernel=plain)), sizes),
            )
        )
        return np.minimum(np.maximum(with_sum - without, 0), taken)

    def costs(
        self, terms: Sequence[Term], nodes: Sequence[Node], numbers: Sequence[TermSizes]
    ) -> NodeCosts:
        """The costs of the ops of a segment, each by itself: `[op, plan]`."""
        rows: list[Sequence[Floats]] = []
        for term, node, own in zip(terms, nodes, numbers, strict=True):
            if own.sizes is None:
                rows.append(self.one_by_one(term))
                continue
            sizes = [(size,) for size in own.sizes]
            found = self.columns.of(node, sizes)
            rows.append((found.us, found.basis, *self.columns.bytes_of(node, sizes)))
        us, basis, moved, written = (np.stack(each) for each in zip(*rows, strict=True))
        return NodeCosts(us, basis, moved, written)

    def numbers(self, term: Term, where: Mapping[str, Sequence[int]]) -> TermSizes:
        """The sizes that a term's price depends on (`TermSizes`)."""
        counted = term.counted
        if id(counted.op) not in self._forms:
            form = ActionForm.of(counted.op, counted.known.forms)
            self._forms[id(counted.op)] = None if form is None else form.sizes
        form = self._forms[id(counted.op)]
        if form is None:
            return TermSizes(None, 1.0)
        stage = counted.stage.stage
        own = [at_first(where, self.job.names.write(size, stage)) for size in form]
        bucket = counted.op.properties.get("bucket_bytes")
        if not isinstance(counted.op, sched.CollectiveOp) or not isinstance(bucket, IntegerAttr):
            return TermSizes(tuple(own), 1.0)
        of_plans = [self.sizes.number(size).astype(float) for size in own]
        most = own[int(of_plans[1].max() > of_plans[0].max())]
        full = call("max", most, bucket.value.data)
        ways = product(map(symbol, counted.op.axes.data))
        joined = tuple(full if size == most else full / ways for size in own)
        return TermSizes(joined, self.sizes.number(most) / self.sizes.number(full))

    def one_by_one(self, term: Term) -> Sequence[Floats]:
        """The µs, basis, moved and written bytes, `[plan]` each, of an op that sizes alone do not describe: it is priced plan by plan."""
        found = np.zeros((4, self.sizes.count))
        for row in range(self.sizes.count):
            sizes = {name: int(column[row]) for name, column in self.sizes.names.items()}
            node = term.counted.node(sizes)
            prices = self.columns.prices(int(self.columns.mesh[row]))
            price = prices.node(node)
            us = price.on_slowest(prices.slowness)
            found[:, row] = us, price.basis, *bytes_of(node.action)
        return [*found]


def number_of(op: sched.NodeOp) -> int:
    """The number of an op's segment; -1 if it has none."""
    return op.segment.number if op.segment is not None else -1


def read_from_outside(op: Operation) -> Iterator[Operation]:
    """The ops of other segments whose results an op reads."""
    if isinstance(op, sched.ViewOp):
        return
    for value in op.operands:
        made = behind_views(value)
        if not isinstance(made, sched.NodeOp):
            continue
        if not isinstance(op, sched.NodeOp) or number_of(op) != number_of(made):
            yield made


def nodes_of(terms: Sequence[Term]) -> list[Node]:
    """The nodes of a segment's terms. Each names the nodes of the segment whose results it reads."""
    place: dict[Operation | Block, int] = {t.counted.op: at for at, t in enumerate(terms)}
    found: list[Node] = []
    for term in terms:
        made = map(behind_views, term.counted.op.operands)
        inside = dict.fromkeys(place[each] for each in made if each in place)
        found.append(replace(term.node, data_deps=tuple(Dep(-1, at) for at in inside)))
    return found


def at_first(where: Mapping[str, Sequence[int]], size: Size) -> Size:
    """A size as it is on the first rank of a class, if it depends on the rank, such as what a window sees of a sequence that is split."""
    places = {name: constant(where.get(name.removesuffix(SUFFIX), (0,))[0]) for name in size.names}
    return size.substitute({n: at for n, at in places.items() if n.endswith(SUFFIX)})
