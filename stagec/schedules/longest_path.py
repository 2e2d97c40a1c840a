"""When each action can happen at the earliest, given what it follows.

Every action follows the one before it on its rank, and at most one on another: the forward of the
stage before, the backward of the stage after. So each rank is a chain, and chains are joined by edges. All ranks go on together,
an action a round: whoever finds that what its action follows has happened.
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
    size, begins, ends = len(after), starts[:-1], starts[1:]
    follows = after >= 0
    # An action that follows no other rank's follows the end of the arrays, which comes before all.
    other = np.append(np.where(follows, after, size), size)
    rank_of = np.append(np.repeat(np.arange(len(begins)), ends - begins), len(begins))
    of = rank_of[other]
    step, lag = np.append(step, 0), np.append(lag, 0)
    never = -np.inf if lag.dtype.kind == "f" else np.iinfo(lag.dtype).min // 2
    times = np.full(size + 1, never, np.result_type(step, lag))
    position = np.append(begins, size + 1)
    clock = np.full(len(begins), origin, times.dtype)
    while True:
        here = position[:-1]
        what = other.take(here)
        going = np.flatnonzero((position.take(of.take(here)) > what) & (here < ends))
        if not len(going):
            break
        here, what = here[going], what[going]
        now = np.maximum(clock[going] + step.take(here), times.take(what) + lag.take(here))
        times[here] = clock[going] = now
        position[going] += 1
    heads = {rank: at for rank, at in enumerate(position[:-1].tolist()) if at < ends[rank]}
    if heads:
        raise Stuck(heads)
    return times[:-1]
