"""How long a schedule takes, for given costs of F, B, W and a transfer.

Each rank computes in its order, one action at a time, as soon as what the action reads is there.
A transfer starts when its value is ready, takes the latency, and delays nobody but its reader:
sends do not wait for each other or for computation. Times are in the unit of the costs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stagec.schedules.dependencies import positions, producers
from stagec.schedules.longest_path import longest_path
from stagec.schedules.table import ActionKind, Schedule

Cost = float | Sequence[float] | np.ndarray
"""One number, or one for each stage."""


@dataclass(frozen=True)
class ActionCosts:
    """What an action of a stage costs: a number, or a sequence with one number per stage.

    A whole backward costs `backward_input + backward_weight` if not said otherwise; an overlapped
    pair costs its forward and its backward, or else `overlapped` (of the stage that runs forward).
    The defaults are the unit costs of the zero-bubble papers: F = I = W = 1, B = 2.
    """

    forward: Cost = 1
    backward_input: Cost = 1
    backward_weight: Cost = 1
    backward: Cost | None = None
    overlapped: Cost | None = None
    latency: float = 0

    def whole_backward(self, num_stages: int) -> np.ndarray:
        if self.backward is not None:
            return per_stage(self.backward, num_stages)
        return per_stage(self.backward_input, num_stages) + per_stage(
            self.backward_weight, num_stages
        )


def per_stage(cost: Cost, num_stages: int) -> np.ndarray:
    values = np.asarray(cost, float)
    if values.ndim > 1 or (values.ndim == 1 and len(values) != num_stages):
        raise ValueError(f"a cost is one number or one for each of the {num_stages} stages")
    return np.broadcast_to(values, (num_stages,))


@dataclass(frozen=True, eq=False)
class Timing:
    """When each action of a schedule starts and ends; `busy` is compute per rank."""

    start: np.ndarray
    end: np.ndarray
    rank_start: np.ndarray
    rank_end: np.ndarray
    busy: np.ndarray

    @property
    def makespan(self) -> float:
        """From the first start to the last end, over all ranks."""
        return float(self.rank_end.max() - self.rank_start.min())

    @property
    def idle(self) -> np.ndarray:
        """Per rank, the time between its own first start and last end in which it is idle."""
        return self.rank_end - self.rank_start - self.busy

    @property
    def bubble(self) -> float:
        """The idle time of the rank that has most of it, between its own start and end.

        This is the bubble of the papers: (p-1)(F+B) for 1F1B, where rank 0 starts first and ends
        last. Qi et al. 2024 (arXiv:2401.10241, section 5.3) measure from each rank's own start, as
        ZB-H2 and ZB-V end on every rank as late as it started.
        """
        return float(self.idle.max())

    @property
    def bubble_fraction(self) -> float:
        """The bubble over the compute time of the same rank (Narayanan et al. 2021, section 2.2)."""
        worst = int(np.argmax(self.idle))
        return float(self.idle[worst] / self.busy[worst])


def simulate(schedule: Schedule, costs: ActionCosts | None = None) -> Timing:
    """Start and end of every action, transfers too."""
    costs = costs or ActionCosts()
    compute = schedule.compute_only()
    kind, stage, _, joined = compute.table
    rank = compute.rank
    forward = per_stage(costs.forward, schedule.num_stages)
    whole = costs.whole_backward(schedule.num_stages)
    by_kind = np.stack(
        [
            forward,
            whole,
            per_stage(costs.backward_input, schedule.num_stages),
            per_stage(costs.backward_weight, schedule.num_stages),
        ]
    )
    own = by_kind[kind, stage]
    # A pair is one unit of time: its first takes none, its second all of it.
    closes = np.flatnonzero(joined)
    opens = closes - 1
    cost = own.copy()
    cost[opens] = 0
    cost[closes] += own[opens]
    if costs.overlapped is not None:
        cost[closes] = per_stage(costs.overlapped, schedule.num_stages)[stage[opens]]
    after = producers(compute)
    crosses = (after >= 0) & (rank[after] != rank)
    ends = longest_path(compute.starts, after, cost, cost + np.where(crosses, costs.latency, 0))
    begins = ends - cost
    ends[opens], begins[opens] = ends[closes], begins[closes]
    used = np.flatnonzero(np.diff(compute.starts))
    rank_start, rank_end = np.zeros(schedule.num_ranks), np.zeros(schedule.num_ranks)
    rank_start[used] = begins[compute.starts[used]]
    rank_end[used] = ends[compute.starts[used + 1] - 1]
    busy = np.bincount(rank, weights=cost, minlength=schedule.num_ranks)
    start, end = with_transfers(schedule, begins, ends, costs.latency)
    return Timing(start, end, rank_start, rank_end, busy)


def with_transfers(
    schedule: Schedule, begins: np.ndarray, ends: np.ndarray, latency: float
) -> tuple[np.ndarray, np.ndarray]:
    """The times of compute actions, and of transfers from the end of what produced their value."""
    start, end = np.empty(len(schedule)), np.empty(len(schedule))
    start[~schedule.is_transfer], end[~schedule.is_transfer] = begins, ends
    kind, stage, microbatch, _ = schedule.table
    forwards = positions(schedule, ActionKind.FORWARD)
    backwards = positions(schedule, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)
    for of, made_by, offset in (
        (ActionKind.SEND_FORWARD, forwards, 0),
        (ActionKind.RECV_FORWARD, forwards, -1),
        (ActionKind.SEND_BACKWARD, backwards, 0),
        (ActionKind.RECV_BACKWARD, backwards, 1),
    ):
        here = np.flatnonzero(kind == of)
        start[here] = end[made_by[stage[here] + offset, microbatch[here]]]
        end[here] = start[here] + latency
    return start, end
