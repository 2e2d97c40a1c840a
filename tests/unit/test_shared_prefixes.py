"""What is set aside for sequences that share what they begin with, against a table of blocks that is written out."""

from __future__ import annotations

import random

import pytest

from stagec.frontend import check, parse_text

MODEL = """
dim B = 8
dim S = 64
dim T = S
dim W = S
dim D = 64
model Net(x[B, S, D]) {
  cache k[B, T, D], near[B, W, D]
  a = append(k, x)
  b[B, W, D] = append(near, x, window = 48)
  return a, b
}
"""

Entry = tuple[int, int, int, int]
"""Sequences of a device, new positions, those before, and how many of these are shared (0: none)."""


def blocks(entries: list[Entry], block: int, window: int | None) -> int:
    """Positions that a device sets aside: for each sequence a table of blocks, of which those in the prefix have one number for all of an entry."""
    found: set[tuple[int, ...]] = set()
    for which, (count, new, before, shared) in enumerate(entries):
        for each in range(count):
            total = before + new
            seen = total if window is None else min(total, window)
            in_prefix = max(0, shared - (total - seen))
            for number in range(-(-seen // block)):
                is_shared = (number + 1) * block <= in_prefix
                found.add((which, number) if is_shared else (which, number, each))
    return block * len(found)


@pytest.mark.parametrize("seed", range(20))
def test_a_prefix_is_stored_once_on_a_device(seed: int) -> None:
    rng = random.Random(seed)
    devices, block = rng.choice([1, 2, 4]), rng.choice([1, 4, 16])
    entries: list[Entry] = []
    words: list[str] = []
    for _ in range(rng.randint(1, 3)):
        count, new, before = rng.randint(1, 5), rng.randint(1, 40), rng.randint(1, 200)
        shared = rng.choice([0, rng.randint(1, before)])
        entries.append((count, new, before, shared))
        sharing = f" sharing {shared}" if shared else ""
        words.append(f"decode {count * devices} x {new} at {before}{sharing}")
    plan = f"plan p {{\nmesh dp = {devices}\nshard B over dp\nserve {{ {', '.join(words)}, block = {block} }}\n}}"
    batch = check(parse_text(MODEL + plan)).batch
    assert batch is not None
    rows = batch.rows.value / devices
    for dim, window in (("T", None), ("W", 48)):
        assert batch.sizes[f"{dim}.stored"].value * rows == blocks(entries, block, window), plan


def test_a_dim_says_how_many_sequences_share() -> None:
    """Devices have one row then, and `B` of the clause is the number of the text all the same."""
    said = (
        "plan p { mesh dp = 2 shard B over dp SET serve { decode N at 50 sharing 32, block = 16 } }"
    )
    plans = (
        said.replace("SET", "set B = 12").replace("N", "B"),
        said.replace("SET", "").replace("N", "12"),
    )
    named, counted = (check(parse_text(MODEL + plan)).batch for plan in plans)
    assert named is not None and counted is not None
    assert named.sizes["T.stored"].value == counted.sizes["T.stored"].value == 32 + 6 * 32
