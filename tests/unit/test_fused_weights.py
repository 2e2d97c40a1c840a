"""A fused weight that is split as its parts are costs what they cost by themselves, and nothing is gathered to cut it."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from stagec.diagnostics import CompileError
from stagec.dialects import dist, stg
from stagec.driver import Compiled, Stops, compile_text
from stagec.frontend import check, parse_text
from stagec.rewriting import programs
from stagec.searching.model import read_model
from stagec.summary import ClassSummary, summarize
from tests.unit.examples import digest
from tests.unit.seldom import some

SIZES = """
dim B = 4
dim S = 16
dim D = 32
dim F = 48
dim U = F
dim G = F + U
dim H = 8
dim K = 4
dim J = K
dim Q = H + K + J
dim E = 4
dim L = 2
"""

APART = """
module Layer(x[B, S, D]) -> [B, S, D] {
  weight q[D, H, E], k[D, K, E], v[D, K, E], o[H, E, D], gate[D, F], up[D, F], down[F, D]
  h = x + attention(x @ q, x @ k, x @ v, causal = true) @ o
  return h + (silu(h @ gate) * (h @ up)) @ down
}
"""

FUSED = """
module Layer(x[B, S, D]) -> [B, S, D] {
  weight qkv[D, Q, E], o[H, E, D], gate_up[D, G], down[F, D]
  q, k, v = split(x @ qkv, over = Q, to = [H, K, J])
  h = x + attention(q, k, v[J -> K], causal = true) @ o
  gate, up = split(h @ gate_up, over = G, to = [F, U])
  return h + (silu(gate) * up[U -> F]) @ down
}
"""

REST = """
model M(x[B, S, D]) {
  repeat L { x = Layer(x) }
  loss = mean(x, over = [B, S, D])
}
plan p {
  mesh dp = 2, tp = TP
  shard B over dp
  shard RULES over tp
  CLAUSES
}
"""


def compiled(layer: str, clauses: str, tp: int) -> Compiled:
    rules = "H, K, F" if layer is APART else "Q, G, H, K, J, F, U"
    rest = REST.replace("RULES", rules).replace("CLAUSES", clauses).replace("TP", str(tp))
    return compile_text(f"{SIZES}{layer}{rest}")


def one_rank(layer: str, clauses: str, tp: int) -> ClassSummary:
    job = compiled(layer, clauses, tp)
    (found,) = summarize(job.module, job.counts).classes
    return found


@pytest.mark.parametrize(
    "clauses", some(["", "shard S over tp", "shard S over tp\n  recompute full"], 6)
)
@pytest.mark.parametrize("tp", [2, 4])
def test_nothing_is_gathered_to_cut_a_fused_weight(clauses: str, tp: int):
    fused, apart = (one_rank(layer, clauses, tp) for layer in (FUSED, APART))
    assert fused.parameters == apart.parameters
    assert fused.matrix_flops == apart.matrix_flops

    def over_tp(found: ClassSummary) -> dict[str, tuple[int, int]]:
        return {t.kind: (t.count, t.operand_bytes) for t in found.traffic if t.axes == ("tp",)}

    ours, theirs = over_tp(fused), over_tp(apart)
    assert ours.keys() == theirs.keys()
    for kind, (count, operand_bytes) in ours.items():
        assert count <= theirs[kind][0] and operand_bytes <= theirs[kind][1], kind


@pytest.mark.parametrize("clauses", some(["", "zero 1 over dp\n  recompute full"]))
@pytest.mark.parametrize("how", ["balanced", "chunk"])
@pytest.mark.parametrize("tp", some([3, 5]))
def test_uneven_parts_of_a_fused_weight_are_those_of_weights_apart(tp: int, how: str, clauses: str):
    sizes = SIZES.replace("dim K = 4", f"dim K = {2 * tp - 1}").replace(
        "dim H = 8", "dim H = 2 * K"
    )

    def classes(layer: str) -> list[ClassSummary]:
        rules = "H, K, F" if layer is APART else "Q, G, H, K, J, F, U"
        rest = REST.replace("RULES over tp", f"{rules} over tp {{ uneven = {how} }}")
        rest = rest.replace("CLAUSES", clauses).replace("TP", str(tp))
        job = compile_text(f"{sizes}{layer}{rest}")
        return list(summarize(job.module, job.counts).classes)

    fused, apart = classes(FUSED), classes(APART)
    assert len(fused) > 1
    assert [c.num_ranks for c in fused] == [c.num_ranks for c in apart]
    assert [c.parameters for c in fused] == [c.parameters for c in apart]
    assert [c.matrix_flops for c in fused] == [c.matrix_flops for c in apart]


@pytest.mark.parametrize(("tp", "pad"), some([(3, 1), (5, 1), (5, 2), (3, 2), (3, 3), (5, 3)], 3))
def test_a_fused_weight_is_padded_as_its_parts_are(tp: int, pad: int):
    """As weights apart are, and as the text that has these sizes is."""
    sizes = SIZES.replace("dim K = 4", "dim K = 7").replace("dim H = 8", "dim H = 2 * K")

    def written(layer: str) -> Compiled:
        rules = "H, K, F" if layer is APART else "Q, G, H, K, J, F, U"
        rest = REST.replace("RULES over tp", f"{rules} over tp {{ pad = {pad} }}")
        return compile_text(f"{sizes}{layer}{rest}".replace("CLAUSES", "").replace("TP", str(tp)))

    fused, apart = written(FUSED), written(APART)
    (ours,), (theirs,) = (summarize(job.module, job.counts).classes for job in (fused, apart))
    assert (ours.parameters, ours.matrix_flops) == (theirs.parameters, theirs.matrix_flops)
    padded = sizes
    for name in ("H", "K", "F"):
        size = fused.checked.sizes.known[name]
        padded = re.sub(rf"dim {name} = [^\n]*", f"dim {name} = {size}", padded)
    rest = REST.replace("RULES", "Q, G, H, K, J, F, U").replace("CLAUSES", "")
    plain = compile_text(f"{padded}{FUSED}{rest}".replace("TP", str(tp)))
    assert digest(fused) == digest(plain)


def test_a_whole_that_is_not_padded_is_told_to_be():
    rules = "shard H, K, J, F, U over tp { pad = 1 }"
    text = f"{SIZES}{FUSED}{REST}".replace("shard RULES over tp", rules).replace("CLAUSES", "")
    text = text.replace("dim H = 8", "dim H = 7").replace("TP", "4")
    with pytest.raises(CompileError) as raised:
        compile_text(text)
    assert raised.value.diagnostics[0].helps == (
        "let the rule that pads `H`, `K` and `J` name `Q` too",
    )
    compile_text(text.replace("shard H,", "shard Q, G, H,"))


def test_a_whole_that_is_not_split_as_its_parts_is_refused():
    rules = "H, K, J, F, U over tp { uneven = balanced }\nshard Q, G over tp"
    text = f"{SIZES}{FUSED}{REST}".replace("RULES over tp", rules).replace("CLAUSES", "")
    with pytest.raises(
        CompileError, match="`Q` is `H \\+ K \\+ J`, and `Q` is not split in the same way"
    ):
        compile_text(
            text.replace("dim K = 4", "dim K = 5")
            .replace("dim H = 8", "dim H = 10")
            .replace("TP", "4")
        )


def test_without_a_rule_for_the_whole_it_is_whole():
    text = f"{SIZES}{FUSED}{REST}".replace("RULES", "H, K, J, F, U").replace("CLAUSES", "")
    module = compile_text(text.replace("TP", "2"), stops=Stops(after="insert-collectives")).module
    kinds = Counter(type(op) for op in programs(module)[0].walk())
    assert kinds[dist.SliceOp] and kinds[stg.SplitOp]


def test_a_search_splits_fused_widths_and_their_parts() -> None:
    """What products make and `split` cuts is split with its parts, whatever these are called afterwards."""
    text = """
dim B = 8
dim S = 16
dim D = 16
dim F = 32
dim H = 8
dim K = 4
dim E = 4
dim FU = F
dim FB = F + FU
dim J = K
dim Q = H + K + J
module Block(x[B, S, D]) -> [B, S, D] {
  weight wqkv[D, Q, E], wo[H, E, D], both[D, FB], down[F, D]
  q, k, v = split(x @ wqkv, over = Q, to = [H, K, J])
  h = x + attention(q, k, v[J -> K], causal = true) @ wo
  g, u = split(h @ both, over = FB, to = [F, FU])
  return h + (silu(g) * u[FU -> F]) @ down
}
model Net(x[B, S, D]) {
  repeat 2 { x = Block(x) }
  loss = mean(x, over = [B, S, D])
}
"""
    dims = read_model(check(parse_text(text, "fused.stg"), None))
    assert {*dims.heads} == {"H", "K", "J", "Q"}
    assert {*dims.inner} == {"F", "FU", "FB"}
