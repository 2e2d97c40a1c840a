"""Attention of sequences of several lengths takes what each kind takes by itself."""

from __future__ import annotations

import random

import pytest

from stagec.driver import compile_text
from stagec.estimate import step_summary
from tests.unit.test_serving import LATENT, Group, text

SIZES = {"D": 4096, "H": 32, "K": 8, "E": 128}


def attention_us(
    model: str, groups: list[Group], cache: str = "bf16", device: str = "h100"
) -> float:
    served = ", ".join([*(each.clause for each in groups), "logits = all"])
    plan = f"precision {{ weights = bf16, activations = bf16, cache = {cache} }} device {device} serve {{ {served} }}"
    found = step_summary(compile_text(f"{model}\nplan p {{ {plan} }}"))
    return found.breakdown.parts["attention"]


@pytest.mark.parametrize("seed", range(6))
def test_kinds_of_a_row_are_priced_apart(seed: int):
    rng = random.Random(seed)
    groups = [
        Group(rng.randint(1, 32), 1, rng.randint(1, 9000)),
        Group(rng.randint(1, 4), rng.choice([64, 512, 2048]), rng.choice([0, 512])),
    ]
    model = text()
    for name, size in SIZES.items():
        model = model.replace(f"dim {name} = ", f"dim {name} = {size} # ")
    together = attention_us(model, groups)
    apart = sum(attention_us(model, [each]) for each in groups)
    assert together == pytest.approx(apart, rel=1e-3)


def test_latent_attention_is_measured():
    model = LATENT.replace("Attention(x)", "Absorbed(x)", 1)
    for name, size in {"D": 7168, "H": 128, "N": 128, "R": 64, "G": 128, "C": 512}.items():
        model = model.replace(f"dim {name} = ", f"dim {name} = {size} # ")
    model = model.replace("x = x + Attention(x)", "x = x + Absorbed(x)")
    short, long = (attention_us(model, [Group(64, 1, context)]) for context in (1000, 8000))
    assert 4 * short < long < 9 * short
    # four tokens of each sequence read its latents once, and compute four times as much
    assert attention_us(model, [Group(64, 4, 8000)]) < 4.2 * long


@pytest.mark.parametrize("context", [100, 1500, 9000])
def test_a_few_tokens_after_many_take_hardly_longer_than_one(context: int):
    """A step that verifies drafted tokens reads the same keys, and computes so many times as much."""
    model = text()
    for name, size in SIZES.items():
        model = model.replace(f"dim {name} = ", f"dim {name} = {size} # ")
    one, four = (attention_us(model, [Group(64, new, context)]) for new in (1, 4))
    assert one <= four < 4 * one
    prompt, chunk = (attention_us(model, [Group(1, new, 2048 - new)]) for new in (2048, 512))
    assert chunk < prompt < 6 * chunk
