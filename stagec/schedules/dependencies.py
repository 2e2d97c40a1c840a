"""Which action produces what another one reads.

    F of stage s       reads F of stage s - 1
    B or I of stage s  reads B or I of stage s + 1; of the last stage, its own F
    W                  reads its own I

all of one microbatch. (A B or I also reads its own F, and that one is on the same rank.)
"""

import numpy as np

from stagec.arrays import Ints
from stagec.schedules.table import ActionKind, Schedule


def positions(schedule: Schedule, *kinds: ActionKind) -> Ints:
    """Where in the columns stage s does one of `kinds` for microbatch k, at [s, k]; -1 if nowhere."""
    found = np.full((schedule.num_stages, schedule.num_microbatches), -1)
    kind, stage, microbatch, _ = schedule.table
    index = np.flatnonzero(np.logical_or.reduce([kind == k for k in kinds]))
    found[stage[index], microbatch[index]] = index
    return found


def producers(schedule: Schedule) -> Ints:
    """For each action of a compute-only schedule, the action of another stage that it reads, or -1.

    Where the producer is the first of an overlapped pair, this is the second: both end together.
    """
    kind, stage, microbatch, joined = schedule.table
    forwards = positions(schedule, ActionKind.FORWARD)
    backwards = positions(schedule, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)
    last = schedule.num_stages - 1
    after = np.full(len(kind), -1)
    here = (kind == ActionKind.FORWARD) & (stage > 0)
    after[here] = forwards[stage[here] - 1, microbatch[here]]
    here = ((kind == ActionKind.BACKWARD) | (kind == ActionKind.BACKWARD_INPUT)) & (stage < last)
    after[here] = backwards[stage[here] + 1, microbatch[here]]
    pair_opens = np.append(joined[1:], False)
    return np.where(after >= 0, after + pair_opens[after], after)
