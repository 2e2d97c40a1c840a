"""A timeline as few points as one can see, none of its peaks lost."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from stagec.arrays import Ints


def sample(total_bytes: Ints, most: int) -> Ints:
    """Positions, ascending, at most `most`: the highest of each of as many equal spans."""
    count = len(total_bytes)
    if count <= most:
        return np.arange(count)
    edges = np.linspace(0, count, most + 1).astype(np.int64)
    return np.array([a + int(np.argmax(total_bytes[a:b])) for a, b in pairwise(edges.tolist())])
