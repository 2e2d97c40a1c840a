"""What a rank class runs, still rolled: each op once, with its costs and how often a rank runs it in a step.

Costs come from the op as closed forms; how often is the trip counts of the repeats around it, times the microbatches that the
schedule gives to its task. No layer and no microbatch is unrolled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import product

from xdsl.dialects.builtin import FileLineColLoc
from xdsl.ir import Operation

from stagec import symbolic
from stagec.analysis.dataflow import Dataflow
from stagec.analysis.loads import Loads
from stagec.analysis.segments import nodes_inside
from stagec.backend.lowering.templates import Templates
from stagec.backend.program import Node, Transfer
from stagec.dialects import sched, stg
from stagec.dialects.tasks import ONCE, TRANSFER_TASKS
from stagec.dialects.types import TIME_AXIS, tensor_of
from stagec.explaining.names import Names
from stagec.symbolic import ONE, ZERO, Size
from stagec.unrolling.module import rank_runs
from stagec.unrolling.rank import Owners, RankRun
from stagec.unrolling.stage import sizes_of_node


@dataclass(frozen=True)
class Amount:
    """A size of one op: its closed form, and the number that the trace has for it."""

    form: Size = ZERO
    number: int = 0


NONE = Amount()


@dataclass(frozen=True)
class TermSource:
    """The op behind a term, and the numbers of the virtual stage that runs it."""

    op: Operation
    values: Mapping[str, int]
    owners: Owners
    axis: str
    in_layer: bool

    def node(self, sizes: Mapping[str, int] | None = None) -> Node:
        """What it is in a trace; with other sizes, if given."""
        values = self.values if sizes is None else {**self.values, **sizes}
        templates = Templates(values, self.owners)
        if isinstance(self.op, sched.StageSendOp | sched.StageRecvOp):
            tensor = tensor_of(self.op.value.type)
            kind = "send" if isinstance(self.op, sched.StageSendOp) else "recv"
            num_bytes = templates.checked_bytes(self.op, tensor.num_bytes)
            action = Transfer(kind, (self.axis,), 1, num_bytes, 0, tensor.dtype)
        else:
            action = templates.action(self.op)
        return templates.node(self.op, stg.scope_of(self.op), action, ())


@dataclass(frozen=True)
class Term:
    """One op of a rank class. Costs are of one run, on one device."""

    op: str
    phase: str
    scope: str
    location: str
    """File and line in the model's text."""
    made_by: str
    task: str
    count: Amount
    """Runs in one step."""
    flops: Amount = NONE
    read: Amount = NONE
    written: Amount = NONE
    axes: tuple[str, ...] = ()
    """Of a communication."""
    before: Amount = NONE
    """Bytes of a rank's buffers before a communication; of a transfer, those that travel."""
    after: Amount = NONE
    sent: Amount = NONE
    """Bytes that a rank sends: of a collective, on a ring."""
    on_matrix_units: bool = False
    """Whether its FLOPs are those that published training FLOPs count."""
    source: TermSource | None = field(default=None, compare=False, repr=False)

    @cached_property
    def node(self) -> Node:
        """What it is in a trace of the plan that was compiled. Which stage the peer of a transfer is in, is left open."""
        assert self.source is not None
        return self.source.node()

    @property
    def is_communication(self) -> bool:
        return bool(self.axes)

    @property
    def is_copy(self) -> bool:
        """Between host and device."""
        return not self.axes and bool(self.before.form)

    @property
    def is_computation(self) -> bool:
        return not self.is_communication and not self.is_copy

    @cached_property
    def words(self) -> frozenset[str]:
        """The words that choose it: `contract`, `matrix`, `bwd`, `SwiGLU`, `Block.SwiGLU`."""
        words = {self.op, self.phase, *self.scope.split(".")} - {""}
        if self.is_computation:
            words.add("matrix" if self.on_matrix_units else "other")
        return frozenset(words)


@dataclass(frozen=True)
class ClassOperations:
    """One rank class."""

    name: str
    where: Mapping[str, tuple[int, ...]]
    run: RankRun
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class RolledOp:
    """An op of a program, and the repeats around it."""

    op: Operation
    task: str
    repeats: tuple[stg.RepeatOp, ...]


def class_operations(names: Names, sampled: bool = False) -> list[ClassOperations]:
    """The terms of every rank class; if `sampled`, of classes that stand for all of a sweep's.

    These are the first rank of a pipeline, one in the middle, and the last; all, if layers are listed.
    """
    rolled: dict[stg.ProgramOp, list[RolledOp]] = {}
    classes = rank_runs(names.module)
    pipeline = names.plan.pipeline
    is_even = pipeline is not None and not pipeline.layers
    if sampled and is_even and len(classes) > 3:
        classes = [classes[0], classes[1], classes[-1]]
    return [
        ClassOperations(run.name, run.where, run, tuple(terms_of(run, names, rolled)))
        for run in classes
    ]


