"""What a plan says for all of its pools is told of (W0304) where it is told of in each of them, and changes nothing."""

from __future__ import annotations

import random

import pytest

from stagec.diagnostics import CompileError, Diagnostic
from stagec.frontend import parse_text, warnings_of_pools
from stagec.pools import compile_pools
from tests.unit.examples import digest

MODEL = """
dim B = 8
dim D = 16
dim F = 16
dim K = 2
dim L = 2

module Layer(x[B, D]) -> [B, D] {{
  weight w[D], up[D, F], down[F, D]
  return x * w + silu(x @ up) @ down
}}

model Net(a[B, D], t[B, D]) {{
  weight stem[D], embed[D]
  v = a * stem
  repeat K {{ v = Layer(v) }}
  x = v + t * embed
  repeat L {{ x = Layer(x) }}
  loss = mean(x, over = [B, D])
}}

plan p {{
  device h100
  pool vision {{
    mesh dp = 2, tp = 1, pp = 1
    shard B over dp
    pipeline K over pp {{ microbatch = 1 }}
    {vision}
  }}
  pool text {{
    mesh dp = {dp}, tp = {tp}, pp = 1
    shard B over dp
    shard F over tp
    pipeline L over pp {{ microbatch = {microbatch} }}
    {text}
  }}
}}
plan vision extends p {{ pool vision {{ {said} }} }}
plan text extends p {{ pool text {{ {said} }} }}
plan all extends p {{ {said} }}
plan plain extends p {{ {plain} }}
"""
BUCKETS = "gradients { bucket_bytes = 4KiB }"
SETTINGS = {
    "gradients { first_bucket_bytes = 1KiB }": BUCKETS,
    "gradients { average = before }": "",
    "overlap { zero = false }": "zero 1 over dp",
    "overlap { param_gather = true }": "zero 1 over dp",
    "overlap { tp = true }": "",
    "collectives { reduce = eager }": "",
    "precision { gather = bf16 }": "zero 3 over dp",
    "precision { weight_gradients = bf16 }": "precision { products = fp8 }",
    "precision { attention = fp8 }": "",
    "device { tile_scheduler = static }": "",
    "link tp { reduces = true }": "",
    "microbatch 3": "",
    "unit Layer": "zero 3 over dp",
    "zero 3 over dp { persist = 8 }": "",
    "shard B over dp shard F over tp { uneven = balanced }": "",
}
"""What a plan may say for all pools, and what a pool may say that needs it; whether it does, may depend on the mesh, too."""
WHOLE = ("zero", "shard")
"""Clauses that say something without their settings, too."""


def text_of(said: str, vision: str, text: str, dp: int = 2, tp: int = 2) -> str:
    plain = said.rpartition(" {")[0] if said.startswith(WHOLE) else ""
    return MODEL.format(
        dp=dp,
        tp=tp,
        microbatch=2 // dp,
        vision=vision,
        text=text,
        said=said,
        plain=plain,
    )


def compiled(text: str, plan: str) -> tuple[set[str], list[str]] | None:
    """What each W0304 of a plan says, and hashes of what all pools write; nothing where it does not compile."""
    doubts: list[Diagnostic] = []
    try:
        made = compile_pools(
            parse_text(text), plan, {}, seen=lambda pools: doubts.extend(warnings_of_pools(pools))
        ).pools.values()
    except CompileError:
        return None
    every = [*doubts, *(each for pool in made for each in pool.idle)]
    told = [each.message for each in every if each.code == "W0304"]
    assert len({*told}) == len(told), told
    return {*told}, [digest(pool) for pool in made]


@pytest.mark.parametrize(
    ("vision", "text", "is_told"), [("", "", True), (BUCKETS, "", False), ("", BUCKETS, False)]
)
def test_what_one_pool_needs_is_not_told(vision: str, text: str, is_told: bool):
    said = "gradients { first_bucket_bytes = 1KiB }"
    found = compiled(text_of(said, vision, text), "all")
    message = "`first_bucket_bytes` of `gradients` changes nothing here"
    assert found is not None
    assert found[0] == ({message} if is_told else set())


@pytest.mark.seldom
@pytest.mark.parametrize("said", SETTINGS)
def test_what_is_said_for_all_pools_is_told_where_it_is_in_each(said: str):
    """And then changes nothing of what they write."""
    rng = random.Random(said)
    num_told = 0
    for _ in range(2):
        if num_told:
            break
        vision, other = (rng.choice(["", SETTINGS[said]]) for _ in range(2))
        text = text_of(said, vision, other, *(rng.choice([1, 2]) for _ in range(2)))
        found = [compiled(text, plan) for plan in ("vision", "text", "all", "plain")]
        assert None not in found, text
        (first, _), (second, _), (told, written), (_, plainly) = (each for each in found if each)
        assert told == first & second, text
        if told:
            assert written == plainly, text
        num_told += len(first | second)
    assert num_told
