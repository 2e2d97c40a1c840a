"""How many blocks of caches a device has room for."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from stagec.cli import main
from stagec.dialects.memory import Kind
from stagec.driver import compile_text
from stagec.explaining.cache_room import CacheRoom, cache_room
from stagec.explaining.job import NamedJob
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
