"""`stagec ops`: the functions of the language, and the ops of our dialects."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module

from stagec.cli.tables import folded
from stagec.cli.usage import CommandParser
from stagec.dialects import stg
from stagec.plugins import STAGEC_UNIVERSE


def run(arguments: Sequence[str]) -> int:
    parser = CommandParser(
        "stagec ops", "List the functions of the language, and the ops of the dialects."
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.read(arguments)
    sections = [("functions of the language", [(shown(s), s.summary) for s in signatures()])]
    for name, factory in STAGEC_UNIVERSE.all_dialects.items():
        dialect = factory()
        title = first_line(import_module(f"stagec.dialects.{name}"))
        sections.append(
            (f"dialect {title}", [(op.name, first_line(op)) for op in dialect.operations])
        )
    sys.stdout.write("\n".join(section(title, rows) for title, rows in sections))
    return 0


def signatures() -> Iterable[stg.Signature]:
    return [function.signature for _, function in sorted(stg.FUNCTIONS.items())]


def shown(signature: stg.Signature) -> str:
    """How it is called: `rms_norm(x, weight?, over = dims)`."""
    needed = len(signature.operands) - signature.optional_operands
    operands = [f"{name}{'?' * (i >= needed)}" for i, name in enumerate(signature.operands)]
    options = [f"{o.name} = {' | '.join(o.choices) or o.kind}" for o in signature.options]
    return f"{signature.name}({', '.join([*operands, *options])})"


def first_line(documented: object) -> str:
    """The first line of a docstring, without a full stop."""
    return (inspect.getdoc(documented) or "").partition("\n")[0].removesuffix(".")


def section(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """A title and two columns, on this terminal; a long first entry has lines of its own."""
    width = min(max((len(name) for name, _ in rows), default=0), 30)
    lines = [*folded(title, "  "), ""]
    for name, text in rows:
        told = folded(text, margin=width + 4)
        if len(name) > width:
            lines += folded(name, "    ", margin=2)
        else:
            first = told.pop(0).lstrip() if told else ""
            lines.append(f"  {name:<{width}}  {first}".rstrip())
        lines += told
    return "\n".join(lines) + "\n"
