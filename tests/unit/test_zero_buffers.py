"""Under ZeRO 1 and 2 parameters and gradients travel as flat buffers: layers that are written out are those of a repeat."""

from __future__ import annotations

import random

import pytest

from stagec.dialects.memory import Kind
from stagec.driver import compile_text
from stagec.summary import summarize
from tests.unit.seldom import some

TEXT = """
dim B = 16
dim S = 8
dim V = 96
dim D = {width}
dim F = 3 * D

module Block(x[B, S, D]) -> [B, S, D] {{
  weight norm[D], up[D, F], down[F, D]
  return x + gelu(rms_norm(x, norm) @ up) @ down
}}

model Net(tokens[B, S]: i32, targets[B, S]: i32) {{
  weight embed[V, D], head[D, V]
  x = embedding(tokens, embed)
  {layers}
  loss = cross_entropy(x @ head, targets)
}}

plan p {{
  mesh dp = {dp}, tp = {tp}
  shard B over dp
  shard F, V over tp
  {microbatch}
  precision {{ weights = bf16, gradients = {gradients} }}
  {zero}
}}
"""
CLAUSES = (
    "zero 1 over dp",
    "zero 2 over dp",
    "zero 1 over dp { like = megatron }",
    "zero 2 over dp { like = deepspeed }",
    "zero 1 over dp gradients { bucket_bytes = 4KiB }",
    "zero 1 over dp optimizer adamw { clip = 1 }",
    "zero 2 over dp optimizer adamw offload { optimizer = true, update = host }",
)


@pytest.mark.parametrize("clauses", some(CLAUSES, 6))
def test_layers_written_out_are_those_of_a_repeat(clauses: str) -> None:
    draw = random.Random(clauses)
    layers = draw.randint(2, 4)
    sizes = {
        "width": 8 * draw.randint(1, 4),
        "dp": draw.choice((2, 4)),
        "tp": draw.choice((1, 2)),
        "microbatch": draw.choice(("", "microbatch 2")),
        "gradients": draw.choice(("fp32", "bf16")),
        "zero": clauses,
    }
    rolled = f"repeat {layers} {{ x = Block(x) }}"
    found = []
    for text in (rolled, "\n  ".join(["x = Block(x)"] * layers)):
        job = compile_text(TEXT.format(layers=text, **sizes), "net.stg", "p")
        (counted,) = summarize(job.module, job.counts).classes
        (plan,) = job.memory
        # Copies to the host are of layers, if there are any.
        traffic = [each for each in counted.traffic if each.axes]
        found.append((traffic, counted.matrix_flops, counted.other_flops, plan.static))
        gathers = [t for t in counted.traffic if t.axes == ("dp",) and t.kind == "all_gather"]
        assert len(gathers) == 1
        assert "bucket" in clauses or gathers[0].count == 1
    assert found[0] == found[1]


@pytest.mark.parametrize("width", [8, 24])
def test_buffers_that_are_kept_are_there_with_what_pads_them(width: int) -> None:
    """Megatron-LM has one buffer of gradients as long as one of parameters, padding included, at any time (`_ParamAndGradBuffer`)."""
    sizes = {"width": width, "dp": 4, "tp": 1, "microbatch": "microbatch 2", "gradients": "fp32"}
    clauses = "zero 1 over dp { like = megatron }"
    text = TEXT.format(layers="repeat 3 { x = Block(x) }", zero=clauses, **sizes)
    (plan,) = compile_text(text, "net.stg", "p").memory
    there = plan.timeline_by_kind()
    wide = 2 * there[Kind.PARAMETERS].max()
    kept = plan.static.num_bytes[Kind.GRADIENTS]
    assert there[Kind.GRADIENTS].min() == kept == wide
