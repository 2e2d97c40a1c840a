"""Dtypes are the plan's: no choice of them makes a text wrong, and weights and gradients have those that it says."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from xdsl.ir import Operation

from stagec.dialects import stg
from stagec.dialects.types import FLOATS, tensor_of
from stagec.driver import Stops, compile_text
from tests.unit.examples import EXAMPLES, plans_of

SETTINGS = ("weights", "activations", "gradients", "optimizer")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_text_is_right_in_any_dtypes(path: Path) -> None:
    """With dtypes drawn at random, a model is the same but for conversions: each is of floats, and weights are as the plan says."""
    rng = random.Random(path.stem)
    plan = rng.choice([p for p in plans_of(path) if "serve" not in p])
    drawn = {name: rng.choice(FLOATS) for name in SETTINGS}
    plain = ops_under(path, plan, dict.fromkeys(SETTINGS, "fp32"))
    mixed = ops_under(path, plan, drawn)
    assert [op.name for op in mixed if op.name != "stg.cast"] == [
        op.name for op in plain if op.name != "stg.cast"
    ]
    for op in mixed:
        if isinstance(op, stg.CastOp) and "made_by" not in op.attributes:
            assert tensor_of(op.x.type).dtype in FLOATS


def ops_under(path: Path, plan: str, dtypes: Mapping[str, str]) -> list[Operation]:
    """The ops of a model, as a plan with these dtypes places them."""
    settings = ", ".join(f"{name} = {dtype}" for name, dtype in dtypes.items())
    text = f'import "{path.name}"\nplan drawn extends {plan} {{ precision {{ {settings} }} }}\n'
    name = str(path.with_name("drawn.stg"))
    module = compile_text(text, name, "drawn", stops=Stops(after="propagate-shardings")).module
    return list(module.walk())
