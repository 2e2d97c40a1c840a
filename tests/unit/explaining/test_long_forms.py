"""Closed forms that nobody reads: how long they are is said in their place, and Python's spelling of them has their value."""

from __future__ import annotations

import random

import pytest

from stagec.driver import compile_text
from stagec.explaining import algebra
from stagec.explaining.job import NamedJob
from stagec.explaining.questions import ask
from stagec.symbolic import Size, call, symbol
from tests.unit.seldom import some

TEXT = """
dim B = 8
dim D = 48
dim H = 6
dim E = D / H
dim L = 3
model Net(x[B, D]) {
  repeat L {
    weight up[D, H, E], norm[D], down[H, E, D]
    x = x + gelu(rms_norm(x, norm) @ up) @ down
  }
  loss = mean(square(x), over = [B, D])
}
plan p {
  mesh dp = 4, tp = 2
  shard B over dp
  shard H over tp
  zero 1 over dp
  optimizer %s { block = 16, frequency = 3 }
}
"""


def in_python(form: Size, values: dict[str, int]) -> object:
    found: dict[str, object] = {}
    exec(algebra.as_python(algebra.simplified(form), "value"), found)
    names = {algebra.identifier(name): number for name, number in values.items()}
    value = found["value"]
    assert callable(value)
    return value(**{name: names[name] for name in value.__code__.co_varnames})


@pytest.mark.seldom
@pytest.mark.parametrize(
    ("optimizer", "what"), [("shampoo", "memory.optimizer"), ("soap", "flops")]
)
def test_of_preconditioned_matrices(optimizer: str, what: str) -> None:
    job = NamedJob(compile_text(TEXT % optimizer))
    worst = ask(job, what).worst
    assert algebra.is_long(worst.form)
    assert in_python(worst.form, dict(job.names.values)) == worst.value


@pytest.mark.parametrize("seed", some(range(5), 1))
def test_random_forms(seed: int) -> None:
    """As they are or simplified, remainders and roundings in each other have the same value."""
    rng = random.Random(seed)
    values = {"a": rng.randint(1, 40), "b": rng.randint(1, 40), "c": rng.randint(1, 9)}
    form = symbol("a")
    for _ in range(rng.randint(1, 8)):
        kind = rng.choice(["mod", "ceildiv", "floordiv", "max", "min"])
        divides = kind in ("mod", "ceildiv", "floordiv")
        other = symbol("c") if divides else symbol(rng.choice("ab")) * rng.randint(1, 3)
        form = call(kind, form * rng.randint(1, 3) + symbol("b"), other) + rng.choice(
            [0, symbol("a")]
        )
    assert in_python(form, values) == form.evaluate(values)
