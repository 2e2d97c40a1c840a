"""`stagec explain MODEL.stg --solve "memory.peak < 80GiB" --for microbatch`: which values meet a condition."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from fractions import Fraction

from stagec.cli.device_flags import planned
from stagec.cli.tables import amount, lines_of
from stagec.cli.usage import usage_error
from stagec.diagnostics import did_you_mean, quoted
from stagec.explaining.names import MICROBATCH
from stagec.frontend import Source, check, parse_file
from stagec.frontend.checker import sizes_of
from stagec.sweeping.plans import SweepRequest
from stagec.sweeping.points import Grid
from stagec.sweeping.run import STEP_TIME, sweep
from stagec.symbolic.conditions import RELATIONS

CONDITION = re.compile(
    r"\s*([\w.+]+)\s*(<=|>=|<|>)\s*([0-9]+(?:\.[0-9]+)?)\s*([kKMGT]i?B|B|[kKMGTP])?\s*"
)
LARGEST_AXIS = 4096
LARGEST_DIM = 65536
LARGEST_COUNT = 256
"""What is tried of a mesh axis or microbatch, of a dim, and of a dim that says how often a body runs."""


def show_solution(options: argparse.Namespace) -> int:
    match = CONDITION.fullmatch(options.solve)
    if match is None:
        message = f"`{options.solve}` is not a condition"
        help_ = 'write `--solve "memory.peak < 80GiB"`'
        raise usage_error(f"--solve {options.solve!r}", message, "E0710", help_)
    what, sign, text, unit = match.groups()
    limit = bound(text, unit or "")
    source = parse_file(options.model)
    known = list(dict.fromkeys([*sizes_of(source, options.plan), MICROBATCH]))
    name = options.solve_for
    if name not in known:
        help_ = did_you_mean(name, known) or f"there are {quoted(known)}"
        raise usage_error(f"--for {name}", f"there is no size `{name}`", "E0710", help_)
    if what == STEP_TIME:
        message = "`step_time` is simulated, and not solved for"
        raise usage_error("--solve", message, "E0710", "sweep it: `--sweep`")
    values = candidates(source, options, name)
    grid = Grid({name: values}, {})
    table = sweep(
        SweepRequest(
            source,
            options.plan,
            options.sizes,
            grid,
            (what,),
            lambda plan: planned(plan, options),
            options.plug_ins,
        )
    )
    meets = RELATIONS[sign]
    rows = [(int(row[name]), row[what]) for row in table.rows()]
    good = sorted(row for row in rows if meets(row[1], limit))
    bad = sorted(row for row in rows if not meets(row[1], limit))
    sys.stdout.write(said(name, what, f"{what} {sign} {text}{unit or ''}", good, bad, values[-1]))
    return 0 if good else 1


def bound(text: str, unit: str) -> Fraction:
    """`80GiB` in bytes, `1.5T` as a number, `0.25` as it is."""
    letter = unit[:1] if unit != "B" else ""
    base = 1024 if "i" in unit else 1000
    power = " KMGTP".index(letter.upper() or " ")
    return Fraction(text) * base**power


def candidates(source: Source, options: argparse.Namespace, name: str) -> tuple[int, ...]:
    """Values to try."""
    checked = check(source, options.plan, options.sizes, options.plug_ins.functions)
    pipeline = checked.plan.pipeline
    texts = "".join(source.texts.values())
    if pipeline and name == pipeline.axis:
        # A stage has a layer at least.
        layers = sum(checked.sizes.known.get(count, 0) for count in pipeline.counts)
        largest = max(1, min(LARGEST_AXIS, layers))
    elif name == MICROBATCH or name in checked.plan.mesh:
        largest = LARGEST_AXIS
    elif (pipeline and name in pipeline.counts) or re.search(rf"\brepeat\s+{name}\b", texts):
        largest = LARGEST_COUNT
    else:
        largest = LARGEST_DIM
    return tuple(range(1, largest + 1))


Found = Sequence[tuple[int, int | float]]


def said(name: str, what: str, condition: str, good: Found, bad: Found, largest: int) -> str:
    """The smallest and the largest value that meet it, and the next that do not."""
    tried = f"of 1 to {largest:,}, {len(good) + len(bad):,} can be compiled"
    unit = "B" if what.startswith(("memory", "comm", "bytes", "host")) else ""

    def with_value(row: tuple[int, int | float]) -> str:
        value = row[1]
        shown = f"{value:g}" if isinstance(value, float) else f"{value:,}, {amount(value)}{unit}"
        return f"{name} = {row[0]} ({what} = {shown})"

    if not good:
        least = f"; {with_value(min(bad, key=lambda row: row[1]))} comes closest" if bad else ""
        return lines_of(f"no {name} meets `{condition}`: {tried}, none does{least}", "  ")
    lines = [f"{condition}: met by {len(good):,} values of `{name}` ({tried})"]
    lines.append(f"  smallest: {with_value(good[0])}")
    lines.append(f"  largest:  {with_value(good[-1])}")
    above = [row for row in bad if row[0] > good[-1][0]]
    below = [row for row in bad if row[0] < good[0][0]]
    if above:
        lines.append(f"  not met:  {with_value(above[0])}")
    if below:
        lines.append(f"  not met:  {with_value(below[-1])}")
    between = [row for row in bad if good[0][0] < row[0] < good[-1][0]]
    if between:
        lines.append(f"  nor by {len(between):,} values in between")
    return "".join(lines_of(line, "    ") for line in lines)
