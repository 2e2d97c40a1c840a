"""Diagnostics, hover and completion for a text under one of its plans."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace

from stagec.analysis.sizes import size_values
from stagec.diagnostics import CompileError, Diagnostic, Span
from stagec.dialects import stg
from stagec.dialects.types import StackType, TensorType, tensor_of
from stagec.driver import Stops, compile_program
from stagec.editing.names import Index, NamePlace
from stagec.frontend import check, parse_text, syntax
from stagec.frontend.checker import plans_of_one_mesh
from stagec.frontend.keywords import DEFINITIONS
from stagec.frontend.parser import class_name, grammar_text
from stagec.pictures.scales import DECIMAL_BYTES, in_unit
from stagec.plans import clauses as plans
from stagec.plug_in_errors import mistakes_of_plug_ins
from stagec.plugins import Registry
from stagec.rewriting import programs

LOCAL = "localize-shapes"
"""The pass after which types are those of one device."""
IMPORT = re.compile(r'^[ \t]*import[ \t]+"([^"\n]*)"', re.MULTILINE)
SETTING_VALUE = re.compile(r"(\w+)\s*=\s*\w*$")
WRITTEN = {"set": "Resize"}
"""The rules of clauses that are not called as the clause is written."""
ITEM = re.compile(r"^(plan|module|model|op|dim|require|import)\b", re.MULTILINE)


def diagnose(
    text: str, file: str, plug_ins: Registry, opened: Mapping[str, str] | None = None
) -> list[Diagnostic]:
    """What is wrong or doubtful, under each of the plans; every mistake once. `opened`: see `parse_text`."""
    try:
        source = parse_text(text, file, opened)
    except CompileError as error:
        return list(error.diagnostics)
    names = plans_of_one_mesh(source)
    found: dict[tuple[str, str, object], Diagnostic] = {}
    for name in names or [None]:
        try:
            with mistakes_of_plug_ins():
                diagnostics = check(source, name, {}, plug_ins.functions).warnings
        except CompileError as error:
            diagnostics = list(error.diagnostics)
        for each in diagnostics:
            found.setdefault((each.code, each.message, each.span), each)
    return list(found.values())


def here(each: Diagnostic, text: str, file: str) -> Diagnostic:
    """A diagnostic as it is shown in a file: one about an imported file stands at the import that leads there."""
    if each.span is None or each.span.file == file:
        return each
    folder = os.path.dirname(file)
    imports = list(IMPORT.finditer(text))
    wanted = os.path.realpath(each.span.file)
    leads = [m for m in imports if os.path.realpath(os.path.join(folder, m[1])) == wanted]
    found = (leads or imports)[0]
    line = text.count("\n", 0, found.start()) + 1
    span = Span(file, line, found.start(1), line, found.end(1) + 2)
    first = text.rfind("\n", 0, found.start()) + 1
    span = replace(span, column=found.start(1) - first, end_column=found.end(1) - first + 2)
    where = f"{os.path.relpath(each.span.file, folder or '.')}:{each.span.line}"
    return replace(each, span=span, message=f"{where}: {each.message}")


def word_at(text: str, offset: int) -> str:
    """The word around a place."""
    before = re.search(r"\w*$", text[:offset])
    after = re.match(r"\w*", text[offset:])
    return (before[0] if before else "") + (after[0] if after else "")


def describe_word(word: str, functions: Mapping[str, stg.Function]) -> str:
    """What to say of a word of the language: how a function is called, and what for; what a clause says. Nothing of others."""
    if word in functions:
        signature = functions[word].signature
        return f"**function** `{signature.usage}`\n\n{signature.summary}"
    if word in clause_words():
        made = getattr(syntax, class_name(word), None) or getattr(
            syntax, WRITTEN.get(word, ""), None
        )
        settings = ", ".join(f"`{each}`" for each in plans.settings_of(word))
        text = f"**clause** {made.__doc__ if made is not None else word}"
        return f"{text}\n\nsettings: {settings}" if settings else text
    return ""


def describe(
    text: str,
    file: str,
    plan: str | None,
    plug_ins: Registry,
    index: Index,
    place: NamePlace,
    opened: Mapping[str, str] | None = None,
) -> str:
    """What to say of a name: its kind, its size or its shape; on one device, and in bytes, where the plan compiles."""
    name, kind = place.symbol.name, place.kind
    title = f"**{kind}** `{name}`"
    try:
        with mistakes_of_plug_ins():
            checked = check(parse_text(text, file, opened), plan, {}, plug_ins.functions)
    except CompileError:
        return title
    said = f" under plan `{checked.plan.name}`" if checked.plan.name else ""
    if kind in ("dim", "axis"):
        sizes = {**checked.sizes.known, **checked.plan.mesh}
        return f"{title} = {sizes[name]:,}{said}" if name in sizes else title
    if kind not in ("value", "weight", "cache"):
        return title
    try:
        stops = Stops(after=LOCAL)
        with mistakes_of_plug_ins():
            module = compile_program(checked, stops=stops, load_pass=plug_ins.make_pass).module
    except CompileError:
        return title
    values, model = size_values(module), programs(module)[0].model.data
    for op in module.walk():
        inside = stg.text(op, "scope").split(".")[-1] or model
        for result in op.results:
            is_weight = (
                isinstance(op, stg.WeightOp | stg.CacheOp) and op.path.data.split(".")[-1] == name
            )
            if not is_weight and result.name_hint != name:
                continue
            if place.symbol.owner not in (inside, "") and not is_weight:
                continue
            kind_ = result.type
            if isinstance(kind_, TensorType | StackType):
                tensor = tensor_of(kind_)
                size = tensor.num_bytes
                return f"{title}: `{tensor}`\n\none device{said}: `{size}` bytes = {in_unit(size.integer(values), DECIMAL_BYTES)}"
    return title


def complete(
    text: str, offset: int, index: Index | None, functions: Iterable[str]
) -> Iterator[tuple[str, str]]:
    """Words that may come at a place, each with what it is."""
    before = text[:offset]
    items = list(ITEM.finditer(before))
    inside = items[-1][1] if items and before.count("{") > before.count("}") else ""
    if not inside and re.search(r"(^|\n)\w*$", before):
        yield from ((word, "definition") for word in DEFINITIONS)
        return
    if inside == "plan":
        clause = open_clause(before[items[-1].end() :])
        value = SETTING_VALUE.search(before)
        if clause and value:
            yield from ((word, f"value of {value[1]}") for word in values_of(clause, value[1]))
            return
        if clause:
            if clause == "serve":
                yield from ((word, "sequences") for word in ("prefill", "decode"))
            yield from ((name, f"setting of {clause}") for name in plans.settings_of(clause))
        else:
            yield from ((word, "clause") for word in clause_words())
    else:
        yield from ((word, "statement") for word in ("weight", "repeat", "return"))
        yield from ((name, "function") for name in sorted(functions))
    for place in index.places if index is not None else ():
        wanted = (
            place.kind in ("dim", "axis", "module") if inside == "plan" else place.kind != "plan"
        )
        if place.is_definition and wanted:
            yield place.symbol.name, place.kind


def open_clause(text: str) -> str:
    """The clause whose braces are open at the end of a plan's text."""
    depth = 0
    for match in reversed(list(re.finditer(r"[{}]", text))):
        depth += 1 if match[0] == "}" else -1
        if depth < 0:
            line = text[: match.start()].rpartition("\n")[2].split()
            word = line[0] if line else ""
            return word if word in clause_words() and word != "pool" else ""
    return ""


def clause_words() -> list[str]:
    """The words that plan clauses begin with, as the grammar has them."""
    grammar = grammar_text()
    block = re.search(r"^_clause:(.*?)^\s*$", grammar, re.MULTILINE | re.DOTALL)
    rules = re.findall(r"\w+", block[1]) if block else []
    heads = [re.search(rf'^{rule}: "(\w+)"', grammar, re.MULTILINE) for rule in rules]
    return [head[1] for head in heads if head]


def values_of(clause: str, name: str) -> list[str]:
    """What may be written for a setting, where there is a list of it."""
    owner = getattr(plans, class_name(clause), None)
    kinds = {each.name: each.metadata.get("kind") for each in fields(owner)} if owner else {}
    kind = kinds.get(name)
    if kind is None:
        return []
    return ["true", "false"] if kind.name == "bool" else list(kind.choices)
