"""Every value of one virtual stage: where it is made, who reads it, how large it is.

A table per layout. Tasks (`F`, `B`, ...) are as in `stagec.backend.lowering`; a place is a task, a row of it, a node of the
row. Views are no values: who reads one reads what it views. What is reduced in place is one value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from stagec import symbolic
from stagec.analysis.buffers import loops, ops_inside, summed_results
from stagec.analysis.dataflow import OpInstance, Path
from stagec.arrays import Ints
from stagec.diagnostics import line_of, refused, span_of
from stagec.dialects import sched, stg
from stagec.dialects.interfaces import num_bytes
from stagec.dialects.memory import (
    ADDED,
    FIRST,
    OPERAND,
    REPETITION,
    STAYS,
    Buffer,
    Kind,
    NodeMemory,
)
from stagec.dialects.types import DTYPE_BITS, StackType, tensor_of
from stagec.symbolic import ZERO, Size, conditions
from stagec.unrolling.rank import StageRun
from stagec.unrolling.stage import TAKEN, NodePlace

Key = tuple[SSAValue, Path]
Order = tuple[int, int, int]
"""A place by the number of its task, its row and its node."""


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
    """Of what a pipeline's stage gathers, frees and gathers again: which unit of which layer, as an index into `unit_numbers`; -1."""
    unit_numbers: Ints
    """The number of each unit."""
    about: Ints
    abouts: tuple[About, ...]
    results: list[SSAValue]
    """The result, or the input, that each value is an instance of."""
    accumulated: Ints
    """Bytes of the sum over microbatches that the value is a term of; 0 for none."""
    sums: tuple[Size, ...]
    """The closed forms of these."""
    sum_stays: Ints
    """Whether that sum is a buffer that stays from step to step."""
    read_value: Ints
    read_task: Ints
    read_row: Ints
    read_node: Ints
    of_sum: Ints
    """Whether a reader reads the sum over microbatches, not the value."""
    frees: Ints
    """Whether the value may be freed with a reader: the last of these frees it."""
    read_after: Ints
    """1 where the value is freed just before the reader, else 0."""
    received: dict[tuple[str, int], int] = field(default_factory=dict)
    """What the neighbouring stages hand over, by direction and number."""
    sent: dict[tuple[str, int], int] = field(default_factory=dict)
    """What they are handed."""
    given: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """What other stages of the rank read, by the task that stands for it there; whether that is the sum over microbatches."""
    holds_for_all: bool = False
    """Whether with other numbers nothing is another but how large values are."""
    in_microbatches: Ints | None = None
    """`num_bytes` in each microbatch `[m, value]`, where these are not alike."""

    def __len__(self) -> int:
        return len(self.task)

    def bytes_in(self, microbatches: Ints) -> Ints:
        """How large each value is in some microbatches `[m, value]`."""
        if self.in_microbatches is not None:
            return self.in_microbatches[microbatches]
        return np.broadcast_to(self.num_bytes, (len(microbatches), len(self)))

    def with_numbers(self, stage: StageRun) -> ValueTable:
        """The same of a stage whose sizes have other numbers."""
        parts = [self.numbered(values) for values in stage.in_microbatches]
        return replace(
            self,
            num_bytes=np.max(parts, axis=0) if parts else self.numbered(stage.values),
            in_microbatches=np.array(parts) if parts else None,
        )

    def numbered(self, numbers: Mapping[str, int]) -> Ints:
        exact = {form: form.evaluate(numbers) for form in set(self.forms)}
        known = {form: -(-size.numerator // size.denominator) for form, size in exact.items()}
        return np.array([known[form] for form in self.forms], np.int64)


def value_table(stage: StageRun) -> ValueTable:
    """The table of the values of all microbatches. Where microbatches differ, `num_bytes` is that of the largest."""
    if not stage.in_microbatches:
        return TableMaker(stage).table()
    parts = [TableMaker(stage.at(at)).table() for at in range(len(stage.in_microbatches))]
    each = np.array([part.num_bytes for part in parts])
    return replace(parts[0], num_bytes=each.max(axis=0), in_microbatches=each)


class ValueReader(NamedTuple):
    """Who reads a value."""

    value: int
    place: NodePlace
    of_sum: bool
    """Whether it reads the sum over microbatches."""
    frees: bool = True
    """Whether the value may be freed here."""
    before: bool = False
    """Whether it is freed just before."""


class TableMaker:
    """Unrolls what `plan-memory` wrote over the layers of a stage."""

    def __init__(self, stage: StageRun) -> None:
        self.layout, self.program, self.numbers = stage.layout, stage.program, stage.values
        self._number: dict[Size, int] = {}
        self.tasks = tuple(self.layout.tasks)
        self.inside = ops_inside(self.program)
        self.sums = summed_results(self.program)
        self.index: dict[Key, int] = {}
        self.places: list[NodePlace] = []
        self.results: list[SSAValue] = []
        self.sizes: list[int] = []
        self.forms: list[Size] = []
        self.kinds: list[Kind] = []
        self.about: list[int] = []
        self.abouts: dict[About, int] = {}
        self.reads: list[ValueReader] = []
        self.same: dict[int, tuple[int, bool]] = {}
        """Values that have the memory of another, or of its sum over microbatches."""
        self.added: list[int] = []
        """Values that are nowhere: who makes them adds them to the sum over microbatches."""
        self.order = {task: number for number, task in enumerate(self.tasks)}
        self.last_reader: dict[tuple[int, bool], tuple[Order, str]] = {}
        """Of each value, as a whole or of its elements: where it is read last, and by what."""
        self.overwritten: list[tuple[int, bool, Order, int, Operation]] = []
        """The values whose memory others take, or that of an element, and where: as which operand of which op."""
        self.plans: dict[Operation, NodeMemory] = {}
        self._made: dict[tuple[Operation, int], list[tuple[SSAValue, Size, Buffer]]] = {}
        self._about: dict[Operation, int] = {}
        self.holds_for_all = not self.sums and not self.layout.loads.loads
        """Sums have sizes of their own; a buffer for each repetition depends on how many there are."""

    def table(self) -> ValueTable:
        for source, place in self.layout.places.items():
            for result, size, buffer in self.made_by(source.op, place):
                made = self.add((result, source.path), place, size, buffer.kind, source.op)
                if buffer.where == ADDED:
                    self.added.append(made)
            self.join_results(source)
        lasts = self.last_places()
        for source, place in self.layout.places.items():
            self.read_operands(source, place, lasts)
        for op, number, reader in self.read_when_overwritten():
            message = (
                f"`{op.name}`: it overwrites operand {number}, which `{reader}` reads after it"
            )
            help_ = "say `alone`, which overwrites what nobody else reads"
            raise refused("E0709", message, span_of(op.location), help=help_)
        self.replace_buffers()
        return self.columns()

    def plan_of(self, op: Operation) -> NodeMemory:
        if op not in self.plans:
            found = sched.planned(op)
            if found is None:
                message = f"`{op.name}`: nobody planned its memory"
                help_ = "run `plan-memory` after what adds nodes"
                place = span_of(op.location)
                raise refused("E0709", message, place, help=help_)
            self.plans[op] = found
        return self.plans[op]

    def made_by(self, op: Operation, place: NodePlace) -> list[tuple[SSAValue, Size, Buffer]]:
        layer = self.layer_of(place)
        if (op, layer) not in self._made:
            self._made[op, layer] = [
                (r, self.bytes_made(op, r, b, layer), b)
                for r, b in zip(op.results, self.plan_of(op).buffers, strict=True)
            ]
        return self._made[op, layer]

    def bytes_made(self, op: Operation, result: OpResult, buffer: Buffer, layer: int) -> Size:
        """What memory a result takes. The first of those that share a buffer takes all that the node writes: also what pads shards."""
        if buffer.where in (STAYS, FIRST):
            return ZERO
        is_shared = sched.effects_of(op).one_buffer and buffer.kind != Kind.PARAMETERS
        size = bytes_written(op) if is_shared else num_bytes(result)
        return self.layout.loads.written(size, layer, self.numbers)

    def layer_of(self, place: NodePlace) -> int:
        """The layer, where that makes a difference to sizes."""
        if not self.layout.loads.loads:
            return -1
        return self.layout.tasks[place.task].rows[place.row].layer

    def bytes_in_layer(self, value: SSAValue, layer: int) -> Size:
        return self.layout.loads.written(num_bytes(value), layer, self.numbers)

    def number(self, size: Size) -> int:
        """The number of a size, rounded up."""
        if size not in self._number:
            exact = size.evaluate(self.numbers)
            self._number[size] = -(-exact.numerator // exact.denominator)
        return self._number[size]

    def add(self, key: Key, place: NodePlace, size: Size, kind: Kind, op: Operation | None) -> int:
        self.index[key] = len(self.places)
        self.places.append(place)
        self.results.append(key[0])
        self.sizes.append(self.number(size))
        self.forms.append(size)
        self.kinds.append(kind)
        self.about.append(self.about_of(key[0], op))
        return len(self.places) - 1

    def about_of(self, value: SSAValue, op: Operation | None) -> int:
        if op is None:
            said = About("input", value.name_hint or "", "", "fwd", "lower")
            return self.abouts.setdefault(said, len(self.abouts))
        if op not in self._about:
            self._about[op] = self.abouts.setdefault(about(op), len(self.abouts))
        return self._about[op]

    def join_results(self, source: OpInstance) -> None:
        """What one collective gathers is one buffer, there until the last part of it was read."""
        op, path = source.op, source.path
        for result, buffer in zip(op.results, self.plan_of(op).buffers, strict=True):
            if buffer.where == FIRST:
                self.same[self.index[result, path]] = (self.index[op.results[0], path], False)

    def last_places(self) -> dict[tuple[int, Path], list[NodePlace]]:
        """Where what is freed together is freed, by its number and the layers: a layer, or those around it."""
        found: dict[tuple[int, Path], list[NodePlace]] = {}
        for source, place in self.layout.places.items():
            if groups := self.plan_of(source.op).lasts:
                layers = self.layout.dataflow.elements(source)
                for group in groups:
                    for depth in range(len(layers) + 1):
                        found.setdefault((group, layers[:depth]), []).append(place)
        return found

    def replace_buffers(self) -> None:
        """What is put into a buffer of which there is one is there until the next is put there."""
        order = {task: i for i, task in enumerate(self.tasks)}
        put = sorted(
            (
                (name, order[place.task]),
                (place.row, place.node),
                self.index[source.op.results[0], source.path],
            )
            for source, place in self.layout.places.items()
            if (name := self.plan_of(source.op).replaces)
        )
        for (where, _, made), (next_where, _, following) in pairwise(put):
            if where == next_where:
                self.reads.append(ValueReader(made, self.places[following], False, before=True))

    # Reads

    def read_operands(
        self,
        source: OpInstance,
        place: NodePlace,
        lasts: Mapping[tuple[int, Path], list[NodePlace]],
    ) -> None:
        op, path = source.op, source.path
        plan = self.plan_of(op)
        waits = bool(plan.keeps) or any(buffer.until >= 0 for buffer in plan.buffers)
        layers = self.layout.dataflow.elements(source) if waits else ()
        for number, operand in enumerate(op.operands):
            kept = [group for each, group in plan.keeps if each == number]
            for key in self.origins(operand, path):
                value = self.value_of(key, operand, place)
                if value is None:
                    continue
                of_sum = key[0] in self.sums and op not in self.inside
                if not of_sum:
                    of, at = (value, self.is_element(value, operand)), (self.when(place), op.name)
                    self.last_reader[of] = max(self.last_reader.get(of, at), at)
                self.reads.append(ValueReader(value, place, of_sum, number in plan.frees))
                for group in kept:
                    for last in last_around(lasts, group, layers):
                        self.reads.append(ValueReader(value, last, False))
                self.join_operand(source, number, value, of_sum)
        for result, buffer in zip(op.results, plan.buffers, strict=True):
            for last in last_around(lasts, buffer.until, layers):
                made = self.index[result, path]
                self.reads.append(ValueReader(made, last, False, before=buffer.before))

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

    def value_of(self, key: Key, operand: SSAValue, place: NodePlace) -> int | None:
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

    def join_operand(self, source: OpInstance, number: int, operand: int, of_sum: bool) -> None:
        """Results that are in the memory of an operand."""
        op, path = source.op, source.path
        for result, buffer in zip(op.results, self.plan_of(op).buffers, strict=True):
            if buffer.operand != number or buffer.where not in (OPERAND, REPETITION):
                continue
            self.holds_for_all &= buffer.count is None
            if buffer.count is None or conditions.compare(buffer.count, "==", 1, self.numbers):
                self.same[self.index[result, path]] = (operand, of_sum)
                # What repeats its operand once is the same tensor: it overwrites nothing.
                if not of_sum and buffer.where == OPERAND:
                    at = self.when(self.layout.places[source])
                    part = self.is_element(operand, op.operands[number])
                    self.overwritten.append((operand, part, at, number, op))

    def root(self, value: int, of_sum: bool) -> tuple[int, bool]:
        while value in self.same:
            value, sum_too = self.same[value]
            of_sum = of_sum or sum_too
        return value, of_sum

    def when(self, place: NodePlace) -> Order:
        return self.order[place.task], place.row, place.node

    def read_when_overwritten(self) -> Iterator[tuple[Operation, int, str]]:
        """The ops that take the memory of an operand, its number, and what reads it after them: in a loop, maybe its next iteration."""
        for value, part, at, number, op in self.overwritten:
            # Who takes one element leaves the others to those that read these.
            for of in ((value, False),) if part else ((value, False), (value, True)):
                last, reader = self.last_reader.get(of, (at, ""))
                if last > at:
                    yield op, number, reader

    def is_element(self, value: int, operand: SSAValue) -> bool:
        """Whether an operand is an element of a stack that one node makes."""
        whole = isinstance(self.results[value].type, StackType)
        return whole and not isinstance(operand.type, StackType)

    # Columns

    def columns(self) -> ValueTable:
        number = {task: i for i, task in enumerate(self.tasks)}
        sizes = np.array(self.sizes, np.int64)
        for joined in self.same:
            sizes[joined] = 0
            self.forms[joined] = ZERO
        roots = [self.root(each.value, each.of_sum) for each in self.reads]
        self.check_freed(roots)
        summed, stays = self.summed()
        sums = [self.sum_of(i, summed.get(i)) for i in range(len(self.results))]
        for added in self.added:
            sizes[added] = 0
            self.forms[added] = ZERO
        ends = [self.received_or_sent(i) for i in range(len(self.results))]
        unit, unit_numbers = self.units()
        return ValueTable(
            tasks=self.tasks,
            task=np.array([number[p.task] for p in self.places], np.int64),
            row=np.array([p.row for p in self.places], np.int64),
            node=np.array([p.node for p in self.places], np.int64),
            num_bytes=sizes,
            forms=tuple(self.forms),
            kind=np.array(self.kinds, np.int64),
            unit=unit,
            unit_numbers=unit_numbers,
            about=np.array(self.about, np.int64),
            abouts=tuple(self.abouts),
            results=self.results,
            accumulated=np.array([self.number(form) for form in sums], np.int64),
            sums=tuple(sums),
            sum_stays=np.array([i in stays for i in range(len(self.results))], bool),
            read_value=np.array([value for value, _ in roots], np.int64),
            read_task=np.array([number[each.place.task] for each in self.reads], np.int64),
            read_row=np.array([each.place.row for each in self.reads], np.int64),
            read_node=np.array([each.place.node for each in self.reads], np.int64),
            of_sum=np.array([of_sum for _, of_sum in roots], bool),
            frees=np.array([each.frees for each in self.reads], bool),
            read_after=np.array([each.before for each in self.reads], np.int64),
            received={key: i for i, key in enumerate(ends) if key is not None},
            sent=self.handed_on(),
            given=self.given(),
            holds_for_all=self.holds_for_all,
        )

    def check_freed(self, roots: Sequence[tuple[int, bool]]) -> None:
        """E0709 for a value that somebody reads and nobody frees. `roots`: what each reader reads."""
        own = [
            (value, each.frees) for each, (value, s) in zip(self.reads, roots, strict=True) if not s
        ]
        freed = {value for value, frees in own if frees}
        for value in dict.fromkeys(value for value, _ in own if value not in freed):
            owner = self.results[value].owner
            is_stored = self.kinds[value] == Kind.PARAMETERS
            if isinstance(owner, Operation) and self.sizes[value] and not is_stored:
                message = f"`{owner.name}`: somebody reads what it makes, and nobody frees it"
                help_ = "name it behind `frees` of a reader, or run `plan-memory` again"
                place = span_of(owner.location)
                raise refused("E0709", message, place, help=help_)

    def units(self) -> tuple[Ints, Ints]:
        """For each value, the unit and layer that its gather gathers, if other gathers gather it too; and the number of each of these units."""
        known: dict[tuple[int, int], int] = {}
        numbers = {
            (task, row): known.setdefault(unit, len(known))
            for task, units in self.layout.gathered_units.items()
            for unit, row in units.items()
        }
        of_values = [numbers.get((p.task, p.row), -1) for p in self.places]
        return np.array(of_values, np.int64), np.array([unit for unit, _ in known], np.int64)

    def summed(self) -> tuple[dict[int, str], set[int]]:
        """The values that the loop over microbatches adds up, with the dtype of the sum; and those of which that stays."""
        found: dict[int, str] = {}
        stays: set[int] = set()
        for loop in loops(self.program):
            for yielded in loop.yield_op.values:
                for key in self.origins(yielded, ()):
                    if key in self.index and isinstance(key[0], OpResult):
                        term = self.plan_of(key[0].op).buffers[key[0].index]
                        value, _ = self.root(self.index[key], False)
                        found[value] = term.total
                        stays |= {value} if term.stays else set()
        return found, stays

    def sum_of(self, value: int, dtype: str | None) -> Size:
        """Bytes of the sum over microbatches, in `dtype`, of which a value is a term; 0 for none."""
        if dtype is None:
            return ZERO
        width = DTYPE_BITS[tensor_of(self.results[value].type).dtype]
        return self.forms[value] * symbolic.constant(Fraction(DTYPE_BITS[dtype], width))

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

    def given(self) -> dict[str, tuple[int, bool]]:
        """What a place that other stages of the rank read has: its first result, or the sum that this is a term of."""
        found: dict[str, tuple[int, bool]] = {}
        for task, place in self.layout.given.items():
            own = [i for i, each in enumerate(self.places) if each == place]
            if own:
                is_sum = self.results[own[0]] in self.sums and task.startswith(TAKEN)
                found[task] = self.root(own[0], is_sum)
        return found


def last_around(
    lasts: Mapping[tuple[int, Path], list[NodePlace]], group: int, layers: Path
) -> list[NodePlace]:
    """The last of those that are freed together, of the same layer, in whichever direction; else of what is around it."""
    places = (lasts.get((group, layers[:depth])) for depth in range(len(layers), -1, -1))
    return next((found for found in places if found), [])


def bytes_written(op: Operation) -> Size:
    assert isinstance(op, sched.CollectiveOp | sched.ComputeOp)
    return (op.bytes_out if isinstance(op, sched.CollectiveOp) else op.writes).data


def about(op: Operation) -> About:
    assert isinstance(op, sched.NodeOp)
    return About(
        op.node_name, stg.scope_of(op), line_of(op.location), stg.phase_of(op), stg.made_by(op)
    )
