"""The examples of other families, at small sizes: spread over devices they compute what one device does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.numeric.training import Model
from tests.unit.seldom import some

EXAMPLES = Path(__file__).parents[3] / "examples"

SIZES = {
    "t5_base": "B=2 S=4 T=2 V=8 D=4 F=4 H=2 E=2 L=2 M=2 R=4",
    "vit_b16": "B=2 C=2 Y=4 X=6 I=2 J=3 D=4 F=4 H=2 L=2 K=4",
    "dit_xl2": "B=2 C=1 Y=4 X=4 D=4 F=4 H=2 L=2 Q=2 K=4",
    "mamba2_2b7": "B=2 S=4 V=8 D=2 E=2 H=2 N=2 W=2 L=2",
    "mamba2_attention_2b7": "B=2 S=4 V=8 D=2 E=2 H=2 N=2 W=2 K=2 R=2 T=2",
    "dlrm_dcnv2": "B=4 I=2 T=3 R=8 J=4 E=4 F=2 G=2 C=2 H=2 K=2 P=2 Q=2",
    "mlp": "B=4 I=3 F=4 G=2 C=4",
}


def model(example: str) -> Model:
    """The model of an example at these sizes, without its plans. The hybrid has fewer layers, too."""
    text, _, _ = (EXAMPLES / f"{example}.stg").read_text().partition("\nplan ")
    text = re.sub(r"\brepeat [3-9] ", "repeat 2 ", text)
    for size in SIZES[example].split():
        name, _, number = size.partition("=")
        text, found = re.subn(
            rf"^dim {name} = [^#\n]*(\n    [^#\n]*)*", f"dim {name} = {number}  ", text, flags=re.M
        )
        assert found == 1, (example, name)
    return Model(text, weights_from=(-1, 1))


MESH = "mesh dp = 2, tp = 2\nshard B over dp"
SCAN = f"{MESH}\nshard H, V over tp"

ROWS = "optimizer sgd { tables = adagrad }"

PLANS = {
    "t5_base": [
        f"{MESH}\nshard H, F, V over tp\nshard S, T over tp",
        "mesh dp = 2\nshard B over dp\nzero 3 over dp",
    ],
    "vit_b16": [
        f"{MESH}\nshard H, F, K over tp\nshard P over tp",
        f"{MESH}\nshard H, F over tp\nzero 3 over dp\nrecompute full in Block",
    ],
    "dit_xl2": [
        f"{MESH}\nshard H, F over tp\nshard P over tp",
        "mesh dp = 2\nshard B over dp\nrecompute full",
    ],
    "mamba2_2b7": [
        SCAN,
        f"{SCAN}\nshard S over tp",
        "mesh tp = 2, n = 2\nshard N over n\nshard S over tp",
        f"{SCAN}\nmicrobatch 1\nzero 2 over dp\nrecompute silu, causal_conv",
    ],
    "mamba2_attention_2b7": [f"{MESH}\nshard H, K, V over tp\nshard S over tp"],
    "dlrm_dcnv2": [
        "mesh dp = 4\nshard E over dp\nshard B over dp\nshard Dcn.rows[B] over dp",
        "mesh dp = 2, mp = 2\nshard R over mp\nshard B over dp, mp",
        "mesh dp = 4\nshard E over dp\nshard B over dp\nshard Dcn.rows[B] over dp\n" + ROWS,
        "mesh dp = 2, mp = 2\nshard R over mp\nshard B over dp, mp\n" + ROWS,
    ],
    "mlp": [f"{MESH}\nshard F, G over tp"],
}


CASES = [(name, plan) for name, plans in PLANS.items() for plan in plans]


@pytest.mark.parametrize(
    ("example", "plan"),
    some(CASES, 9),
    ids=[f"{name}-{PLANS[name].index(plan)}" for name, plan in CASES],
)
def test_spread_as_on_one_device(example: str, plan: str) -> None:
    model(example).check(plan if "optimizer" in plan else f"{plan}\noptimizer sgd")


@pytest.mark.seldom
@pytest.mark.parametrize("example", [e for e in SIZES if e != "mamba2_attention_2b7"])
def test_gradients_are_derivatives(example: str) -> None:
    one = model(example)
    # A difference is known to as many digits as the loss.
    noise = 1e-10 * float(abs(one.reference.outputs[0]))
    for path, gradient, difference in one.differences():
        assert gradient == pytest.approx(difference, rel=1e-4, abs=max(noise, 1e-7)), path
