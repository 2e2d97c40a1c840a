"""Schedules whose stages go down the ranks and up again: rank r has stages r and 2p - 1 - r.

A row is written as phases: a pattern of actions on the rank's early stage (0) and late stage (1),
and how often it repeats. Microbatches are numbered afterwards, in order of appearance:

    phases([("F0", 2), ("F1 I1 W1", 1)])   ->   F0 mb 0, F0 mb 1, F1 mb 0, I1 mb 0, W1 mb 0

`W` without a number is the oldest weight gradient still owed, of either stage. `F0&B1` is a pair
that runs overlapped. `<F0` receives what F0 reads, and `F0>` sends what it made, from and to wherever
the neighbouring stages are; B stands for I too.
"""

from typing import NamedTuple

import numpy as np

from stagec.schedules.table import (
    FIRST_TRANSFER,
    KIND_OF_SYMBOL,
    ActionColumns,
    ActionKind,
    columns,
    concatenate,
)

Phases = list[tuple[str, int]]
OLDEST = 2


class RankPatterns(NamedTuple):
    """Steps of DualPipe's code in which its middle rank differs from the others."""

    both: str
    """A forward pass of either stage."""
    last_both: str
    """The last of these."""
    first_pairs: str
    """The first two pairs: what the first forward pass reads has been received."""


PAIRS = "<F0 <B1 F0&B1 F0> B1> <F1 <B0 F1&B0 F1> B0>"
OTHERS = RankPatterns(
    both="F0 <F0 <F1 F1 F1> F0>",
    last_both="F0 <F0 <F1 F1 F1> F0>",
    first_pairs="<B1 F0&B1 F0> B1> <F1 <B0 F1&B0 F1> B0>",
)
MIDDLE = RankPatterns(
    both="F0 F0> <F0 <F1 F1 F1>",
    last_both="F0 F0> <F0 <F1 F1",
    # It does not overlap its first pair: it would only wait longer.
    first_pairs="F0 F1> <B1 B1 F0> B1> <F1 <B0 F1&B0 F1> B0>",
)


def pattern(words: str) -> ActionColumns:
    """Parse one pattern; the stage column holds 0, 1 or `OLDEST`."""
    kinds, locals_, joins = [], [], []
    for cell in words.split():
        way = {"<": "RECV_", ">": "SEND_"}.get(cell.strip("FBIW012")[:1], "")
        for number, word in enumerate(cell.strip("<>").split("&")):
            kinds.append(KIND_OF_SYMBOL[way + word[0]])
            locals_.append(int(word[1:]) if word[1:] else OLDEST)
            joins.append(number > 0)
    return columns(kinds, locals_, 0, joins)


def phases(row: Phases) -> ActionColumns:
    """Repeat the patterns, and number the microbatches in order of appearance."""
    kind, local, microbatch, joined = concatenate([repeat(pattern(w), n) for w, n in row])
    backward = (kind == ActionKind.BACKWARD) | (kind == ActionKind.BACKWARD_INPUT)
    transfers = [kind == each for each in range(FIRST_TRANSFER, len(ActionKind))]
    for number in (0, 1):
        for each in (kind == ActionKind.FORWARD, backward, *transfers):
            count_up(microbatch, each & (local == number))
    # A weight gradient belongs to the oldest input gradient, of its stage or of any, not yet served.
    weight, owed = (
        kind == ActionKind.BACKWARD_WEIGHT,
        np.flatnonzero(kind == ActionKind.BACKWARD_INPUT),
    )
    for number in (0, 1, OLDEST):
        here = np.flatnonzero(weight & (local == number))
        served = (owed if number == OLDEST else owed[local[owed] == number])[: len(here)]
        microbatch[here], local[here] = microbatch[served], local[served]
    return ActionColumns(kind, local, microbatch, joined)


def repeat(part: ActionColumns, times: int) -> ActionColumns:
    return part.pick(np.tile(np.arange(part.size), times))


def count_up(microbatch: np.ndarray, here: np.ndarray) -> None:
    microbatch[here] = np.arange(np.count_nonzero(here))


def in_v(row: ActionColumns, rank: int, p: int) -> ActionColumns:
    """Number the stages: the rank's early one is `rank`, its late one 2p - 1 - rank."""
    stages = np.array([rank, 2 * p - 1 - rank], np.int32)
    return row._replace(stage=stages[row.stage])


def zb_v(p: int, v: int, m: int) -> list[ActionColumns]:
    """Written for at least 2p - 1 microbatches; those above m are then left out."""
    full = max(m, 2 * p - 1)
    rows = []
    for rank in range(p):
        row = phases(
            [
                ("F0", 2 * (p - rank) - 1),
                ("F1 F0", rank),
                ("F1 I1 W1", p - rank),
                ("F0 I0 W0 F1 I1 W1", full - 2 * p + rank + 1),
                ("I0 W0 F1 I1 W1", p - rank - 1),
                ("I0 I1", rank),
                ("I0 W0", p - rank),
                ("W1", rank),
                ("W0", rank),
            ]
        )
        rows.append(in_v(row.pick(row.microbatch < m), rank, p))
    return rows


def dualpipe_row(rank: int, p: int, m: int) -> ActionColumns:
    """The eight steps of DualPipe's code for one of `p` ranks and `m` microbatches in V shape, with what it sends and receives between them.

    `step` in `dualpipe/dualpipev.py` and `dualpipe/dualpipe.py` of deepseek-ai/DualPipe at 3da1bbe. Some transfers
    stand apart from their passes there (`recv=False`, `send=False`).
    """
    tail = p - 1 - rank
    steady = m - 2 * p + rank + 1
    both, last_both, first_pairs = OTHERS if tail else MIDDLE
    split = (rank + 1) // 2  # the first split backward of step 6
    whole = 2 * split + (1 - rank % 2)
    last = [
        f"<B{late} {'B' if number < whole else 'I'}{late} B{late}>"
        for number, late in enumerate([1, 0] * (rank + 1))
    ]
    return phases(
        [
            ("<F0 F0 F0>", 2 * tail),
            ("<F0", 1),
            (both, rank),
            (last_both, 1),
            ("<B1 I1 B1> <F1 W F1 F1>", tail),
            (first_pairs, 1),
            (PAIRS, steady - 1),
            ("<B1 B1 B1> <F1 <B0 F1&B0 F1> B0>", tail),
            (" ".join(last), 1),
            ("W <B0 I0 B0>", tail),
            ("W", rank + 1),
        ]
    )


def dualpipe_v(p: int, v: int, m: int) -> list[ActionColumns]:
    return [in_v(dualpipe_row(rank, p, m), rank, p) for rank in range(p)]


def dualpipe(p: int, v: int, m: int) -> list[ActionColumns]:
    """Two streams of m / 2 microbatches that enter at both ends.

    Ranks r and p - 1 - r both hold stages r and p - 1 - r: stage s is at rank s for the first half
    of the microbatches, at rank p - 1 - s for the second. Each half of the ranks does what
    DualPipeV does with p / 2 ranks; its early stage serves the stream that enters at its end.
    """
    rows = []
    for rank in range(p):
        near = min(rank, p - 1 - rank)
        row = dualpipe_row(near, p // 2, m // 2)
        stages = np.array([near, p - 1 - near], np.int32)
        from_above = (row.stage == 0) == (rank == near)
        microbatch = row.microbatch + np.where(from_above, 0, m // 2).astype(np.int32)
        rows.append(row._replace(stage=stages[row.stage], microbatch=microbatch))
    return rows
