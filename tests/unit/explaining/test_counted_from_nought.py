"""Forms in what may be 0, a coordinate or the layers of a stage, hold there too when they are simplified."""

from __future__ import annotations

import random

import pytest

from stagec import symbolic
from stagec.analysis.coordinates import index
from stagec.dialects.dist.stages import first_layer, local_count
from stagec.explaining import algebra
from stagec.symbolic import Size, constant, symbol
from tests.unit.seldom import some


@pytest.mark.parametrize("seed", some(range(6), 2))
def test_simplified_forms_hold_at_nought(seed: int) -> None:
    rng = random.Random(seed)
    names = [index("cp"), symbol(first_layer("L")), symbol(local_count(0))]

    def drawn(depth: int) -> Size:
        if not depth:
            return rng.choice([*names, symbol("D"), constant(rng.randint(0, 3))])
        kind, one, other = rng.choice(["max", "min", "+", "-"]), drawn(depth - 1), drawn(depth - 1)
        if kind in ("max", "min"):
            return symbolic.call(kind, one, other)
        return one + other * (1 if kind == "+" else -1) * rng.randint(1, 4)

    form = symbol("D") * drawn(3) + drawn(3)
    shown = algebra.simplified(form)
    for number in range(4):
        values = {"D": 1 + number, **{name: number for each in names for name in each.names}}
        assert algebra.value_of(shown, values).doit() == form.evaluate(values)
