"""`stagec/importing/layers.py`: layers in a row as nested repeats."""

from __future__ import annotations

import random
from itertools import groupby

import pytest

from stagec.importing.layers import Parts, calls, rolled


def cost(parts: Parts) -> int:
    return sum(1 if isinstance(part, str) else 1 + cost(part.parts) for part in parts)


def least(names: str) -> int:
    """Of all ways to write a row: cut anywhere, or repeated."""
    known: dict[str, int] = {"": 0}

    def of(row: str) -> int:
        if row not in known:
            ways = [1] if len(row) == 1 else [of(row[:n]) + of(row[n:]) for n in range(1, len(row))]
            for period in range(1, len(row) // 2 + 1):
                if row == row[:period] * (len(row) // period):
                    ways.append(1 + of(row[:period]))
            known[row] = min(ways)
        return known[row]

    return of(names)


@pytest.mark.parametrize("seed", range(12))
def test_no_text_is_shorter(seed: int) -> None:
    rng = random.Random(seed)
    row = "".join(rng.choice("ab") for _ in range(rng.randrange(1, 7))) * rng.randrange(1, 4)
    parts = rolled(list(row))
    assert cost(parts) == least(row), row
    assert "".join(name for _, name in in_order(parts)) == row


def test_a_thousand_mixed_layers() -> None:
    rng = random.Random(1)
    row = [rng.choice("abc") for _ in range(1000)]
    parts = rolled(row)
    assert [name for _, name in in_order(parts)] == row
    runs = [len(list(run)) for _, run in groupby(row)]
    assert cost(parts) < sum(min(run, 2) for run in runs)


def in_order(parts: Parts) -> list[tuple[int, str]]:
    return sorted((place, name) for name, places in calls(parts) for place in places)
