"""Whole numbers for shares, that add up: the largest remainder (Hamilton's method)."""

from __future__ import annotations

from collections.abc import Sequence


def apportion(weights: Sequence[int], total: int, most: int) -> list[int]:
    """`total` tokens by weight, none more than `most`: whole numbers that add up to `total`."""
    assert total <= most * len(weights), (total, most, len(weights))
    if not any(weights):
        weights = [1] * len(weights)
    full: set[int] = set()
    while True:
        rest = total - most * len(full)
        free = [i for i in range(len(weights)) if i not in full]
        whole = sum(weights[i] for i in free)
        if not whole:
            # Nobody else wants any: evenly.
            weights = [w if i in full else 1 for i, w in enumerate(weights)]
            continue
        over = {i for i in free if weights[i] * rest > most * whole}
        if not over:
            break
        full |= over
    counts = [most if i in full else weights[i] * rest // whole for i in range(len(weights))]
    left = total - sum(counts)
    remainders = sorted(free, key=lambda i: (-(weights[i] * rest % whole), i))
    for i in remainders[:left]:
        counts[i] += 1
    return counts
