"""`stagec explain MODEL.stg WHAT --sweep tp=1,2,4,8 pp=1..16`: a row per plan."""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from stagec.backend.files import write_whole
from stagec.cli.device_flags import planned
from stagec.cli.tables import plain_table, seconds, text_of
from stagec.cli.usage import usage_error
from stagec.diagnostics import did_you_mean, quoted, render
from stagec.frontend import parse_file
from stagec.frontend.checker import pools_in
from stagec.pictures.scales import amount
from stagec.plans.clauses import Plan
from stagec.reports.plans_chart import plans_page
from stagec.sweeping.grid import grid
from stagec.sweeping.plans import SweepRequest, computed
from stagec.sweeping.pools import names_of_plan, table_of
from stagec.sweeping.run import SweepTable

Row = dict[str, int | float]

DEFAULT = ("flops", "comm", "memory.peak")


def show_sweep(options: argparse.Namespace) -> int:
    source = parse_file(options.model)
    pools = pools_in(source, options.plan)
    quantities = tuple(options.what.split(",")) if options.what else DEFAULT
    if pools and not options.what:
        quantities = tuple(f"{pool}.{what}" for pool in pools for what in quantities)
    wanted = [*quantities, *(options.pareto or "").split(",")]
    varied = grid(options.sweep, names_of_plan(source, options.plan))
    quantities = computed(filter(None, wanted), varied)
    sort = check_column("--sort", options.sort, [*varied.names, "ranks", *quantities])

    def adapt(plan: Plan) -> Plan:
        return planned(plan, options)

    table = table_of(
        SweepRequest(
            source, options.plan, options.sizes, varied, quantities, adapt, options.plug_ins
        )
    )
    sys.stderr.write(render(table.idle, source.texts))
    rows = table.rows()
    if options.pareto:
        rows = best(rows, options.pareto.split(","))
    if sort:
        name = sort.removeprefix("-")
        rows.sort(key=lambda row: row[name], reverse=sort.startswith("-"))
    if options.plot:
        plot(rows, quantities, options)
    else:
        sys.stdout.write(written(table, rows, options.format, pools))
    return 0


def check_column(flag: str, name: str | None, known: Sequence[str]) -> str | None:
    if name is not None and name.removeprefix("-") not in known:
        help_ = did_you_mean(name.removeprefix("-"), known) or f"there are {quoted(known)}"
        raise usage_error(f"{flag} {name}", f"there is no column `{name}`", "E0710", help_)
    return name


def best(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """Rows that no other is at least as good as in all of these, and better in one; less is better. So equal ones are kept together."""
    kept: list[Row] = []
    found: list[tuple[int | float, ...]] = []
    for row in sorted(rows, key=lambda row: [row[name] for name in names]):
        own = tuple(row[name] for name in names)
        if not any(
            other != own and all(a <= b for a, b in zip(other, own, strict=True)) for other in found
        ):
            kept.append(row)
            found.append(own)
    return kept


def written(table: SweepTable, rows: Sequence[Row], form: str, pools: Sequence[str] = ()) -> str:
    names = list(table.columns)
    if form == "json":
        said = {"plans": table.num_points, "infeasible": table.reasons, "rows": list(rows)}
        return json.dumps(said, indent=1) + "\n"
    if form == "csv":
        out = io.StringIO()
        writer = csv.DictWriter(out, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return out.getvalue()
    shown = plain_table("one step; of the rank that has most")
    for name in names:
        shown.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        shown.add_row(*(cell(of_one_pool(name, pools), row[name]) for name in names))
    left = "".join(f"{line}\n" for line in table.in_words())
    return f"{text_of(shown)}\n{left}"


def of_one_pool(name: str, pools: Sequence[str]) -> str:
    """A column's name without the pool that it is of."""
    of, dot, rest = name.partition(".")
    return rest if dot and of in pools else name


def cell(name: str, value: int | float) -> str:
    if name == "step_time":
        return seconds(value)
    if name == "bubble":
        return f"{100 * value:.4g} %"
    if "." in name or name in DEFAULT or name in ("bytes", "host", "params"):
        return f"{amount(int(value))}{unit_of(name)}".strip()
    return str(value)


def unit_of(name: str) -> str:
    """Of a quantity that is no time: `B`, or nothing."""
    first = ("bytes", "comm", "host", "kv", "memory")
    is_bytes = name.startswith(first) and not name.endswith(".count")
    return "B" if is_bytes else ""


def plot(rows: Sequence[Row], quantities: Sequence[str], options: argparse.Namespace) -> None:
    """A point per plan; the first two quantities are the axes. E0603 if the file cannot be written."""
    across, up = (options.pareto.split(",") if options.pareto else [*quantities, "ranks"])[:2]
    title = f"Plans of {Path(options.model).stem}"
    page = plans_page(title, rows, (across, up), quantities)
    write_whole(options.plot, page.encode())
    sys.stdout.write(f"{options.plot}: {len(rows):,} plans\n")
