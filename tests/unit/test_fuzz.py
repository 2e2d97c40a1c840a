"""Whatever the text, the frontend answers with a diagnostic or with a model: never with anything else."""

from __future__ import annotations

import re
import string
from dataclasses import fields

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from stagec.diagnostics import CompileError, Span
from stagec.frontend import check, lower, parse_text, syntax
from stagec.frontend.keywords import RESERVED
from stagec.frontend.parser import parse
from stagec.frontend.printing import text_of

VALID = """
dim B = 8
dim S = 2 * 64
dim T = S
dim D = 64
dim H = 8
dim E = D / H
dim F = ceildiv(8 * D, 3) + 5
dim L = 4
require D % H == 0 and S >= 1

op scan(x[B, S, D]) -> [B, S, D] { flops = 6*B*S*D, bytes = 4*B*S*D }

module Attention(x[B, S, D]) -> [B, S, D] {
  weight wq[D, H, E], wk[D, H, E], wv[D, H, E], wo[H, E, D]
  q[B, S, H, E] = rope(x @ wq)
  k = (x @ wk)[S -> T]
  v = (x @ wv)[S -> T]
  p[B, H, S, T] = q @ k / sqrt(E)
  o[B, S, H, E] = softmax(causal_mask(p, query = S, key = T), over = T) @ v
  return o @ wo
}

module Block(x[B, S, D]) -> [B, S, D] {
  weight norm[D], up[D, F], down[F, D]: fp32
  h = x + scan(Attention(rms_norm(x, norm)))
  return h + cast(gelu(h @ up) @ down, dtype = bf16)
}

module Past(x[B, S, D]) -> [B, T, D] {
  cache past[B, T, D]: fp8
  return append(past, x, window = 16 * S)
}

model M(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[F, D]
  x = embedding(tokens, embed)
  repeat L / 2 { repeat 2 { x = Block(x) } }
  loss = cross_entropy(x @ embed, targets)
}

plan p {
  mesh pp = 1, edp = 2, ep = 2, tp = 2, dp = edp * ep
  shard B over dp
  shard H over tp
  shard Block.h[S] over tp
  zero 1 over dp { prefetch = 2 }
  precision { weights = bf16, activations = bf16 }
  gradients { bucket_bytes = 25MiB, overlap = true }
  optimizer adamw
  recompute attention in Block
  pass fuse-things { axis = "tp", sizes = [1, 2] }
}

plan q extends p { set S = 256 rank_order tp, pp, ep, edp }

plan r { serve { prefill 4 x 2 at 1, decode 3 at 10, logits = all } }
"""


def only_diagnostics(text: str) -> None:
    """Compile as far as it goes; render what is wrong."""
    try:
        checked = check(parse_text(text, "fuzz.stg"))
    except CompileError as error:
        rendered = error.render()
        assert error.diagnostics
        assert re.match(r"(error|warning)\[[EW]\d{4}\]: ", rendered), rendered
        return
    lower(checked).verify()


def test_the_valid_program_is_valid():
    lower(check(parse_text(VALID, "fuzz.stg"))).verify()


relaxed = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

TOKENS = re.findall(r"[A-Za-z_0-9.]+|->|[=<>!*]=|\*\*|[^\s]|\n", VALID)


@relaxed
@given(st.text(max_size=200))
def test_random_text(text: str):
    only_diagnostics(text)


@relaxed
@given(st.lists(st.sampled_from(sorted({*TOKENS, *RESERVED})), max_size=60).map(" ".join))
def test_random_words_of_the_language(text: str):
    only_diagnostics(text)


@relaxed
@given(st.data())
def test_a_valid_program_with_a_few_changes(data: st.DataObject):
    tokens = list(TOKENS)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(tokens) - 1))
        change = data.draw(st.sampled_from(["delete", "double", "replace", "swap", "cut"]))
        if change == "delete":
            del tokens[position]
        elif change == "double":
            tokens.insert(position, tokens[position])
        elif change == "replace":
            tokens[position] = data.draw(st.sampled_from(TOKENS))
        elif change == "swap":
            other = data.draw(st.integers(0, len(tokens) - 1))
            tokens[position], tokens[other] = tokens[other], tokens[position]
        else:
            del tokens[position : position + data.draw(st.integers(0, 30))]
        if not tokens:
            return
    # The bracket of a call touches its name.
    only_diagnostics(re.sub(r"(\w|\)|\]) ([(\[])", r"\1\2", " ".join(tokens)))


@relaxed
@given(st.data())
def test_a_valid_program_with_a_few_characters_changed(data: st.DataObject):
    text = VALID
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(text)))
        new = data.draw(st.text(st.sampled_from(string.printable + "é×\0\u2028😀"), max_size=2))
        text = text[:position] + new + text[position + data.draw(st.integers(0, 2)) :]
    only_diagnostics(text)


