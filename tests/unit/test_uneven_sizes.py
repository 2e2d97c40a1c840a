"""Dims that their axes do not divide: a padded one is a larger one, and ranks that share heads have what heads of their own would be."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from stagec import summary
from stagec.driver import Compiled, compile_text

MODEL = """
dim B = 8
dim S = 16
dim T = S
dim D = 12
dim E = 4

module Attention(x[B, S, D]) -> [B, S, D] {
  weight wq[D, H, E], wk[D, K, E], wv[D, K, E], wo[H, E, D]
  cache keys[B, T, K, E], values[B, T, K, E]
  k = append(keys, rope(x @ wk))
  v = append(values, x @ wv)
  return attention(rope(x @ wq), k, v, causal = true) @ wo
}

model M(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[V, D]
  x = embedding(tokens, embed)
  repeat 2 { x = x + Attention(x) }
  loss = cross_entropy(x @ embed, targets)
}
"""


def compiled(sizes: dict[str, int], plan: str) -> Compiled:
    dims = "\n".join(f"dim {name} = {size}" for name, size in sizes.items())
    return compile_text(f"{MODEL}{dims}\nplan p {{\n{plan}\n}}")


def totals(job: Compiled) -> object:
    found = summary.summarize(job.module, job.counts)
    return found.num_parameters, found.classes


@settings(max_examples=8, deadline=None, database=None)
@given(
    st.integers(1, 40),
    st.integers(1, 5),
    st.sampled_from((1, 2, 4)),
    st.integers(1, 8),
    st.sampled_from(("", "zero 1 over dp", "zero 3 over dp", "serve { decode 8 at 3 }")),
)
def test_what_is_padded_is_larger(words: int, heads: int, tp: int, multiple: int, clause: str):
    mesh = f"mesh dp = 2, tp = {tp}\nshard B over dp\n{clause}"
    padded = {"V": -(-words // (tp * multiple)) * tp * multiple, "H": -(-heads // tp) * tp}
    rules = f"shard V over tp {{ pad = {multiple} }}\nshard H, K over tp {{ pad = 1 }}"
    asked = compiled({"V": words, "H": heads, "K": heads}, f"{mesh}\n{rules}")
    sizes = {"V": padded["V"], "H": padded["H"], "K": padded["H"]}
    assert totals(asked) == totals(compiled(sizes, f"{mesh}\nshard V, H, K over tp"))
    found = summary.summarize(asked.module, asked.counts)
    extra = (padded["V"] - words) * 12 + 2 * 4 * 12 * 4 * (padded["H"] - heads)
    assert found.num_padding == extra


@settings(max_examples=5, deadline=None, database=None)
@given(st.sampled_from((1, 2, 4)), st.sampled_from((2, 4, 8)), st.booleans())
def test_ranks_that_share_heads(heads: int, tp: int, is_served: bool):
    """Each has what it would have of as many heads of its own; only training adds up what they share."""
    mesh = f"mesh dp = 2, tp = {tp}\nshard B over dp\nshard H over tp"
    if is_served:
        mesh += "\nserve { decode 8 at 3 }"
    own = max(heads, tp)
    asked = compiled(
        {"V": 8, "H": 8, "K": heads}, f"{mesh}\nshard K over tp {{ replicate = true }}"
    )
    written = compiled({"V": 8, "H": 8, "K": own}, f"{mesh}\nshard K over tp")
    ours, theirs = (summary.summarize(job.module, job.counts).classes for job in (asked, written))
    assert [c.parameters for c in ours] == [c.parameters for c in theirs]
    assert [c.matrix_flops for c in ours] == [c.matrix_flops for c in theirs]
    if heads == 1:
        return  # All of `tp` has copies: they add up other things too.
    shared = {t for c in ours for t in c.traffic if t.axes == ("tp.copies",)}
    assert bool(shared) == (not is_served and tp > heads)
    # wk and wv of two layers, one head of four columns of 12 each, in fp32.
    assert sum(t.operand_bytes for t in shared) in (0, 2 * 2 * 4 * 12 * 4)
