"""Offsets of buffers: for any lives, for random plans, and as the IR has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from stagec.arrays import Ints
from stagec.driver import Stops, compile_ir, compile_model, compile_text
from stagec.ir_text import print_ir
from stagec.memory import ClassPlan, arena
from stagec.memory.arena import Arena, assign_offsets, side_by_side, slots
from tests.resuming.texts import random_text
from tests.unit.seldom import some

EXAMPLES = Path(__file__).parents[3] / "examples"

buffer = st.tuples(st.integers(0, 20), st.integers(0, 12), st.integers(1, 40))
Buffers = list[tuple[int, int, int]]


def columns(buffers: Buffers) -> tuple[Ints, Ints, Ints]:
    birth, length, size = (np.array(column, np.int64) for column in zip(*buffers, strict=True))
    return birth, birth + length, size


def assert_apart(birth: Ints, death: Ints, start: Ints, size: Ints) -> None:
    """No two buffers that are alive together share a byte."""
    end = start + size
    for i in range(len(birth)):
        together = (birth <= death[i]) & (birth[i] <= death)
        shared = (start < end[i]) & (start[i] < end)
        assert np.flatnonzero(together & shared).tolist() == [i]


def assert_placed(plan: ClassPlan, found: Arena) -> None:
    lives = plan.lives
    assert_apart(lives.birth, lives.death, found.offset, lives.num_bytes)
    assert found.num_bytes == (found.offset + lives.num_bytes).max()
    assert found.live_peak_bytes == plan.peak_bytes - plan.always_bytes


@given(st.lists(buffer, min_size=1, max_size=30))
def test_offsets_never_overlap_while_alive(buffers: Buffers) -> None:
    birth, death, size = columns(buffers)
    assert_apart(birth, death, side_by_side(birth, death, size), size)


@given(st.lists(buffer, min_size=1, max_size=30))
def test_a_slot_is_one_microbatchs_at_a_time(buffers: Buffers) -> None:
    birth, death, _ = columns(buffers)
    found = slots(birth, death)
    assert_apart(birth, death, found, np.ones(len(birth), np.int64))
    alive = [int(((birth <= node) & (node <= death)).sum()) for node in range(40)]
    assert found.max() + 1 == max(alive)


def test_the_tightest_gap_is_taken() -> None:
    # The first three leave gaps of 4 and 2 behind; the last two fill them.
    buffers = [(0, 9, 10), (0, 1, 4), (0, 9, 8), (0, 1, 2), (3, 1, 2), (3, 1, 4)]
    birth, death, size = columns(buffers)
    assert (side_by_side(birth, death, size) + size).max() == 24


@pytest.mark.parametrize("seed", some(range(4), 2))
def test_random_plans_are_placed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a frame for each microbatch, and with slots."""
    plans = compile_text(random_text(seed), "net.stg").memory
    for most in (arena.MOST_PLACED, 0):
        monkeypatch.setattr(arena, "MOST_PLACED", most)
        for plan in plans:
            assert_placed(plan, assign_offsets(plan.lives, plan.arrangement))


def test_the_last_ir_has_the_offsets() -> None:
    """What is printed and read again says the same, whatever else is on the way."""
    text = random_text(1)
    placed = compile_text(text, "net.stg", stops=Stops(places_buffers=True))
    again = compile_ir(print_ir(placed.module), "net.mlir", stops=Stops(places_buffers=True))
    assert placed.arenas.keys() == {plan.name for plan in placed.memory}
    for plan in placed.memory:
        own, read = placed.arenas[plan.name], again.arenas[plan.name]
        assert np.array_equal(own.offset, read.offset)
        assert (own.num_bytes, own.live_peak_bytes) == (read.num_bytes, read.live_peak_bytes)
        assert_placed(plan, read)


@pytest.mark.parametrize(
    ("example", "plan_name", "share"),
    # Under FSDP few large buffers of different sizes follow each other: gathered units, copies of gradients.
    [("gpt", "dp4_tp8", 0.1), ("llama3_8b", "fsdp64", 0.15)],
)
def test_an_example_hardly_fragments(example: str, plan_name: str, share: float) -> None:
    (plan,) = compile_model(EXAMPLES / f"{example}.stg", plan_name, {"L": "4"}).memory
    found = assign_offsets(plan.lives, plan.arrangement)
    assert_placed(plan, found)
    assert found.fragmentation_bytes < share * found.live_peak_bytes
