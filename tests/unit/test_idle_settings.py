"""A setting that is said to change nothing changes nothing of what is written, needed and timed (W0304)."""

from __future__ import annotations

import random
import re

import pytest

from stagec.diagnostics import CompileError
from stagec.driver import Compiled, compile_text
from stagec.frontend.plans import idle_settings
from stagec.without_effect import NEEDS
from tests.differential.random_plans import draw
from tests.differential.sweeps import whole
from tests.unit.examples import digest

SETTINGS = (
    *(
        "overlap { zero = false }",
        "overlap { tp = true }",
        "overlap { pieces = 8 }",
        "overlap { ep = true }",
    ),
    *("overlap { p2p = false }", "overlap { cp = false }", "overlap { param_gather = true }"),
    *("collectives { reduce = eager }", "collectives { keep = shard }"),
    *("collectives { bias = before }", "gradients { bucket_bytes = 1KiB }"),
    *("gradients { first_bucket_bytes = 1KiB }", "offload { prefetch = 2 }"),
    *("precision { maxima = none }", "precision { loss = fp32 }", "gradients { average = before }"),
    *("precision { gather = fp8 }", "precision { cache = fp8 }", "precision { saved = mxfp8 }"),
    *("shard K over tp { replicate = true }", "optimizer adamw { loss_scale = static }"),
    *("precision { weight_gradients = bf16 }", "precision { product_weights = fp8 }"),
    *("optimizer adamw { tables = adam }", "device { exchange_units = 8 }"),
    *("device { captured = [Block] }", "gradients { inputs = true }"),
    *("overlap { bulk = false }", "gradients { late = [Block] overlap = false }"),
)


WITHOUT = {
    "shard K over tp { replicate = true }": "shard K over tp",
    "optimizer adamw { loss_scale = static }": "optimizer adamw",
    "optimizer adamw { tables = adam }": "optimizer adamw",
    "gradients { late = [Block] overlap = false }": "gradients { overlap = false }",
}
"""The same clause without the setting, where the clause is not one of settings alone."""


def compiled(text: str) -> Compiled | None:
    try:
        return compile_text(text, plan="q")
    except CompileError:
        return None


def is_said_to_change_nothing(made: Compiled) -> bool:
    return any(each.code == "W0304" for each in (*made.checked.warnings, *made.idle))


def wrong(seed: int) -> tuple[list[str], int]:
    """Settings that change something, though it is said that they do not; and of how many it was said."""
    text = draw(random.Random(seed), "device h100 { nvme_bytes_per_s = 5GB }").text
    if (base := compiled(f"{text}\nplan q extends p {{ }}")) is None:
        return [], 0
    bases = {"": base}
    found, told = [], 0
    for setting in SETTINGS:
        made = compiled(f"{text}\nplan q extends p {{ {setting} }}")
        if made is not None and is_said_to_change_nothing(made):
            told += 1
            clause = WITHOUT.get(setting, "")
            plain = bases.get(clause) or compiled(f"{text}\nplan q extends p {{ {clause} }}")
            assert plain is not None, setting
            if (digest(made), whole(made)) != (digest(plain), whole(plain)):
                found.append(f"{text}\n{setting}")
    return found, told


@pytest.mark.seldom
@pytest.mark.parametrize("seed", [7, 10])
def test_what_is_said_to_change_nothing_does_not(seed: int):
    found, _ = wrong(seed)
    assert not found, "\n".join(found)


def test_all_of_them_are_tried():
    """But for five of `zero` and `precision`, whose plans are another matter: they need a level, or modules of the text."""
    tried = {re.findall(r"(\w+)[^{]*{ (\w+)", setting)[0] for setting in SETTINGS}
    known = {(need.clause, need.setting) for need in NEEDS}
    known |= {(need.clause, name) for need in idle_settings.NEEDS for name in need.settings}
    assert known - tried == {
        ("zero", "reshard"),
        ("zero", "reshard_over"),
        ("zero", "prefetch"),
        ("zero", "persist"),
        ("precision", "unquantized"),
    }


CONVERTS = """
dim B = 8
dim V = 48
dim D = 24
model M(x[B, D], targets[B]: i32) {{
  weight head[D, V]
  loss = cross_entropy({logits}, targets)
}}
plan q {{
  mesh dp = {ways}, tp = 2
  shard B over dp
  shard V over tp
  microbatch 1
  zero 3 over dp
  precision {{ weights = bf16, activations = bf16, loss = fp32 }}
  {clause}
}}
"""


@pytest.mark.parametrize(
    ("logits", "clause", "ways", "said"),
    [
        ("x @ head", "", 2, []),
        ("cast(x @ head, dtype = fp32)", "", 2, ["loss"]),
        ("x @ head", "gradients { average = before }", 1, ["average"]),
    ],
)
def test_each_is_told_once(logits: str, clause: str, ways: int, said: list[str]):
    """Also what both the plan and its program say, and what the model's text does by itself."""
    made = compile_text(CONVERTS.format(logits=logits, clause=clause, ways=ways))
    warnings = [each for each in (*made.checked.warnings, *made.idle) if each.code == "W0304"]
    assert [each.message.split("`")[1] for each in warnings] == said
