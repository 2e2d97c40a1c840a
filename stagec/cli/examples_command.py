"""`stagec examples`: the models that ship, with their plans and what these come to."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from stagec.cli import zoo
from stagec.cli.tables import folded, seconds
from stagec.cli.usage import CommandParser, add_switch
from stagec.diagnostics import did_you_mean, refused
from stagec.importing.shipped import configurations
from stagec.pictures.scales import amount, digits
from stagec.shipped_models import shipped_names

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
    add_switch(parser, "--measure", help="find the figures anew: compiles every plan")
    options = parser.read(arguments)
    known = shipped_names()
    for name in options.names:
        if name not in known:
            message = f"no model that ships is called `{name}`"
            help_ = did_you_mean(name, known) or "`stagec examples` lists all"
            raise refused("E0701", message, origin=name, help=help_)
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
    """All plans, by model, and the names of configurations."""
    lines = [
        "models that ship, and their plans: peak memory of a rank, time of a step",
        "",
        f"  {'plan':<20} {'ranks':>6}  {'product FLOPs':>16}  {'peak':>10}  step",
    ]
    for name in names or figures:
        model = figures[name]
        lines += ["", f"{name}: {model['parameters']:,} parameters"]
        for plan, each in model["plans"].items():
            flops = f"{amount(int(each['flops']))}/{each['per']}"
            peak = f"{digits(each['peak_gib'])} GiB"
            step = f"{seconds(each['step_s'])} on {each['device']}" if "step_s" in each else ""
            lines.append(
                f"  {plan:<20} {each['ranks']:>6,}  {flops:>16}  {peak:>10}  {step}".rstrip()
            )
    if not names:
        known = ", ".join(configurations())
        lines += ["", "configurations that `stagec import NAME` makes models of:"]
        lines += folded(known, margin=2)
    return "".join(f"{line}\n" for line in lines)
