"""What each rank runs in a step: every op once, how often, and what one run of it costs. The one count of a step.

    for each in counted.operations:
        total += each.runs * each.numbers.flops

An op of the last IR stands in loops; `sched.tasks` lists its rows, and `sched.program` how often a rank runs each task. Nothing is
unrolled. Costs are exact expressions, and whoever counts evaluates them: as whole numbers (`numbers`, as traces state them), as
fractions, in names that users know (`stagec.explaining`), or as columns of many plans at once (`stagec.sweeping`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import prod
from typing import Generic, TypeVar

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from stagec import symbolic
from stagec.analysis.dataflow import Dataflow
from stagec.analysis.expert_loads import Loads
from stagec.analysis.kernels import Forms
from stagec.analysis.segments import nodes_inside
from stagec.analysis.sizes import averages, dim_sizes, mesh_of
from stagec.backend.lowering.templates import Templates
from stagec.backend.program import Mesh, Node
from stagec.diagnostics import line_of
from stagec.dialects import dist, sched, stg
from stagec.dialects.sched.tasks import NOWHERE, TASK_NUMBER, TRANSFER_TASKS, Rows
from stagec.dialects.types import TIME_AXIS, StackType, ValueType, tensor_of
from stagec.symbolic import ZERO, Size, product, symbol
from stagec.unrolling.rank import RankRun, StageRun
from stagec.unrolling.stage import sizes_of_node

N = TypeVar("N")
M = TypeVar("M")


@dataclass(frozen=True)
class Costs(Generic[N]):
    """What one run of an op costs on one device."""

    flops: N
    again: N
    """How many of these FLOPs another op has done before."""
    read: N
    """Bytes, from device memory."""
    written: N
    before: N
    """Bytes of a rank's buffers before a communication; of a transfer or a copy, those that travel."""
    after: N
    sent: N
    """Bytes that a rank sends: of a collective, on a ring."""

    def evaluated(self, evaluate: Callable[[N], M]) -> Costs[M]:
        """Each as `evaluate` has it."""
        return Costs(
            evaluate(self.flops),
            evaluate(self.again),
            evaluate(self.read),
            evaluate(self.written),
            evaluate(self.before),
            evaluate(self.after),
            evaluate(self.sent),
        )


Among = tuple[tuple[str, tuple[int, ...]], ...]
"""The coordinates of a collective's ranks along an axis of which it has not all."""


