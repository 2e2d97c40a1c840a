"""The language server: answers in the terms of the Language Server Protocol (version 3.17), by pygls."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.uris import from_fs_path, to_fs_path

from stagec.diagnostics import CompileError, Diagnostic, Span
from stagec.editing.language_features import (
    IMPORT,
    complete,
    describe,
    describe_word,
    diagnose,
    here,
    word_at,
)
from stagec.editing.names import Index, NamePlace, index_of
from stagec.formatting import format_text
from stagec.frontend import parse_text
from stagec.frontend.files import read_text
from stagec.frontend.keywords import RESERVED
from stagec.frontend.parser import parse
from stagec.plugins import Registry

PROTOCOL = "3.17"
"""The version of the protocol, which is what clients show."""
At = types.HoverParams | types.DefinitionParams | types.ReferenceParams | types.RenameParams
"""Questions about a place."""
MODEL = re.compile(r"^\s*model\b", re.MULTILINE)
MOST_FILES = 1000
"""The most files that are looked through for those that import a file."""
LEVELS_UP = 4
KINDS = {
    "function": types.CompletionItemKind.Function,
    "module": types.CompletionItemKind.Class,
    "dim": types.CompletionItemKind.Constant,
    "axis": types.CompletionItemKind.Constant,
    "clause": types.CompletionItemKind.Keyword,
    "definition": types.CompletionItemKind.Keyword,
    "statement": types.CompletionItemKind.Keyword,
}


@dataclass
class Texts:
    """What is known of the texts that are open: names as they were when a text last parsed, and the plan that was chosen."""

    indices: dict[str, Index] = field(default_factory=dict)
    importers: dict[str, list[str]] = field(default_factory=dict)
    """Files that import something, near each that is imported itself."""
    plan: str | None = None


def make_server(plug_ins: Registry) -> LanguageServer:
    """A server that knows the passes and ops of these. `initializationOptions: {"plan": "NAME"}` chooses the plan of hovers; the first otherwise."""
    server = LanguageServer("stagec", PROTOCOL)
    texts = Texts()

    @server.feature(types.INITIALIZE)
    def start(params: types.InitializeParams) -> None:
        options = params.initialization_options
        if isinstance(options, dict):
            texts.plan = options.get("plan")

    def folders() -> list[str]:
        return [path for uri in server.workspace.folders if (path := to_fs_path(uri))]

    def opened_texts() -> dict[str, str]:
        return {each.path: each.source for each in server.workspace.text_documents.values()}

    def look(uri: str) -> None:
        """Say what is wrong in a file; and in those that are open and import something, which it may have changed."""
        show(uri)
        for other, document in list(server.workspace.text_documents.items()):
            if other != uri and IMPORT.search(document.source):
                show(other)

    def show(uri: str) -> None:
        document = server.workspace.get_text_document(uri)
        found = mistakes(uri, document.path, document.source)
        with suppress(CompileError):  # the names of the last text that parsed still help
            texts.indices[uri] = program_at(document.path)
        there = [here(each, document.source, document.path) for each in found]
        shown = [protocol(each, document.lines) for each in there]
        server.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(uri, shown, document.version)
        )

    def mistakes(uri: str, path: str, text: str) -> list[Diagnostic]:
        """The mistakes of a file. A file without a model is checked as a part of those that import it, which define names that it uses."""
        opened = opened_texts()
        if MODEL.search(text):
            return diagnose(text, path, plug_ins, opened)
        if uri not in texts.importers:
            texts.importers[uri] = list(importing(path, folders()))
        found: dict[tuple[str, str, Span], Diagnostic] = {}
        is_imported = False
        for other in dict.fromkeys([*opened, *texts.importers[uri]]):
            with suppress(CompileError):
                own = opened[other] if other in opened else read_text(other)
                if other != path and imports(own, other, path):
                    is_imported = True
                    for each in diagnose(own, other, plug_ins, opened):
                        if each.span is not None and each.span.file == path:
                            found[each.code, each.message, each.span] = each
        return list(found.values()) if is_imported else diagnose(text, path, plug_ins, opened)

    def program_at(path: str) -> Index:
        """The names of a file and of what it imports, as editors have them open."""
        opened = opened_texts()
        text = opened[path] if path in opened else read_text(path)
        try:
            files = dict(parse_text(text, path, opened).files)
        except CompileError:  # of what is imported; of the text itself it is raised again
            files = {path: parse(text, path)}
        return index_of(*files.values())

    def meant(found: tuple[Index, NamePlace]) -> list[NamePlace]:
        """Where the thing at a place is named: in the programs of all files that import the one that defines it."""
        index, place = found
        first = index.definition(place.symbol)
        places = {each.span: each for each in index.of(place.symbol)}
        if first is None:
            return list(places.values())
        open_ = (each.path for each in server.workspace.text_documents.values())
        for path in sorted({*open_, *importing(first.span.file, folders())}):
            with suppress(CompileError):
                other = program_at(path)
                if other.definition(place.symbol) == first:
                    places |= {each.span: each for each in other.of(place.symbol)}
        return sorted(places.values(), key=lambda each: each.span)

    def name_at(params: At) -> tuple[Index, NamePlace] | None:
        uri = params.text_document.uri
        index = texts.indices.get(uri)
        lines = server.workspace.get_text_document(uri).lines
        column = from_utf16(lines, params.position)
        path = server.workspace.get_text_document(uri).path
        place = index.at(path, params.position.line + 1, column) if index else None
        return (index, place) if index and place else None

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: types.DidOpenTextDocumentParams) -> None:
        look(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: types.DidChangeTextDocumentParams) -> None:
        look(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: types.DidCloseTextDocumentParams) -> None:
        """What was not saved is gone: those that import it see what is on disk."""
        uri = params.text_document.uri
        texts.indices.pop(uri, None)
        server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))
        for other, document in list(server.workspace.text_documents.items()):
            if other != uri and IMPORT.search(document.source):
                show(other)

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    def hover(params: types.HoverParams) -> types.Hover | None:
        found = name_at(params)
        document = server.workspace.get_text_document(params.text_document.uri)
        if found is None:
            offset = document.offset_at_position(params.position)
            text = describe_word(word_at(document.source, offset), plug_ins.functions)
        else:
            opened = opened_texts()
            text = describe(document.source, document.path, texts.plan, plug_ins, *found, opened)
        if not text:
            return None
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text))

    @server.feature(types.TEXT_DOCUMENT_DEFINITION)
    def definition(params: types.DefinitionParams) -> types.Location | None:
        found = name_at(params)
        place = found[0].definition(found[1].symbol) if found else None
        return location(place) if place else None

    @server.feature(types.TEXT_DOCUMENT_REFERENCES)
    def references(params: types.ReferenceParams) -> list[types.Location]:
        found = name_at(params)
        if found is None:
            return []
        wanted = params.context.include_declaration
        return [location(each) for each in meant(found) if wanted or not each.is_definition]

    def location(place: NamePlace) -> types.Location:
        uri = uri_of(place.span.file)
        return types.Location(uri, span_range(place.span, lines_of(uri)))

    def uri_of(path: str) -> str:
        """As the editor spells it, where it has the file open."""
        for uri, document in server.workspace.text_documents.items():
            if document.path == path:
                return uri
        return from_fs_path(os.path.abspath(path)) or path

    def lines_of(uri: str) -> list[str]:
        return list(server.workspace.get_text_document(uri).lines)

    @server.feature(types.TEXT_DOCUMENT_RENAME)
    def rename(params: types.RenameParams) -> types.WorkspaceEdit | None:
        found = name_at(params)
        name = params.new_name
        if found is None or not re.fullmatch(r"[A-Za-z_]\w*", name) or name in RESERVED:
            return None
        edits: dict[str, list[types.TextEdit]] = {}
        for each in meant(found):
            place = location(each)
            edits.setdefault(place.uri, []).append(types.TextEdit(place.range, name))
        return types.WorkspaceEdit(edits)

    @server.feature(types.TEXT_DOCUMENT_COMPLETION, types.CompletionOptions(["{", " "]))
    def completion(params: types.CompletionParams) -> list[types.CompletionItem]:
        uri = params.text_document.uri
        document = server.workspace.get_text_document(uri)
        offset = document.offset_at_position(params.position)
        index = texts.indices.get(uri)
        words = dict(complete(document.source, offset, index, plug_ins.functions))
        return [
            types.CompletionItem(word, detail=what, kind=KINDS.get(what))
            for word, what in words.items()
        ]

    @server.feature(types.TEXT_DOCUMENT_FORMATTING)
    def formatting(params: types.DocumentFormattingParams) -> list[types.TextEdit]:
        document = server.workspace.get_text_document(params.text_document.uri)
        try:
            text = format_text(document.source, document.path)
        except CompileError:
            return []
        end = types.Position(len(document.lines), 0)
        return [types.TextEdit(types.Range(types.Position(0, 0), end), text)]

    return server


def importing(file: str, workspace: Iterable[str]) -> Iterator[str]:
    """The files that may import one: those that import something, of its folder and those above it, which may, and of the workspace."""
    above = list(Path(file).parents)[:LEVELS_UP]
    near = (path for folder in above for path in folder.glob("*.stg"))
    below = (
        Path(folder, name)
        for root in workspace
        for folder, _, names in os.walk(root)
        for name in names
        if name.endswith(".stg")
    )
    for path in islice(chain(near, below), MOST_FILES):
        with suppress(CompileError, OSError):
            if IMPORT.search(read_text(str(path))):
                yield str(path)


def imports(text: str, file: str, other: str) -> bool:
    """Whether a text imports another file, itself or through others; as far as it can be read."""
    folder, wanted = os.path.dirname(file), os.path.realpath(other)
    if any(os.path.realpath(os.path.join(folder, m[1])) == wanted for m in IMPORT.finditer(text)):
        return True
    with suppress(CompileError):
        return any(os.path.realpath(each) == wanted for each in parse_text(text, file).files)
    return False


def protocol(each: Diagnostic, lines: Sequence[str]) -> types.Diagnostic:
    """A diagnostic with its advice, where the caret would be."""
    span = each.span or Span("", 1, 1, 1, 1)
    text = "\n".join([each.message, *each.notes, *(f"help: {help_}" for help_ in each.helps)])
    severity = types.DiagnosticSeverity.Error if each.is_error else types.DiagnosticSeverity.Warning
    return types.Diagnostic(span_range(span, lines), text, severity, each.code, source="stagec")


def span_range(span: Span, lines: Sequence[str]) -> types.Range:
    start = types.Position(span.line - 1, to_utf16(lines, span.line, span.column))
    end = types.Position(span.end_line - 1, to_utf16(lines, span.end_line, span.end_column))
    return types.Range(start, end)


def to_utf16(lines: Sequence[str], line: int, column: int) -> int:
    """A column of the protocol, which counts from 0 and in units of UTF-16."""
    text = lines[line - 1] if line <= len(lines) else ""
    return len(text[: column - 1].encode("utf-16-le")) // 2


def from_utf16(lines: Sequence[str], position: types.Position) -> int:
    """A column of ours, which counts from 1 and in characters."""
    text = lines[position.line] if position.line < len(lines) else ""
    before = text.encode("utf-16-le")[: 2 * position.character]
    return len(before.decode("utf-16-le", errors="ignore")) + 1
