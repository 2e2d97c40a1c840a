"""`stagec examples`: the models that ship, with their plans and what these come to."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from stagec.cli import zoo
from stagec.cli.tables import plain_table, text_of
from stagec.cli.usage import CommandParser
from stagec.diagnostics import CompileError, Diagnostic, did_you_mean
from stagec.importing.shipped import configurations

EPILOG = """\
`stagec NAME` compiles one wherever one stands, and `stagec NAME --plan PLAN` under a plan of its own; --set changes sizes.
`stagec import NAME` writes a configuration that ships as a model.
"""


def run(arguments: Sequence[str]) -> int:
    parser = CommandParser(
        "stagec examples",
        "List the models that ship: plans, parameters, FLOPs, ranks, memory, step times, and what is published.",
        EPILOG,
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help="these models alone")
    parser.add_argument(
        "--format", choices=("text", "json", "markdown"), default="text", help="what to print"
    )
    parser.add_argument(
        "--measure", action="store_true", help="find the figures anew: compiles every plan"
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    options = parser.read(arguments)
    known = zoo.names()
    for name in options.names:
        if name not in known:
            message = f"no model that ships is called `{name}`"
            help_ = did_you_mean(name, known)
            raise CompileError([Diagnostic("E0701", message, origin=name, help=help_)])
    figures = zoo.measured(options.names) if options.measure else zoo.stored()
    if options.format == "markdown":
        sys.stdout.write(zoo.page())
    elif options.format == "json":
        shown = {name: figures[name] for name in options.names or figures}
        sys.stdout.write(json.dumps(shown, indent=1) + "\n")
    else:
        sys.stdout.write(listing(figures, options.names))
    return 0


def listing(figures: dict, names: Sequence[str]) -> str:
    """A table of all plans, and the names of configurations."""
    table = plain_table("models that ship")
    table.add_column("name", no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    for title in zoo.COLUMNS[:5]:
        justify = "left" if title == "plan" else "right"
        table.add_column(title, justify=justify, no_wrap=True)
    for name in names or figures:
        model = figures[name]
        head = (name, f"{model['parameters']:,}")
        for row in zoo.rows(name, model):
            table.add_row(*head, *row[:5])
            head = ("", "")
    text = text_of(table)
    if not names:
        known = ", ".join(configurations())
        text += f"\nconfigurations that `stagec import NAME` makes models of\n{known}\n"
    return text
