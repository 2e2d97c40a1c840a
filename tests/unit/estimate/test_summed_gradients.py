"""The gradient of a weight is added to those of earlier microbatches: in the product that makes it, or by a kernel of its own."""

from __future__ import annotations

import random

import pytest

from stagec.devices import named
from stagec.dialects.sched.actions import Collective, Compute
from stagec.dialects.work import Work
from stagec.driver import compile_text
from stagec.estimate.prices import Prices
from tests.unit.seldom import some

TEXT = """dim B = {B}
dim S = {S}
dim V = 96
dim D = {D}
dim F = {F}
dim L = 2
module Block(x[B, S, D]) -> [B, S, D] {{
  weight up[D, F], down[F, D]
  return x + relu(x @ up) @ down
}}
model Net(tokens[B, S]: i32, targets[B, S]: i32) {{
  weight embed[V, D], head[D, V]
  x = embedding(tokens, embed)
  repeat L {{ x = Block(x) }}
  loss = cross_entropy(x @ head, targets)
}}
plan p {{
  mesh dp = {ways}, tp = {tp}
  shard B over dp
  shard F over tp
  microbatch 1
  {zero}
  precision {{ weights = bf16, activations = bf16, gradients = {gradients} }}
  device {device} {{ kernels = {kernels} }}
}}
"""


