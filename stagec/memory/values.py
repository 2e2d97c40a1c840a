"""Every value of one virtual stage: where it is made, who reads it, how large it is.

A table per layout. Tasks (`F`, `B`, ...) are as in `stagec.backend.lowering`; a place is a task, a row of it, a node of the
row. Views are no values: who reads one reads what it views. What is reduced in place is one value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from xdsl.dialects.builtin import FileLineColLoc
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from stagec import symbolic
from stagec.analysis.dataflow import Path, Source
from stagec.analysis.placement import source_of
from stagec.dialects import sched, stg
from stagec.dialects.types import StackType, ValueType, dtype_bytes, tensor_of
from stagec.memory.gradients import GradientBuffers
from stagec.memory.kinds import Kind
from stagec.memory.results import gradient_of_other_factor, is_copy_in, kind_of
from stagec.memory.sums import loops, makers, ops_inside, summed_results
from stagec.memory.views import is_multiplied
from stagec.memory.weights import updates
from stagec.symbolic import ZERO, Size
from stagec.unrolling.rank import StageRun
from stagec.unrolling.stage import Place

Ints = np.ndarray
Key = tuple[SSAValue, Path]


@dataclass(frozen=True)
class About:
    """What to say of the values that an op makes."""

    op: str
    scope: str
    location: str
    phase: str
    made_by: str


@dataclass
class ValueTable:
    """Columns of equal length, one row per value; reads, one row per reader and value."""

    tasks: tuple[str, ...]
    task: Ints
    row: Ints
    node: Ints
    num_bytes: Ints
    forms: tuple[Size, ...]
    """The closed forms of these, 0 for what has the memory of another value."""
    kind: Ints
    """`Kind`, as far as the value alone tells."""
    unit: Ints
    """Of what a pipeline's stage gathers, frees and gathers again: a number of the unit; -1."""
    about: Ints
    abouts: tuple[About, ...]
    results: list[SSAValue]
    """The result, or the input, that each value is an instance of."""
    accumulated: Ints
    """Bytes of the sum over microbatches that the value is a term of; 0 for none."""
    widened: Ints
    """Whether that sum has another dtype than the value."""
    read_value: Ints
    read_task: Ints
    read_row: Ints
    read_node: Ints
    of_sum: Ints
    """Whether a reader reads the sum over microbatches, not the value."""
    read_after: Ints
    """1 where the value is freed just before the reader, else 0."""
    received: dict[tuple[str, int], int] = field(default_factory=dict)
    """What the neighbouring stages hand over, by direction and number."""
    sent: dict[tuple[str, int], int] = field(default_factory=dict)
    """What they are handed."""

    def __len__(self) -> int:
        return len(self.task)


def value_table(stage: StageRun, gradients: GradientBuffers) -> ValueTable:
    return TableMaker(stage, gradients).table()


