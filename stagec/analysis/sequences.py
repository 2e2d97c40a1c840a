"""The numbers of `dist.sequences`: what its names, and those that follow from them, are on each device in each iteration.

An iteration is a coordinate like those of ranks: `iteration.index`. Of a series all iterations are evaluated at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, reduce
from itertools import product
from math import prod

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from stagec.analysis.coordinates import SUFFIX, axes_in, joint_index, names_at
from stagec.analysis.sizes import dim_sizes, dims_by_place, size_values, values_at
from stagec.diagnostics import quoted, refused, span_of
from stagec.dialects import dist, sched, stg
from stagec.dialects.dist.sequences import (
    OF_ONE,
    DealtSequences,
    Kind,
    SequencesAttr,
)
from stagec.dialects.op import first_op
from stagec.symbolic import Size, constant, symbol
from stagec.symbolic.columns import Columns, add
from stagec.symbolic.conditions import Conditions, of_each, unread
from stagec.symbolic.verdict import verdict

ITERATION = f"iteration{SUFFIX}"
"""The number of an iteration, from 0."""

MICROBATCH = f"microbatch{SUFFIX}"
"""Likewise of a microbatch of other sequences than the others'."""


def of_microbatch(name: str, number: int) -> str:
    """What a name of an iteration is called in one of its microbatches."""
    return f"{name}.mb{number}"


def at_device(name: str, number: int) -> str:
    """What a sum is called on one device of another pool."""
    return f"{name}.at{number}"


GOES_AS_ONE = "what a device serves in an iteration goes through as one"
ONE_ROW = "sequences of several kinds, or of each device or iteration its own, are one row"
SAY_HOW_MANY = "say how many they are, `serve { ..., microbatches = 2 }`, or leave `microbatch` out"
"""What users are told of microbatches of such sequences."""

Values = Mapping[str, int | Fraction]