def terms_of(
    run: RankRun, names: Names, rolled: dict[stg.ProgramOp, list[RolledOp]]
) -> Iterator[Term]:
    runs = Counter((stage, task) for task, stage, _ in run.task_names)
    for number, stage in enumerate(run.stages):
        if stage.program not in rolled:
            rolled[stage.program] = list(rolled_ops(stage.program))
        maker = TermMaker(names, stage.values, stage.owners, stage.stage)
        loads = Loads.around(stage.program)
        for each in rolled[stage.program]:
            if not (times := runs[number, each.task]):
                continue
            if not loads.concern(*sizes_of_node(each.op)):
                yield maker.term(each, each.task, times)
                continue
            # Experts that are not equally busy have other numbers in each layer.
            for layer in layers_of(each.repeats, stage.values):
                alone = RolledOp(each.op, each.task, ())
                load = loads.sizes(layer, stage.values)
                yield replace(maker, load=load, _amounts={}).term(alone, each.task, times)


def layers_of(repeats: tuple[stg.RepeatOp, ...], values: Mapping[str, int]) -> Iterator[int]:
    """The layers that a stage's repeats run."""
    flow = Dataflow(values)
    for path in product(*(range(flow.count(repeat)) for repeat in repeats)):
        yield flow.layer(repeats, path)


def rolled_ops(program: stg.ProgramOp) -> Iterator[RolledOp]:
    """Every op that becomes a node."""
    for op, repeats in nodes_inside(program):
        assert isinstance(op, sched.NODES)
        if op.segment is not None:
            yield RolledOp(op, op.segment.task, repeats)


@dataclass
class TermMaker:
    """Makes the terms of one virtual stage."""

    names: Names
    values: Mapping[str, int]
    owners: Owners
    stage: int
    load: Mapping[str, Fraction] = field(default_factory=dict)
    """How many tokens a device's experts have in a layer, if not all have the same."""
    _amounts: dict[Size, Amount] = field(default_factory=dict)

    def amount(self, size: Size) -> Amount:
        """A fraction of an operation counts as a whole one, as in traces."""
        if size not in self._amounts:
            own = size.substitute({n: symbolic.constant(load) for n, load in self.load.items()})
            exact = own.evaluate(self.values)
            form = self.names.write(own, self.stage)
            if exact.denominator != 1 or self.names.rounded:
                form = symbolic.ceildiv(form, 1)
            self._amounts[size] = Amount(form, -(-exact.numerator // exact.denominator))
        return self._amounts[size]

    def count(self, each: RolledOp, task: str, times: int) -> Amount:
        """How often an op runs in a step, `times` of them counted by the schedule."""
        form, number = ONE, times
        if task not in ONCE:
            form = self.names.times(self.names.num_microbatches, times, self.values[TIME_AXIS])
        for repeat in each.repeats:
            form = form * self.names.write(repeat.count.data, self.stage)
            number *= repeat.count.data.integer(self.values)
        return Amount(form, number)

    def transfer(self, op: Operation, size: Size) -> dict[str, Amount]:
        amount = self.amount(size)
        sends = isinstance(op, sched.SendOp | sched.StageSendOp)
        return {"before": amount, "after": amount, "sent": amount if sends else NONE}

    def group(self, op: sched.CollectiveOp) -> Size:
        """Ranks of the collective's group: of a tied weight, those that have it."""
        sharing = dict(self.owners.get(stg.text(op, "tied"), ()))
        return symbolic.product(
            len(sharing[axis]) if axis in sharing else symbolic.symbol(axis)
            for axis in op.axes.data
        )

    def term(self, each: RolledOp, task: str, times: int) -> Term:
        op = each.op
        assert isinstance(op, sched.NODES)
        location = op.location
        said: dict[str, Amount] = {}
        axes: tuple[str, ...] = ()
        match op:
            case sched.ComputeOp():
                said = {
                    "flops": self.amount(op.flops.data),
                    "read": self.amount(op.reads.data),
                    "written": self.amount(op.writes.data),
                }
            case sched.CollectiveOp():
                axes = op.axes.data
                said = {
                    "before": self.amount(op.bytes_in.data),
                    "after": self.amount(op.bytes_out.data),
                    "sent": self.amount(ring_bytes(op, self.group(op))),
                }
            case sched.SendOp() | sched.RecvOp():
                axes = op.axes.data
                said = self.transfer(op, op.num_bytes.data)
            case sched.HostCopyOp():
                moved = self.amount(op.num_bytes.data)
                said = {"before": moved, "after": moved}
            case _:
                assert self.names.stages is not None
                axes = (self.names.stages.axis.data,)
                said = self.transfer(op, tensor_of(op.value.type).num_bytes)
        return Term(
            op=sched.node_name(op),
            phase="p2p" if task in TRANSFER_TASKS else stg.phase_of(op),
            scope=stg.scope_of(op),
            location=(
                f"{location.filename.data}:{location.line.data}"
                if isinstance(location, FileLineColLoc)
                else ""
            ),
            made_by=stg.made_by(op),
            task=task,
            count=self.count(each, task, times),
            on_matrix_units=sched.work_of(op).on_matrix_units,
            axes=axes,
            source=TermSource(
                op,
                self.values,
                self.owners,
                self.names.stages.axis.data if self.names.stages else "",
                bool(each.repeats),
            ),
            **said,
        )


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
