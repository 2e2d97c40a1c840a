"""What a series of iterations is made of: iterations of which each stands for all that are like it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, eq=False)
class Bodies:
    """The iterations of a program, one behind the other: each stands for all that run the same, and wait for one that runs the same."""

    ends: np.ndarray
    """int64 [bodies]: where the instances of each end."""
    order: np.ndarray
    """int64 [iterations]: which one each iteration is."""
    tags: int
    """The number of tags that the transfers of an iteration have."""
    handed: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """int64 [n, iterations]: of pools, which handover of the job each one of an iteration is: its messages have the tags of that."""

    def of_instances(self) -> np.ndarray:
        """The body of each instance."""
        return np.repeat(np.arange(len(self.ends)), np.diff(self.ends, prepend=0))

    def total(self, firsts: np.ndarray) -> int:
        """What instances have together in all iterations, from where each begins, and where the last ends."""
        each = np.diff(firsts[self.ends], prepend=0)
        return int(each[self.order].sum())
