"""Weights that are stored wide and quantized once in a step (`process { cached_weights = true }`), in times."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from stagec.backend.program import Node
from stagec.dialects.types import bytes_per_element
from stagec.dialects.work import Work
from stagec.driver import compile_text
from stagec.estimate.joined_kernels import work_of
from stagec.estimate.prices import SCALE_BYTES, Prices, kernel_sizes
from stagec.estimate.step import step_summary
from tests.unit.estimate.priced import priced_nodes

TEXT = """
dim B = {B}
dim S = 256
dim D = {D}
dim F = {F}
dim L = 3

module Block(x[B, S, D]) -> [B, S, D] {{
  weight n[D], up[D, F], down[F, D]
  return x + relu(rms_norm(x, n) @ up) @ down
}}

model M(x[B, S, D]) {{
  repeat L {{ x = Block(x) }}
  loss = mean(square(x), over = [B, S, D])
}}

plan p {{
  mesh tp = {tp}
  shard F over tp
  microbatch {microbatch}
  precision {{ weights = bf16, products = {form}{rest} }}
  {process}
  device {device} {{ graphs = false }}
}}
"""
CACHED = "process { cached_weights = true }"


def drawn(rng: random.Random, microbatches: int, **settings: str) -> str:
    said = {
        "D": 128 * rng.randint(2, 8),
        "F": 512 * rng.randint(1, 3),
        "tp": rng.choice([1, 2]),
        "microbatch": 2,
        "B": 2 * microbatches,
        "rest": "",
        "process": CACHED,
    }
    return TEXT.format(**{**said, **settings})


def weights(text: str) -> Iterator[tuple[Node, float, float]]:
    """What quantizes one, its time, and how many kernels the host launches for it, in all layers of a microbatch."""
    for node, us, launched in priced_nodes(text):
        if work_of(node) == Work.QUANTIZE and "elements" in kernel_sizes(node):
            yield node, us, launched


@pytest.mark.parametrize(
    ("form", "device", "copies"),
    [("mxfp8", "b200", 2), ("fp8", "b200", 1), ("fp8", "h100", 2), ("fp4", "gb200", 2)],
)
def test_a_microbatch_counts_its_part_of_one_kernel(form: str, device: str, copies: int) -> None:
    """That reads a weight and writes it along both dims, where products read it so; in nvfp4 its largest number is found by reading it once more."""
    rng = random.Random(form + device)
    number = rng.choice([1, 2, 5])
    found = list(weights(drawn(rng, number, form=form, device=device)))
    compiled = compile_text(drawn(random.Random(1), 1, form=form, device=device))
    kernels = Prices.of(compiled.trace_set, compiled.plan).kernels
    assert kernels is not None
    narrow = bytes_per_element("nvfp4" if form == "fp4" else form)
    forward = [each for each in found if each[0].phase == "fwd"]
    assert len(forward) % 2 == 0
    assert len(forward) == len(found) - len(forward) > 0
    for node, us, launched in found:
        elements = kernel_sizes(node)["elements"]
        alone = kernels.measured.moved(elements * (2 + copies * narrow)).us
        read_for_scale = (elements * 2, SCALE_BYTES, SCALE_BYTES) if form == "fp4" else ()
        more = sum(kernels.measured.moved(each).us for each in read_for_scale)
        once = float(node.phase == "fwd")
        assert number * us == pytest.approx(once * (alone + more), rel=1e-4)
        # Of one call are the four kernels that find a scale and convert by it.
        further = 3 * kernels.device.host_kernel_us / kernels.device.host_launch_us
        launches = 1 + (further if form == "fp4" else 0.0)
        assert number * launched == pytest.approx(once * launches, rel=1e-4)


@pytest.mark.seldom
def test_fewer_quantizations_are_quicker() -> None:
    """Weights that are quantized where products read them take longest, those that are stored so least; without `cached_weights` nothing is shared."""
    rng = random.Random(4)
    for form, stored in (("mxfp8", "mxfp8"), ("fp8", "fp8")):
        state = rng.getstate()
        steps = []
        for settings in (
            {"process": ""},
            {},
            {"process": "", "rest": f", product_weights = {stored}"},
        ):
            rng.setstate(state)
            text = drawn(rng, 4, form=form, device="b200", **settings)
            steps.append(step_summary(compile_text(text)).step_s)
        assert steps[0] > steps[1] > steps[2]


def test_a_step_of_many_microbatches_is_told_by_few() -> None:
    text = drawn(random.Random(2), 4, form="mxfp8", device="b200").replace("graphs = false", "")
    times = [
        step_summary(compile_text(text.replace("dim B = 8", f"dim B = {2 * number}"))).step_s
        for number in (20, 40, 80)
    ]
    # What is done once in a step is the same in all.
    assert times[2] - times[1] == pytest.approx(2 * (times[1] - times[0]), rel=1e-6)
