"""Offsets of buffers: for any lifetimes, and for those of a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagec.driver import compile_model
from stagec.memory.arena import Arena, assign_offsets
from stagec.memory.lifetimes import Lifetimes

EXAMPLES = Path(__file__).parents[3] / "examples"

buffer = st.tuples(st.integers(0, 20), st.integers(0, 12), st.integers(1, 40))


def lifetimes_of(buffers: list[tuple[int, int, int]]) -> Lifetimes:
    birth, length, size = (np.array(column, np.int64) for column in zip(*buffers, strict=True))
    none = np.zeros(len(buffers), np.int64)
    return Lifetimes(birth, birth + length, size, none, none, none, none, num_nodes=40)


def assert_apart(lives: Lifetimes, arena: Arena) -> None:
    """No two buffers that are alive together share a byte."""
    start, end = arena.offset, arena.offset + lives.num_bytes
    for i in range(len(lives)):
        together = (lives.birth <= lives.death[i]) & (lives.birth[i] <= lives.death)
        shared = (start < end[i]) & (start[i] < end)
        assert np.flatnonzero(together & shared).tolist() == [i]


@given(st.lists(buffer, min_size=1, max_size=30))
def test_offsets_never_overlap_while_alive(buffers: list[tuple[int, int, int]]) -> None:
    lives = lifetimes_of(buffers)
    arena = assign_offsets(lives)
    assert_apart(lives, arena)
    alive = [
        sum(size for birth, length, size in buffers if birth <= node <= birth + length)
        for node in range(40)
    ]
    assert arena.live_peak_bytes == max(alive)
    assert arena.fragmentation_bytes >= 0
    if arena.fragmentation_bytes == 0:
        assert arena.num_bytes == max(alive)


def test_the_tightest_gap_is_taken() -> None:
    # The first three leave gaps of 4 and 2 behind; the last two fill them.
    lives = lifetimes_of([(0, 9, 10), (0, 1, 4), (0, 9, 8), (0, 1, 2), (3, 1, 2), (3, 1, 4)])
    arena = assign_offsets(lives)
    assert (arena.num_bytes, arena.fragmentation_bytes) == (24, 0)


@pytest.mark.parametrize(
    ("example", "plan_name", "share"),
    # Under FSDP few large buffers of different sizes follow each other: gathered units, copies of gradients.
    [("gpt", "dp4_tp8", 0.01), ("llama3_8b", "fsdp64", 0.15)],
)
def test_an_example_hardly_fragments(example: str, plan_name: str, share: float) -> None:
    (plan,) = compile_model(EXAMPLES / f"{example}.stg", plan_name, {"L": "4"}).memory
    arena = assign_offsets(plan.lives)
    assert_apart(plan.lives, arena)
    assert arena.live_peak_bytes == plan.peak_bytes - plan.always_bytes
    assert arena.fragmentation_bytes < share * arena.live_peak_bytes
