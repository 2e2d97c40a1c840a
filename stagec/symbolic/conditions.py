"""What a compilation asks of sizes: demands that it makes of them, and what it decides by them.

Sizes stay expressions as far as they can. Where a number decides (does an axis split anything, does it divide a dim, how many
layers has a stage), other sizes may make another program. `recording` notes every such place while a plan is compiled, in the
order in which they are met. Another plan for which every condition comes out the same is the same program with other sizes; one
that fails the first demand on the same way is refused as this one would be. So a sweep tells plans apart without compiling them.

Numbers are looked up in `Observed`, a dictionary that notes who reads them: a number that is read is one on which everything may
depend. `whole`, `compare` and `meets` ask for less, and plans that agree on less share more.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any, TypeVar

from stagec.symbolic.algebra import ONE, Size, as_size, constant, symbol

Value = TypeVar("Value", int, int | None)
Test = Callable[..., bool]
"""A test of the exact numbers of some sizes."""

RELATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Condition:
    """A question about sizes, and the answer that a plan gave."""

    sizes: tuple[Size, ...]
    test: str | Test
    """`whole` of one size, a relation of two, or any question about their numbers."""
    holds: bool
    reason: str = ""
    """Why a plan that does not meet a demand is refused."""

    @property
    def is_demand(self) -> bool:
        return bool(self.reason)

    def __str__(self) -> str:
        if self.test == "whole":
            return f"{self.sizes[0]} is {'' if self.holds else 'not '}a whole number"
        if isinstance(self.test, str):
            text = f"{self.sizes[0]} {self.test} {self.sizes[1]}"
        else:
            text = self.reason or f"{', '.join(map(str, self.sizes))}"
        return text if self.holds else f"not {text}"


@dataclass
class Conditions:
    """What one compilation met."""

    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of a plan that are varied like sizes, and what they are called in conditions."""
    numbers: dict[str, int] = field(default_factory=dict)
    """What those settings are in the plan that is compiled, and axes that its mesh has as a product of others."""
    found: dict[Condition, None] = field(default_factory=dict)
    definitions: dict[str, Size] = field(default_factory=dict)
    """What names that the compiler made stand for."""
    replaced: dict[str, Size] = field(default_factory=dict)
    """What stands, from some point on, for names in what is noted."""
    changed: set[str] = field(default_factory=set)
    """Those of these names that meant something else before."""
    is_closed: bool = False
    """Whether nothing is noted any more."""

    def add(self, condition: Condition) -> None:
        if self.is_closed:
            return
        sizes = tuple(map(self.written, condition.sizes))
        # A size without names is the same in all plans.
        if any(size.names for size in sizes):
            self.found.setdefault(replace(condition, sizes=sizes))

    def since_replaced(self) -> Conditions:
        """Without what was asked of names that mean something else now."""
        found = {
            condition: None
            for condition in self.found
            if all(self.changed.isdisjoint(size.names) for size in condition.sizes)
        }
        return replace(self, found=found)

    def written(self, size: Size) -> Size:
        """A size in names that mean what they meant at first."""
        if self.replaced.keys().isdisjoint(size.names):
            return size
        return size.substitute({n: self.replaced[n] for n in size.names if n in self.replaced})


_RECORDER: ContextVar[Conditions | None] = ContextVar("conditions", default=None)


@contextmanager
def recording(settings: Mapping[str, str] | None = None) -> Iterator[Conditions]:
    """Note what is asked of sizes from here on."""
    found = Conditions(settings or {})
    token = _RECORDER.set(found)
    try:
        yield found
    finally:
        _RECORDER.reset(token)


def recorder() -> Conditions | None:
    """What is being noted, if anything is."""
    return _RECORDER.get()


@contextmanager
def unrecorded() -> Iterator[None]:
    """For what changes no program: warnings."""
    token = _RECORDER.set(None)
    try:
        yield
    finally:
        _RECORDER.reset(token)


def note(test: str | Test, *sizes: Size | int, holds: bool, reason: str = "") -> bool:
    """Note a question and its answer, and give the answer."""
    recorder = _RECORDER.get()
    if recorder is not None:
        recorder.add(Condition(tuple(map(as_size, sizes)), test, holds, reason))
    return holds


def read(size: Size, value: int | Fraction) -> None:
    """Note that a number was used as it is."""
    note("==", size, constant(value), holds=True)


def define(name: str, size: Size) -> None:
    """Say what a name that the compiler made stands for. The first definition holds."""
    recorder = _RECORDER.get()
    if recorder is not None:
        recorder.definitions.setdefault(name, recorder.written(size))


