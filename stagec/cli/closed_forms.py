"""Closed forms and numbers as text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction

from stagec.analysis.coordinates import SUFFIX, axes_in
from stagec.cli.tables import width
from stagec.explaining import algebra
from stagec.explaining.job import NamedJob
from stagec.explaining.quantities import Number
from stagec.pictures.scales import amount
from stagec.symbolic import Size


def simplified(job: NamedJob, form: Size) -> algebra.Expression:
    """The shorter of the form as it is, and with the definitions of dims in their place."""
    return algebra.simplified(form, job.names.written_out(form))


def printed(job: NamedJob, form: Size) -> tuple[str, set[str]]:
    """A form for people, and the names in it; of one that nobody reads, how long it is."""
    if algebra.is_long(form):
        length = len(str(form))
        return f"a closed form of {length:,} characters, which `--format python` prints", set()
    found = simplified(job, form)
    return algebra.as_text(found), algebra.names_in(found)


def number(value: Number, unit: str) -> str:
    """`1,644,167,168 B (1.644 GB)`."""
    if isinstance(value, Fraction) and value.denominator != 1:
        return f"{value} ({100 * float(value):.4g} %)"
    value = int(value)
    short = amount(value).strip() if not unit else f"{amount(value)}{unit}"
    return f"{value:,}{f' {unit}' if unit else ''}" + (f" ({short})" if value >= 10_000 else "")


def wrapped(text: str) -> str:
    """A form on lines of their width, broken at the signs between terms."""
    lines: list[str] = []
    line = "  "
    for term in re.split(r"(?= [+-] )", text):
        if len(line) + len(term) > width() and line.strip():
            lines.append(line)
            line = "   "
        line += term
    return "".join(f"{each}\n" for each in [*lines, line])


def where(job: NamedJob, names: Iterable[str]) -> str:
    """`D = 2048, F = 4*D = 8192`."""
    values, definitions = job.names.values, job.names.definitions
    found: list[str] = []
    names = set(names)
    of_rank = {n for n in names if n in definitions and axes_in(definitions[n].names)}
    names |= {f"{axis}{SUFFIX}" for n in of_rank for axis in axes_in(definitions[n].names)}
    for name in sorted(names, key=lambda n: (n in job.names.mesh, n == job.names.microbatch, n)):
        if name in of_rank:
            found.append(f"{name} = {definitions[name]}")
        elif name in values:
            formula = f"{definitions[name]} = " if name in definitions else ""
            found.append(f"{name} = {formula}{values[name]}")
        elif name.endswith(SUFFIX):
            found.append(f"{name} = the rank's coordinate along {name.removesuffix(SUFFIX)}")
    return ", ".join(found)
