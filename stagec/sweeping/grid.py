"""The sizes that a sweep varies, as `--sweep` says them: lists (`tp=1,2,4,8`), ranges (`pp=1..16`) and formulas (`dp=512/(tp*pp)`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from stagec import symbolic
from stagec.diagnostics import CompileError, refused, suggestion
from stagec.symbolic import Size, SizeError

MOST_POINTS = 1_000_000
WHOLE = re.compile(r"[1-9][0-9]{0,17}")
RANGE = re.compile(r"([1-9][0-9]{0,17})\.\.([1-9][0-9]{0,17})")


@dataclass(frozen=True)
class Grid:
    """All combinations of listed values. Each point of a sweep has one value for each name."""

    values: Mapping[str, tuple[int, ...]]
    """The names that are listed, each with its values."""
    formulas: Mapping[str, Size]
    """The names whose value at each point follows from the other names."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names that vary, listed ones first."""
        return (*self.values, *self.formulas)

    def points(self) -> Iterator[dict[str, int]]:
        """Every combination of the listed values."""
        for chosen in product(*self.values.values()):
            yield dict(zip(self.values, chosen, strict=True))


@dataclass(frozen=True)
class Listed:
    """The points of a sweep, listed one by one rather than as combinations."""

    names: tuple[str, ...]
    rows: tuple[tuple[int, ...], ...]
    """Of each point, a value for each of `names`."""
    formulas: Mapping[str, Size] = field(default_factory=dict)

    @property
    def values(self) -> Mapping[str, tuple[int, ...]]:
        """For each name, the different values that it has at the points."""
        columns = zip(*self.rows, strict=True)
        return {n: tuple(dict.fromkeys(c)) for n, c in zip(self.names, columns, strict=True)}

    def points(self) -> Iterator[dict[str, int]]:
        """The listed points, in their order."""
        for row in self.rows:
            yield dict(zip(self.names, row, strict=True))


def grid(texts: Sequence[str], known: Sequence[str]) -> Grid:
    """The grid that the texts of `--sweep` describe, one text for each name. `known` are the names that the plan has.

    E0710 for an unknown name, for text that is neither a list of sizes nor a formula, and for more than `MOST_POINTS` points; E0711 for a name that is given
    twice.
    """
    values: dict[str, tuple[int, ...]] = {}
    formulas: dict[str, Size] = {}
    for text in texts:
        name, equals, right = (part.strip() for part in text.partition("="))
        if not (name and equals and right):
            raise wrong(text, "`--sweep` wants names and their values", "such as `tp=1,2,4,8`")
        if name not in known:
            help_ = suggestion(name, known)
            raise wrong(text, f"there is no size `{name}`", help_)
        if name in values or name in formulas:
            raise wrong(text, f"`{name}` stands twice", "leave out one", "E0711")
        listed = numbers(text, right)
        if listed is not None:
            values[name] = listed
        else:
            formulas[name] = formula(text, right)
    for name, size in formulas.items():
        unknown = sorted(size.names - set(known))
        if unknown:
            help_ = suggestion(unknown[0], known)
            raise wrong(f"{name}={size}", f"there is no size `{unknown[0]}`", help_)
        circle = sorted(size.names & set(formulas))
        if circle:
            message = f"`{name}` follows from `{circle[0]}`, which is not a list of values itself"
            raise wrong(f"{name}={size}", message, "write it in names that have values")
    count = 1
    for listed in values.values():
        count *= len(listed)
    if count > MOST_POINTS:
        raise wrong(" ".join(texts), f"these are {count:,} plans", f"sweep {MOST_POINTS:,} at most")
    return Grid(values, formulas)


def numbers(text: str, right: str) -> tuple[int, ...] | None:
    """The sizes that a list such as `1,2,8..16` names, each once; None if `right` is no list, but may be a formula."""
    found: list[int] = []
    for part in right.split(","):
        if WHOLE.fullmatch(part.strip()):
            found.append(int(part))
        elif part.strip().isdecimal():
            raise wrong(
                text, f"`{part}` is not a size", "sizes are 1 or more, and have up to 18 digits"
            )
        elif match := RANGE.fullmatch(part.strip()):
            first, last = int(match[1]), int(match[2])
            if last < first:
                raise wrong(text, f"`{part}` is not a range", "write the smaller number first")
            if last - first >= MOST_POINTS:
                message = f"`{part}` are {last - first + 1:,} values"
                raise wrong(text, message, f"sweep {MOST_POINTS:,} at most")
            found += range(first, last + 1)
        else:
            return None
    return tuple(dict.fromkeys(found))


def formula(text: str, right: str) -> Size:
    """The size that a formula such as `512/(tp*pp)` describes. E0710 if it is none."""
    try:
        return symbolic.parse(right)
    except SizeError:
        help_ = "write `1,2,4`, `1..16`, or a formula such as `512/(tp*pp)`"
        raise wrong(text, f"`{right}` is not a list of sizes", help_) from None


def wrong(text: str, message: str, help_: str, code: str = "E0710") -> CompileError:
    """The error for one text of `--sweep`."""
    return refused(code, message, origin=f"--sweep {text}", help=help_)
