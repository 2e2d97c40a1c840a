"""What to vary: `tp=1,2,4,8`, `pp=1..16`, `dp=512/(tp*pp)`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from stagec import symbolic
from stagec.diagnostics import CompileError, did_you_mean, refused, suggestion
from stagec.symbolic import Size, SizeError

MOST_POINTS = 1_000_000
WHOLE = re.compile(r"[1-9][0-9]{0,17}")
RANGE = re.compile(r"([1-9][0-9]{0,17})\.\.([1-9][0-9]{0,17})")


@dataclass(frozen=True)
class Grid:
    """Values of some names, and names that follow from others."""

    values: Mapping[str, tuple[int, ...]]
    formulas: Mapping[str, Size]

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.values, *self.formulas)

    def points(self) -> Iterator[dict[str, int]]:
        """Every combination of the listed values."""
        for chosen in product(*self.values.values()):
            yield dict(zip(self.values, chosen, strict=True))


@dataclass(frozen=True)
class Listed:
    """Points that are no grid."""

    names: tuple[str, ...]
    rows: tuple[tuple[int, ...], ...]
    formulas: Mapping[str, Size] = field(default_factory=dict)

    @property
    def values(self) -> Mapping[str, tuple[int, ...]]:
        """For each name, the values that some point has."""
        columns = zip(*self.rows, strict=True)
        return {n: tuple(dict.fromkeys(c)) for n, c in zip(self.names, columns, strict=True)}

    def points(self) -> Iterator[dict[str, int]]:
        for row in self.rows:
            yield dict(zip(self.names, row, strict=True))


def grid(texts: Sequence[str], known: Sequence[str]) -> Grid:
    """From the command line. E0710 for what is no list of sizes, E0711 for a name that stands twice."""
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
            help_ = did_you_mean(unknown[0], known)
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
    """`1,2,8..16`; nothing for a formula."""
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
    try:
        return symbolic.parse(right)
    except SizeError:
        help_ = "write `1,2,4`, `1..16`, or a formula such as `512/(tp*pp)`"
        raise wrong(text, f"`{right}` is not a list of sizes", help_) from None


def wrong(text: str, message: str, help_: str, code: str = "E0710") -> CompileError:
    return refused(code, message, origin=f"--sweep {text}", help=help_)
