"""Advice about memory: what a warning names makes the peak lower when it is done, and nothing is named that a model does not have."""

from __future__ import annotations

import re
from random import Random

import pytest

from stagec.advice import warnings
from stagec.driver import Compiled, compile_program
from stagec.frontend import check, parse_text
from tests.unit.seldom import some

MODEL = """
dim B = 4096
dim S = 8192
dim V = {words}
dim W = 1024  # the words of the inputs
dim D = 1024
dim F = 4096
dim L = 3

module Block(x[B, S, D]) -> [B, S, D] {{
  weight norm[D], up[D, F], down[F, D]
  return x + gelu(rms_norm(x, norm) @ up) @ down
}}

model Net(tokens[B, S]: i32, targets[B, S]: i32) {{
  weight table[W, D], head[D, V]
  x = embedding(tokens, table)
  repeat L {{ x = Block(x) }}
  loss = {loss}
}}

plan p {{
  mesh dp = 8
  shard {split} over dp
  microbatch {microbatch}
  precision {{ weights = bf16, activations = bf16, gradients = fp32, optimizer = fp32 }}
  device a100
  {more}
}}
"""
LOGITS, PLAIN = "cross_entropy(x @ head, targets)", "mean(x, over = [B, S, D])"


def compiled(text: str) -> Compiled:
    return compile_program(check(parse_text(text)))


def peak(text: str) -> int:
    return max(each.peak_bytes for each in compiled(text).memory)


def advice(text: str) -> list[str]:
    found = warnings(compiled(text), None)
    assert [each.code for each in found] == ["W0501"]
    helps = [re.search(r": `(.*?)`", each) for each in found[0].helps]
    return [each[1] for each in helps if each]


def with_clause(text: str, clause: str) -> str:
    """The text's plan with a clause instead of the one of its name."""
    if clause.startswith("reshard"):
        return text.replace("{ reshard = false }", "")
    word = clause.split()[0]
    return re.sub(rf"\n  {word} .*|\}}\s*$", "", text) + f"\n  {clause}\n}}\n"


@pytest.mark.parametrize("seed", some(range(4), 4))
def test_what_is_named_helps(seed: int) -> None:
    random = Random(seed)
    more = ["", "recompute full", "zero 2 over dp", "zero 3 over dp { reshard = false }"]
    text = MODEL.format(
        words=random.choice([2**18, 2**25]),
        loss=LOGITS if seed % 2 else PLAIN,
        split=random.choice(["B", "B, V"]) if seed % 2 == 0 else "B",
        microbatch=random.choice([256, 512]),
        more=random.choice(more),
    )
    before, clauses = peak(text), advice(text)
    assert clauses
    for clause in clauses:
        assert peak(with_clause(text, clause)) < before, clause


def test_only_logits_are_chunked() -> None:
    given = {"words": 2**21, "split": "B", "microbatch": 256, "more": ""}
    logits = MODEL.format(loss=LOGITS, **given)
    assert "loss_chunks 8" in advice(logits)
    assert not any("loss" in each for each in advice(MODEL.format(loss=PLAIN, **given)))
    # The tokens of a device come in seven parts, and not in eight.
    assert "loss_chunks 7" in advice(logits.replace("S = 8192", "S = 7007"))


def test_tables_that_are_split_are_not_split_again() -> None:
    given = {"words": 2**30, "loss": PLAIN, "microbatch": 1, "more": "recompute full"}
    assert any("zero" in each for each in advice(MODEL.format(split="B", **given)))
    assert not any("zero" in each for each in advice(MODEL.format(split="B, V", **given)))
