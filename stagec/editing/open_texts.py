"""The texts that an editor has open, and the files near them: their mistakes, and where names stand."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.uris import from_fs_path, to_fs_path

from stagec.diagnostics import CompileError, Diagnostic, Span
from stagec.editing.language_features import IMPORT, diagnose, here
from stagec.editing.names import Index, NamePlace, index_of
from stagec.editing.places import from_utf16, protocol, span_range
from stagec.frontend import parse_text
from stagec.frontend.files import read_text
from stagec.frontend.parser import parse
from stagec.plugins import Registry

At = types.HoverParams | types.DefinitionParams | types.ReferenceParams | types.RenameParams
"""Questions about a place."""
MODEL = re.compile(r"^\s*model\b", re.MULTILINE)
MOST_FILES = 1000
"""The most files that are looked through for those that import a file."""
LEVELS_UP = 4


@dataclass
class OpenTexts:
    """What is known of the texts that are open: names as they were when a text last parsed, and the plan that was chosen."""

    server: LanguageServer
    plug_ins: Registry
    plan: str | None = None
    indices: dict[str, Index] = field(default_factory=dict)
    importers: dict[str, list[str]] = field(default_factory=dict)
    """Files that import something, near each that is imported itself."""

    @property
    def folders(self) -> list[str]:
        return [path for uri in self.server.workspace.folders if (path := to_fs_path(uri))]

    @property
    def by_path(self) -> dict[str, str]:
        return {each.path: each.source for each in self.server.workspace.text_documents.values()}

    def look(self, uri: str) -> None:
        """Say what is wrong in a file; and in those that are open and import something, which it may have changed."""
        self.show(uri)
        self.look_at_others(uri)

    def look_at_others(self, uri: str) -> None:
        for other, document in list(self.server.workspace.text_documents.items()):
            if other != uri and IMPORT.search(document.source):
                self.show(other)

    def show(self, uri: str) -> None:
        document = self.server.workspace.get_text_document(uri)
        found = self.mistakes(uri, document.path, document.source)
        with suppress(CompileError):  # the names of the last text that parsed still help
            self.indices[uri] = self.program_at(document.path)
        there = [here(each, document.source, document.path) for each in found]
        shown = [protocol(each, document.lines) for each in there]
        self.server.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(uri, shown, document.version)
        )

    def close(self, uri: str) -> None:
        """Forget a text. What was not saved is gone: those that import it see what is on disk."""
        self.indices.pop(uri, None)
        self.server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))
        self.look_at_others(uri)

    def mistakes(self, uri: str, path: str, text: str) -> list[Diagnostic]:
        """The mistakes of a file. A file without a model is checked as a part of those that import it, which define names that it uses."""
        opened = self.by_path
        if MODEL.search(text):
            return diagnose(text, path, self.plug_ins, opened)
        if uri not in self.importers:
            self.importers[uri] = list(importing(path, self.folders))
        found: dict[tuple[str, str, Span], Diagnostic] = {}
        is_imported = False
        for other in dict.fromkeys([*opened, *self.importers[uri]]):
            with suppress(CompileError):
                own = opened[other] if other in opened else read_text(other)
                if other != path and imports(own, other, path):
                    is_imported = True
                    for each in diagnose(own, other, self.plug_ins, opened):
                        if each.span is not None and each.span.file == path:
                            found[each.code, each.message, each.span] = each
        return list(found.values()) if is_imported else diagnose(text, path, self.plug_ins, opened)

    def program_at(self, path: str) -> Index:
        """The names of a file and of what it imports, as editors have them open."""
        opened = self.by_path
        text = opened[path] if path in opened else read_text(path)
        try:
            files = dict(parse_text(text, path, opened).files)
        except CompileError:  # of what is imported; of the text itself it is raised again
            files = {path: parse(text, path)}
        return index_of(*files.values())

    def meant(self, found: tuple[Index, NamePlace]) -> list[NamePlace]:
        """Where the thing at a place is named: in the programs of all files that import the one that defines it."""
        index, place = found
        first = index.definition(place.symbol)
        places = {each.span: each for each in index.of(place.symbol)}
        if first is None:
            return list(places.values())
        open_ = (each.path for each in self.server.workspace.text_documents.values())
        for path in sorted({*open_, *importing(first.span.file, self.folders)}):
            with suppress(CompileError):
                other = self.program_at(path)
                if other.definition(place.symbol) == first:
                    places |= {each.span: each for each in other.of(place.symbol)}
        return sorted(places.values(), key=lambda each: each.span)

    def name_at(self, params: At) -> tuple[Index, NamePlace] | None:
        uri = params.text_document.uri
        index = self.indices.get(uri)
        lines = self.server.workspace.get_text_document(uri).lines
        column = from_utf16(lines, params.position)
        path = self.server.workspace.get_text_document(uri).path
        place = index.at(path, params.position.line + 1, column) if index else None
        return (index, place) if index and place else None

    def location(self, place: NamePlace) -> types.Location:
        uri = self.uri_of(place.span.file)
        return types.Location(uri, span_range(place.span, self.lines_of(uri)))

    def uri_of(self, path: str) -> str:
        """As the editor spells it, where it has the file open."""
        for uri, document in self.server.workspace.text_documents.items():
            if document.path == path:
                return uri
        return from_fs_path(os.path.abspath(path)) or path

    def lines_of(self, uri: str) -> list[str]:
        return list(self.server.workspace.get_text_document(uri).lines)


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
