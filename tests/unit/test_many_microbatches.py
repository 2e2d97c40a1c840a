"""What few microbatches say of many is what a compilation of all of them says."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from stagec.advice import warnings
from stagec.cli import main
from stagec.driver import Compiled, compile_text
from stagec.estimate import timeline_of
from stagec.reports import many_microbatches
from stagec.reports.headline import headline
from stagec.reports.many_microbatches import Brief, ManyMicrobatches, brief
from stagec.summary import summarize
from tests.attack.models import MODELS
from tests.unit.seldom import some

DEVICE = (
    "device { flops_per_s = 1e12 memory_bytes_per_s = 1e11 link_bytes_per_s = 1e10 memory = 1TB }"
)
MEASURED = "set S = 2048, D = 2048, F = 8192, V = 8192 device h100 { kernels = fused }"
"""Sums of gradients are set to zero once a step, and layers are large enough that no launch is waited for."""
SCHEDULES = {"1f1b": 1, "dualpipe_v": 2, "": 1}
"""Virtual stages under each; without a pipeline there is one."""


def random_plan(draw: random.Random, name: str, ranks: int, number: int) -> str:
    pipeline = f"schedule = {name}, virtual_stages = {SCHEDULES[name]}, microbatch = 1"
    lines = [
        f"set L = {ranks * SCHEDULES[name] * draw.choice((1, 2))}, B = {2 * number}",
        f"mesh pp = {ranks}, dp = 2" if name else "mesh dp = 2, tp = 2",
        "shard B over dp",
        f"pipeline L over pp {{ {pipeline} }}" if name else "microbatch 1 shard F, V over tp",
        DEVICE,
    ]
    if draw.random() < 0.5:
        lines.append(f"zero {draw.choice((1, 2, 3))} over dp")
    if draw.random() < 0.3:
        lines.append("recompute full")
    return MODELS["tied"] + "\nplan p {\n" + "".join(f"  {each}\n" for each in lines) + "}\n"


def of_few(text: str, whole: Compiled, ranks: int, number: int) -> Brief | None:
    many = ManyMicrobatches(whole.plan, number, ranks, "B", 2 * number)
    return brief(many, lambda dim, size: compile_text(text, "m.stg", "p", {dim: str(size)}))


@pytest.mark.parametrize(
    ("name", "seed", "device"),
    some(
        [("1f1b", 0, DEVICE), ("dualpipe_v", 1, DEVICE), ("", 2, DEVICE), ("1f1b", 0, MEASURED)], 4
    ),
)
def test_few_tell_of_many(name: str, seed: int, device: str) -> None:
    ranks, number = 2 if name else 1, 50
    text = random_plan(random.Random(seed), name, ranks, number).replace(DEVICE, device)
    whole = compile_text(text, "m.stg", "p")
    found = of_few(text, whole, ranks, number)
    assert found is not None
    assert found.summary == summarize(whole.module, whole.counts, "p")
    expected = headline(whole)
    for key in (
        "rank_class",
        "peak_bytes",
        "timed_bytes",
        "kinds",
        "tokens",
        "samples",
        "reduction",
        "device",
    ):
        assert getattr(found.headline, key) == getattr(expected, key), key
    assert found.headline.step_us == pytest.approx(expected.step_us, rel=1e-9)
    assert found.headline.mfu == pytest.approx(expected.mfu, rel=1e-9)
    for name in {*found.headline.shares, *expected.shares}:
        shares = (each.shares.get(name, 0) for each in (found.headline, expected))
        assert next(shares) == pytest.approx(next(shares), abs=1e-9), name
    assert list(found.warnings) == warnings(whole, timeline_of(whole))


@pytest.mark.parametrize("schedule", some(["1f1b", "gpipe"], 2))
def test_the_command_says_the_same(
    schedule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Under `gpipe` memory grows with the number of microbatches, and the whole step is compiled."""
    plan = f"""
plan p {{
  set B = 64
  mesh pp = 2
  pipeline L over pp {{ schedule = {schedule}, microbatch = 1 }}
  {DEVICE.replace(" memory = 1TB", "")}
}}
"""
    path = tmp_path / "m.stg"
    path.write_text(MODELS["matrices"] + plan)
    assert main([str(path)]) == 0
    whole = capsys.readouterr()
    monkeypatch.setattr(many_microbatches, "MOST_OPS", 16)
    assert main([str(path)]) == 0
    assert capsys.readouterr() == whole
    assert main([str(path), "-q", "--timeline"]) == 0
    note = "of 64 microbatches: what lies between repeats"
    assert (note in capsys.readouterr().out) == (schedule == "1f1b")
