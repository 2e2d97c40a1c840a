"""Operands of quantized products that are read in two directions: what a second layout of them takes."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from stagec.devices import named
from stagec.dialects.sched.actions import Compute, Kernel
from stagec.dialects.work import Work
from stagec.driver import compile_text
from stagec.estimate.kernels import KernelPrices
from stagec.estimate.prices import Prices

TEXT = """
dim B = {B}
dim S = {S}
dim V = 100
dim D = {D}
dim F = {F}
dim G = {G}
dim L = 2
module Block(x[B, S, D]) -> [B, S, D] {{
  weight norm[D], gate[D, F], up[D, F], other[D, G], down[F, D], back[G, D]
  n = rms_norm(x, norm)
  return x + (silu(n @ gate) * (n @ up)) @ down + relu(n @ other) @ back
}}
model Net(tokens[B, S]: i32, targets[B, S]: i32) {{
  weight embed[V, D], head[D, V]
  x = embedding(tokens, embed)
  repeat L {{ x = Block(x) }}
  loss = cross_entropy(x @ head, targets)
}}
plan p {{
  mesh tp = {tp}
  shard F, G, S over tp
  collectives {{ keep = shard }}
  precision {{ weights = bf16, activations = bf16, gradients = fp32, products = {form} {rest} }}
  device {device}
}}
"""


def text_of(device: str, sizes: dict[str, int], form: str, tp: int, rest: str = "") -> str:
    return TEXT.format(device=device, form=form, tp=tp, rest=rest, **sizes)


def columnwise(text: str) -> Counter[str]:
    """Elements of a block's operands that are wanted along columns too."""
    found: Counter[str] = Counter()
    traces = compile_text(text).trace_set
    for segment in traces.classes[0].program.segments:
        for node in segment.nodes:
            if isinstance(node.action, Compute) and node.action.kernel is not None:
                own = dict(node.action.kernel.sizes)
                found.update({k: own[k] for k in ("whole", "shard", "gathered") if own.get(k)})
    return found


@pytest.mark.seldom
@pytest.mark.parametrize("seed", range(4))
def test_a_weights_gradient_reads_both_operands_along_columns(seed: int) -> None:
    rng = random.Random(seed)
    sizes = {name: 64 * rng.randint(1, 9) for name in ("B", "S", "D", "F", "G")}
    tokens, d, f, g = sizes["B"] * sizes["S"], sizes["D"], sizes["F"], sizes["G"]
    # The input of the first three layers, those of the last two, and the gradients of what each makes.
    alone = columnwise(text_of("h100", sizes, "fp8", 1))
    assert dict(alone) == {"whole": pytest.approx(tokens * (3 * d + 3 * f + 2 * g), abs=5)}
    tp = rng.choice([2, 4])
    found = columnwise(text_of("h100", sizes, "fp8", tp))
    # Along the sequence lie the input of the first three and the gradients of what the last two make.
    assert found["gathered"] == pytest.approx(tokens * 3 * d, abs=5)
    assert found["shard"] == pytest.approx(tokens * 3 * d / tp, abs=5)
    assert found["whole"] == pytest.approx(tokens * (3 * f + 2 * g) / tp, abs=5)
    assert not columnwise(text_of("h100", sizes, "bf16", tp))
    assert not columnwise(text_of("h100", sizes, "fp8", tp, ", weight_gradients = bf16"))


@pytest.mark.parametrize(
    ("device", "form", "elements"),
    [
        ("h100", "fp8", 1000 + 2 * 800),
        ("b200", "fp8", 0),
        ("h100", "fp8_1x128", 1200 * (1 + 4 / 128)),
        ("b200", "mxfp8", 1200 * (1 + 1 / 32)),
    ],
)
def test_a_second_layout_is_written_where_one_does_not_serve_both_directions(
    device: str, form: str, elements: float
) -> None:
    """Gathered operands in one scale are transposed after that, those in many are quantized twice before it."""
    sizes = {"batch": 1, "m": 4096, "n": 4096, "k": 4096}
    more = {"whole": 1000 << 20, "shard": 200 << 20, "gathered": 800 << 20}
    model = named(device)

    def us(own: dict[str, int]) -> float:
        kernel = Kernel(Work.PRODUCT, form, tuple(own.items()))
        return KernelPrices(model).price(Compute(1, 1, kernel=kernel), True).us

    rate = model.numbers["memory_bytes_per_s"] * model.reached.memory
    assert us(sizes | more) - us(sizes) == pytest.approx(1e6 * elements * 2**20 / rate)


def backward_us(text: str) -> tuple[float, int]:
    """µs of the gradients of inputs in a block, and elements of weights that are transposed for them."""
    compiled = compile_text(text)
    prices = Prices.of(compiled.trace_set, compiled.plan)
    us, elements = 0.0, 0
    rank_class = compiled.trace_set.classes[0]
    for index, segment in enumerate(rank_class.program.segments):
        for node, own in zip(segment.nodes, prices.segment(rank_class, index).us, strict=True):
            action = node.action
            if isinstance(action, Compute) and action.kernel is not None and node.phase == "bwd":
                us += float(own)
                elements += dict(action.kernel.sizes).get("transposed", 0)
    return us, elements


@pytest.mark.seldom
@pytest.mark.parametrize("seed", range(2))
def test_a_weight_in_8_bits_is_transposed_for_each_gradient_or_once_a_step_where_a_copy_is_kept(
    seed: int,
) -> None:
    rng = random.Random(seed)
    sizes = {name: 128 * rng.randint(2, 9) for name in ("B", "S", "D", "F", "G")}
    tp = rng.choice([1, 2])
    stored = ", product_weights = fp8"
    cut = rng.choice([2, 4, 8])
    zero = rng.choice(["", "zero 1 over dp\n  "])
    each = text_of(f"h100\n  microbatch {sizes['B'] // cut}", sizes, "fp8", tp, stored)
    each = each.replace("mesh tp", "mesh dp = 1, tp").replace("device h100", zero + "device h100")
    kept = each.replace("device h100", "process { transposed_weights = true }\n  device h100")
    made, elements = backward_us(each)
    assert elements == sizes["D"] * (3 * sizes["F"] + 2 * sizes["G"]) // tp
    model = named("h100")
    rate = float(model.numbers["memory_bytes_per_s"]) * model.reached.memory
    rest = 2 * elements * (1 - 1 / cut)
    assert made - backward_us(kept)[0] == pytest.approx(1e6 * rest / rate, rel=1e-6)
    # What is not trained is transposed once for all steps.
    frozen = kept.replace("device h100", "freeze Block\n  device h100")
    rest = 2 * elements
    made = backward_us(each.replace("device h100", "freeze Block\n  device h100"))[0]
    assert made - backward_us(frozen)[0] == pytest.approx(1e6 * rest / rate, rel=1e-6)
    # Weights in bf16 are quantized in both directions; Blackwell's products read columns.
    assert backward_us(text_of("h100", sizes, "fp8", tp))[1] == 0
    known = [backward_us(text_of("b200", sizes, "fp8", tp, stored))[0]]
    known.append(
        backward_us(
            text_of("b200", sizes, "fp8", tp, stored).replace(
                "device b200", "process { transposed_weights = true }\n  device b200"
            )
        )[0]
    )
    assert known[0] == pytest.approx(known[1], rel=1e-9)
