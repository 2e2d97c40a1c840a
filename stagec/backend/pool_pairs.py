"""That what one pool sends to another is what that one takes: each receive has a send of its rank, its channel and layer, and its bytes.

Where pools wait for each other in one direction only, no rank waits for ever with this if none does in its pool alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stagec.arrays import Ints
from stagec.backend.encoded import EncodedPools
from stagec.backend.errors import TraceError
from stagec.backend.program import PooledTraces, RankClass, TraceSet, Transfer


def check_pairs(traces: PooledTraces, encoded: EncodedPools) -> None:
    """E0613 for a message between pools that has no other end."""
    sent: list[Ints] = []
    got: list[Ints] = []
    for number, (_, each) in enumerate(traces.pools):
        for kind, rows in ends(each, encoded, number):
            (sent if kind == "send" else got).append(rows)
    both = [np.concatenate(found) if found else np.zeros((0, 5), np.int64) for found in (sent, got)]
    one, other = (rows[np.lexsort(rows.T)] for rows in both)
    if one.shape == other.shape and np.array_equal(one, other):
        return
    lonely = sorted({tuple(row) for row in one.tolist()} ^ {tuple(row) for row in other.tolist()})
    source, destination = lonely[0][:2] if lonely else one[0][:2].tolist()
    raise TraceError(
        "E0613",
        f"ranks {source} and {destination} of two pools do not agree on what is handed over",
        note=f"{len(one):,} messages are sent, {len(other):,} are waited for",
        help="a pass of the plan's own changed one of the pools: nothing is written",
    )


def ends(traces: TraceSet, encoded: EncodedPools, number: int) -> Iterator[tuple[str, Ints]]:
    """The messages that ranks of a pool send and take, as rows of source, destination, channel, tag and bytes."""
    pool = encoded.pools[number]
    formulas = pool.formulas
    ranks = formulas.first + np.arange(pool.num_ranks, dtype=np.int64)
    members = dict(pool.by_class(ranks))
    for at, each in enumerate(traces.classes):
        own = members[at]
        for action, tags in transfers(each):
            assert action.peer is not None
            peers = formulas.at(action.peer.rank, own - formulas.first)
            ways = (own, peers) if action.kind == "send" else (peers, own)
            shape = (len(own), len(tags))
            columns = [np.broadcast_to(way[:, None], shape).ravel() for way in ways]
            columns.append(np.full(len(own) * len(tags), action.channel, np.int64))
            columns.append(np.broadcast_to(tags, shape).ravel())
            columns.append(np.full(len(own) * len(tags), action.num_bytes, np.int64))
            yield action.kind, np.stack(columns, axis=1)


def transfers(rank_class: RankClass) -> Iterator[tuple[Transfer, Ints]]:
    """What a class hands to other pools or takes from them, and the tags of all times that it does."""
    program = rank_class.program
    for index, segment in enumerate(program.segments):
        for node in segment.nodes:
            if isinstance(node.action, Transfer) and node.action.peer is not None:
                yield node.action, program.tag[program.segment == index]
