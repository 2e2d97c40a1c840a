"""What of the site no file has: reference pages, made of the code that they are about, and pictures, drawn by stagec.

MkDocs calls `on_files` and `on_page_markdown`.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from xdsl.passes import ModulePass

from stagec.cli import main
from stagec.cli.names import COMMANDS
from stagec.cli.ops_command import first_line, signatures
from stagec.cli.passes_command import spelling
from stagec.diagnostic_codes import CODES
from stagec.driver import compile_text
from stagec.editing.language_features import clause_words
from stagec.estimate.step import estimate
from stagec.frontend.parser import class_name
from stagec.passes import ALL_PASSES
from stagec.pictures.page import picture
from stagec.plans import clauses as plans
from stagec.plugins import STAGEC_UNIVERSE, Registry, registry
from stagec.reports.memory_charts import Scene, memory_page

DOCS = Path(__file__).parents[1]
DRAWN = {"memory.svg": ("tutorial.md", "my.stg", "stages")}
"""Pictures: the page whose model they show, its file there, and the plan."""


def on_files(files: Files, config: Any) -> Files:
    pages = {
        "functions": functions(),
        "clauses": clauses(),
        "passes": passes(),
        "codes": codes(),
        "commands": commands(),
        "api": API,
    }
    for name, text in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    for name in DRAWN:
        uri = f"pictures/{name}"
        if (old := files.get_file_from_path(uri)) is not None:
            files.remove(old)
        files.append(File.generated(config, uri, content=drawn(name)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Blocks with a file's name, and links to files that are no pages."""
    markdown = re.sub(r"^```(\w+) [\w.]+( \w+)?$", r"```\1", markdown, flags=re.MULTILINE)
    return re.sub(r"\[([^\]]*)\]\((?:\.\./)+(?:README\.md|grammar/[^)]*)\)", r"\1", markdown)


def functions() -> str:
    """Those of the language, then the ops of each dialect."""
    lines = [
        "# Functions and ops",
        "",
        "Those that a model's text calls, and the ops of the IR.",
        "",
    ]
    lines += ["## Functions of the language", "", "| call | is |", "|---|---|"]
    lines += [row(f"`{each.usage}`", each.summary) for each in signatures(Registry())]
    for name, factory in STAGEC_UNIVERSE.all_dialects.items():
        lines += ["", f"## Dialect `{name}`", "", "| op | is |", "|---|---|"]
        lines += [row(f"`{op.name}`", first_line(op)) for op in factory().operations]
    return text(lines)


def clauses() -> str:
    """Of plans, with the settings that each takes in braces."""
    lines = ["# Clauses of a plan", "", "[The language](../language.md#plan) says what each does."]
    for word in sorted(clause_words()):
        owner = getattr(plans, class_name(word), None)
        lines += ["", f"## `{word}`", "", f"[In the language](../language.md#{word})"]
        settings = [] if owner is None else [f for f in fields(owner) if "kind" in f.metadata]
        if settings:
            lines += ["", "| setting | is a | without it |", "|---|---|---|"]
        for each in settings:
            choices = each.metadata.get("choices") or ()
            kind = " or ".join(f"`{c}`" for c in choices) or str(each.metadata["kind"])
            default = "" if each.default is None else f"`{each.default}`"
            lines.append(row(f"`{each.name}`", kind, default))
    return text(lines)


def passes() -> str:
    """Each with its page: the IR before and after, and why."""
    lines = [
        "# Passes",
        "",
        "In the order of a compilation. `pass NAME { ... }` runs one in a plan.",
    ]
    known = registry()
    for name in ALL_PASSES:
        found: type[ModulePass] = known.passes[name]()
        page = inspect.getdoc(inspect.getmodule(found)) or ""
        lines += ["", f"## {name}", "", f"`{spelling(found)}`", "", page]
    return text(lines)


def codes() -> str:
    lines = ["# Codes of errors and warnings", "", "[Errors](../errors.md) explains each.", ""]
    lines += ["| code | is |", "|---|---|"]
    return text([*lines, *(row(f"`{code}`", what) for code, what in CODES.items())])


def commands() -> str:
    """What `--help` of each prints."""
    lines = ["# The command line"]
    for name in ("", *sorted(COMMANDS)):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            main([*([name] if name else []), "--help"])
        lines += [
            "",
            f"## stagec {name}".rstrip(),
            "",
            "```text",
            printed.getvalue().rstrip(),
            "```",
        ]
    return text(lines)


API = """# The Python API

[In Python](../python.md) shows how it is used.

::: stagec.api.compile_job
    options:
      heading: stagec.compile

::: stagec.api.Job

::: stagec.api.Explanation

::: stagec.api.Table

::: stagec.api.traces

::: stagec.diagnostics.CompileError

::: stagec.diagnostics.Diagnostic
"""


def drawn(name: str) -> str:
    """The first chart of the page of memory, as a picture of its own."""
    page, file, plan = DRAWN[name]
    model = re.search(rf"```stg {file}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert model is not None
    compiled = compile_text(model[1], file, plan)
    timeline = estimate(compiled).timeline
    scene = Scene(compiled.memory, timeline, compiled.plan.device.capacity)
    chart = re.search(r"<svg.*?</svg>", memory_page(scene, ""), re.DOTALL)
    assert chart is not None
    return picture(chart[0])


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"
