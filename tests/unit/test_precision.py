"""Dtypes are the plan's: no choice of them makes a text wrong, and weights and gradients have those that it says."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from xdsl.ir import Operation

from stagec.dialects import stg
from stagec.dialects.types import DTYPE_BITS, FLOATS, SCALES, tensor_of
from stagec.driver import Stops, compile_text
from stagec.memory import Kind
from stagec.summary import summarize
from tests.unit.examples import EXAMPLES, plans_of
from tests.unit.seldom import some

SETTINGS = ("weights", "activations", "gradients", "optimizer")


@pytest.mark.parametrize("path", some(EXAMPLES, 12), ids=lambda path: path.stem)
def test_every_text_is_right_in_any_dtypes(path: Path) -> None:
    """With dtypes drawn at random, a model is the same but for conversions: each is of floats, and weights are as the plan says."""
    rng = random.Random(path.stem)
    # A pool of a plan is no plan that another extends.
    plan = rng.choice([p for p in plans_of(path) if "serve" not in p and "." not in p])
    drawn = {name: rng.choice(FLOATS) for name in SETTINGS}
    plain = ops_under(path, plan, dict.fromkeys(SETTINGS, "fp32"))
    mixed = ops_under(path, plan, drawn)
    assert [op.name for op in mixed if op.name != "stg.cast"] == [
        op.name for op in plain if op.name != "stg.cast"
    ]
    for op in mixed:
        if isinstance(op, stg.CastOp) and "made_by" not in op.attributes:
            assert tensor_of(op.x.type).dtype in FLOATS


@pytest.mark.parametrize("seed", some(range(6), 2))
def test_what_a_loss_computes_with_is_a_conversion_of_its_logits(seed: int) -> None:
    """The program, and what is kept of it, are those of a text that converts them itself."""
    rng = random.Random(seed)
    size = rng.choice((64, 96))
    clauses = rng.choice(
        ("", "shard V over tp", "shard V, S over tp", "shard V over tp loss_chunks 2")
    )
    options = rng.choice(("", ", in_place = true", ", fused = false"))
    dtype = rng.choice(("fp32", "fp16"))
    said = f"mesh tp = 2 {clauses} precision {{ weights = bf16, activations = bf16%s }}"

    def kept(logits: str, loss: str) -> list[object]:
        text = HEAD % (size, logits, options, said % loss)
        compiled = compile_text(text)
        steps = [str(op.name) for op in compiled.module.walk()]
        return [
            steps,
            *(plan.peak_bytes for plan in compiled.memory),
            *summarize(compiled.module, compiled.counts).classes,
        ]

    assert kept("x @ head", f", loss = {dtype}") == kept(f"cast(x @ head, dtype = {dtype})", "")


HEAD = """
dim B = 4
dim S = 32
dim D = %d
dim V = 128
model Net(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[V, D], head[D, V]
  x = embedding(tokens, embed)
  loss = cross_entropy(%s, targets%s)
}
plan p { %s }
"""


def ops_under(path: Path, plan: str, dtypes: Mapping[str, str]) -> list[Operation]:
    """The ops of a model, as a plan with these dtypes places them."""
    settings = ", ".join(f"{name} = {dtype}" for name, dtype in dtypes.items())
    text = f'import "{path.name}"\nplan drawn extends {plan} {{ precision {{ {settings} }} }}\n'
    name = str(path.with_name("drawn.stg"))
    module = compile_text(text, name, "drawn", stops=Stops(after="propagate-shardings")).module
    return list(module.walk())


FP8 = "products = fp8_1x128, product_weights = fp8_128x128"
LAYERS = """
dim B = 8
dim S = 256
dim D = 512
dim F = 2048
dim L = 4

module Mlp(x[B, S, D]) -> [B, S, D] {
  weight up[D, F], down[F, D]
  return gelu(x @ up) @ down
}

model M(x[B, S, D]) {
  repeat L { x = x + Mlp(rms_norm(x)) }
  loss = mean(x, over = [B, S, D])
}

