"""Blocks of other parts: each is a text that compiles, of weights as PyTorch has them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from stagec.driver import compile_text
from stagec.memory import Kind
from tests.fidelity.draw import draw_composed
from tests.fidelity.oracle import Case
from tests.fidelity.parameters import parameters_of
from tests.fidelity.plan_text import PLAN
from tests.fidelity.stg_text import stg_text
from tests.fidelity.sublayers import SUBLAYERS
from tests.unit.seldom import some

MODEL: dict[str, Any] = {
    "arch": "llama",
    "vocab": 96,
    "dim": 16,
    "ffn": 24,
    "heads": 4,
    "kv_heads": 2,
    "layers": 2,
    "seq": 8,
    "batch": 2,
    "attn": "sdpa",
    "norm": "module",
    "causal": True,
    "dtype": "float32",
    "fused_qkv": False,
    "tie": False,
}


def case_with(sublayers: str) -> Case:
    experts = {"arch": "moe", "experts": 4, "top_k": 2, "moe_ffn": 12, "router": "balanced"}
    model = {**MODEL, "sublayers": sublayers, **(experts if "experts" in sublayers else {})}
    return Case("x", model, {"dp": 2}, {}, 2, {0: {"dp": 0}, 1: {"dp": 1}}, {}, {})


@pytest.mark.parametrize("name", some(SUBLAYERS, 8))
def test_each_part_compiles_with_the_parameters_of_pytorchs(name: str) -> None:
    again = "" if name == "experts" else f"+{name}"
    case = case_with(f"{name}|mlp{again}")
    compiled = compile_text(stg_text(case), "x.stg", PLAN)
    expected = sum(each.rows * each.row for each in parameters_of(case, 0))
    (plan,) = compiled.memory
    assert plan.static.num_bytes[Kind.PARAMETERS] == 4 * expected


def test_blocks_are_drawn_by_their_seed() -> None:
    first, again = (draw_composed(random.Random(7), "x") for _ in "ab")
    assert first == again
    said = {str(draw_composed(random.Random(seed), "x")["sublayers"]) for seed in range(60)}
    assert all(any(name in each for each in said) for name in SUBLAYERS)
