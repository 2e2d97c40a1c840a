"""How many blocks of caches a device has room for."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from stagec.cli import main
from stagec.diagnostics import CompileError
from stagec.dialects.memory import Kind
from stagec.driver import compile_text
from stagec.explaining.cache_room import CacheRoom, cache_room
from stagec.explaining.job import NamedJob
from stagec.explaining.questions import ask
from tests.unit.seldom import some
from tests.unit.test_serving import text


def room(source: str) -> tuple[NamedJob, CacheRoom | None]:
    job = NamedJob(compile_text(source))
    return job, cache_room(job)


@pytest.mark.parametrize("seed", some(range(4), 4))
def test_what_fits_is_planned_to_fit(seed: int) -> None:
    """A plan that decodes as many positions as there is room for needs no more than the device has; with a block more for each sequence it does."""
    rng = random.Random(seed)
    block, sequences = rng.choice([1, 16, 64]), 2 * rng.randint(1, 3)
    memory = rng.randint(3_000_000, 9_000_000)

    def source(blocks: int) -> str:
        held = f"decode {sequences} at {blocks * block - 1}, block = {block}"
        return f"{text()}\nplan p {{ mesh tp = 2 shard H, K, F, V over tp serve {{ {held} }} device h100 {{ memory = {memory} }} }}"

    job, found = room(source(1))
    assert found is not None
    each = found.blocks // sequences
    job, found = room(source(each))
    assert found is not None
    used = max(plan.static.num_bytes[Kind.CACHE] for plan in job.memory)
    assert used == each * sequences * found.block_bytes
    assert found.blocks // sequences == each


def test_bytes_of_a_position_are_swept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What each plan keeps for a position is what it is asked alone."""
    file = tmp_path / "m.stg"
    held = "serve { decode 2 at 15 }"
    file.write_text(f"{text()}\nplan p {{ mesh tp = 2 shard H, K over tp {held} }}")
    assert main(["explain", str(file), "kv", "--sweep", "tp=1,2", "--format", "json"]) == 0
    swept = {row["tp"]: row["kv"] for row in json.loads(capsys.readouterr().out)["rows"]}
    for tp, found in swept.items():
        assert main(["explain", str(file), "kv", "--set", f"tp={tp}"]) == 0
        assert f"= {found:,} B" in capsys.readouterr().out
    assert swept[1] == 2 * swept[2] > 0


def test_without_a_device_nobody_knows() -> None:
    assert (
        room(f"{text()}\nplan p {{ mesh tp = 2 shard H over tp serve {{ decode 2 at 15 }} }}")[1]
        is None
    )


def whole(source: str) -> int:
    """What the caches of a model keep for each position, whatever its plan splits."""
    found = ask(NamedJob(compile_text(source)), "kv").whole
    assert found is not None
    return found.number


SPLITS = (
    *(
        f"mesh cp = {ways} shard S over cp context cp {{ method = {method} }}"
        for ways in (2, 4)
        for method in ("ring", "all_gather", "all_gather, balance = none", "ulysses")
    ),
    *("mesh cp = 2, tp = 2 shard H, K over tp shard S over cp, tp context cp", "mesh dp = 1"),
    "mesh dp = 2, tp = 2 shard B over dp shard H, K, F, V over tp shard S over tp zero 3 over dp",
)


@pytest.mark.parametrize("plan", some(SPLITS, 4))
def test_caches_of_a_plan_that_trains_are_those_that_serve(plan: str) -> None:
    """However it splits sequences: what would be kept for each position is what a plan keeps that serves."""
    kept = whole(f"{text()}\nplan p {{ mesh tp = 1 serve {{ decode 2 at 15 }} }}")
    assert whole(f"{text()}\nplan p {{ {plan} }}") == kept > 0


def test_caches_are_known_whatever_the_loss() -> None:
    """Also of a model that says no logits, which nobody serves as it is written."""
    plans = ("mesh dp = 1", "mesh dp = 2 shard B over dp")
    entropy = re.compile(r"loss = .*")
    assert entropy.search(text())
    other = entropy.sub("loss = mean(square(x), over = [B, S, D])", text())
    for plan in plans:
        assert whole(f"{other}\nplan p {{ {plan} }}") == whole(f"{text()}\nplan p {{ {plan} }}")
    with pytest.raises(CompileError, match="not a cross-entropy"):
        compile_text(f"{other}\nplan p {{ mesh dp = 1 serve {{ decode 2 at 15 }} }}")


@pytest.mark.seldom
def test_a_sweep_of_a_shipped_plan_with_a_context_has_its_caches(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("llama3_405b", "kv", "--plan", "h100_16k_long", "--sweep", "B=128")
    small = [f"--set={each}" for each in ("S=1024", "D=512", "F=1024", "V=1024", "H=64")]
    assert main(["explain", *words, *small, "--format", "json"]) == 0
    assert [row["kv"] for row in json.loads(capsys.readouterr().out)["rows"]] == [0]