@dataclass(frozen=True, eq=False)
class ModuleSequences:
    """The sequences of a module whose devices or iterations differ."""

    op: dist.SequencesOp
    apart: DealtSequences
    """Those of each device; where these are another pool's, all are of each device here."""
    definitions: Mapping[str, Size]
    """What the names are that follow from sums."""
    others: Mapping[str, int]
    """The numbers of all names that do not."""
    exchanged: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Sums that devices exchange tokens by, and the axes along which they do."""
    handed: Mapping[str, np.ndarray] = field(default_factory=dict)
    """What a pool hands over or takes, in each iteration."""
    is_part: bool = False
    """Whether it is one microbatch."""
    _columns: dict[int, Columns] = field(default_factory=dict)
    _named: dict[Size, tuple[str, ...]] = field(default_factory=dict)
    """The names in a size that are numbers, and below the size in these numbers."""
    _written: dict[tuple[Size, tuple[int | Fraction | None, ...]], Size] = field(
        default_factory=dict
    )

    @staticmethod
    def of(module: ModuleOp) -> ModuleSequences | None:
        op = first_op(module, dist.SequencesOp)
        if op is None:
            return None
        named = dim_sizes(module)
        said = [each for each in module.body.ops if isinstance(each, dist.HandedNumbersOp)]
        handed = {name: column for each in said for name, column in each.columns.items()}
        of_devices = {
            at_device(name, at)
            for name in (op.sizes if op.together is not None else ())
            for at in range(op.sequences.data.num_devices)
        }
        varying = {*op.sizes, *handed, *of_devices}
        while more := {n for n, s in named.items() if s.names & varying} - varying:
            varying |= more
        numbers = unread(size_values(module))
        others = {name: number for name, number in numbers.items() if name not in varying}
        sent = [each for each in module.body.ops if isinstance(each, dist.SentLoadOp)]
        exchanged = {name: each.over.data for each in sent for name in each.sums.data}
        summed = {
            *op.sizes,
            *handed,
            *of_devices,
            *(f"{n}{end}" for n in exchanged for end in (dist.TOTAL, dist.MOST)),
        }
        definitions = {name: named[name] for name in named if name in varying - summed}
        return ModuleSequences(op, op.sequences.data, definitions, others, exchanged, handed)

    @cached_property
    def parts(self) -> Sequence[ModuleSequences]:
        """Its microbatches, if these are of other sequences."""
        if self.op.by is None or self.is_part:
            return ()
        parts = self.apart.microbatches(self.op.num_microbatches, self.op.by.data)
        return [replace(self, apart=part, is_part=True, _columns={}) for part in parts]

    @cached_property
    def dealt(self) -> DealtSequences:
        """How sequences are dealt out to each device of this module."""
        return self.apart if self.op.together is None else self.apart.together

    @property
    def each(self) -> Sequence[ModuleSequences]:
        """What is computed at a time: its microbatches, or all together."""
        return self.parts or (self,)

    def serving(self, sequences: DealtSequences) -> ModuleSequences:
        """The same module with other sequences."""
        self.op.sequences = SequencesAttr(sequences)
        return replace(self, apart=sequences, _columns={})

    @staticmethod
    def around(program: stg.ProgramOp) -> ModuleSequences | None:
        module = program.parent_op()
        return ModuleSequences.of(module) if isinstance(module, ModuleOp) else None

    @property
    def num_iterations(self) -> int:
        return self.dealt.num_iterations

    @property
    def is_series(self) -> bool:
        return self.num_iterations > 1

    @cached_property
    def along(self) -> tuple[str, ...]:
        """Axes along which ranks have other sequences, and behind them those along which they share the positions of each."""
        shared = {axis for size in self.op.sizes.values() for axis in axes_in(size.names)}
        return (*self.op.over.data, *sorted(shared))

    @property
    def axes(self) -> set[str]:
        """Axes along which ranks have other sequences."""
        return set(self.op.over.data)

    @cached_property
    def num_sharing(self) -> int:
        """Devices that have the same sequences, and of these positions of their own."""
        return prod(self.others[axis] for axis in self.along[len(self.op.over.data) :])

    @property
    def num_devices(self) -> int:
        """Devices whose numbers may differ."""
        return self.dealt.num_devices * self.num_sharing

    def place(self, device: int) -> dict[str, int]:
        """The coordinates of a device."""
        shape = [self.others[axis] for axis in self.along]
        return names_at(self.along, tuple(map(int, np.unravel_index(device, shape))))

    @cached_property
    def names(self) -> frozenset[str]:
        return self.own_names.union(
            of_microbatch(name, number)
            for number, part in enumerate(self.parts)
            for name in part.names
        )

    @cached_property
    def own_names(self) -> frozenset[str]:
        """Without those of microbatches."""
        across = (f"{n}{end}" for n in self.exchanged for end in (dist.TOTAL, dist.MOST))
        return frozenset(
            (*self.op.sizes, *self.of_devices, *self.handed, *self.definitions, *across)
        )

    @cached_property
    def of_devices(self) -> Mapping[str, tuple[str, int]]:
        """The names of the sums of each device of another pool, by sum and device."""
        if self.op.together is None:
            return {}
        devices = range(self.apart.num_devices)
        return {at_device(name, at): (name, at) for name in self.op.sizes for at in devices}

    def values_in(self, microbatch: int, values: Mapping[str, int]) -> dict[str, int]:
        """The numbers of a rank in one of its microbatches, by those that it has in all."""
        own = {name: values[of_microbatch(name, microbatch)] for name in self.own_names}
        return {**values, **own, MICROBATCH: microbatch}

    def size_in(self, microbatch: int, size: Size) -> Size:
        """What a size is called in one of the microbatches; nothing else without any."""
        if not self.parts or microbatch < 0:
            return size
        names = size.names & self.own_names
        return size.substitute({n: symbol(of_microbatch(n, microbatch)) for n in names})

    @property
    def names_of_one(self) -> tuple[str, ...]:
        return OF_ONE

    def device(self, values: Values) -> int:
        """A rank's place among those that have sequences of their own, or positions of these."""
        known = {f"{axis}{SUFFIX}": 0 for axis in self.along} | dict(values)
        return joint_index(self.along).integer(known)

    def sizes(self, values: Values) -> dict[str, int]:
        """What the names are on a rank in an iteration, by its coordinates."""
        columns = self.columns(self.device(values))
        at = int(values.get(ITERATION, 0))
        return {name: int(columns.names[name][at]) for name in self.names}

    def kinds(self, values: Values) -> list[Kind]:
        """The sequences of a rank in an iteration, or in a microbatch of it."""
        dealt = self.parts[int(values[MICROBATCH])].dealt if MICROBATCH in values else self.dealt
        return dealt.at(int(values.get(ITERATION, 0)), self.device(values) // self.num_sharing)

    def columns(self, device: int) -> Columns:
        """What the names are on a device, in all iterations."""
        if device not in self._columns:
            self._columns[device] = self.made(device)
        return self._columns[device]

    def made(self, device: int) -> Columns:
        """The sums of a device, those of all that it exchanges tokens with, and what follows from them."""
        found = Columns(
            {**self.sums(device), **self.across(device), **self.handed}, self.num_iterations
        )
        pending = dict(self.definitions)
        while pending:
            ready = [name for name, size in pending.items() if not size.names & pending.keys()]
            assert ready, "sizes follow from one another"
            for name in ready:
                size = self.in_numbers(pending.pop(name))
                found.names = {**found.names, name: found.number(size)}
        for number, part in enumerate(self.parts):
            own = part.columns(device).names
            found.names = {**found.names, **{of_microbatch(n, number): own[n] for n in own}}
        return found

    def across(self, device: int) -> dict[str, np.ndarray]:
        """What sums are on all devices along some axes, and on the one where they are largest."""
        found: dict[str, np.ndarray] = {}
        for name, axes in self.exchanged.items():
            group = next(each for each in self.groups(axes) if device in each)
            each = [self.sums(at)[name] for at in group]
            found[f"{name}{dist.TOTAL}"] = reduce(add, each)
            found[f"{name}{dist.MOST}"] = reduce(np.maximum, each)
        return found

    def groups(self, axes: Collection[str]) -> list[list[int]]:
        """The devices that differ along some axes alone."""
        over = self.along
        places = np.arange(self.num_devices)
        places = places.reshape([self.others[axis] for axis in over])
        last = [at for at, axis in enumerate(over) if axis in axes]
        places = np.moveaxis(places, last, range(len(over) - len(last), len(over)))
        return places.reshape(-1, prod(self.others[over[at]] for at in last)).tolist()

    def agree(self, size: Size, axes: Collection[str], placed: Mapping[str, Size]) -> bool:
        """Whether all ranks that differ along some axes alone have the same size, in every iteration. `placed`: dims that depend on a rank's coordinates."""
        own = {name: placed[name] for name in size.names & placed.keys()}
        concerned = axes_in({*size.names, *(n for part in own.values() for n in part.names)})
        # Ranks that have the same sequences may have other parts.
        beside = sorted(concerned - {*self.along})
        found: dict[tuple[int, ...], np.ndarray] = {}
        groups = self.groups(axes)
        for place in product(*(range(self.others[axis]) for axis in beside)):
            fixed = [at for axis, at in zip(beside, place, strict=True) if axis not in axes]
            for number, group in enumerate(groups):
                for device in group:
                    known = {**self.others, **names_at(beside, place), **self.place(device)}
                    written = self.in_numbers(size, {**known, **values_at(own, known)})
                    mine = self.columns(device).number(written)
                    if not np.array_equal(found.setdefault((number, *fixed), mine), mine):
                        return False
        return True

    def sums(self, device: int) -> Mapping[str, np.ndarray]:
        """The sums over the sequences of a device, in all iterations."""
        known = {**self.others, **self.place(device)}
        sizes = {name: self.in_numbers(size, known) for name, size in self.op.sizes.items()}
        own = device // self.num_sharing
        found = {name: self.dealt.sums(size)[own] for name, size in sizes.items()}
        others = self.of_devices.items()
        return found | {name: self.apart.sums(sizes[own])[at] for name, (own, at) in others}

    def fullest(self, device: int) -> list[int]:
        """Iterations of which none other is as large in every size: one of them needs most memory, as no buffer shrinks where sizes grow."""
        columns = self.columns(device)
        table = np.stack([columns.names[name] for name in sorted(self.names)], axis=1)
        rows, first = np.unique(table, axis=0, return_index=True)
        order = np.argsort(-rows.astype(float).sum(axis=1), kind="stable")
        found: list[int] = []
        left = np.ones(len(rows), bool)
        for row in order.tolist():
            if left[row]:
                found.append(int(first[row]))
                left &= ~(rows <= rows[row]).all(axis=1)
        return sorted(found)

    def in_sums(self, size: Size) -> Size:
        """A size without the names that follow from sums."""
        while made := {n: s for n, s in self.definitions.items() if n in size.names}:
            size = size.substitute(made)
        return size

    def in_numbers(self, size: Size, values: Values | None = None) -> Size:
        """A size in which all other names are numbers."""
        known = self.others if values is None else values
        if size not in self._named:
            self._named[size] = tuple(sorted(size.names - self.names))
        names = self._named[size]
        key = size, tuple([known.get(n) for n in names])
        if key not in self._written:
            given = zip(names, key[1], strict=True)
            self._written[key] = size.substitute(
                {name: constant(number) for name, number in given if number is not None}
            )
        return self._written[key]

    def concern(self, size: Size) -> bool:
        """Whether a size is not the same on every device, or in every iteration."""
        return bool(size.names & self.names)


class OtherPrograms(Exception):
    """Not all iterations of a series are one program: `same` has those that are what was compiled."""

    def __init__(self, same: np.ndarray) -> None:
        super().__init__(same)
        self.same = same


def check_alike(module: ModuleOp, asked: Conditions, numbers: Sequence[int] = ()) -> None:
    """Check that devices run the program that was compiled for the first, by what that asked of sizes. Else E0414. `OtherPrograms` where not all iterations do;
    E0421 for one that the plan cannot have. `numbers` are those of iterations in their file, where these are some of it."""
    sequences = ModuleSequences.of(module)
    if sequences is None:
        return
    place = span_of(sequences.op.location)
    same = np.ones(sequences.num_iterations, bool)
    devices = range(sequences.num_devices)
    for device, (part, own) in product(devices, enumerate(sequences.each)):
        columns = own.columns(device)
        known = {**asked.numbers, **own.others}
        others = {n: columns.constant(v) for n, v in known.items()}
        each = {of_each(name): column for name, column in columns.names.items()}
        found = Columns({**others, **columns.names, **each}, columns.count)
        told = verdict(asked.since_replaced(), found, is_compiled=True)
        same &= told.same
        if not told.refused and told.same[0]:
            continue
        where = f" on device {device}" if sequences.num_devices > 1 else ""
        where += f" in microbatch {part}" if sequences.parts else ""
        number, reason = 0, "it is another program than the first"
        code, help_ = "E0414", "serve sequences that make all devices run one program"
        if told.refused:
            failing, reason = told.refused[0]
            number = int(np.argmax(failing))
            code, help_ = "E0421", "serve sizes that the plan allows in each"
            if not sequences.is_series:
                ways = "the microbatches" if sequences.parts else quoted(sorted(sequences.axes))
                help_ = f"let {ways} divide the sequences of each kind, so that all serve the same"
                code = "E0414"
        number = numbers[number] if len(numbers) else number
        what = f"iteration {number + 1}{where}" if sequences.is_series else f"what is served{where}"
        message = f"{what} cannot be one of the plan: {reason}"
        raise refused(code, message, place, help=help_)
    if not same.all():
        raise OtherPrograms(same)
    check_groups(module, sequences)


def check_groups(module: ModuleOp, sequences: ModuleSequences) -> None:
    """E0414 for what devices exchange of which they have not as much: all members of a group name one size."""
    if any(isinstance(op, dist.ExpertLoadOp) for op in module.body.ops):
        message = "experts of a load, and sequences that are not the same on every device or in every iteration"
        help_ = "leave out `load`, or serve one iteration of sequences that divide"
        raise refused("E0414", message, span_of(sequences.op.location), help=help_)
    if sequences.num_devices == 1:
        return
    placed = dims_by_place(module)
    for op in module.walk():
        if not isinstance(op, sched.CollectiveOp | sched.SendOp | sched.RecvOp):
            continue
        if not {*sequences.along} & {*op.axes.data}:
            continue
        size = op.bytes_in.data if isinstance(op, sched.CollectiveOp) else op.num_bytes.data
        if not sequences.concern(size):
            continue
        if not all(each.agree(size, op.axes.data, placed) for each in sequences.each):
            what = op.node_name
            message = f"`{what}` over {quoted(op.axes.data)} has other sizes on devices that have other sequences"
            help_ = f"serve sequences whose new tokens divide over {quoted(sorted(sequences.axes))}"
            if isinstance(op, sched.CollectiveOp) and op.kind.data == "all_to_all":
                help_ += "; or let experts have as many tokens as they are sent on average: `serve { ..., experts = average }`"
            raise refused("E0414", message, span_of(op.location), help=help_)
