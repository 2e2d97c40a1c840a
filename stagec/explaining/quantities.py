"""What can be asked for, and the sums that answer: for each rank class a closed form, its number, its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from stagec import symbolic
from stagec.analysis.coordinates import SUFFIX
from stagec.explaining.names import Names
from stagec.explaining.rolled_operations import Amount, ClassOperations, Term
from stagec.symbolic import ONE, ZERO, Size, symbol

SUM = "total"
"""Instead of the name of a rank class: all ranks together."""


Number = int | Fraction


@dataclass(frozen=True)
class Contribution:
    """What a line of the model contributes by one kind of op."""

    scope: str
    location: str
    op: str
    made_by: str
    form: Size
    value: int


@dataclass(frozen=True)
class ClassAnswer:
    """What a question comes to on one rank of a class."""

    name: str
    where: Mapping[str, tuple[int, ...]]
    form: Size
    value: Number
    parts: tuple[Contribution, ...]

    @property
    def at_its_place(self) -> Size:
        """The form, with the coordinates of the class's first rank for those that it names."""
        places = {f"{axis}{SUFFIX}": symbolic.constant(at[0]) for axis, at in self.where.items()}
        return self.form.substitute(places)

    def with_names(self, sizes: Mapping[str, Size]) -> ClassAnswer:
        """The same with other sizes for some names."""
        parts = tuple(replace(p, form=p.form.substitute(sizes)) for p in self.parts)
        return replace(self, form=self.form.substitute(sizes), parts=parts)


@dataclass(frozen=True)
class Answer:
    """A quantity of one step."""

    title: str
    unit: str
    classes: tuple[ClassAnswer, ...]
    notes: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    is_additive: bool = True
    """Whether the sum over all ranks means something."""
    whole: Amount | None = None
    """The amount of the whole model, where that is no sum over ranks."""

    @property
    def worst(self) -> ClassAnswer:
        return max(self.classes, key=lambda each: each.value)

    def groups(self) -> list[list[ClassAnswer]]:
        """Classes with the same form and the same number."""
        found: dict[tuple[Size, Number], list[ClassAnswer]] = {}
        for each in self.classes:
            found.setdefault((each.form, each.value), []).append(each)
        return list(found.values())


def joined(parts: Iterable[Contribution]) -> tuple[Contribution, ...]:
    """One part for all of a line and an op, largest first: virtual stages have the same lines."""
    found: dict[tuple[str, str, str, str], list[Contribution]] = {}
    for part in parts:
        found.setdefault((part.scope, part.location, part.op, part.made_by), []).append(part)
    sums = [
        Contribution(*key, symbolic.total(p.form for p in same), sum(p.value for p in same))
        for key, same in found.items()
    ]
    return tuple(sorted(sums, key=lambda part: -part.value))


Piece = tuple[Term, Amount]
"""A term, and what one run of it contributes."""


def summed(name: str, where: Mapping[str, tuple[int, ...]], pieces: Iterable[Piece]) -> ClassAnswer:
    """What a class' terms come to, each as often as it runs."""
    return of_parts(
        name,
        where,
        (
            Contribution(
                term.scope,
                term.location,
                term.op,
                term.made_by,
                term.count.form * amount.form,
                term.count.number * amount.number,
            )
            for term, amount in pieces
            if amount.number or amount.form
        ),
    )


def of_parts(
    name: str, where: Mapping[str, tuple[int, ...]], parts: Iterable[Contribution]
) -> ClassAnswer:
    """Their sum."""
    found = joined(parts)
    form = symbolic.total(part.form for part in found)
    return ClassAnswer(name, where, form, sum(part.value for part in found), found)


def total_over_ranks(answer: Answer, names: Names) -> Amount:
    """The total over all ranks."""
    if answer.whole is not None:
        return answer.whole
    forms: list[Size] = []
    value = 0
    for group in answer.groups():
        assert isinstance(group[0].value, int)
        count = num_ranks(group, names)
        forms.append(count.form * group[0].at_its_place)
        value += count.number * group[0].value
    return Amount(symbolic.total(forms), value)


def num_ranks(group: Sequence[ClassAnswer], names: Names) -> Amount:
    """Ranks of classes that differ in their coordinates along the same axes.

    All of the coordinates of an axis are its size; all but a few are so many fewer than its size.
    """
    form, number = ONE, 1
    chosen: dict[str, set[int]] = {}
    places = 0
    for each in group:
        block = 1
        for axis, at in each.where.items():
            chosen.setdefault(axis, set()).update(at)
            block *= len(at)
        places += block
    full = 1
    for at in chosen.values():
        full *= len(at)
    for axis, size in names.mesh.items():
        if axis not in chosen:
            form, number = form * symbol(axis), number * size
    if full != places:
        return Amount(form * places, number * places)
    for axis, at in chosen.items():
        form, number = form * share_of_axis(axis, at, names.mesh[axis]), number * len(at)
    return Amount(form, number)


def share_of_axis(axis: str, at: set[int], size: int) -> Size:
    """How many coordinates these are: as a number, or as what is left of the axis without its ends."""
    rest = set(range(size)) - at
    if len(at) == 1 and size != 1 and at <= {0, size - 1}:
        return ONE
    if rest <= {0, size - 1}:
        return symbol(axis) - len(rest)
    return symbolic.constant(len(at))


# What a term contributes


def flops_of(term: Term) -> Amount:
    return term.amounts.flops


def bytes_of(term: Term) -> Amount:
    return Amount(
        term.amounts.read.form + term.amounts.written.form,
        term.amounts.read.number + term.amounts.written.number,
    )


MEASURES: dict[str, Callable[[Term], Amount]] = {
    "operand_bytes": lambda term: term.amounts.before,
    "result_bytes": lambda term: term.amounts.after,
    "sent_bytes": lambda term: term.amounts.sent,
    "count": lambda term: Amount(ONE, 1) if term.is_communication else Amount(ZERO, 0),
}
"""What can be counted of communication. Without one of these: what a trace says, the bytes that a rank puts in."""


def chosen_terms(each: ClassOperations, words: Sequence[str]) -> list[Term]:
    wanted = set(words)
    return [term for term in each.terms if wanted <= term.words]
