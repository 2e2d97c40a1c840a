"""The language server through a client of the protocol, its names by the syntax, and the lexer by the parser."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path

import pytest
from lsprotocol import types
from pygls.lsp.client import LanguageClient
from pygments.token import Error, Keyword, Operator

from stagec.editing.highlighting import CLAUSES, StgLexer
from stagec.editing.language_features import clause_words
from stagec.editing.names import Symbol, index_of
from stagec.frontend.keywords import DEFINITIONS, RESERVED
from stagec.frontend.parser import grammar_text, parse
from tests.unit.examples import EXAMPLES, FOLDER

ROOT = Path(__file__).parents[2]
TEXT = (FOLDER / "gpt.stg").read_text()
URI = "file:///gpt.stg"
START = "import sys; sys.path.insert(0, sys.argv[1]); from stagec.cli import main; sys.exit(main(['lsp']))"


def position(text: str, what: str, after: int = 0) -> types.Position:
    at = text.index(what) + after
    return types.Position(text.count("\n", 0, at), at - (text.rfind("\n", 0, at) + 1))


class Client(LanguageClient):
    """An editor that keeps how the server ended: its exit status, and what it wrote beside its answers."""

    ended: tuple[int | None, bytes] | None = None

    async def server_exit(self, server: asyncio.subprocess.Process) -> None:
        assert server.stderr is not None
        self.ended = server.returncode, await server.stderr.read()


async def conversation() -> None:
    client = Client("test", "1")
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
    assert client.ended == (0, b"")


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


@pytest.mark.seldom
def test_names_of_imported_files(tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(names_across_files(tmp_path), 240))


SERVED = """import "library.stg"
dim B = 4
dim S = 16
dim P = S
dim H = 4
dim E = 16

module Attention(x[B, S, D]) -> [B, S, D] {
  weight wk[D, H, E], wo[H, E, D]
  cache past[B, P, H, E]
  k[B, P, H, E] = append(past, x @ wk)
  return attention(x @ wk, k, k, causal = true) @ wo
}

model Served(x[B, S, D]) {
  y = Attention(x)
  return y
}

plan together {
  mesh tp = 2
  shard H over tp
  serve { decode 4 at 64, block = 8 }
}

