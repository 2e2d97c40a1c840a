"""Linear layers of one input run as one product, unless each op has a kernel of its own."""

from __future__ import annotations

import random

import pytest

from stagec.driver import compile_text
from stagec.estimate.step import step_summary


def products_us(body: str, widths: dict[str, int], kernels: str, rest: str = "") -> float:
    """What the products of a forward pass take."""
    dims = "".join(f"dim {name} = {size}\n" for name, size in widths.items())
    plan = f"precision {{ weights = bf16, activations = bf16 {rest} }} device h100 {{ kernels = {kernels} }}"
    text = f"{dims}model Net(x[B, D]) {{\n{body}\n}}\nplan p {{ {plan} }}\n"
    return step_summary(compile_text(text)).breakdown.parts["products"]


@pytest.mark.parametrize("seed", range(6))
def test_layers_side_by_side_are_one(seed: int):
    rng = random.Random(seed)
    sizes = {"B": rng.choice([8, 300, 4096]), "D": rng.choice([1024, 4096])}
    parts = {name: 64 * rng.randint(1, 60) for name in ("P", "Q", "R")}
    narrow = ", products = fp8" if seed % 2 else ""
    apart = "weight a[D, P], b[D, Q], c[D, R]\nreturn x @ a, x @ b, x @ c"
    joined = "weight w[D, N]\nreturn x @ w"
    one = products_us(joined, {**sizes, "N": sum(parts.values())}, "fused", narrow)
    three = products_us(apart, {**sizes, **parts}, "fused", narrow)
    assert three == pytest.approx(one, rel=1e-6)
    assert products_us(apart, {**sizes, **parts}, "eager", narrow) >= three


def test_products_of_activations_stay_apart():
    """Two products of one value with others that are no weights are two kernels."""
    body = "y[B, E] = x[B, D] @ k[E, D]\nz[B, F] = x[B, D] @ l[F, D]\nreturn y, z"
    sizes = {"B": 256, "D": 512, "E": 256, "F": 512}
    text = body.replace("x[B, D]", "x").replace("k[E, D]", "k").replace("l[F, D]", "l")
    found = []
    for kernels in ("eager", "fused"):
        dims = "".join(f"dim {name} = {size}\n" for name, size in sizes.items())
        plan = f"precision {{ activations = bf16 }} device h100 {{ kernels = {kernels} }}"
        model = f"{dims}model Net(x[B, D], k[E, D], l[F, D]) {{\n{text}\n}}\nplan p {{ {plan} }}\n"
        found.append(step_summary(compile_text(model)).breakdown.parts["products"])
    assert found[0] == pytest.approx(found[1])
