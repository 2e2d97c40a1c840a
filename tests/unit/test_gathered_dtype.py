"""The dtype in which `zero 3` gathers weights: that of the activations where it is narrower, as PyTorch's `MixedPrecisionPolicy` has it."""

from __future__ import annotations

import random

import pytest

from stagec.driver import Compiled, compile_text
from stagec.memory import Kind
from stagec.summary import Traffic, summarize

TEXT = """
dim B = 16
dim D = {D}
dim F = {F}
dim C = D
dim V = 48

module Enc(x[B, D]) -> [B, D] {{
  weight norm[D], up[D, F], down[F, D], b[D]
  return x + gelu(rms_norm(x, norm) @ up) @ down + b
}}

module Dec(x[B, D]) -> [B, D] {{
  weight up[D, C], down[C, D]
  return x + relu(x @ up) @ down
}}

model Net(ids[B]: i32) {{
  weight table[V, D], head[D, V]
  x = embedding(ids, table)
  repeat {layers} {{ x = Enc(x) }}
  repeat {layers} {{ x = Dec(x) }}
  loss = mean(x @ head, over = [B, V])
}}

plan default {{
  mesh dp = {dp}, tp = {tp}
  shard B over dp
  shard F, C over tp
  zero 3 over dp {{ {zero} }}
  {clauses}
  precision {{ weights = fp32, activations = {narrow} }}
}}

plan said extends default {{ precision {{ gather = {narrow} }} }}
plan wide extends default {{ precision {{ gather = fp32 }} }}
"""


def drawn(rng: random.Random) -> dict[str, object]:
    clauses = (
        rng.choice(("", "unit Enc, Dec", "unit none")),
        rng.choice(("", "recompute full")),
        rng.choice(("", "microbatch 4")),
    )
    return {
        "D": 8 * rng.randint(1, 4),
        "F": 8 * rng.randint(1, 4),
        "layers": rng.randint(2, 4),
        "dp": rng.choice((2, 4)),
        "tp": rng.choice((1, 2)),
        "zero": rng.choice(("prefetch = 2", "reshard = false", "reshard = true", "like = fsdp2")),
        "narrow": rng.choice(("bf16", "fp16")),
        "clauses": "\n  ".join(clauses),
    }


def gathers(compiled: Compiled) -> list[Traffic]:
    (only,) = summarize(compiled.module, compiled.counts).classes
    return [each for each in only.traffic if each.axes == ("dp",) and each.kind == "all_gather"]


def most_gathered(compiled: Compiled) -> int:
    (plan,) = compiled.memory
    return int(plan.lives.live_bytes(plan.lives.kind == Kind.GATHERED).max())


def memory(compiled: Compiled) -> tuple[object, ...]:
    (plan,) = compiled.memory
    at_once = plan.lives.live_bytes().tolist()
    return plan.static, plan.saved_bytes, plan.peak_bytes, at_once, plan.host_bytes


@pytest.mark.parametrize("seed", range(6))
def test_a_narrower_dtype_of_activations_is_that_of_gathers(seed: int) -> None:
    """Said or not, one program. In the weights' own dtype as many gathers have twice the bytes: FSDP2 gathers a unit for its backward pass
    although `torch.autocast` saved copies of its weights, as runs of PyTorch 2.13 with 2 ranks did; with `reshard = false` it keeps for it what it gathered."""
    text = TEXT.format(**drawn(random.Random(seed)))
    default, said, wide = (compile_text(text, plan=plan) for plan in ("default", "said", "wide"))
    assert summarize(default.module, default.counts) == summarize(said.module, said.counts)
    assert memory(default) == memory(said)
    (narrow,), (whole,) = gathers(default), gathers(wide)
    assert (whole.count, whole.operand_bytes) == (narrow.count, 2 * narrow.operand_bytes)
    assert most_gathered(wide) == 2 * most_gathered(default)


def test_layers_are_gathered_twice_and_the_rest_once() -> None:
    """Two repeats of equally many layers: each layer gathers what it has itself."""
    given = drawn(random.Random(0)) | {"clauses": "", "D": 8, "F": 16, "layers": 3}
    text = TEXT.format(**given | {"dp": 4, "tp": 1, "zero": "prefetch = 1"})
    rest, enc, dec = 2 * 48 * 8, 8 + 2 * 8 * 16 + 8, 2 * 8 * 8
    (traffic,) = gathers(compile_text(text, plan="default"))
    assert traffic.count == 1 + 2 * (3 + 3)
    assert traffic.result_bytes == 2 * (rest + 2 * 3 * (enc + dec))