class TableMaker:
    def __init__(self, stage: StageRun, gradients: GradientBuffers) -> None:
        self.layout, self.program, self.numbers = stage.layout, stage.program, stage.values
        program = stage.program
        self._number: dict[Size, int] = {}
        self.gradients = gradients
        self.tasks = tuple(self.layout.tasks)
        self.inside = ops_inside(program)
        self.sums = summed_results(program)
        self.index: dict[Key, int] = {}
        self.places: list[Place] = []
        self.results: list[SSAValue] = []
        self.sizes: list[int] = []
        self.forms: list[Size] = []
        self.kinds: list[Kind] = []
        self.about: list[int] = []
        self.abouts: dict[About, int] = {}
        self.reads: list[tuple[int, Place, bool]] = []
        self.replaced: list[tuple[int, Place]] = []
        """Values that are freed just before a node."""
        self.same: dict[int, tuple[int, bool]] = {}
        """Values that have the memory of another, or of its sum over microbatches."""
        self._made: dict[tuple[Operation, int], list[tuple[SSAValue, Size, Kind]]] = {}

    def table(self) -> ValueTable:
        for source, place in self.layout.places.items():
            made = [
                self.add((result, source.path), place, size, kind, source.op)
                for result, size, kind in self.made_by(source.op, place)
            ]
            if len(made) > 1 and self.kinds[made[0]] in (Kind.GATHERED, Kind.COMMUNICATION):
                self.share(made)
        for source, place in self.layout.places.items():
            self.read_operands(source.op, source.path, place)
        self.keep_units()
        self.keep_factors()
        self.replace_copies()
        return self.columns()

    def keep_factors(self) -> None:
        """Both factors of a product are there until both of their gradients are made, as autograd frees what an op saved."""
        for source, place in self.layout.places.items():
            other = gradient_of_other_factor(source.op)
            last = self.layout.places.get(Source(other, source.path)) if other is not None else None
            if last is not None and last.task == place.task:
                for key in self.origins(source.op.operands[1], source.path):
                    if key in self.index:
                        self.reads.append((self.index[key], last, False))

    def replace_copies(self) -> None:
        """A buffer of gradients is there until the next one is made: it is sent in the meantime (FSDP2's `ReduceScatterState`)."""
        order = {task: i for i, task in enumerate(self.tasks)}
        copies = sorted(
            (
                order[place.task],
                place.row,
                place.node,
                self.index[source.op.results[0], source.path],
            )
            for source, place in self.layout.places.items()
            if is_copy_in(source.op)
        )
        for (task, *_, made), (task_of_next, *_, following) in pairwise(copies):
            if task == task_of_next:
                self.replaced.append((made, self.places[following]))

    def keep_units(self) -> None:
        """A unit beside the layers that is gathered once is there until its gradients are made, as FSDP frees it."""
        gathers: dict[SSAValue, list[int]] = {}
        for source in self.layout.places:
            if kind_of(source.op) == Kind.GATHERED and not source.path:
                assert isinstance(source.op, sched.CollectiveOp)
                for shard, whole in zip(source.op.values, source.op.results, strict=True):
                    gathers.setdefault(shard, []).append(self.index[whole, source.path])
        for weight, (_, gradient) in updates(self.program).items():
            found = gathers.get(weight.weight, [])
            if len(found) == 1:
                for made in makers(gradient):
                    if (made, ()) in self.index:
                        self.reads.append((found[0], self.places[self.index[made, ()]], False))

    def made_by(self, op: Operation, place: Place) -> list[tuple[SSAValue, Size, Kind]]:
        layer = self.layer_of(place)
        if (op, layer) not in self._made:
            kind = kind_of(op)
            # What an update stores is where it was.
            is_there = (kind == Kind.HOST and stg.phase_of(op) == "optim") or self.is_append(op)
            self._made[op, layer] = [
                (r, ZERO if is_there else self.bytes_in_layer(r, layer), kind) for r in op.results
            ]
        return self._made[op, layer]

    def is_append(self, op: Operation) -> bool:
        """Whether an op writes into what stays from step to step."""
        if "in_place" not in op.properties:
            return False
        written = source_of(op.operands[0])
        while isinstance(written.owner, sched.ViewOp):
            written = source_of(written.owner.operand)
        return isinstance(written.owner, stg.CacheOp)

    def layer_of(self, place: Place) -> int:
        """The layer, where that makes a difference to sizes."""
        if not self.layout.loads.loads:
            return -1
        return self.layout.tasks[place.task].rows[place.row].layer

    def bytes_in_layer(self, value: SSAValue, layer: int) -> Size:
        return self.layout.loads.written(bytes_of(value), layer, self.numbers)

    def number(self, size: Size) -> int:
        """The number of a size, rounded up."""
        if size not in self._number:
            exact = size.evaluate(self.numbers)
            self._number[size] = -(-exact.numerator // exact.denominator)
        return self._number[size]

    def add(self, key: Key, place: Place, size: Size, kind: Kind, op: Operation | None) -> int:
        self.index[key] = len(self.places)
        self.places.append(place)
        self.results.append(key[0])
        self.sizes.append(self.number(size))
        self.forms.append(size)
        self.kinds.append(kind)
        said = (
            about(op)
            if op is not None
            else About("input", key[0].name_hint or "", "", "fwd", "lower")
        )
        self.about.append(self.abouts.setdefault(said, len(self.abouts)))
        return len(self.places) - 1

    def share(self, together: Sequence[int]) -> None:
        """What one collective gathers or reduces is one buffer, there until the last part of it was read."""
        first = together[0]
        for other in together[1:]:
            self.sizes[first] += self.sizes[other]
            self.forms[first] += self.forms[other]
            self.same[other] = (first, False)

    # Reads

    def read_operands(self, op: Operation, path: Path, place: Place) -> None:
        for number, operand in enumerate(op.operands):
            for key in self.origins(operand, path):
                value = self.value_of(key, operand, place)
                if value is None:
                    continue
                of_sum = key[0] in self.sums and op not in self.inside
                if stg.phase_of(op) == "grad_reduce" and self.kinds[value] == Kind.TEMPORARIES:
                    self.kinds[value] = Kind.GRADIENTS
                self.reads.append((value, place, of_sum))
                self.join(op, number, path, value, of_sum)

    def origins(self, operand: SSAValue, path: Path) -> Iterator[Key]:
        dataflow = self.layout.dataflow
        if isinstance(operand.type, StackType):
            yield from dataflow.origins(operand, path)
            return
        value, at = dataflow.origin(operand, path, through_joins=False)
        if isinstance(value.owner, sched.ViewOp):
            yield from dataflow.origins(value.owner.operand, at)
        else:
            yield value, at

    def value_of(self, key: Key, operand: SSAValue, place: Place) -> int | None:
        """The value read. An input is there from its first reader on, as large as readers want it."""
        value = self.index.get(key)
        argument = key[0]
        if not isinstance(argument, BlockArgument):
            return value
        if not isinstance(argument.block.parent_op(), stg.ProgramOp):
            return None
        size = self.bytes_in_layer(operand, self.layer_of(place))
        if value is None:
            return self.add(key, place, size, Kind.INPUTS, None)
        self.sizes[value] = max(self.sizes[value], self.number(size))
        self.forms[value] = symbolic.call("max", self.forms[value], size)
        return value

    def join(self, op: Operation, number: int, path: Path, operand: int, of_sum: bool) -> None:
        """An all-reduce whose operand nobody else reads works in place; one of gradients, and an update, always does.

        One head that is repeated is a view: repeats of it are as many strides of no bytes.
        """
        if self.repeats_one_head(op):
            self.same[self.index[op.results[0], path]] = (operand, of_sum)
        if isinstance(op, sched.ComputeOp) and op.op.data == "optimizer_step":
            updated = number - (len(op.inputs) - len(op.outputs))
            if updated >= 0:
                self.same[self.index[op.results[updated], path]] = (operand, of_sum)
            return
        if "in_place" in op.properties:
            if number == 0:
                self.same[self.index[op.results[0], path]] = (operand, of_sum)
            return
        if not isinstance(op, sched.CollectiveOp) or len(op.results) != len(op.operands):
            return
        is_gradient = stg.phase_of(op) == "grad_reduce"
        if op.kind.data == "all_reduce":
            mine = op.operands[number]
            in_place = is_gradient or (isinstance(mine, OpResult) and mine.has_one_use())
        else:
            in_place = is_gradient and self.gradients.are_kept and op.kind.data == "reduce_scatter"
        if in_place:
            self.same[self.index[op.results[number], path]] = (operand, of_sum)

    def repeats_one_head(self, op: Operation) -> bool:
        """Attention reads a head with strides; a product copies what has some (`matmul` of an expanded tensor in ATen)."""
        if not isinstance(op, sched.ComputeOp) or op.op.data != "repeat_heads":
            return False
        if is_multiplied(op.results[0]):
            return False
        kept = tensor_of(op.results[0].type).names
        heads = [d for d in tensor_of(op.operands[0].type).dims if d.name not in kept]
        return all(self.number(d.size) == 1 for d in heads)

    def root(self, value: int, of_sum: bool) -> tuple[int, bool]:
        while value in self.same:
            value, sum_too = self.same[value]
            of_sum = of_sum or sum_too
        return value, of_sum

    # Columns

    def columns(self) -> ValueTable:
        number = {task: i for i, task in enumerate(self.tasks)}
        sizes = np.array(self.sizes, np.int64)
        for joined in self.same:
            sizes[joined] = 0
            self.forms[joined] = ZERO
        reads = [(*self.root(value, of_sum), place, 0) for value, place, of_sum in self.reads]
        reads += [(value, False, place, 1) for value, place in self.replaced]
        summed = self.summed()
        sums = [summed.get(i) for i in range(len(self.results))]
        widths = [dtype_bytes(tensor_of(r.type).dtype) for r in self.results]
        ends = [self.received_or_sent(i) for i in range(len(self.results))]
        return ValueTable(
            tasks=self.tasks,
            task=np.array([number[p.task] for p in self.places], np.int64),
            row=np.array([p.row for p in self.places], np.int64),
            node=np.array([p.node for p in self.places], np.int64),
            num_bytes=sizes,
            forms=tuple(self.forms),
            kind=np.array(self.kinds, np.int64),
            unit=self.units(),
            about=np.array(self.about, np.int64),
            abouts=tuple(self.abouts),
            results=self.results,
            accumulated=np.array(
                [
                    size // width * dtype_bytes(dtype) if dtype is not None else 0
                    for size, width, dtype in zip(self.sizes, widths, sums, strict=True)
                ],
                np.int64,
            ),
            widened=np.array(
                [
                    dtype is not None and dtype != tensor_of(result.type).dtype
                    for result, dtype in zip(self.results, sums, strict=True)
                ],
                bool,
            ),
            read_value=np.array([value for value, _, _, _ in reads], np.int64),
            read_task=np.array([number[place.task] for _, _, place, _ in reads], np.int64),
            read_row=np.array([place.row for _, _, place, _ in reads], np.int64),
            read_node=np.array([place.node for _, _, place, _ in reads], np.int64),
            of_sum=np.array([of_sum for _, of_sum, _, _ in reads], bool),
            read_after=np.array([after for _, _, _, after in reads], np.int64),
            received={key: i for i, key in enumerate(ends) if key is not None},
            sent=self.handed_on(),
        )

    def units(self) -> Ints:
        """Of each value, the unit that its gather gathers, if others gather it too."""
        known: dict[object, int] = {}
        numbers = {
            (task, row): known.setdefault(unit, len(known))
            for task, units in self.layout.gathered_units.items()
            for unit, row in units.items()
        }
        return np.array([numbers.get((p.task, p.row), -1) for p in self.places], np.int64)

    def summed(self) -> dict[int, str]:
        """The values that the loop over microbatches adds up, and the dtype of the sum."""
        found: dict[int, str] = {}
        for loop in loops(self.program):
            for yielded, total in zip(loop.yield_op.values, loop.results, strict=True):
                for key in self.origins(yielded, ()):
                    if key in self.index:
                        value, _ = self.root(self.index[key], False)
                        found[value] = tensor_of(total.type).dtype
        return found

    def received_or_sent(self, value: int) -> tuple[str, int] | None:
        owner = self.results[value].owner
        if isinstance(owner, sched.StageRecvOp):
            return owner.direction.data, owner.number.value.data
        return None

    def handed_on(self) -> dict[tuple[str, int], int]:
        sent: dict[tuple[str, int], int] = {}
        for source in self.layout.places:
            op = source.op
            if isinstance(op, sched.StageSendOp):
                value = self.index.get(self.layout.dataflow.origin(op.value, source.path))
                if value is not None:
                    sent[op.direction.data, op.number.value.data] = self.root(value, False)[0]
        return sent


def bytes_of(value: SSAValue) -> Size:
    assert isinstance(value.type, ValueType)
    return value.type.num_bytes


def about(op: Operation) -> About:
    assert isinstance(op, sched.NODES)
    return About(
        sched.node_name(op), stg.scope_of(op), line_of(op), stg.phase_of(op), stg.made_by(op)
    )


def line_of(op: Operation) -> str:
    """File and line in the model's text."""
    location = op.location
    if not isinstance(location, FileLineColLoc):
        return ""
    return f"{location.filename.data}:{location.line.data}"
