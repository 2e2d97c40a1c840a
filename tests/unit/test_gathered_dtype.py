"""The dtype in which `zero 3` gathers weights: that of the activations where it is narrower, as PyTorch's `MixedPrecisionPolicy` has it."""

from __future__ import annotations

import random

import pytest

from stagec.driver import Compiled, compile_text
from stagec.memory import Kind
from stagec.summary import Traffic, summarize
from tests.unit.seldom import some

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


@pytest.mark.parametrize("seed", some(range(3), 3))
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


OWN = """
dim B = 8
dim D = 64
dim F = 256

module Mlp(x[B, D]) -> [B, D] {
  weight norm[D]: fp32, up[D, F]: nvfp4, down[F, D]: bf16, other[D, F]
  y = cast(rms_norm(x, norm), dtype = bf16)
  return x + cast(gelu(y @ up + y @ other) @ down, dtype = bf16)
}

model Net(x[B, D]) {
  repeat 4 { x = Mlp(x) }
  loss = mean(x, over = [B, D])
}

plan whole {
  mesh dp = 2
  shard B over dp
  freeze up
  precision { weights = fp32, activations = bf16 }
}

plan updated extends whole { zero 1 over dp }
plan layers extends whole { zero 3 over dp }
plan fetched extends layers { offload { parameters = true, optimizer = true } }
"""


def stored(compiled: Compiled) -> int:
    (plan,) = compiled.memory
    return plan.static.num_bytes[Kind.PARAMETERS]


def test_a_weight_with_a_dtype_of_its_own_is_stored_and_gathered_in_it() -> None:
    """Whether it is the plan's for other weights as they are stored (`norm`), as they are gathered (`down`), or neither (`up`, of 4 bits and a scale for 16
    elements). FSDP2 gathers frozen weights of integers as they are stored (`FSDPParam.init_dtype_attrs`); trained ones of other dtypes are units of their own
    there (`FSDPParamGroup._init_mp_dtypes`), so that each dtype is a gather."""
    norm, matrix = 64, 64 * 256
    text = [compile_text(OWN, plan=plan) for plan in ("whole", "updated", "layers")]
    whole = 4 * (4 * norm + matrix * 9 // 16 + 2 * matrix + 4 * matrix)
    assert [stored(each) for each in text] == [whole, whole, whole // 2]
    _, updated, layers = (gathers(each) for each in text)
    # What is trained, as it is stored; `norm` and `other` are of one dtype.
    (traffic,) = updated
    assert (traffic.count, traffic.result_bytes) == (2, 4 * (4 * norm + 2 * matrix + 4 * matrix))
    (traffic,) = layers
    gathered = 4 * norm + matrix * 9 // 16 + 2 * matrix + 2 * matrix
    assert (traffic.count, traffic.result_bytes) == (2 * 4 * 3, 2 * 4 * gathered)
    # Where one dtype alone is trained, as in QLoRA, a unit is gathered at once; not by DeepSpeed.
    for like, count in (("", 1), ("{ like = deepspeed, persist = 0 }", 3)):
        frozen = OWN.replace("freeze up", "freeze up, norm, down").replace(
            "zero 3 over dp", f"zero 3 over dp {like}"
        )
        (traffic,) = gathers(compile_text(frozen, plan="layers"))
        assert (traffic.count, traffic.result_bytes) == (2 * 4 * count, 2 * 4 * gathered)


QUANTIZED = """
dim B = 64
dim D = 512
dim F = 1024
dim L = 4

module Mlp(x[B, D]) -> [B, D] {
  weight up[D, F], down[F, D]
  return x + gelu(x @ up) @ down
}

model Net(x[B, D]) {
  repeat L { x = Mlp(x) }
  loss = mean(x, over = [B, D])
}

plan updated {
  mesh dp = 2
  shard B over dp
  zero 1 over dp
  precision { weights = bf16, optimizer = bf16, products = fp8, product_weights = fp8 }
}

plan layers extends updated { zero 3 over dp }
"""


@pytest.mark.parametrize("plan", ["updated", "layers"])
def test_quantized_weights_are_stored_gathered_and_updated_so(plan: str) -> None:
    """One byte each on the way, as with `--fp8-param-gather` of Megatron-LM, and stored; they have a master copy though the others have none."""
    compiled = compile_text(QUANTIZED, plan=plan)
    matrices = 4 * 2 * 512 * 1024
    (traffic,) = gathers(compiled)
    assert traffic.result_bytes == (2 if plan == "layers" else 1) * matrices
    (plan_of_memory,) = compiled.memory
    assert plan_of_memory.static.num_bytes[Kind.PARAMETERS] == matrices // (
        2 if plan == "layers" else 1
    )
    assert plan_of_memory.static.num_bytes[Kind.MASTER] == 2 * matrices // 2
