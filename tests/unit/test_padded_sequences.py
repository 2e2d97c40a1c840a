"""Sequences that rules pad in a text with caches, and what is said of those that devices cannot share."""

from __future__ import annotations

import random

import pytest

import stagec
from stagec.diagnostics import CompileError

TEXT = """
dim B = {batch}
dim {first}
dim {second}
dim D = 12
dim H = 6
dim E = 4
dim U = T

model Net(x[B, S, D], u[B, U]) {{
  weight wq[D, H, E], wk[D, H, E], wo[H, E, D]
  cache k[B, T, H, E], v[B, T, H, E]
  y = attention(x @ wq, append(k, x @ wk), append(v, x @ wk), causal = true) @ wo
  {ends}
}}

plan p {{
  mesh dp = {dp}, tp = {tp}
  {clauses}
}}
"""


def text(clauses: str, of: str = "S", length: int = 70, **sizes: int) -> str:
    sized = {"S": "T", "T": "S"}[of]
    lines = [f"{of} = {length}", f"{sized} = {of}"]
    known = {"batch": 4, "dp": 1, "tp": 3} | sizes
    ends = "return y" if "serve" in clauses else TRAINS
    return TEXT.format(clauses=clauses, first=lines[0], second=lines[1], ends=ends, **known)


TRAINS = "loss = sum(y * y, over = [B, S, D]) + sum(u, over = [B, U])"


def traces(source: str) -> list[tuple[int, bytes]]:
    """Each rank's file."""
    return [*stagec.compile(source).traces()]


@pytest.mark.parametrize("seed", range(4))
def test_positions_are_padded_with_the_tokens_that_they_are(seed: int) -> None:
    """Whichever of the two the text has made of the other. As where a rule pads both; what else is made of either is as large as the text says."""
    rng = random.Random(seed)
    tp, of = rng.choice((2, 3)), rng.choice("ST")
    length = rng.randint(5, 40) * 2 + 1
    rest = "shard H over tp"
    one, both = (
        text(f"{rest}\n  shard {dims} over tp {{ pad = 1 }}", of, length, tp=tp)
        for dims in ("S", "S, T")
    )
    assert traces(one) == traces(both)


def refused(source: str) -> tuple[str, str]:
    with pytest.raises(CompileError) as caught:
        stagec.compile(source)
    (told,) = caught.value.diagnostics
    (help_,) = told.helps
    return told.code, help_


def test_positions_that_a_plan_sizes_are_left_to_it() -> None:
    split = "shard H over tp\n  shard S over tp { pad = 1 }"
    assert refused(text(f"set T = 40\n  {split}")) == ("E0413", "leave out `set T`")
    assert traces(text(split))


SERVES = "shard B over dp\n  shard H over tp\n  shard S over tp"


def test_helps_about_served_tokens_lead_on() -> None:
    """None says to pad what `serve` sizes."""
    code, help_ = refused(text(f"{SERVES}\n  serve {{ prefill 6 x 35 }}"))
    assert (code, help_) == (
        "E0301",
        "serve so many that `S = 36`, or let parts differ: `{ uneven = balanced }`",
    )
    assert traces(text(f"{SERVES}\n  serve {{ prefill 6 x 36 }}"))
    assert traces(text(f"{SERVES} {{ uneven = balanced }}\n  serve {{ prefill 6 x 35 }}"))


def test_helps_about_what_devices_serve_lead_on() -> None:
    code, help_ = refused(text(f"{SERVES}\n  serve {{ prefill 5 x 35 }}", dp=2))
    assert (code, help_) == (
        "E0414",
        "let `dp` divide the sequences of each kind, so that all serve the same",
    )
    assert traces(text(f"{SERVES}\n  serve {{ prefill 6 x 36 }}", dp=2))
