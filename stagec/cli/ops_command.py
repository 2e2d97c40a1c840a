"""`stagec ops`: the functions of the language, and the ops of our dialects; with a name, all that is said of one."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module

from xdsl.ir import Dialect, Operation
from xdsl.irdl import IRDLOperation

from stagec.cli.tables import documentation, folded
from stagec.cli.usage import CommandParser, add_load_pass, usage_error
from stagec.diagnostics import did_you_mean
from stagec.dialects import stg
from stagec.plugins import STAGEC_UNIVERSE, Registry, registry


def run(arguments: Sequence[str]) -> int:
    parser = CommandParser(
        "stagec ops", "List the functions of the language, and the ops of the dialects."
    )
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="of a function or an op: say all that is known of it",
    )
    add_load_pass(parser)
    options = parser.read(arguments)
    plug_ins = registry(options.load_pass)
    if options.name is not None:
        sys.stdout.write(page_of(options.name, plug_ins))
        return 0
    sections = [("functions of the language", [(s.usage, s.summary) for s in signatures(plug_ins)])]
    for name, dialect in dialects(plug_ins).items():
        is_ours = name in STAGEC_UNIVERSE.all_dialects
        title = first_line(import_module(f"stagec.dialects.{name}")) if is_ours else f"`{name}`"
        sections.append(
            (f"dialect {title}", [(op.name, first_line(op)) for op in dialect.operations])
        )
    sys.stdout.write("\n".join(section(title, rows) for title, rows in sections))
    return 0


def dialects(plug_ins: Registry) -> dict[str, Dialect]:
    """Ours, and those of files of `--load-pass`."""
    own = {name: factory() for name, factory in STAGEC_UNIVERSE.all_dialects.items()}
    loaded = {name: plug_ins.dialects[name]() for name in plug_ins.loaded_dialects}
    return {**own, **loaded}


def page_of(name: str, plug_ins: Registry) -> str:
    """All functions and ops of a name: `rms_norm`, `stg.rms_norm`. E0707 if there are none."""
    ops = {op.name: op for dialect in dialects(plug_ins).values() for op in dialect.operations}
    found: list[str] = []
    function = plug_ins.functions.get(name)
    if function is not None:
        found.append(function_page(function.signature, function.op.name))
    for full, op in ops.items():
        if name in (full, full.partition(".")[2]) or (function and op is function.op):
            found.append(op_page(op))
    if not found:
        advice = "`stagec ops` lists all"
        known = [*plug_ins.functions, *ops]
        help_ = did_you_mean(name, known) or advice
        raise usage_error(f"ops {name}", f"there is no function or op `{name}`", help=help_)
    return "\n".join(found)


def function_page(signature: stg.Signature, op: str) -> str:
    options = [
        (o.name, " | ".join(o.choices) or o.kind, "" if o.required else "may be left out")
        for o in signature.options
    ]
    lines = [*folded(signature.usage, "  "), "", *folded(signature.summary, margin=2)]
    lines += [f"  {name}: {kind}{', ' * bool(note)}{note}" for name, kind, note in options]
    return "\n".join([*lines, f"  makes a `{op}`"]) + "\n"


def op_page(op: type[Operation]) -> str:
    """What an op's class says of it, and the names of its parts."""
    parts = op.get_irdl_definition() if issubclass(op, IRDLOperation) else None
    lines = [op.name, ""]
    lines += documentation(inspect.getdoc(op) or "")
    if parts is not None:
        named = {
            "operands": [name for name, _ in parts.operands],
            "results": [name for name, _ in parts.results],
            "regions": [name for name, _ in parts.regions],
            "attributes": [*parts.properties, *parts.attributes],
        }
        lines.append("")
        for kind, names in named.items():
            if names:
                lines += folded(f"{kind + ':':<12}{', '.join(names)}", " " * 12, margin=2)
    return "\n".join(lines) + "\n"


def signatures(plug_ins: Registry) -> Iterable[stg.Signature]:
    return [function.signature for _, function in sorted(plug_ins.functions.items())]


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
