"""Whose kernels compute experts, where an engine serves."""

import random
from itertools import product

import numpy as np
import pytest

from stagec.devices import named
from stagec.driver import compile_text
from stagec.estimate.kernels import KernelPrices
from stagec.estimate.step import step_summary
from tests.unit.model_texts import served_experts
from tests.unit.seldom import mostly, some

MODEL = served_experts(
    """
  weight router[D, X], gate[X, D, F], up[X, D, F], down[X, F, D]
  gates, chosen = topk(softmax(x @ router, over = X), over = X, to = A)
  r = dispatch(x, chosen, experts = X, tokens = T)
  g[X, T, F] = r @ gate
  u[X, T, F] = r @ up
  y[X, T, D] = (silu(g) * u) @ down
  return combine(y, gates, chosen)
""",
    layers=2,
)
DTYPES = ("bf16", "fp8", "fp8_1x128", "fp4")
TABLES = {"h100": ("fp8_1x128",), "b200": ("fp8_1x128", "fp4"), "a100": ()}
"""For which of these a device has tables of several engines."""


@pytest.mark.parametrize(
    ("preset", "dtype"),
    mostly(lambda case: case[0] != "a100" or case[1] == "fp8", product(TABLES, DTYPES), 3),
)
@pytest.mark.parametrize("batch", some([64, 1024]))
def test_an_engine_without_effect_on_times_is_told(preset: str, dtype: str, batch: int) -> None:
    """As where its tables are for experts of another dtype."""
    plan = f"plan p {{ mesh ep = 2 shard B, X over ep precision {{ weights = bf16, products = {dtype} }}"
    served = f"serve {{ decode {batch} at 16, experts = average }} device {preset}"
    plain = step_summary(compile_text(f"{MODEL} {plan} {served} }}")).step_s
    found: dict[str, bool] = {}
    for engine in ("vllm", "sglang", "grouped"):
        made = compile_text(f"{MODEL} {plan} {served} {{ experts = {engine} }} }}")
        told = [each.message for each in made.idle if "`experts`" in each.message]
        found[engine] = step_summary(made).step_s == plain
        assert told == found[engine] * ["`experts` of `device` changes nothing here"]
    assert found["grouped"]
    assert found["vllm"] == found["sglang"] == (dtype not in TABLES[preset])


def test_an_engine_that_another_plan_says_is_not_told() -> None:
    text = f"{MODEL} plan p {{ serve {{ decode 64 at 16 }} device h100 {{ experts = vllm }} }}"
    assert len(compile_text(text, plan="p").idle) == 1
    assert not compile_text(f"{text} plan q extends p {{ }}", plan="q").idle


@pytest.mark.parametrize("name", ["h100", "h200", "b200", "b300"])
@pytest.mark.parametrize("dtype", ["bf16", "fp8", "fp8_block"])
@pytest.mark.parametrize("draws", some(range(4), 4))
def test_more_tokens_take_no_shorter(name: str, dtype: str, draws: int) -> None:
    """As an engine may compute more than there are. Between the points of a table it is so but for a hundredth."""
    rng = random.Random(f"{name} {dtype} {draws}")
    kernels = KernelPrices(named(name))
    for _ in range(5):
        sizes = {
            "leading": 2,
            "batch": rng.choice([1, 2, 4, 8, 16, 64]),
            "hidden": rng.choice([1024, 2048, 4096, 7168]),
            "inner": rng.choice([512, 1024, 2048, 8192, 14336]),
            "sent": 1,
            "places": 1,
        }
        own = {each: np.float64(size) for each, size in sizes.items()}
        times: list[float] = []
        for copies in (2.0 ** np.arange(0, 14, 0.5)).tolist():
            price = kernels.experts.share_of_layer(
                dtype, {**own, "m": np.float64(copies / sizes["batch"])}
            )
            assert price is not None
            times.append(price.us)
        assert np.all(np.diff(times) >= -0.01 * np.array(times[:-1]))