# ---- random syntax trees ----

NOWHERE = Span("fuzz.stg", 1, 1, 1, 1)
names = st.sampled_from(
    ["B", "S", "T", "D", "H", "L", "x", "y", "h", "w", "tp", "dp", "Block", "loss", "none", "zz"]
).map(lambda text: syntax.Name(text, span=NOWHERE))
dtypes = st.none() | st.sampled_from(["fp32", "bf16", "i32", "i33"]).map(
    lambda text: syntax.Name(text, span=NOWHERE)
)


def build(kind: type, *parts: st.SearchStrategy) -> st.SearchStrategy:
    return st.builds(lambda *args: kind(*args, span=NOWHERE), *parts)


def some(strategy: st.SearchStrategy, least: int = 1, most: int = 3) -> st.SearchStrategy:
    return st.lists(strategy, min_size=least, max_size=most).map(tuple)


references = build(syntax.Reference, names)
numbers = build(
    syntax.Number, st.sampled_from(["0", "1", "2", "3", "8", "64", "0.5", "1e3", "9" * 30])
)
levels = build(syntax.Number, st.sampled_from(["0", "1", "3", "9" * 50]))
functions = st.sampled_from(
    ["rope", "silu", "softmax", "embedding", "attention", "rms_norm", "min", "sqrt", "Block", "foo"]
).map(lambda text: syntax.Name(text, span=NOWHERE))
leaves = (
    references
    | numbers
    | build(syntax.Boolean, st.sampled_from(["true", "false"]))
    | build(syntax.ByteSize, st.sampled_from(["80GiB", "1.5MB"]))
)
OPERATORS = ["+", "-", "*", "/", "%", "**", "@", "==", "<", "and", "or"]


def compound(inner: st.SearchStrategy) -> st.SearchStrategy:
    values = inner | build(syntax.ListValue, some(inner, 0)) | build(syntax.Text, st.just("a.csv"))
    arguments = build(syntax.Argument, st.none() | names, values)
    renamings = build(syntax.Renaming, names, names)
    return (
        build(syntax.Binary, inner, st.sampled_from(OPERATORS), inner)
        | build(syntax.Negate, inner)
        | build(syntax.Rename, inner, some(renamings))
        | build(syntax.Call, functions, some(arguments, 0))
    )


expressions = st.recursive(leaves, compound, max_leaves=8)
shapes = build(syntax.Shape, some(references | expressions, 0))
parts = some(references | expressions, 0)
stored = build(syntax.StoredShape, parts, st.none() | parts)
weights = build(syntax.Weights, some(build(syntax.Weight, names, stored, dtypes)))
caches = build(syntax.Caches, some(build(syntax.Cache, names, shapes, dtypes)))
assigns = build(
    syntax.Assign, some(build(syntax.Target, names, st.none() | shapes), 1, 2), expressions
)
returns = build(syntax.Return, some(expressions, 1, 2))
simple = weights | caches | assigns | returns
statements = st.recursive(
    simple,
    lambda inner: build(syntax.Repeat, expressions, build(syntax.Body, some(inner, 0))),
    max_leaves=4,
)
bodies = build(syntax.Body, some(statements, 0, 5))
parameters = some(build(syntax.Parameter, names, shapes, dtypes), 0)
results = some(build(syntax.Result, shapes, dtypes), 1, 2)
entries = build(syntax.Setting, names, expressions | build(syntax.Text, st.just("x")))
settings_ = build(syntax.Settings, some(entries, 0))
paths = build(syntax.Path, some(names, 1, 2))
targets = build(syntax.ShardTarget, paths, st.none() | some(names, 1, 2))
clauses = st.one_of(
    build(syntax.Resize, some(build(syntax.NewSize, names, expressions))),
    build(syntax.Mesh, some(build(syntax.MeshAxis, names, st.none() | expressions))),
    build(syntax.RankOrder, some(names)),
    build(syntax.Shard, some(targets), some(names), st.none() | settings_),
    build(syntax.Pipeline, some(names, 1, 2), st.none() | names, st.none() | settings_),
    build(syntax.Microbatch, expressions),
    build(syntax.Zero, levels | references, st.none() | some(names), st.none() | settings_),
    build(syntax.Unit, some(paths)),
    build(syntax.Use, references | some(build(syntax.Replacement, names, names))),
    build(syntax.Recompute, some(paths), st.none() | some(paths)),
    build(syntax.Precision, settings_),
    build(syntax.Optimizer, names, st.none() | settings_),
    build(syntax.Collectives, settings_),
    build(syntax.Context, names, st.none() | settings_),
    build(syntax.Gradients, settings_),
    build(syntax.Overlap, settings_),
    build(syntax.Offload, settings_),
    build(syntax.LossChunks, expressions),
    build(syntax.Device, st.none() | names, st.none() | settings_),
    build(syntax.Load, st.none() | names, st.none() | settings_),
    build(syntax.Pass, st.just(syntax.Name("a-b", span=NOWHERE)), st.none() | settings_),
)
items = st.one_of(
    build(syntax.Dim, names, expressions),
    build(syntax.Require, expressions),
    build(syntax.Module, names, parameters, results, bodies),
    build(syntax.Model, names, parameters, bodies),
    build(syntax.Op, names, parameters, results, settings_),
    build(syntax.Plan, names, st.none() | names, some(clauses, 0, 4)),
)
programs = build(syntax.Program, some(items, 0, 6))


