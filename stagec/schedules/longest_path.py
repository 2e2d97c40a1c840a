"""When each action can happen at the earliest, given what it follows.

Every action follows the one before it on its rank, and at most one on another: the forward of the
stage before, the backward of the stage after. So each rank is a chain, chains are joined by edges, and one walk finds the
longest path to every action in time linear in the actions.
"""

import numpy as np

from stagec.arrays import Ints


class Stuck(Exception):
    """Some ranks wait for each other. `heads` maps each of them to the action it waits at."""

    def __init__(self, heads: dict[int, int]) -> None:
        super().__init__(heads)
        self.heads = heads


def longest_path(
    starts: Ints, after: Ints, step: np.ndarray, lag: np.ndarray, origin: float = 0
) -> np.ndarray:
    """x[i] = max(x[i - 1] + step[i], x[after[i]] + lag[i]), where i - 1 is on the same rank.

    `after[i]` is -1 for an action that follows no other rank's. Each rank starts from `origin`.
    Raises `Stuck` when the edges have a cycle.
    """
    num_ranks = len(starts) - 1
    dtype = np.result_type(step, lag)
    begins, ends = starts[:-1].tolist(), starts[1:].tolist()
    afters, steps, lags = after.tolist(), step.tolist(), lag.tolist()
    times: list[float | None] = [None] * len(afters)
    waiters: dict[int, list[int]] = {}
    """The ranks that wait for an action: two may wait for the end of an overlapped pair."""
    position, clock = list(begins), [origin] * num_ranks
    ready = list(range(num_ranks))[::-1]
    while ready:
        rank = ready.pop()
        time, end = clock[rank], ends[rank]
        i = position[rank]
        while i < end:
            other = afters[i]
            if other < 0:
                time += steps[i]
            else:
                arrival = times[other]
                if arrival is None:
                    waiters.setdefault(other, []).append(rank)
                    break
                time = max(time + steps[i], arrival + lags[i])
            times[i] = time
            if i in waiters:
                ready += waiters.pop(i)
            i += 1
        position[rank], clock[rank] = i, time
    heads = {r: i for r, i in enumerate(position) if i < ends[r]}
    if heads:
        raise Stuck(heads)
    return np.array(times, dtype=dtype)
