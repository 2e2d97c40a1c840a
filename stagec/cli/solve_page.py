"""`stagec explain MODEL.stg --solve "memory.peak < 80GiB" --for microbatch`: which values meet a condition."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

from stagec.cli.device_flags import planned
from stagec.cli.sweep_page import of_one_pool, unit_of
from stagec.cli.tables import lines_of, seconds
from stagec.cli.usage import usage_error
from stagec.diagnostics import CompileError, Diagnostic, in_all, render, suggestion, told_by
from stagec.dialects import stg
from stagec.explaining.names import MICROBATCH
from stagec.frontend import CheckedModel, Source, check, parse_file
from stagec.frontend.checker import plan_of_pool, pools_in
from stagec.pictures.scales import amount
from stagec.pools import overrides_by_pool
from stagec.sweeping.grid import Grid
from stagec.sweeping.plans import SweepRequest
from stagec.sweeping.pools import names_of_plan, of_pool, table_of
from stagec.sweeping.run import PEAK, STEP_TIME
from stagec.symbolic.conditions import RELATIONS

CONDITION = re.compile(
    r"\s*([\w.+]+)\s*(<=|>=|<|>)\s*([0-9]+(?:\.[0-9]+)?)\s*([kKMGT]i?B|B|[kKMGTP]|ms|us|µs|s)?\s*"
)
SECONDS = {
    "s": Fraction(1),
    "ms": Fraction(1, 1000),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
}
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
    known = names_of_plan(source, options.plan)
    name = options.solve_for
    if name not in known:
        help_ = suggestion(name, known)
        raise usage_error(f"--for {name}", f"there is no size `{name}`", "E0710", help_)
    pools = pools_in(source, options.plan)
    if is_time(what) != (unit in SECONDS) and unit:
        message = f"`{what}` is {'seconds' if is_time(what) else 'no time'}, and `{unit}` is not"
        help_ = 'write `--solve "step_time < 200ms"`, or `"memory.peak < 80GiB"`'
        raise usage_error(f"--solve {options.solve!r}", message, "E0710", help_)
    plans = plans_with(name, source, options, pools)
    values = tuple(range(1, min(largest_of(each, own) for own, each in plans) + 1))
    request = SweepRequest(
        source,
        options.plan,
        options.sizes,
        Grid({name: values}, {}),
        (what,),
        lambda plan: planned(plan, options),
        options.plug_ins,
        programs={},
    )
    meets = RELATIONS[sign]
    limited = any(planned(checked.plan, options).device.memory for _, checked in plans)
    has_peaks = limited or what.endswith(PEAK)
    is_count = any(own in each.repeat_counts for own, each in plans)
    is_count &= has_peaks or is_time(what)
    is_long = is_count or is_time(what) or any(checked.plan.pipeline for _, checked in plans)
    few = 0 if is_count else FEW
    rows, num_tried, idle = tried(request, values, lambda value: meets(value, limit), is_long, few)
    sys.stderr.write(render(idle, source.texts))
    good = sorted(row for row in rows if meets(row[1], limit))
    bad = sorted(row for row in rows if not meets(row[1], limit))
    looked = f"of 1 to {values[-1]:,}, "
    if num_tried < len(values):
        why = "" if is_long else "most of them programs of their own, "
        looked += f"{why}{num_tried:,} were tried, and "
    looked += f"{len(rows):,} can be compiled"
    condition = f"{what} {sign} {text}{unit or ''}"
    of_one = of_one_pool(what, pools)
    sys.stdout.write(said(name, what, unit_of(of_one), condition, limit, good, bad, looked))
    return 0 if good else 1


def is_time(what: str) -> bool:
    """Also of a pool: `decode.step_time`."""
    return what.rpartition(".")[2] == STEP_TIME


FEW = 512
"""Values that are all tried, whatever that takes; but for a number of layers, whose programs grow with it."""
SAMPLE, MOST_COMPILED = 8, 4
"""Of so many values that many compilations at most, and of as many more each time, or plans are programs of their own: sequences that do not divide over
devices."""
ENOUGH = 4
"""Of so many values that do not meet the condition in a row, behind one that does, the next are not asked."""
PART = 4
"""What is between a value that meets the condition and one that does not is cut into so many parts, until there are no more values than this."""


def tried(
    request: SweepRequest,
    values: Sequence[int],
    meets: Callable[[int | float], bool],
    is_long: bool = False,
    few: int = FEW,
) -> tuple[list[tuple[int, int | float]], int, list[Diagnostic]]:
    """Values that can be compiled, with what is asked of them; how many were tried: all, or where each is a compilation, or is long (a time
    line, tasks of a pipeline whose values live in another order each time, or layers), those around the ends; and what changes nothing in any."""
    (name,), (what,) = request.grid.names, request.quantities
    found: dict[int, int | float] = {}
    known: set[int] = set()
    refused: list[CompileError] = []
    idle: list[Sequence[Diagnostic]] = []

    def look(chosen: Iterable[int]) -> int:
        fresh = tuple(sorted({*chosen} - known))
        known.update(fresh)
        if not fresh:
            return 0
        # Beside one that can be compiled, those that cannot need no compilation.
        beside = tuple(found)[:1]
        try:
            table = table_of(replace(request, grid=Grid({name: (*beside, *fresh)}, {})))
        except CompileError as error:
            # None of these can be compiled; of others some may.
            refused.append(error)
            return 0
        found.update((int(row[name]), row[what]) for row in table.rows())
        if table.num_compiled:
            idle.append(table.idle)
        return table.num_compiled

    def answer(num_tried: int) -> tuple[list[tuple[int, int | float]], int, list[Diagnostic]]:
        if refused and not found:
            raise refused[0]
        return list(found.items()), num_tried, in_all(idle, told_by)

    is_quick, end = not is_long, SAMPLE
    while is_quick and len(known) < len(values):
        is_quick = look(values[:end]) <= MOST_COMPILED
        end *= 2
    able, sampled = values, list[int]()
    if len(values) > few and not is_quick:
        able, sampled = compilable(request, values)
    if len(able) <= few or is_quick:
        look(able)
        return answer(len(values))
    # From here on by their places among those that can be compiled.
    places = {value: place for place, value in enumerate(able)}
    for power in (2**k for k in range(len(able).bit_length())):
        look(able[n - 1] for n in (power, 3 * power) if n <= len(able))
        ends = [meets(value) for _, value in sorted(found.items())]
        if any(ends) and not any(ends[-ENOUGH:]):
            break  # what is larger takes longer, and meets it no more
    else:
        look(able[-1:])
    look(sampled[-SAMPLE:])
    while True:
        ends = sorted(found.items())
        before = len(known)
        for (low, value), (high, other) in pairwise(ends):
            if meets(value) != meets(other):
                after, end = places[low] + 1, places[high] + 1
                step = 1 << (max(1, (end - after) // PART).bit_length() - 1)
                look(able[n - 1] for n in range(after - after % step + step, end, step))
        if len(known) == before:
            return answer(len(known))


def compilable(request: SweepRequest, values: Sequence[int]) -> tuple[Sequence[int], list[int]]:
    """The values whose plans can be compiled, where that is known quickly; else all values, and of the first ones those that can.

    A few are tried before more: where each value is a program of its own, those that are refused are too.
    """
    (name,) = request.grid.names
    found: list[int] = []
    for chosen in (values[:SAMPLE], values[: SAMPLE**2], values):
        try:
            grid = Grid({name: tuple(chosen)}, {})
            table = table_of(replace(request, grid=grid, quantities=()))
        except CompileError:
            continue  # none of these
        found = [int(row[name]) for row in table.rows()]
        if table.num_compiled > MOST_COMPILED:
            return values, found
    return found or values, []


def bound(text: str, unit: str) -> Fraction:
    """`80GiB` in bytes, `200ms` in seconds, `1.5T` as a number, `0.25` as it is."""
    if unit in SECONDS:
        return Fraction(text) * SECONDS[unit]
    letter = unit[:1] if unit != "B" else ""
    base = 1024 if "i" in unit else 1000
    power = " KMGTP".index(letter.upper() or " ")
    return Fraction(text) * base**power


def plans_with(
    name: str, source: Source, options: argparse.Namespace, pools: Sequence[str]
) -> list[tuple[str, CheckedModel]]:
    """The plan, or those of its pools that have the name, as each calls it."""
    functions = options.plug_ins.functions
    if not pools:
        return [(name, checked_at_some(source, options.plan, options.sizes, name, functions))]
    said = overrides_by_pool(source, options.plan, pools, options.sizes)
    found: list[tuple[str, CheckedModel]] = []
    for pool in pools:
        plan = plan_of_pool(source, options.plan, pool)
        own = of_pool(pool, names_of_plan(source, plan), [name])
        if own:
            called = next(iter(own))
            found.append((called, checked_at_some(source, plan, said[pool], called, functions)))
    return found


def checked_at_some(
    source: Source,
    plan: str | None,
    sizes: Mapping[str, str],
    name: str,
    functions: Mapping[str, stg.Function],
) -> CheckedModel:
    """The plan; where it cannot be at its own value of the name, at a power of two. The mistake of the first, if it can be at none."""
    first: CompileError | None = None
    for more in ({}, *({name: str(2**power)} for power in range(17))):
        try:
            return check(source, plan, {**sizes, **more}, functions)
        except CompileError as error:
            first = first or error
    assert first is not None
    raise first


def largest_of(checked: CheckedModel, name: str) -> int:
    """What is tried of a size at most."""
    pipeline = checked.plan.pipeline
    if pipeline and name == pipeline.axis:
        # A stage has a layer at least.
        layers = sum(checked.sizes.known.get(count, 0) for count in pipeline.counts)
        return max(1, min(LARGEST_AXIS, layers))
    if name == MICROBATCH or name in checked.plan.mesh:
        return LARGEST_AXIS
    return LARGEST_COUNT if name in checked.repeat_counts else LARGEST_DIM


Found = Sequence[tuple[int, int | float]]


def said(
    name: str,
    what: str,
    unit: str,
    condition: str,
    limit: Fraction,
    good: Found,
    bad: Found,
    tried: str,
) -> str:
    """The smallest and the largest value that meet it, and the next that do not."""

    def with_value(row: tuple[int, int | float]) -> str:
        value = row[1]
        shown = f"{value:g}" if isinstance(value, float) else f"{value:,}"
        if is_time(what):
            shown = seconds(value)
        elif value >= 1000 or unit:
            shown += f", {amount(int(value))}{unit}".rstrip()
        return f"{name} = {row[0]} ({what} = {shown})"

    if not good:
        nearest = min(bad, key=lambda row: abs(row[1] - limit), default=None)
        closest = f"; {with_value(nearest)} comes closest" if nearest else ""
        return lines_of(f"no {name} meets `{condition}`: {tried}, none does{closest}", "  ")
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