plan drawn {
  mesh dp = 2, tp = 4
  shard B over dp
  shard F, S over tp
  collectives { keep = gathered }
  precision { weights = bf16, activations = bf16, gradients = fp32 PRODUCTS }
}
"""


def test_quantized_products() -> None:
    """Transformer Engine's and DeepSeek's products: as many FLOPs, what is gathered and saved for them in 8 bits with 4 bytes for 128 elements, what is
    reduced in bf16; weights of them stored in 8 bits with 4 bytes for a tile."""
    wide = compile_text(LAYERS.replace("PRODUCTS", ""))
    small = compile_text(LAYERS.replace("PRODUCTS", f", {FP8}"))
    (before,), (after,) = (summarize(c.module, c.counts).classes for c in (wide, small))
    assert before.matrix_flops == after.matrix_flops
    kinds = {
        each.name: {(t.axes, t.kind): t.result_bytes for t in each.traffic}
        for each in (replace(before, name="before"), replace(after, name="after"))
    }
    rows, width = 4 * 256, 512
    # The input of `up`, forward and the gradient of `down`'s output, backward, in each of 4 layers.
    assert kinds["before"][("tp",), "all_gather"] == 2 * 4 * rows * width * 2
    assert kinds["after"][("tp",), "all_gather"] == 2 * 4 * rows * (width + width // 128 * 4)
    assert kinds["before"][("tp",), "reduce_scatter"] == kinds["after"][("tp",), "reduce_scatter"]
    own = 2 * 512 * 2048 // 4  # of a layer, on one of 4 ranks
    assert before.parameters.num_bytes == 4 * own * 2
    assert after.parameters.num_bytes == 4 * (own + own // 128**2 * 4)


def test_small_tensors_keep_states_in_32_bits() -> None:
    """Fewer than 4,096 elements on a device (`min_8bit_size` of bitsandbytes, `_new_buffer` of torchao): a norm of 1,024, and a bias of 4,096 in four parts."""
    text = """
dim B = 8
dim D = 1024
dim F = 4096
module Mlp(x[B, D]) -> [B, D] {
  weight norm[D], up[D, F], bias[F], down[F, D]
  return x + gelu(rms_norm(x, norm) @ up + bias) @ down
}
model M(x[B, D]) {
  repeat 3 { x = Mlp(x) }
  loss = mean(x, over = [B, D])
}
plan p { mesh dp = 4 shard B over dp ZERO precision { optimizer = fp32 } optimizer adamw { bits = 8 } }
"""
    for zero, ranks in (("", 1), ("zero 3 over dp", 4)):
        job = compile_text(text.replace("ZERO", zero), "m.stg")
        sizes = [n // ranks for n in (1024, 4096, 1024 * 4096, 1024 * 4096)]
        states = 2 * 3 * sum(4 * n if n < 4096 else n + 4 * (n // 256) for n in sizes)
        assert job.memory[0].static.num_bytes[Kind.OPTIMIZER] == states
        away = compile_text(text.replace("ZERO", f"{zero} offload {{ optimizer = true }}"), "m.stg")
        (own,) = away.memory
        assert sum(own.host_bytes.values()) == states
        copied = summarize(away.module, away.counts).classes[0].traffic
        assert [t.operand_bytes for t in copied if t.kind in ("load", "store")] == [states] * 2


@pytest.mark.seldom
@pytest.mark.parametrize("dtype", sorted(SCALES))
def test_scales_of_states(dtype: str) -> None:
    """Moments and gathers in formats with scales: one for so many elements."""
    settings = f"optimizer = {dtype}"
    job = compile_text(LAYERS.replace("PRODUCTS", f", {settings}"))
    states = job.memory[0].static.num_bytes[Kind.OPTIMIZER]
    sharing, scale = SCALES[dtype]
    own = 512 * 2048 // 4 * 4
    assert states == 2 * 2 * (own * DTYPE_BITS[dtype] // 8 + own // sharing * scale)