plan apart {
  pool first {
    mesh tp = 2
    shard H over tp
    serve { prefill 4 x 16 }
  }
  pool second {
    mesh tp = 4
    shard H over tp
    serve { decode 4 at 16 }
  }
}
"""


async def typed(folder: Path) -> None:
    """A text with a cache, plans that serve and pools, and the file that it imports, as somebody types in both."""
    texts = {"library.stg": LIBRARY, "served.stg": SERVED}
    for name, text in texts.items():
        (folder / name).write_text(text)
    uris = {name: (folder / name).as_uri() for name in texts}
    client = LanguageClient("test", "1")
    shown: dict[str, list[types.Diagnostic]] = {}

    @client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
    def publish(params: types.PublishDiagnosticsParams) -> None:
        shown[params.uri] = list(params.diagnostics)

    await client.start_io(sys.executable, "-c", START, str(ROOT))
    await client.initialize_async(
        types.InitializeParams(types.ClientCapabilities(), process_id=None, root_uri=None)
    )
    client.initialized(types.InitializedParams())
    versions = dict.fromkeys(texts, 1)
    for name, text in texts.items():
        item = types.TextDocumentItem(uris[name], "stg", 1, text)
        client.text_document_did_open(types.DidOpenTextDocumentParams(item))

    async def change(name: str, text: str) -> None:
        versions[name] += 1
        whole = [types.TextDocumentContentChangeWholeDocument(text)]
        which = types.VersionedTextDocumentIdentifier(versions[name], uris[name])
        client.text_document_did_change(types.DidChangeTextDocumentParams(which, whole))
        await hover("library.stg", LIBRARY, "dim")  # answered when the change was

    async def hover(name: str, text: str, what: str, after: int = 0) -> str:
        document = types.TextDocumentIdentifier(uris[name])
        found = await client.text_document_hover_async(
            types.HoverParams(document, position(text, what, after))
        )
        return found.contents.value if found else ""

    async def complete(text: str, what: str) -> set[str]:
        await change("served.stg", text)
        document = types.TextDocumentIdentifier(uris["served.stg"])
        at = position(text, what, len(what))
        words = await client.text_document_completion_async(types.CompletionParams(document, at))
        return {word.label for word in words}

    assert "append(cache, new" in await hover("served.stg", SERVED, "append")
    assert shown == {uri: [] for uri in uris.values()}
    assert "**cache** `past`: `!stg.tensor<[B, P.stored, H/tp, E]" in await hover(
        "served.stg", SERVED, "past["
    )
    assert "**pool** `first`" in await hover("served.stg", SERVED, "first {")
    assert "`drafts`" in await hover("served.stg", SERVED, "serve {")
    served = types.TextDocumentIdentifier(uris["served.stg"])
    place = position(SERVED, "append(past", 8)
    found = await client.text_document_definition_async(types.DefinitionParams(served, place))
    assert found.range.start == position(SERVED, "past[")

    # What is typed in the imported file shows in the file that imports it, where that does; nothing is saved.
    await change("library.stg", LIBRARY.replace("dim D = 64", "dim D ="))
    (mistake,) = shown[uris["served.stg"]]
    assert mistake.message.startswith("library.stg:")
    assert mistake.range.start == position(SERVED, '"library.stg"')
    await change("library.stg", LIBRARY.replace("dim D = 64", "dim W = 64"))
    assert any("`D`" in each.message for each in shown[uris["served.stg"]])
    await change("library.stg", LIBRARY)
    assert shown == {uri: [] for uri in uris.values()}

    pool = SERVED.replace("pool first {", "pool first {\n    ")
    assert {"mesh", "serve", "context"} <= await complete(pool, "pool first {\n    ")
    setting = SERVED.replace("block = 8 }", "block = 8, logits =  }")
    assert {"sampled", "last", "all"} == await complete(setting, "logits = ")
    assert {"prefill", "block"} <= await complete(setting, "serve { ")
    await client.shutdown_async(None)
    client.exit(None)
    await client.stop()


@pytest.mark.seldom
def test_pools_and_imports_as_one_types(tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(typed(tmp_path), 240))


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


def inner_words() -> set[str]:
    """The words of the grammar that stand inside of clauses, as `over` does."""
    heads = {*clause_words(), *DEFINITIONS, *RESERVED}
    rules = re.sub(
        r"^!?_(parameter|setting)_name:.*\n(.*\n)?", "", grammar_text(), flags=re.MULTILINE
    )
    words = set(re.findall(r'"([a-z_]+)"', re.sub(r"//.*", "", rules)))
    return words - heads


def test_lexer_knows_every_word() -> None:
    lexer = StgLexer()
    assert set(clause_words()) | inner_words() == set(CLAUSES)
    for word in clause_words():
        kinds = {
            kind
            for kind, value in lexer.get_tokens(f"plan p {{\n  {word} x\n}}")
            if value.strip() == word
        }
        assert kinds == {Keyword.Declaration}, word
    for word in RESERVED:
        assert {kind for kind, value in lexer.get_tokens(word) if value == word} <= {
            Keyword,
            Keyword.Constant,
            Operator.Word,
        }, word
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
    for word in inner_words():
        assert re.search(patterns["keyword.other.stg"], f"x {word} y"), word
    coloured = [each["match"] for each in grammar["patterns"]]
    for word in RESERVED:
        assert any(re.search(match, f"{word} x") for match in coloured[:5]), word
    package = json.loads((folder / "package.json").read_text())
    for name in (package["main"], package["contributes"]["grammars"][0]["path"]):
        assert (folder / name).is_file()