def of_blocks(sizes: dict[str, int], **choices: str) -> tuple[float, int, int]:
    """Of the gradients of a block's weights: µs, elements, and bytes of the sums they are added to."""
    return of_weights(sizes, Work.PRODUCT, sizes["D"] * sizes["F"] // sizes["tp"], **choices)


def of_weights(
    sizes: dict[str, int], kind: Work, elements_each: int, **choices: str
) -> tuple[float, int, int]:
    """Of gradients of so many elements, by a kind of work."""
    text = TEXT.format(
        **{"ways": 2} | sizes, **{name: choices[name] for name in choices if name != "head"}
    )
    if choices.get("head") == "embed":
        text = text.replace(", head[D, V]", "").replace("x @ head", "x @ embed")
    compiled = compile_text(text)
    prices = Prices.of(compiled.trace_set, compiled.plan)
    us, elements, summed = 0.0, 0, 0
    rank_class = compiled.trace_set.classes[0]
    for index, segment in enumerate(rank_class.program.segments):
        for node, priced in zip(segment.nodes, prices.segment(rank_class, index).us, strict=True):
            action = node.action
            if not isinstance(action, Compute) or action.kernel is None or node.phase != "wgrad":
                continue
            own = dict(action.kernel.sizes)
            made = own["m"] * own["n"] if "m" in own else own["made"] // 2
            if action.kernel.kind == kind and made == elements_each:
                us += float(priced)
                elements += made
                summed += own.get("summed", 0)
    return us, elements, summed


@pytest.mark.parametrize("seed", some(range(3), 3))
def test_a_product_that_adds_reads_and_writes_the_sum(seed: int) -> None:
    rng = random.Random(seed)
    device = rng.choice(["h100", "b200", "a100"])
    sizes = {name: 128 * rng.randint(4, 20) for name in ("S", "D", "F")}
    sizes |= {"B": 8, "tp": rng.choice([1, 2])}
    usual = {"device": device, "zero": "zero 1 over dp", "kernels": "fused", "gradients": "bf16"}
    narrow, others, half = of_blocks(sizes, **usual)
    wide, elements, summed = of_blocks(sizes, **usual | {"gradients": "fp32"})
    assert elements == others > 0
    assert (summed, half) == (4 * elements, 2 * elements)
    model = named(device)
    rate = float(model.numbers["memory_bytes_per_s"]) * model.reached.memory
    # fp32 is read and written, and set to zero once for four microbatches: four and a half bytes of each element more than bf16.
    assert wide - narrow == pytest.approx(1e6 * 4.5 * elements / rate, rel=1e-6)
    # A kernel of its own reads what the product wrote, too, and adds bf16 to fp32 element by element.
    apart, written = (
        of_blocks(sizes, **usual | {"kernels": "eager", "gradients": dtype})[0]
        for dtype in ("fp32", "bf16")
    )
    assert written > narrow
    us = [1e6 * 6 * elements / rate, 1e6 * 10 * elements / rate]
    us[1] = max(us[1], 1e6 * elements / model.scalars_per_s)
    assert apart - written == pytest.approx(us[1] - us[0], rel=1e-6)
    # What is reduced in each microbatch is added up as shards, after the reduction.
    sharded, _, nothing = of_blocks(sizes, **usual | {"zero": "zero 3 over dp"})
    assert nothing == 0
    assert narrow - sharded == pytest.approx(1e6 * 2.5 * elements / rate, rel=1e-6)
    # However many microbatches there are, a step's sums are set to zero once.
    many, few = (
        count * of_blocks(sizes | {"B": 2 * count}, **usual)[0]
        for count in (rng.choice([8, 16]), 2)
    )
    once = 1e6 * 2 * elements / rate
    alone = (many - once) / (few - once)
    assert alone == pytest.approx(round(alone), rel=1e-6)


@pytest.mark.parametrize(("seed", "head"), [(0, "head"), (1, "embed")])
def test_the_gradient_of_a_table_is_added_by_a_kernel_of_its_own(seed: int, head: str) -> None:
    """It reads what was made and the sum, and writes the sum: of a table that is the head, too, once what its two uses make is added."""
    rng = random.Random(seed)
    device = rng.choice(["h100", "b200", "a100"])
    sizes = {name: 128 * rng.randint(4, 20) for name in ("S", "D", "F")} | {"B": 8, "tp": 1}
    usual = {"device": device, "kernels": rng.choice(["fused", "eager"]), "gradients": "fp32"}
    usual |= {"head": head}
    rows = 96 * sizes["D"]
    added, elements, summed = of_weights(sizes, Work.OTHER, rows, zero="zero 1 over dp", **usual)
    assert (elements, summed) == (rows, 4 * rows)
    narrow = of_weights(
        sizes, Work.OTHER, rows, zero="zero 1 over dp", **usual | {"gradients": "bf16"}
    )
    model = named(device)
    rate = float(model.numbers["memory_bytes_per_s"]) * model.reached.memory
    zeroed = 0.5 if usual["kernels"] == "fused" else 0
    # PyTorch adds bf16 to fp32 element by element.
    us = [1e6 * 6 * rows / rate, max(1e6 * 10 * rows / rate, 1e6 * rows / model.scalars_per_s)]
    assert added - narrow[0] == pytest.approx(us[1] - us[0] + 1e6 * zeroed * rows / rate, rel=1e-6)
    # Nothing is added up that is reduced in each microbatch.
    assert of_weights(sizes, Work.OTHER, rows, zero="zero 3 over dp", **usual)[1] == 0


@pytest.mark.seldom
@pytest.mark.parametrize("seed", range(3))
def test_sums_that_are_divided_before_they_are_reduced_are_read_and_written_once_more(
    seed: int,
) -> None:
    """Once in a step, where there are other ranks to add up with: as the plan says, or the framework that it is like does."""
    rng = random.Random(seed)
    device, kernels = rng.choice(["h100", "b200", "a100"]), rng.choice(["fused", "eager"])
    sizes = {name: 128 * rng.randint(4, 20) for name in ("S", "D", "F")}
    microbatches = rng.choice([1, 2, 8])
    sizes |= {"B": 2 * microbatches, "tp": rng.choice([1, 2])}
    gradients = rng.choice(["bf16", "fp32"])
    usual = {"device": device, "kernels": kernels, "gradients": gradients, "head": "head"}

    def us(zero: str, ways: int = 2) -> tuple[float, float]:
        given = sizes | {"ways": ways, "B": ways * microbatches}
        products = of_blocks(given, zero=zero, **usual)
        tables = of_weights(given, Work.OTHER, 96 * sizes["D"], zero=zero, **usual)
        return products[0], tables[0]

    def more(zero: str, other: str, ways: int = 2) -> list[float]:
        return [a - b for a, b in zip(us(zero, ways), us(other, ways), strict=True)]

    model = named(device)
    rate = float(model.numbers["memory_bytes_per_s"]) * model.reached.memory
    wide = {"bf16": 2, "fp32": 4}[gradients]
    elements = [2 * sizes["D"] * sizes["F"] // sizes["tp"], 96 * sizes["D"]]
    expected = [1e6 * 2 * wide * each / microbatches / rate for each in elements]
    once = "zero 1 over dp\n  gradients { average = before }"
    assert more(once, "zero 1 over dp") == pytest.approx(expected, rel=1e-6)
    megatron = "zero 1 over dp { like = megatron }"
    in_sum = f"{megatron}\n  gradients {{ average = collective }}"
    assert more(megatron, in_sum) == pytest.approx(expected, rel=1e-6)
    # One rank alone has nothing to divide by.
    if sizes["tp"] == 1:
        assert more(once, "zero 1 over dp", ways=1) == [0, 0]


@pytest.mark.parametrize("seed", range(3))
def test_gradients_that_each_microbatch_reduces_are_divided_each_time(seed: int) -> None:
    """What is read and written is what the reductions of a trace take."""
    rng = random.Random(seed)
    device, kernels = rng.choice(["h100", "b200", "a100"]), rng.choice(["fused", "eager"])
    sizes = {name: 128 * rng.randint(4, 20) for name in ("S", "D", "F")}
    sizes |= {"tp": rng.choice([1, 2]), "ways": rng.choice([2, 4]), "B": 4 * rng.randint(1, 3)}
    zero, unit = (
        rng.choice(["zero 2 over dp", "zero 3 over dp"]),
        rng.choice(["", "\n  unit Block"]),
    )
    gradients = rng.choice(["bf16", "fp32"])
    usual = {
        "device": device,
        "kernels": kernels,
        "gradients": f"{gradients}, reduce = {gradients}",
    }

    def computed(average: str) -> tuple[float, int, int]:
        """Of a microbatch of a rank: how long it computes in µs, and how many reductions of how many bytes it has."""
        clauses = f"{zero}{unit if '3' in zero else ''}\n  gradients {{ average = {average} }}"
        compiled = compile_text(TEXT.format(**sizes, **usual, zero=clauses))
        prices = Prices.of(compiled.trace_set, compiled.plan)
        us, count, reduced = 0.0, 0, 0
        first = compiled.trace_set.classes[0]
        for index, segment in enumerate(first.program.segments):
            times = int((first.program.segment == index).sum())
            own = prices.segment(first, index).us
            for node, each in zip(segment.nodes, own, strict=True):
                if node.computes:
                    us += times * float(each)
                elif node.phase == "grad_reduce" and isinstance(node.action, Collective):
                    count, reduced = count + times, reduced + times * node.action.operand_bytes
        return us, count, reduced

    (before, count, reduced), (whole, *_) = computed("before"), computed("collective")
    model = named(device)
    rate = float(model.numbers["memory_bytes_per_s"]) * model.reached.memory
    expected = 1e6 * 2 * reduced / rate + count * model.launch_us
    assert before - whole == pytest.approx(expected, rel=1e-6)
