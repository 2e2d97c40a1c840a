"""The language server: answers in the terms of the Language Server Protocol (version 3.17), by pygls."""

from __future__ import annotations

import re

from lsprotocol import types
from pygls.lsp.server import LanguageServer

from stagec.diagnostics import CompileError
from stagec.editing.language_features import complete, describe, describe_word, word_at
from stagec.editing.open_texts import OpenTexts
from stagec.formatting import format_text
from stagec.frontend.keywords import RESERVED
from stagec.plugins import Registry

PROTOCOL = "3.17"
"""The version of the protocol, which is what clients show."""
KINDS = {
    "function": types.CompletionItemKind.Function,
    "module": types.CompletionItemKind.Class,
    "dim": types.CompletionItemKind.Constant,
    "axis": types.CompletionItemKind.Constant,
    "clause": types.CompletionItemKind.Keyword,
    "definition": types.CompletionItemKind.Keyword,
    "statement": types.CompletionItemKind.Keyword,
}


def make_server(plug_ins: Registry) -> LanguageServer:
    """A server that knows the passes and ops of these. `initializationOptions: {"plan": "NAME"}` chooses the plan of hovers; the first otherwise."""
    server = LanguageServer("stagec", PROTOCOL)
    texts = OpenTexts(server, plug_ins)

    @server.feature(types.INITIALIZE)
    def start(params: types.InitializeParams) -> None:
        options = params.initialization_options
        if isinstance(options, dict):
            texts.plan = options.get("plan")

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: types.DidOpenTextDocumentParams) -> None:
        texts.look(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: types.DidChangeTextDocumentParams) -> None:
        texts.look(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: types.DidCloseTextDocumentParams) -> None:
        texts.close(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    def hover(params: types.HoverParams) -> types.Hover | None:
        found = texts.name_at(params)
        document = server.workspace.get_text_document(params.text_document.uri)
        if found is None:
            offset = document.offset_at_position(params.position)
            text = describe_word(word_at(document.source, offset), plug_ins.functions)
        else:
            path, opened = document.path, texts.by_path
            text = describe(document.source, path, texts.plan, plug_ins, *found, opened)
        if not text:
            return None
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text))

    @server.feature(types.TEXT_DOCUMENT_DEFINITION)
    def definition(params: types.DefinitionParams) -> types.Location | None:
        found = texts.name_at(params)
        place = found[0].definition(found[1].symbol) if found else None
        return texts.location(place) if place else None

    @server.feature(types.TEXT_DOCUMENT_REFERENCES)
    def references(params: types.ReferenceParams) -> list[types.Location]:
        found = texts.name_at(params)
        if found is None:
            return []
        wanted = params.context.include_declaration
        return [
            texts.location(each) for each in texts.meant(found) if wanted or not each.is_definition
        ]

    @server.feature(types.TEXT_DOCUMENT_RENAME)
    def rename(params: types.RenameParams) -> types.WorkspaceEdit | None:
        found = texts.name_at(params)
        name = params.new_name
        if found is None or not re.fullmatch(r"[A-Za-z_]\w*", name) or name in RESERVED:
            return None
        edits: dict[str, list[types.TextEdit]] = {}
        for each in texts.meant(found):
            place = texts.location(each)
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
