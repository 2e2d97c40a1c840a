"""`stagec examples`: the models that ship, with their parameters and plans."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path

from stagec.analysis.sizes import size_values
from stagec.cli.tables import plain_table, text_of
from stagec.cli.usage import CommandParser, add_format_flag
from stagec.dialects import stg
from stagec.dialects.types import ValueType
from stagec.frontend import check, parse_file, syntax
from stagec.frontend.lowering import lower
from stagec.rewriting import programs
from stagec.trust import examples

EPILOG = """\
`stagec NAME` compiles one wherever one stands, and `stagec NAME --plan PLAN` under a plan of its own; --set changes sizes.
"""


def run(arguments: Sequence[str]) -> int:
    parser = CommandParser(
        "stagec examples", "List the models that ship, with their plans.", EPILOG
    )
    add_format_flag(parser)
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    options = parser.read(arguments)
    found = list(zoo())
    if options.format == "json":
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
        return 0
    table = plain_table("models that ship")
    table.add_column("name", no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("plans: ranks")
    for each in found:
        plans = ", ".join(f"{name}: {ranks:,}" for name, ranks in each["plans"].items())
        table.add_row(each["name"], f"{each['parameters']:,}", plans)
    sys.stdout.write(text_of(table))
    return 0


def zoo() -> Iterator[dict]:
    """Of each model: name, what it is, parameters, and how many ranks each of its plans has."""
    for path in sorted(Path(examples()).glob("*.stg")):
        source = parse_file(path)
        items = source.files[str(path)].items
        plans = [item.name.text for item in items if isinstance(item, syntax.Plan)]
        yield {
            "name": path.stem,
            "title": source.texts[str(path)].partition("\n")[0].lstrip("# "),
            "parameters": parameters(path),
            "plans": {plan: ranks(path, plan) for plan in plans},
        }


def parameters(path: Path) -> int:
    """Of the model under its own sizes, each weight once."""
    module = lower(check(parse_file(path)))
    values = size_values(module)
    (program,) = programs(module)
    kinds = [op.weight.type for op in program.walk() if isinstance(op, stg.WeightOp)]
    return sum(kind.num_elements.integer(values) for kind in kinds if isinstance(kind, ValueType))


def ranks(path: Path, plan: str) -> int:
    checked = check(parse_file(path), plan)
    single = [a.name for a in checked.plan.axes if a.name not in checked.plan.products]
    return prod((checked.sizes.values[name] or 1) for name in single)
