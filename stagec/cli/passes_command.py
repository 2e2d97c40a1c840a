"""`stagec passes`: what can be named in `--stop-after`, `pass NAME { ... }` and `stagec-opt -p`; with a name, what that pass does."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Sequence

from xdsl.passes import ModulePass, get_pass_option_infos

from stagec.cli.ops_command import first_line, section
from stagec.cli.tables import documentation
from stagec.cli.usage import CommandParser, add_load_pass
from stagec.diagnostics import Diagnostic, render
from stagec.passes import ALL_PASSES
from stagec.plugins import Registry, last_line, registry


def run(arguments: Sequence[str]) -> int:
    parser = CommandParser("stagec passes", "List the passes, ours in the order in which they run.")
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="of a pass: say what it does, with an example"
    )
    add_load_pass(parser)
    options = parser.read(arguments)
    plug_ins = registry(options.load_pass)
    if options.name is not None:
        sys.stdout.write(page_of(plug_ins.find_pass(options.name)))
        return 0
    others = sorted(
        name for name, owner in plug_ins.owners.items() if owner not in ("xdsl", "stagec")
    )
    sections = [
        section("passes of stagec, in the order of a compilation", rows(plug_ins, ALL_PASSES))
    ]
    if others:
        sections.append(section("passes of plug-ins", rows(plug_ins, others)))
    sys.stdout.write("\n".join(sections))
    sys.stdout.write("\n`stagec-opt` runs xDSL's own passes too: `stagec-opt --help`\n")
    if plug_ins.warnings:
        sys.stderr.write(render(plug_ins.warnings))
    return 0


def rows(plug_ins: Registry, names: Iterable[str]) -> list[tuple[str, str]]:
    """Each pass as it is written, and its first line. One that cannot be imported is a warning."""
    found: list[tuple[str, str]] = []
    for name in names:
        try:
            pass_class = plug_ins.passes[name]()
        except Exception as error:
            message = f"the pass `{name}` cannot be imported and is left out"
            plug_ins.warnings.append(Diagnostic("W0701", message, notes=[last_line(error)]))
            continue
        found.append((spelling(pass_class), summary(pass_class)))
    return found


def spelling(pass_class: type[ModulePass]) -> str:
    """`split-microbatches{dim size=0}`."""
    options = [
        f"{o.name}={o.default_value}" if o.default_value is not None else o.name
        for o in get_pass_option_infos(pass_class)
    ]
    return pass_class.name + (f"{{{' '.join(options)}}}" if options else "")


def page_of(pass_class: type[ModulePass]) -> str:
    """How a pass is written, all that is said of it, and its parameters."""
    lines = [spelling(pass_class), ""]
    lines += documentation(inspect.getdoc(documented(pass_class)) or "")
    infos = get_pass_option_infos(pass_class)
    if infos:
        lines += ["", "  parameters:"]
    for option in infos:
        default = "" if option.default_value is None else f", {option.default_value} by default"
        kind = option.expected_type.strip("'")
        lines.append(f"    {option.name}: {kind}{default}")
    return "\n".join(lines) + "\n"


def summary(pass_class: type[ModulePass]) -> str:
    return first_line(documented(pass_class))


def documented(pass_class: type[ModulePass]) -> object:
    """The class if it has a docstring of its own, else its module, as our passes do."""
    own = vars(pass_class).get("__doc__") or ""
    generated = own.startswith(f"{pass_class.__name__}(")
    return inspect.getmodule(pass_class) if generated or not own else pass_class
