"""The language server through a client of the protocol, its names by the syntax, and the lexer by the parser."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path

from lsprotocol import types
from pygls.lsp.client import LanguageClient
from pygments.token import Error, Keyword

from stagec.editing.answers import clause_words
from stagec.editing.highlighting import CLAUSES, StgLexer
from stagec.editing.names import Symbol, index_of
from stagec.frontend.parser import parse
from tests.unit.examples import EXAMPLES, FOLDER

ROOT = Path(__file__).parents[2]
TEXT = (FOLDER / "gpt.stg").read_text()
URI = "file:///gpt.stg"
START = "import sys; sys.path.insert(0, sys.argv[1]); from stagec.cli import main; main(['lsp'])"


def position(text: str, what: str, after: int = 0) -> types.Position:
    at = text.index(what) + after
    return types.Position(text.count("\n", 0, at), at - (text.rfind("\n", 0, at) + 1))


async def conversation() -> None:
    client = LanguageClient("test", "1")
    shown: list[types.PublishDiagnosticsParams] = []
    told = asyncio.Event()

    @client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
    def publish(params: types.PublishDiagnosticsParams) -> None:
        shown.append(params)
        told.set()

    await client.start_io(sys.executable, "-c", START, str(ROOT))
    await client.initialize_async(
        types.InitializeParams(types.ClientCapabilities(), process_id=None, root_uri=None)
    )
    client.initialized(types.InitializedParams())
    document = types.TextDocumentIdentifier(URI)

    async def change(text: str, version: int) -> list[types.Diagnostic]:
        told.clear()
        if version == 1:
            item = types.TextDocumentItem(URI, "stg", version, text)
            client.text_document_did_open(types.DidOpenTextDocumentParams(item))
        else:
            whole = [types.TextDocumentContentChangeWholeDocument(text)]
            name = types.VersionedTextDocumentIdentifier(version, URI)
            client.text_document_did_change(types.DidChangeTextDocumentParams(name, whole))
        await asyncio.wait_for(told.wait(), 60)
        return list(shown[-1].diagnostics)

    assert not await change(TEXT, 1)
    place = position(TEXT, "n @ wq", 4)
    hover = await client.text_document_hover_async(types.HoverParams(document, place))
    assert hover is not None
    assert "weight" in hover.contents.value
    assert "bytes" in hover.contents.value
    dim = await client.text_document_hover_async(
        types.HoverParams(document, position(TEXT, "dim F", 4))
    )
    assert dim is not None
    assert "8,192" in dim.contents.value
    found = await client.text_document_definition_async(types.DefinitionParams(document, place))
    assert found.range.start == position(TEXT, "wq[D, H, E]")
    uses = await client.text_document_references_async(
        types.ReferenceParams(types.ReferenceContext(True), document, place)
    )
    assert len(uses) == 2
    edit = await client.text_document_rename_async(
        types.RenameParams(text_document=document, position=place, new_name="query")
    )
    assert {e.new_text for e in edit.changes[URI]} == {"query"}
    broken = await change(TEXT.replace("shard B over dp", "shard B over pd"), 2)
    assert [each.source for each in broken] == ["stagec"]
    typing = TEXT.replace("microbatch 4", "microbatch 4\n  prec")
    assert await change(typing, 3)
    words = await client.text_document_completion_async(
        types.CompletionParams(document, position(typing, "  prec", 6))
    )
    assert {"precision", "zero"} <= {word.label for word in words}
    await change(TEXT.replace("dim B = 64 ", "dim   B=64 "), 4)
    edits = await client.text_document_formatting_async(
        types.DocumentFormattingParams(document, types.FormattingOptions(2, True))
    )
    assert edits[0].new_text == TEXT
    await client.shutdown_async(None)
    client.exit(None)
    await client.stop()


def test_an_editor_is_answered() -> None:
    asyncio.run(asyncio.wait_for(conversation(), 240))


LIBRARY = """dim D = 64
dim F = 4 * D

module Mlp(x[B, D]) -> [B, D] {
  weight up[D, F], down[F, D]
  return x + gelu(x @ up) @ down
}
"""
USER = """import "library.stg"
dim B = 32
dim L = 2

model NAME(x[B, D]) {
  repeat L { x = Mlp(x) }
  loss = mean(x, over = [B, D])
}