@dataclass
class Known:
    """What ranks share: the costs of an op, and their numbers on ranks that agree in the sizes which these name."""

    forms: Forms = field(default_factory=dict)
    _sizes: dict[Size, tuple[str, ...]] = field(default_factory=dict)
    _wholes: dict[tuple[Size, tuple[int | Fraction, ...]], int] = field(default_factory=dict)
    _costs: dict[tuple[Operation, Among], tuple[Costs[Size], tuple[str, ...]]] = field(
        default_factory=dict
    )
    _numbers: dict[tuple[Operation, Among, tuple[int | Fraction, ...]], Costs[int]] = field(
        default_factory=dict
    )

    def whole(self, size: Size, values: Mapping[str, int | Fraction]) -> int:
        """As traces state it: a fraction of an operation counts as a whole one."""
        if size not in self._sizes:
            self._sizes[size] = tuple(sorted(size.names))
        key = size, tuple([values[name] for name in self._sizes[size]])
        if key not in self._wholes:
            exact = size.evaluate(values)
            self._wholes[key] = -(-exact.numerator // exact.denominator)
        return self._wholes[key]

    def costs(self, each: CountedOp) -> tuple[Costs[Size], tuple[str, ...]]:
        """The costs of an op, and the names in them."""
        key = each.op, each.among
        if key not in self._costs:
            made = costs_of(each)
            sizes = (
                made.flops,
                made.again,
                made.read,
                made.written,
                made.before,
                made.after,
                made.sent,
            )
            self._costs[key] = made, tuple(sorted({name for size in sizes for name in size.names}))
        return self._costs[key]

    def numbers(self, each: CountedOp) -> Costs[int]:
        """The costs of an op, in numbers."""
        costs, names = self.costs(each)
        values = each.values
        key = each.op, each.among, tuple([values[name] for name in names])
        if key not in self._numbers:
            self._numbers[key] = costs.evaluated(lambda size: self.whole(size, values))
        return self._numbers[key]


@dataclass(frozen=True)
class CountedOp:
    """An op that a rank runs, and how often."""

    op: sched.NodeOp
    stage: StageRun
    task: str
    passes: int = 1
    """How often the rank runs the task in a step."""
    rows: int = 1
    """How often the op runs in one run of the task."""
    joined: int = 0
    """How many of these are reductions that travel in a bucket with one before."""
    repeats: tuple[stg.RepeatOp, ...] = ()
    """The repeats around it whose iterations are its rows; none where each layer has other numbers."""
    layer: int | None = None
    """Where each layer has other numbers: which one."""
    in_layer: bool = False
    axis: str = ""
    """The axis of the stages; empty without a pipeline."""
    boundary_shift: int = 1
    """How far along that axis the peer of a transfer between stages is."""
    known: Known = field(default_factory=Known, compare=False, repr=False)

    @property
    def runs(self) -> int:
        """In a step."""
        return self.passes * self.rows

    @property
    def nodes(self) -> int:
        """The number of nodes in a trace. A bucket is one node."""
        return self.passes * (self.rows - self.joined)

    # What it is

    @property
    def name(self) -> str:
        """What its nodes are called."""
        return self.op.node_name

    @property
    def phase(self) -> str:
        return "p2p" if self.task in TRANSFER_TASKS else stg.phase_of(self.op)

    @property
    def scope(self) -> str:
        return stg.scope_of(self.op)

    @property
    def made_by(self) -> str:
        return stg.made_by(self.op)

    @property
    def location(self) -> str:
        """File and line in the model's text."""
        return line_of(self.op.location)

    @property
    def is_computation(self) -> bool:
        return isinstance(self.op, sched.ComputeOp)

    @property
    def is_copy(self) -> bool:
        """Between host and device, or of the host's own."""
        return isinstance(self.op, sched.HostCopyOp | sched.HostUpdateOp)

    @property
    def is_collective(self) -> bool:
        return isinstance(self.op, sched.CollectiveOp)

    @property
    def sends(self) -> bool:
        """Whether it is the sending end of a transfer."""
        return isinstance(self.op, sched.SendOp | sched.StageSendOp | sched.PoolSendOp)

    @property
    def puts_in(self) -> bool:
        """Whether it puts bytes into communication: of a transfer that is the sending end."""
        return self.is_collective or self.sends

    @property
    def gets_out(self) -> bool:
        """Whether it has a result of communication: of a transfer that is the receiving end."""
        return not (self.is_computation or self.is_copy or self.sends)

    @property
    def on_matrix_units(self) -> bool:
        """Whether its FLOPs are those that published training FLOPs count."""
        return sched.work_of(self.op).on_matrix_units

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of a communication; for one with another pool, the name of that pool."""
        match self.op:
            case sched.CollectiveOp() | sched.SendOp() | sched.RecvOp():
                return self.op.axes.data
            case sched.StageSendOp() | sched.StageRecvOp():
                return (self.axis,)
            case sched.PoolSendOp() | sched.PoolRecvOp():
                return (self.op.pool.data,)
            case _:
                return ()

    @property
    def shift(self) -> int:
        """How far away the peer of a transfer is along its axes."""
        if isinstance(self.op, sched.SendOp | sched.RecvOp):
            return self.op.shift.value.data
        return self.boundary_shift

    @property
    def among(self) -> Among:
        """The ranks that have a tied weight, for a collective over these."""
        return self.stage.owners.get(stg.text(self.op, "tied"), ())

    def num_alike(self, mesh: Mesh) -> int:
        """How many ranks compute the same: those along axes that neither split what it reads or makes nor join stages."""
        types = [value.type for value in (*self.op.operands, *self.op.results)]
        apart = {self.axis}
        for each in types:
            if isinstance(each, ValueType):
                apart.update(tensor_of(each).split_axes)
        return prod(
            size for axis, size in zip(mesh.axes, mesh.sizes, strict=True) if axis not in apart
        )

    # What it costs

    @property
    def costs(self) -> Costs[Size]:
        """As exact expressions in the names of its stage."""
        return self.known.costs(self)[0]

    @property
    def group_size(self) -> Size:
        """Ranks of a collective's group."""
        if isinstance(self.op, sched.CollectiveOp) and self.op.ranks_of_job:
            return symbolic.constant(self.op.ranks_of_job)
        sharing = dict(self.among)
        return symbolic.product(
            len(sharing[axis]) if axis in sharing else symbolic.symbol(axis) for axis in self.axes
        )

    @cached_property
    def load(self) -> Mapping[str, Fraction]:
        """How many tokens a device's experts have in its layer, where not all have the same."""
        if self.layer is None:
            return {}
        return Loads.around(self.stage.program).sizes(self.layer, self.stage.values)

    @cached_property
    def values(self) -> Mapping[str, int | Fraction]:
        """The numbers behind its names."""
        return {**self.stage.values, **self.load} if self.load else self.stage.values

    @cached_property
    def numbers(self) -> Costs[int]:
        """As a trace states them."""
        return self.known.numbers(self)

    def node(self, sizes: Mapping[str, int] | None = None) -> Node:
        """What it is in a trace; with other sizes, if given. A transfer goes to the next stage, whichever its channel."""
        op = self.op
        values = {**self.values, **(sizes or {})}
        templates = Templates(
            values,
            self.stage.owners,
            forms=self.known.forms,
            neighbours=lambda _: (self.axes, 1, 0),
        )
        return templates.node(op, self.scope, templates.action(op), ())


def costs_of(each: CountedOp) -> Costs[Size]:
    op = each.op
    match op:
        case sched.ComputeOp():
            again = op.again.data if op.again is not None else ZERO
            if stg.phase_of(op) == "recompute":
                again = op.flops.data
            return Costs(op.flops.data, again, op.reads.data, op.writes.data, ZERO, ZERO, ZERO)
        case sched.CollectiveOp():
            sent = ring_bytes(op, each.group_size)
            return Costs(ZERO, ZERO, ZERO, ZERO, op.bytes_in.data, op.bytes_out.data, sent)
    moved = op.moved
    return Costs(ZERO, ZERO, ZERO, ZERO, moved, moved, moved if each.sends else ZERO)


def ring_bytes(op: sched.CollectiveOp, ways: Size) -> Size:
    """Bytes that each rank sends on a ring of `ways` ranks (Patarasuk and Yuan 2009)."""
    before, after = op.bytes_in.data, op.bytes_out.data
    match op.kind.data:
        case "all_gather":
            return after - before
        case "reduce_scatter":
            return before - after
        case "all_reduce":
            return 2 * (ways - 1) * before / ways
        case _:
            return (ways - 1) * before / ways


@dataclass(frozen=True)
class ClassCount:
    """What each rank of a class runs in a step."""

    run: RankRun
    operations: Sequence[CountedOp]

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def where(self) -> Mapping[str, tuple[int, ...]]:
        return self.run.where

    def num_ranks(self, mesh: Mesh) -> int:
        """How many ranks are of the class."""
        product = 1
        for axis in mesh.axes:
            chosen = self.where.get(axis)
            product *= mesh.size(axis) if chosen is None else len(chosen)
        return product


def count_classes(runs: Iterable[RankRun]) -> list[ClassCount]:
    """Count the step of every rank class, in the order of the program."""
    counter = Counting()
    return [ClassCount(run, tuple(counter.operations(run))) for run in runs]


@dataclass(frozen=True)
class ListedOp:
    """An op of a stage's program, and its rows in `sched.tasks`."""

    op: sched.NodeOp
    task: str
    repeats: tuple[stg.RepeatOp, ...]
    rows: int
    joined: int
    layers: Mapping[tuple[int, ...], int] | None
    """Where numbers depend on the layer: rows by the iterations of the repeats."""


@dataclass
class Counting:
    """Counts rank classes; what stages share is looked up once."""

    known: Known = field(default_factory=Known)
    _listed: dict[tuple[stg.ProgramOp, int], list[ListedOp]] = field(default_factory=dict)

    def operations(self, run: RankRun) -> Iterator[CountedOp]:
        """What a rank runs."""
        order = run.order.table[:, [1, 0, 3, 2]]
        if not any(stage.in_microbatches for stage in run.stages):
            order[:, 3] = NOWHERE
        passes: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for (stage, task, shift, at), number in Counter(map(tuple, order.tolist())).items():
            passes.setdefault((stage, task), []).append((shift, at, number))
        for number, stage in enumerate(run.stages):
            flow = Dataflow(stage.values)
            parts = {at: stage.at(at) for at in (NOWHERE, *range(len(stage.in_microbatches)))}
            for each in self.listed(stage):
                for shift, at, times in passes.get((number, TASK_NUMBER[each.task]), ()):
                    own = parts[at]
                    made = CountedOp(
                        *(each.op, own, each.task, times, each.rows, each.joined, each.repeats),
                        in_layer=bool(each.repeats),
                        axis=run.axis,
                        boundary_shift=shift,
                        known=self.known,
                    )
                    yield from of_layers(made, each.layers, flow)

    def listed(self, stage: StageRun) -> list[ListedOp]:
        """The ops of a stage that run, in the order of its program."""
        key = stage.program, id(stage.rows)
        if key not in self._listed:
            self._listed[key] = list(listed_ops(stage.program, stage.rows))
        return self._listed[key]


def of_layers(
    made: CountedOp, layers: Mapping[tuple[int, ...], int] | None, flow: Dataflow
) -> Iterator[CountedOp]:
    """An op, or one for each layer that has other numbers."""
    if layers is None:
        yield made
        return
    for path, rows in layers.items():
        layer = flow.layer(made.repeats, path)
        yield replace(made, rows=rows, joined=0, repeats=(), layer=layer)


def listed_ops(program: stg.ProgramOp, tasks: Mapping[str, Rows]) -> Iterator[ListedOp]:
    """Every op that becomes a node, and how often by the tables."""
    rows: dict[int, tuple[Rows, np.ndarray]] = {}
    for own in tasks.values():
        for number in np.unique(own.segment).tolist():
            rows[number] = own, np.flatnonzero(own.segment == number)
    loads = Loads.around(program)
    for op, repeats in nodes_inside(program):
        if op.segment is None or op.segment.number not in rows:
            continue
        own, at = rows[op.segment.number]
        layers = None
        if loads.concern(*sizes_of_node(op)):
            paths = own.path[at, : len(repeats)]
            layers = Counter(map(tuple, paths.tolist()))
        joined = int(own.joins[at].sum())
        yield ListedOp(op, op.segment.task, repeats, len(at), joined, layers)


# What the model asks for


@dataclass(frozen=True)
class MatrixFlops:
    """The FLOPs of matrix products in a step, on all ranks together."""

    model: int
    """The FLOPs that the model asks for: each once, however many ranks do it, without what is computed again and without padding."""
    hardware: int
    """The FLOPs that devices do."""


def matrix_flops(module: ModuleOp, counts: Sequence[ClassCount]) -> MatrixFlops:
    """FLOPs of matrix operations of a step (PaLM, Chowdhery et al. 2022, appendix B; Korthikanti et al. 2022, section 6.3, has both).

    An op whose operands and results an axis does not split is the same on all ranks along it.
    """
    sizes = mesh_of(module)
    mesh = Mesh.of(sizes)
    pads = without_padding(module)
    model, hardware = Fraction(0), 0
    for counted in counts:
        ranks = counted.num_ranks(mesh)
        for each in counted.operations:
            if each.on_matrix_units:
                own: int | Fraction = each.numbers.flops - each.numbers.again
                if not pads.keys().isdisjoint(each.costs.flops.names):
                    asked = (each.costs.flops - each.costs.again).substitute(pads)
                    own = asked.evaluate(each.values)
                hardware += ranks * each.runs * each.numbers.flops
                model += Fraction(ranks * each.runs * own, each.num_alike(mesh))
    return MatrixFlops(round(model), hardware)


def pads_of(module: ModuleOp) -> Mapping[str, str]:
    """Dims that rules pad, and the name of the size that the text gives each."""
    dims = (op for op in module.body.ops if isinstance(op, stg.DimOp))
    return {op.dim.data: op.pads.data for op in dims if op.pads is not None}


def without_padding(module: ModuleOp) -> Mapping[str, Size]:
    """Dims that rules pad, and those that are made of padded ones, as experts' tokens are of a batch: what each is without padding."""
    exact = averages(module)
    found = {n: exact.get(hidden, symbol(hidden)) for n, hidden in pads_of(module).items()}
    # What a load fills in is no function of other sizes: it is a share of all that are sent, for tokens that pad, too.
    filled = {
        op.dim.data: product(map(symbol, op.chosen.data))
        for op in module.body.ops
        if isinstance(op, dist.ExpertLoadOp)
    }
    # Padding is in microbatches that run: what each of them does is less, not how many there are.
    known = found.keys() | filled.keys() | {TIME_AXIS}
    made = {n: size for n, size in dim_sizes(module).items() if found and n not in known}
    while more := {n for n in made if made[n].names & found.keys()}:
        found |= {name: made.pop(name) for name in more}
    while any(size.names & found.keys() for size in found.values()):
        found = {name: size.substitute(found) for name, size in found.items()}
    return found | {
        dim: symbol(dim) * sent.substitute(found) / sent
        for dim, sent in filled.items()
        if sent.names & found.keys()
    }


# What is stored


def weights_of_stages(stages: Iterable[StageRun]) -> Iterator[tuple[stg.WeightOp, StageRun]]:
    """Every weight of some stages, once: one in the layers is another one on each stage, one beside them the same."""
    seen: set[tuple[int, str]] = set()
    for stage in stages:
        for op in stage.program.walk():
            if isinstance(op, stg.WeightOp):
                number = stage.stage if isinstance(op.weight.type, StackType) else -1
                if (number, op.path.data) not in seen:
                    seen.add((number, op.path.data))
                    yield op, stage
