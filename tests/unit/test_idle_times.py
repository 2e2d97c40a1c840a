"""Settings that decide nothing but times: sweeps and explanations tell of those on which no time depends, as a compilation does (W0304)."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagec.cli import main
from stagec.diagnostics import Diagnostic, in_all, told_by
from stagec.driver import Compiled, compile_program, compile_text
from stagec.frontend import parse_text
from stagec.sweeping.grid import Grid
from stagec.sweeping.plans import SweepRequest
from stagec.sweeping.pools import table_of
from tests.unit.model_texts import served_experts
from tests.unit.seldom import some

MODEL = """
dim B = 8
dim S = 1
dim T = S
dim D = 1024
dim H = 8
dim K = 8
dim E = 128
dim N = 1
dim L = 2
module Block(x[B, S, D]) -> [B, S, D] {
  weight wq[D, H, E], wk[D, K, E], wv[D, K, E], wo[H, E, D]
  cache k[B, T, K, E], v[B, T, K, E]
  keys = append(k, x @ wk)
  values = append(v, x @ wv)
  return x + attention(x @ wq, keys, values, causal = true) @ wo
}
model Net(x[B, S, D]) { repeat L { x = Block(x) } return x }
"""
EXCHANGES = served_experts(
    """
  weight router[D, X], up[X, D, F], down[X, F, D]
  gates, chosen = topk(softmax(x @ router, over = X), over = X, to = A)
  h[X, T, F] = dispatch(x, chosen, experts = X, tokens = T) @ up
  y[X, T, D] = h @ down
  return combine(y, gates, chosen)
""",
    layers=3,
)
MESH = "mesh dp = 2, tp = 4 shard B over dp shard H, K over tp"
WIDTH = "precision { weights = bf16, activations = bf16 }"
PLANS = {
    "one token each": f"{MESH} precision {{ weights = bf16, attention = fp8 }} device h100 serve {{ decode B x N at 100 }}",
    "an engine's sums": f"{MESH} {WIDTH} device h100 {{ all_reduce = vllm }} serve {{ prefill B x 64 }}",
    "switches": f"{MESH} {WIDTH} device h100 {{ node = 4 }} link tp {{ reduces = true }} serve {{ prefill B x 64 }}",
    "two kinds": f"{MESH} precision {{ weights = bf16, attention = fp8 }} device h100 serve {{ prefill 2 x N, decode B at 9 }}",
    "trained": f"{MESH} {WIDTH} device h100 link dp {{ reduces = true }} link tp {{ reduces = true }}",
    "exchanges": "mesh ep = 4 shard B, X over ep precision { weights = bf16 } device h100 { experts = vllm } "
    "serve { decode B at 9, experts = average } overlap { ep = true } microbatch 16",
}
CASES: tuple[tuple[str, dict[str, tuple[int, ...]], int], ...] = (
    ("an engine's sums", {"B": (512, 4096)}, 0),
    ("one token each", {"N": (1, 2)}, 0),
    ("exchanges", {"microbatch": (16, 8)}, 1),
    ("switches", {"tp": (4, 8)}, 0),
    ("an engine's sums", {"B": (512, 513)}, 1),
    ("one token each", {"tp": (2, 4)}, 1),
    ("exchanges", {"microbatch": (16,)}, 2),
    ("exchanges", {"ep": (4, 2)}, 1),
    ("switches", {"tp": (2, 4)}, 1),
    ("two kinds", {"N": (1, 2)}, 0),
    ("two kinds", {"B": (8, 16)}, 1),
    ("trained", {"B": (8, 16)}, 2),
)
"""Plans, what varies, and how many settings change nothing in any of them."""


def text_of(kind: str) -> str:
    return f"{EXCHANGES if kind == 'exchanges' else MODEL}\nplan p {{ {PLANS[kind]} }}"


def told(made: Compiled) -> list[Diagnostic]:
    return [each for each in (*made.checked.warnings, *made.idle) if each.code == "W0304"]


@pytest.mark.parametrize(("kind", "varied", "number"), some(CASES, 6))
def test_a_sweep_tells_what_changes_nothing_in_any_of_its_plans(
    kind: str, varied: dict[str, tuple[int, ...]], number: int
):
    ((name, values),) = varied.items()
    source = parse_text(text_of(kind))
    asked = SweepRequest(source, None, {}, Grid(varied, {}), ("step_time", "flops"))
    own = [told(compile_program(asked.checked_at({name: value}))) for value in values]
    assert len(in_all(own, told_by)) == number
    found = table_of(asked)
    assert found.num_rows == len(values)
    assert [*map(told_by, found.idle)] == [*map(told_by, in_all(own, told_by))]


@pytest.mark.parametrize("kind", some(PLANS, 5))
@pytest.mark.parametrize("what", some(["flops", "memory.peak", "node 1", ""], 4))
def test_an_explanation_tells_what_a_compilation_does(
    kind: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """But for what can run beside exchanges, of which one unrolled step tells."""
    (path := tmp_path / "net.stg").write_text(text_of(kind))
    main([str(path)])
    said = capsys.readouterr().err
    assert said.count("warning") == len(told(compile_text(text_of(kind))))
    main(["explain", str(path), *what.split()])
    own = capsys.readouterr().err
    assert own in said
    assert own.count("warning") == said.count("warning") - (kind == "exchanges")
