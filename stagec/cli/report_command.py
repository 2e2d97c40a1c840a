"""`stagec report A B C`: plans side by side, as a table, or as one page."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.table import Table

from stagec.advice import warnings
from stagec.backend.files import write_whole
from stagec.cli.inputs import compile_parts, plan_written
from stagec.cli.tables import plain_table, text_of
from stagec.cli.usage import (
    CommandParser,
    add_flag,
    add_load_pass,
    add_repeated,
    add_switch,
    add_trust_flags,
    file_like,
    overrides,
    usage_error,
)
from stagec.compiled import Compiled
from stagec.diagnostics import render
from stagec.driver import Stops
from stagec.estimate.pools import estimate_pools_if_known
from stagec.estimate.step import Estimate
from stagec.plugins import Registry, registry
from stagec.reports.headline import headline
from stagec.reports.step_report import comparison, report_page, times_of_pools, title
from stagec.shipped_models import with_plan

EPILOG = """\
A plan is `MODEL.stg` (its first plan) or `MODEL.stg:PLAN`. Of one with pools each is a column.

examples:
  stagec report examples/llama3_8b.stg:tp8 examples/llama3_8b.stg:fsdp64
  stagec report a.stg b.stg c.stg:long -o plans.html
"""


def run(arguments: Sequence[str]) -> int:
    parser = CommandParser("stagec report", "Set plans side by side.", EPILOG)
    parser.add_argument(
        "plans",
        nargs="*",
        metavar="MODEL.stg[:PLAN]",
        help="a plan of a model; without a name its first",
    )
    add_flag(parser, "-o", "FILE.html", "write a page with pictures instead of a table", dest="out")
    add_repeated(
        parser,
        "--set",
        "NAME=SIZE",
        "the size of a dim or a mesh axis of all of them; may be repeated",
    )
    add_load_pass(parser)
    add_trust_flags(parser)
    add_switch(parser, "-q", "--quiet", help="print errors and nothing else")
    options = parser.read(arguments, mixed=True)
    if not options.plans:
        raise usage_error("", "no plan is named", help="`stagec report MODEL.stg:PLAN ...`")
    if options.out is not None:
        file_like("report.html")("-o", options.out)
    sizes = overrides(options.set)
    plug_ins = registry(options.load_pass)
    timed = [each for text in options.plans for each in compiled(text, sizes, plug_ins)]
    jobs, times = [job for job, _ in timed], [time for _, time in timed]
    if options.out is None:
        sys.stdout.write(text_of(side_by_side(jobs, times)))
        return 0
    page = report_page(jobs, times).encode()
    write_whole(options.out, page)
    if not options.quiet:
        plans = "1 plan" if len(jobs) == 1 else f"{len(jobs)} plans"
        sys.stdout.write(f"{options.out}: {plans} ({len(page):,} B written)\n")
    return 0


def compiled(
    text: str, sizes: dict[str, str], plug_ins: Registry
) -> list[tuple[Compiled, Estimate | None]]:
    """`model.stg:plan`, compiled: one job, or the pools of the plan, each with what is estimated of it."""
    path, plan = with_plan(text)
    with plan_written(text, plan):
        parts = compile_parts(path, plan, sizes, stops=Stops(), plug_ins=plug_ins)
    trains = len(parts) > 1 and all(each.checked.batch is None for each in parts.values())
    whole = estimate_pools_if_known(parts) if trains else None
    found = list(zip(parts.values(), times_of_pools(parts, whole), strict=True))
    for each, time in found:
        if doubts := warnings(each, time):
            sys.stderr.write(render(doubts, each.sources))
    return found


def side_by_side(jobs: Sequence[Compiled], times: Sequence[Estimate | None]) -> Table:
    """A column for each plan."""
    table = plain_table("one step")
    table.add_column("", no_wrap=True)
    for job in jobs:
        table.add_column(title(job), justify="right")
    heads = [headline(job, time) for job, time in zip(jobs, times, strict=True)]
    for row in comparison(jobs, heads):
        table.add_row(*row)
    return table
