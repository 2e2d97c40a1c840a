"""`stagec report A B C`: plans side by side, as a table, or as one page."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.table import Table

from stagec.advice import warnings
from stagec.backend.files import write_whole
from stagec.cli.inputs import compile_parts, plan_written
from stagec.cli.names import model_named
from stagec.cli.tables import plain_table, text_of
from stagec.cli.usage import CommandParser, add_load_pass, add_repeated, overrides, usage_error
from stagec.compiled import Compiled
from stagec.diagnostics import render
from stagec.driver import Stops
from stagec.estimate import timeline_of
from stagec.plugins import Registry, registry
from stagec.reports.headline import headline
from stagec.reports.step_report import comparison, report_page, title

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
    parser.add_argument(
        "-o", dest="out", metavar="FILE.html", help="write a page with pictures instead of a table"
    )
    add_repeated(
        parser,
        "--set",
        "NAME=SIZE",
        "the size of a dim or a mesh axis of all of them; may be repeated",
    )
    add_load_pass(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="print errors and nothing else")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    options = parser.read(arguments, mixed=True)
    if not options.plans:
        raise usage_error("", "no plan is named", help="`stagec report MODEL.stg:PLAN ...`")
    if options.out is not None:
        report_name(options.out, "-o")
    sizes = overrides(options.set)
    plug_ins = registry(options.load_pass)
    jobs = [job for text in options.plans for job in compiled(text, sizes, plug_ins)]
    if options.out is None:
        sys.stdout.write(text_of(side_by_side(jobs)))
        return 0
    page = report_page(jobs).encode()
    write_whole(options.out, page)
    if not options.quiet:
        plans = "1 plan" if len(jobs) == 1 else f"{len(jobs)} plans"
        sys.stdout.write(f"{options.out}: {plans} ({len(page):,} B written)\n")
    return 0


def report_name(text: str, flag: str = "--report") -> str:
    """The name of a page. E0710 if it is none."""
    if not text.endswith(".html"):
        message = f"`{flag}` writes a page, and `{text}` does not end in `.html`"
        help_ = "name a file like `report.html`"
        raise usage_error(f"{flag} {text}", message, "E0710", help=help_)
    return text


def compiled(text: str, sizes: dict[str, str], plug_ins: Registry) -> list[Compiled]:
    """`model.stg:plan`, compiled: one job, or the pools of the plan."""
    path, mark, plan = model_named(text).rpartition(".stg:")
    name, chosen = (f"{path}.stg", plan) if mark else (model_named(text), None)
    with plan_written(text, chosen):
        parts = compile_parts(name, chosen, sizes, stops=Stops(), plug_ins=plug_ins)
    found = list(parts.values())
    for each in found:
        if doubts := warnings(each, timeline_of(each)):
            sys.stderr.write(render(doubts, each.sources))
    return found


def side_by_side(jobs: Sequence[Compiled]) -> Table:
    """A column for each plan."""
    table = plain_table("one step")
    table.add_column("", no_wrap=True)
    for job in jobs:
        table.add_column(title(job), justify="right")
    for row in comparison(jobs, [headline(job) for job in jobs]):
        table.add_row(*row)
    return table
