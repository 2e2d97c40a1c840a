"""How many blocks of caches a device has room for."""

from __future__ import annotations

import random

import pytest

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


def test_without_a_device_nobody_knows() -> None:
    assert (
        room(f"{text()}\nplan p {{ mesh tp = 2 shard H over tp serve {{ decode 2 at 15 }} }}")[1]
        is None
    )