def redefine(name: str, size: Size, by_others: bool = False) -> None:
    """Say what a name stands for from here on. What was noted before means what it stood for.

    That is something else, unless it is made `by_others` alone that are what they were.
    """
    recorder = _RECORDER.get()
    if recorder is not None:
        if not by_others or not recorder.changed.isdisjoint(size.names):
            recorder.changed.add(name)
        recorder.replaced[name] = recorder.written(size)


def of_each(name: str) -> str:
    """What a dim is called in conditions that is not the same on every device, or in every iteration."""
    return f"{name} of each"


def setting(name: str, value: int) -> Size:
    """A plan's setting: its name in conditions where it is varied, else its number."""
    recorder = _RECORDER.get()
    if recorder is None or name not in recorder.settings:
        return constant(value)
    known = recorder.settings[name]
    recorder.numbers[known] = value
    return symbol(known)


def define_setting(name: str, size: Size, value: int | Fraction) -> None:
    """Say what a plan's setting follows from, where conditions have its name; else plans where it is another number are other plans."""
    recorder = _RECORDER.get()
    if recorder is None or name not in recorder.settings:
        read(size, value)
    else:
        # What is said of it later counts: a pipeline's own goes before the plan's.
        recorder.definitions[recorder.settings[name]] = recorder.written(size)


def know(name: str, value: int | None) -> None:
    """Say what a name is in the plan that is compiled, whose program has others in its place."""
    recorder = _RECORDER.get()
    if recorder is not None and value is not None:
        recorder.numbers[name] = value


class Observed(dict[str, Value]):
    """Numbers of names. Reading one is noted."""

    known: Mapping[str, int] = MappingProxyType({})
    """The sizes that follow from what was noted before, such as a stage's number of layers: reading them is not noted."""

    def __getitem__(self, name: str) -> Value:
        value = super().__getitem__(name)
        if value is not None and name not in self.known:
            read(symbol(name), value)
        return value

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def values(self) -> Any:
        return [self[name] for name in self]

    def items(self) -> Any:
        return [(name, self[name]) for name in self]

    def __iter__(self) -> Iterator[str]:
        # Without this, copies would be made behind the back of `__getitem__`.
        return super().__iter__()

    @property
    def unread(self) -> dict[str, Value]:
        """A plain copy, whose readers nobody notes."""
        return dict(zip(super().__iter__(), super().values(), strict=True))

    def exact(self, size: Size) -> Fraction:
        """The number of a size: that is what is read, not its names."""
        value = size.evaluate(self.unread)  # pyright: ignore[reportArgumentType]
        read(size.substitute(self.known), value)
        return value


def observed(values: dict[str, Value]) -> dict[str, Value]:
    """The same numbers; their readers are noted if someone records."""
    recorder = _RECORDER.get()
    return values if recorder is None or recorder.is_closed else Observed(values)


def with_known(values: Mapping[str, int], known: Mapping[str, int]) -> dict[str, int]:
    """The same numbers, and others that follow from what was noted. A plain copy would read them all."""
    if not isinstance(values, Observed):
        return {**values, **known}
    found = Observed({**values.unread, **known})
    found.known = {**values.known, **known}
    return found


def unread(values: Mapping[str, Value]) -> Mapping[str, Value]:
    """For who notes by himself what he asks."""
    return values.unread if isinstance(values, Observed) else values


def whole(size: Size, values: Mapping[str, int], reason: str = "") -> bool:
    """Whether a size is a whole number; with a `reason`, a plan where it is not is refused."""
    found = size.evaluate(unread(values)).denominator == 1
    return note("whole", size, holds=found, reason=reason)


def compare(
    left: Size | int, relation: str, right: Size | int, values: Mapping[str, int], reason: str = ""
) -> bool:
    """Whether a relation holds between two sizes."""
    numbers = [as_size(side).evaluate(unread(values)) for side in (left, right)]
    return note(relation, left, right, holds=RELATIONS[relation](*numbers), reason=reason)


def is_split(axis: str, mesh: Mapping[str, int]) -> bool:
    """Whether an axis has more than one rank; not if there is no such axis."""
    return axis in mesh and compare(symbol(axis), ">", ONE, mesh)


def meets(test: Test, *sizes: Size, values: Mapping[str, int], reason: str = "") -> bool:
    """Whether the numbers of sizes pass a test. The test is equal to itself alone: it depends on nothing else."""
    numbers = [size.evaluate(unread(values)) for size in sizes]
    return note(test, *sizes, holds=test(*numbers), reason=reason)