plan NAME_tp {
  mesh tp = 2
  shard F over tp
}
"""


async def names_across_files(folder: Path) -> None:
    """Definition, references and rename of what one file defines, another that is open imports, and a third that is not."""
    texts = {"library.stg": LIBRARY}
    texts |= {f"{name}.stg": USER.replace("NAME", name) for name in ("one", "two")}
    for name, text in texts.items():
        (folder / name).write_text(text)
    client = LanguageClient("test", "1")

    @client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
    def publish(params: types.PublishDiagnosticsParams) -> None:
        pass

    await client.start_io(sys.executable, "-c", START, str(ROOT))
    await client.initialize_async(
        types.InitializeParams(types.ClientCapabilities(), process_id=None, root_uri=None)
    )
    client.initialized(types.InitializedParams())
    uris = {name: (folder / name).as_uri() for name in texts}
    for name in ("one.stg", "library.stg"):
        item = types.TextDocumentItem(uris[name], "stg", 1, texts[name])
        client.text_document_did_open(types.DidOpenTextDocumentParams(item))
    one = types.TextDocumentIdentifier(uris["one.stg"])
    at = position(texts["one.stg"], "Mlp(x)")
    found = await client.text_document_definition_async(types.DefinitionParams(one, at))
    assert (found.uri, found.range.start) == (uris["library.stg"], position(LIBRARY, "Mlp"))
    edit = await client.text_document_rename_async(
        types.RenameParams(text_document=one, position=at, new_name="Ffn")
    )
    assert {uri: len(edits) for uri, edits in edit.changes.items()} == dict.fromkeys(
        uris.values(), 1
    )
    library = types.TextDocumentIdentifier(uris["library.stg"])
    for name in ("B", "D", "F", "up", "tp"):
        where, text = (one, texts["one.stg"]) if name in ("B", "tp") else (library, LIBRARY)
        place = position(text, f"{name}[" if name == "up" else f"{name} =")
        uses = await client.text_document_references_async(
            types.ReferenceParams(types.ReferenceContext(True), where, place)
        )
        counts = {uri: sum(use.uri == uri for use in uses) for uri in uris.values()}
        seen = [len(re.findall(rf"\b{name}\b", text)) for text in texts.values()]
        if name in ("B", "tp"):  # of `one` alone: `two` has a B and a tp of its own
            seen[2] = 0
        assert list(counts.values()) == seen, name
    await client.shutdown_async(None)
    client.exit(None)
    await client.stop()


def test_names_of_imported_files(tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(names_across_files(tmp_path), 240))


def test_every_name_of_an_example_is_what_the_text_says() -> None:
    """Places read as their names, definitions come first, and a rename leaves a program that parses to the same places."""
    for path in EXAMPLES[:6]:
        text = path.read_text()
        lines = text.split("\n")
        index = index_of(parse(text))
        for place in index.places:
            span = place.span
            assert lines[span.line - 1][span.column - 1 : span.end_column - 1] == place.symbol.name
            assert index.definition(place.symbol) is not None
    index = index_of(parse(TEXT))
    assert len(index.of(Symbol("Block", "x"))) == 3
    assert len(index.of(Symbol("Gpt", "x"))) == 4


def test_lexer_knows_every_word() -> None:
    lexer = StgLexer()
    assert set(clause_words()) <= set(CLAUSES)
    for path in EXAMPLES:
        tokens = list(lexer.get_tokens(path.read_text()))
        assert not [value for kind, value in tokens if kind is Error]
        assert {"plan", "model"} <= {v for kind, v in tokens if kind in Keyword}


def test_extension_knows_every_word() -> None:
    """The grammar of the VS Code extension has the clauses of the language, and its patterns are regular expressions."""
    folder = ROOT / "editors" / "vscode"
    grammar = json.loads((folder / "syntaxes" / "stg.tmLanguage.json").read_text())
    patterns = {each["name"]: each["match"] for each in grammar["patterns"] if "name" in each}
    for pattern in patterns.values():
        re.compile(pattern)
    for word in clause_words():
        assert re.match(patterns["keyword.other.clause.stg"], f"  {word} "), word
    package = json.loads((folder / "package.json").read_text())
    for name in (package["main"], package["contributes"]["grammars"][0]["path"]):
        assert (folder / name).is_file()