@pytest.mark.seldom
@relaxed
@given(programs)
def test_random_syntax_trees(program: syntax.Program):
    """What is printed parses to itself, and is checked."""
    text = text_of(program)
    assert parse(text, "fuzz.stg") == program, text
    only_diagnostics(text)


@pytest.mark.seldom
@settings(relaxed, max_examples=30)
@given(some(items, 1, 3), some(statements, 1, 4))
def test_random_items_beside_a_valid_program(extra, body):
    more = "".join(text_of(item) + "\n" for item in extra)
    inside = "".join(text_of(s) + "\n" for s in body)
    only_diagnostics(VALID.replace("  loss =", inside + "  loss =") + more)


# ---- inputs made to break something ----


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\ufeff",
        "\0",
        "dim B = " + "(" * 5000 + "1" + ")" * 5000,
        "dim B = " + "-" * 5000 + "1",
        "dim B = " + "1 + " * 5000 + "1",
        "dim B = " + "f(" * 2000,
        "dim B = " + "9" * 10000,
        "dim B = 2 ** 2 ** 2 ** 2 ** 2 ** 2",
        "dim B = 10 ** 64 * 10 ** 64 * 10 ** 64 * 10 ** 64 * 10 ** 64",
        "dim B = 1e999999999",
        "dim B = 1.5e-99999 * 2",
        "dim A = 2 dim B = 3 dim C = 5 dim X = (A + B + C + 1) ** 64",
        "dim B = (A" + "[S -> T]" * 3000 + ")",
        "module A(x[B]) -> [B] " + "{ repeat 2 " * 3000,
        "model M(x[B]) {" + "x = x\n" * 3000 + "}",
        "plan p { mesh dp = 2 ** 40, tp = 2 ** 40 }",
        "dim A = mod(1, 0) dim B = floordiv(1, 1 - 1) dim C = 1 % 0 dim D = 1 / (A - A)",
        'import "' + "a/" * 5000 + '"',
        'import "/dev/zero"',
        'import "."',
        'import "\0"',
        '"' * 99,
        "}" * 99 + "{" * 99,
        "a\rb\r\nc",
        "\f\v\u2028\u0085 dim B = 1",
    ],
    ids=range(26),
)
def test_hostile_text(text: str):
    with pytest.raises(CompileError) as caught:
        check(parse_text(text, "fuzz.stg"))
    assert caught.value.render()


def test_calls_that_double_at_each_level_are_refused():
    levels = ["module M0(x[B]) -> [B] { return x }\n"]
    levels += [
        f"module M{i}(x[B]) -> [B] {{ return M{i - 1}(M{i - 1}(x)) }}\n" for i in range(1, 49)
    ]
    text = "dim B = 2\n" + "".join(levels) + "model M(x[B]) { return M48(x) }\n"
    with pytest.raises(CompileError, match="E0216"):
        check(parse_text(text, "fuzz.stg"))


def test_every_syntax_class_is_built_by_the_trees_above():
    seen: set[type] = set()

    def visit(node: object) -> None:
        if isinstance(node, syntax.SyntaxNode):
            seen.add(type(node))
            for part in fields(node):
                visit(getattr(node, part.name))
        elif isinstance(node, tuple):
            for part in node:
                visit(part)

    visit(parse(VALID.replace("dim B = 8", 'import "x.stg"\ndim B = 8'), "fuzz.stg"))
    classes = {c for c in vars(syntax).values() if isinstance(c, type)} - {syntax.SyntaxNode}
    by_trees = {syntax.Negate, syntax.ByteSize, syntax.Microbatch, syntax.Unit}
    assert {c.__name__ for c in classes - seen - by_trees} <= {
        "Pipeline",
        "Collectives",
        "Context",
        "Overlap",
        "Offload",
        "Device",
        "Documents",
        "Lengths",
        "Link",
        "Load",
        "LossChunks",
        "Freeze",
        "Pool",
        "Process",
        "Replacement",
        "Use",
    }
