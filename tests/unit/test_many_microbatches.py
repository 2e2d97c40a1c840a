"""What few microbatches say of many is what a compilation of all of them says."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from stagec.advice import warnings
from stagec.cli import main
from stagec.driver import Compiled, compile_text
from stagec.estimate import many_microbatches
from stagec.estimate.many_microbatches import ManyMicrobatches
from stagec.estimate.memory import timed_peaks
from stagec.estimate.step import estimate_if_known
from stagec.explaining.job import NamedJob
from stagec.reports.headline import headline
from stagec.reports.many_microbatches import Brief, brief
from stagec.searching import whole_plans
from stagec.searching.evaluation import NAME
from stagec.searching.whole_plans import WholePlan, compile_plan, compiled_whole
from stagec.summary import summarize
from tests.attack.models import MODELS

DEVICE = (
    "device { flops_per_s = 1e12 memory_bytes_per_s = 1e11 link_bytes_per_s = 1e10 memory = 1TB }"
)
MEASURED = "set S = 2048, D = 2048, F = 8192, V = 8192 device h100 { kernels = fused }"
"""Sums of gradients are set to zero once a step, and layers are large enough that no launch is waited for."""
SCHEDULES = {
    "": 1,
    "1f1b": 1,
    "interleaved_1f1b": 2,
    "overlapped_1f1b": 2,
    "zb_h1": 1,
    "dualpipe_v": 2,
    "dualpipe": 2,
}
"""Virtual stages under each; without a pipeline there is one."""
NUMBER = 50
"""Microbatches of a step."""


def random_plan(draw: random.Random, name: str, device: str, model: str) -> str:
    pipeline = f"schedule = {name}, virtual_stages = {SCHEDULES[name]}, microbatch = 1"
    lines = [
        f"set L = {4 * draw.choice((1, 2))}, B = {2 * NUMBER}",
        "mesh pp = 2, dp = 2" if name else "mesh dp = 2, tp = 2",
        "shard B over dp",
        f"pipeline L over pp {{ {pipeline} }}" if name else "microbatch 1 shard F, V over tp",
        device,
    ]
    if model == "experts":
        lines.append("shard X over dp")
    if draw.random() < 0.5:
        lines.append(f"zero {draw.choice((1, 2, 3))} over dp")
    if draw.random() < 0.3:
        lines.append("recompute full")
    return MODELS[model] + "\nplan p {\n" + "".join(f"  {each}\n" for each in lines) + "}\n"


def of_few(text: str, whole: Compiled) -> Brief | None:
    pipeline = whole.plan.pipeline
    ranks = 2 if pipeline is not None else 1
    many = ManyMicrobatches(whole.plan, NUMBER, ranks, "B", 2 * NUMBER)
    return brief(many, lambda dim, size: compile_text(text, "m.stg", "p", {dim: str(size)}))


@pytest.mark.seldom
@pytest.mark.parametrize(
    ("name", "seed", "device", "model"),
    [
        *((name, seed, DEVICE, "tied") for seed, name in enumerate(SCHEDULES)),
        ("1f1b", 0, DEVICE, "tied"),
        ("1f1b", 0, MEASURED, "tied"),
        *((name, seed, MEASURED, "experts") for seed, name in enumerate(("", "zb_h1"))),
        *(("", seed, MEASURED.replace("h100", "h800"), "experts") for seed in range(10, 12)),
    ],
)
def test_few_tell_of_many(name: str, seed: int, device: str, model: str) -> None:
    text = random_plan(random.Random(seed), name, device, model)
    whole = compile_text(text, "m.stg", "p")
    estimated = estimate_if_known(whole)
    found = of_few(text, whole)
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
    assert list(found.warnings) == warnings(whole, estimated)
    asked = NamedJob(whole).memory
    for few, short, own in zip(found.steps.memory, asked, whole.memory, strict=True):
        for each in (few, short):
            assert (each.peak_bytes, str(each.peak)) == (own.peak_bytes, str(own.peak))
            assert each.at_peak() == own.at_peak()
            assert each.host_bytes == own.host_bytes
            assert each.lives.num_nodes < own.lives.num_nodes / 2
    for few, own in zip(found.timed, timed_peaks(estimated), strict=True):
        assert (few.num_bytes, str(few.at)) == (own.num_bytes, str(own.at))
        assert few.time_us == pytest.approx(own.time_us, rel=1e-9)


@pytest.mark.parametrize(("model", "period"), [("matrices", 3), ("words", 4)])
@pytest.mark.seldom
def test_stages_that_are_alike_repeat_themselves_after_several_microbatches(
    model: str, period: int
) -> None:
    """The first stage of `matrices` has no gradient of its input, and so less to do."""
    layers = "set L = 8, V = 2, B = 50" if model == "words" else "set L = 8, B = 50"
    plan = f"mesh pp = 4 pipeline L over pp {{ schedule = 1f1b, microbatch = 1 }} {DEVICE}"
    text = f"{MODELS[model]}\nplan p {{ {layers} {plan} }}\n"
    whole = compile_text(text, "m.stg", "p")
    many = ManyMicrobatches(whole.plan, NUMBER, 4, "B", NUMBER)
    found = brief(many, lambda dim, size: compile_text(text, "m.stg", "p", {dim: str(size)}))
    assert found is not None
    assert found.steps.num_more - found.steps.num_few == period
    expected = headline(whole)
    assert found.headline.step_us == pytest.approx(expected.step_us, rel=1e-9)
    assert found.headline.timed_bytes == expected.timed_bytes


@pytest.mark.seldom
@pytest.mark.parametrize(
    ("name", "model", "device"),
    [("", "tied", DEVICE), ("1f1b", "tied", MEASURED), ("", "experts", MEASURED)],
)
def test_a_search_proves_by_few(
    name: str, model: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = random_plan(random.Random(0), name, device, model).replace("plan p", f"plan {NAME}")
    asked = WholePlan("m.stg", text, 7, wants_twice=True)
    monkeypatch.setattr(whole_plans, "MOST_OPS", 2**30)
    whole = compiled_whole(asked)
    monkeypatch.setattr(whole_plans, "MOST_OPS", 16)
    compiled: list[object] = []

    def counted(*given: object) -> object:
        compiled.append(given)
        return compile_plan(*given)  # pyright: ignore

    monkeypatch.setattr(whole_plans, "compile_plan", counted)
    few = compiled_whole(asked)
    assert len(compiled) == 3, "until the microbatches are counted, and two of few"
    assert (few.number, few.peak_bytes, few.error) == (7, whole.peak_bytes, "")
    assert few.step_time == pytest.approx(whole.step_time, rel=1e-9)
    assert few.parts == pytest.approx(whole.parts, rel=1e-6, abs=1e-9)
    assert few.with_twice == pytest.approx(whole.with_twice, rel=1e-9)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.seldom
def test_the_command_says_the_same(
    schedule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Under `gpipe` memory grows with the number of microbatches, and the whole step is compiled."""
    plan = f"""
plan p {{
  set B = 24
  mesh pp = 2
  pipeline L over pp {{ schedule = {schedule}, microbatch = 1 }}
  {DEVICE.replace(" memory = 1TB", "")}
}}
"""
    path = tmp_path / "m.stg"
    path.write_text(MODELS["matrices"] + plan)

    def told(*flags: str) -> tuple[int, str, str]:
        status, said = main([str(path), *flags]), capsys.readouterr()
        return status, said.out, said.err

    def before_it_is_drawn(said: tuple[int, str, str]) -> tuple[int, str, str]:
        return (
            said[0],
            said[1].partition("\ndrawn with")[0].partition("\none step, from")[0],
            said[2],
        )

    limit = "h100 { memory = 20KiB }"
    whole = [told(), told("--memory"), told("--memory", "--device", limit)]
    assert [status for status, _, _ in whole] == [0, 0, 1]
    monkeypatch.setattr(many_microbatches, "MOST_OPS", 16)
    few = [told(), told("--memory"), told("--memory", "--device", limit)]
    assert few[0] == whole[0]
    assert before_it_is_drawn(few[1]) == before_it_is_drawn(whole[1])
    assert few[2] == whole[2]
    note = "of 24 microbatches: what lies between repeats"
    assert (note in few[1][1]) == (schedule == "1f1b")
    assert (note in told("-q", "--timeline")[1]) == (schedule == "1f1b")
