"""Attention of sequences of several lengths: one kernel of prompts, and one of single tokens."""

from __future__ import annotations

import random

import pytest

from stagec.driver import compile_text
from stagec.estimate.step import step_summary
from tests.unit.seldom import some
from tests.unit.test_serving import LATENT, Group, text

SIZES = {"D": 4096, "H": 32, "K": 8, "E": 128}


def sized(model: str, sizes: dict[str, int]) -> str:
    for name, size in sizes.items():
        model = model.replace(f"dim {name} = ", f"dim {name} = {size} # ")
    return model


def absorbed() -> str:
    """DeepSeek's latent attention."""
    model = LATENT.replace("Attention(x)", "Absorbed(x)", 1)
    model = sized(model, {"D": 7168, "H": 128, "N": 128, "R": 64, "G": 128, "C": 512})
    return model.replace("x = x + Attention(x)", "x = x + Absorbed(x)")


def attention_us(
    model: str, groups: list[Group], cache: str = "bf16", device: str = "h100"
) -> float:
    served = ", ".join([*(each.clause for each in groups), "logits = all"])
    plan = f"precision {{ weights = bf16, activations = bf16, cache = {cache} }} device {device} serve {{ {served} }}"
    found = step_summary(compile_text(f"{model}\nplan p {{ {plan} }}"))
    return found.breakdown.parts["attention"]


@pytest.mark.parametrize("seed", some(range(3), 3))
def test_prompts_and_single_tokens_are_priced_apart(seed: int):
    rng = random.Random(seed)
    groups = [
        Group(rng.randint(1, 32), 1, rng.randint(1, 9000)),
        Group(rng.randint(1, 4), rng.choice([64, 512, 2048]), rng.choice([0, 512])),
    ]
    model = sized(text(), SIZES)
    together = attention_us(model, groups)
    apart = sum(attention_us(model, [each]) for each in groups)
    assert together == pytest.approx(apart, rel=1e-3)


@pytest.mark.seldom
@pytest.mark.parametrize("seed", range(4))
def test_lengths_of_a_batch_share_a_kernel(seed: int):
    """It takes what one of all sequences alike does if they are nearly alike, and else something between kernels of the shortest and of the longest."""
    rng = random.Random(seed)
    model = sized(text(), SIZES) if seed % 2 else absorbed()
    new, mean, count = rng.choice([1, 1, 256]), rng.randint(500, 3000), rng.choice([8, 32])
    near = [Group(1, new, mean + 2 * each - count + 1) for each in range(count)]
    alike = attention_us(model, [Group(count, new, mean)])
    assert attention_us(model, near) == pytest.approx(alike, rel=0.02)
    halves = [Group(count // 2, new, mean)] * 2
    assert attention_us(model, halves) == pytest.approx(alike, rel=1e-6)
    groups = [Group(rng.randint(1, 16), new, rng.randint(1, 9000)) for _ in range(4)]
    total = sum(each.count for each in groups)
    times = [attention_us(model, [Group(total, new, each.context)]) for each in groups]
    assert min(times) * 0.98 <= attention_us(model, groups) <= max(times) * 1.02


def test_latent_attention_is_measured():
    model = absorbed()
    short, long = (attention_us(model, [Group(64, 1, context)]) for context in (1000, 8000))
    assert 4 * short < long < 9 * short
    # four tokens of each sequence read its latents once, and compute four times as much
    assert attention_us(model, [Group(64, 4, 8000)]) < 4.2 * long


@pytest.mark.parametrize("context", some([100, 1500, 9000], 2))
def test_a_few_tokens_after_many_take_hardly_longer_than_one(context: int):
    """A step that verifies drafted tokens reads the same keys, and computes so many times as much."""
    model = sized(text(), SIZES)
    one, four = (attention_us(model, [Group(64, new, context)]) for new in (1, 4))
    assert one <= four < 4 * one
    prompt, chunk = (attention_us(model, [Group(1, new, 2048 - new)]) for new in (2048, 512))
    assert chunk < prompt < 6 * chunk
