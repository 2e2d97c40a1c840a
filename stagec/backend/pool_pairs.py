"""Checks that what one pool sends to another is what the other receives: each receive has a send of its rank, its channel, its layer and its bytes.

Where pools wait for each other in one direction only, no rank waits for ever with this if none does in its pool alone. In a series what is
sent in one iteration is taken in another, which the handover says. Those that are the same in the programs of both pools are looked at once: they
differ in bytes alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stagec.arrays import Ints, distinct
from stagec.backend.encoded import EncodedPools
from stagec.backend.errors import TraceError
from stagec.backend.program import PooledTraces, RankClass, TraceSet
from stagec.backend.series import tags_in_first
from stagec.dialects.sched.actions import Sum, Transfer

Handover = tuple[int, int]
"""Of a series: a body of the program, and which handover of it. (0, 0) of what is no series."""


@dataclass(frozen=True)
class Ends:
    """The messages that ranks of a pool send or take in a handover: rows of source, destination, channel and tag, and how many bytes each is."""

    rows: Ints
    """[n, 5]; the last is a place in `sizes`."""
    sizes: list[Ints]
    """In each iteration; a number for what is of one size."""

    def in_order(self) -> Ints:
        return self.rows[np.lexsort(self.rows[:, :4].T)]


def check_pairs(traces: PooledTraces, encoded: EncodedPools) -> None:
    """E0613 for a message between pools that has no other end."""
    sides: dict[str, dict[tuple[int, Handover], Ends]] = {"send": {}, "recv": {}}
    for number, (_, each) in enumerate(traces.pools):
        for kind, found in ends(each, encoded, number).items():
            sides[kind] |= {(number, handover): rows for handover, rows in found.items()}
    met = handovers(traces)
    if met is None:
        one, other = (joined(list(sides[kind].values())) for kind in ("send", "recv"))
        check_met(one, other)
        return
    sent, got = met
    if not sent and not got:
        check_together(traces, sides)
        return
    if sent.keys() != got.keys():
        raise unpaired(0, 0, len(sent), len(got))
    places: dict[tuple[tuple[int, Handover], tuple[int, Handover]], list[tuple[int, int]]] = {}
    for number, (giver, at) in sent.items():
        taker, there = got[number]
        places.setdefault((giver, taker), []).append((at, there))
    for (giver, taker), iterations in places.items():
        none = Ends(np.zeros((0, 5), np.int64), [])
        one, other = sides["send"].get(giver, none), sides["recv"].get(taker, none)
        check_met(one, other, np.array(iterations))


def check_together(
    traces: PooledTraces, sides: dict[str, dict[tuple[int, Handover], Ends]]
) -> None:
    """Check a series whose iterations all pools compute together. Iterations that consist of the same bodies in each pool are looked at once."""
    series = [each.classes[0].program.series for _, each in traces.pools]
    orders = [each.bodies.order for each in series if each is not None and each.bodies is not None]
    for bodies in np.unique(np.stack(orders, axis=1), axis=0):
        at = np.flatnonzero((np.stack(orders, axis=1) == bodies).all(axis=1))
        keys = [(number, (body, 0)) for number, body in enumerate(bodies.tolist())]
        one, other = (
            joined([sides[kind][key] for key in keys if key in sides[kind]])
            for kind in ("send", "recv")
        )
        check_met(one, other, np.stack([at, at], axis=1))


Met = dict[int, tuple[tuple[int, Handover], int]]
"""Of each handover of a job: the pool, what it is there, and the iteration."""


def handovers(traces: PooledTraces) -> tuple[Met, Met] | None:
    """Where each is given, and where it is taken; nothing of what is no series."""
    found: tuple[Met, Met] = {}, {}
    for number, (_, each) in enumerate(traces.pools):
        series = each.classes[0].program.series
        if series is None or series.bodies is None:
            return None
        bodies = series.bodies
        kinds = {h: kind for kind, h in kinds_of(each)}
        for at, body in enumerate(bodies.order.tolist()):
            for place in range(len(bodies.handed)):
                kind = kinds.get((body, place))
                if kind is not None:
                    side = found[kind == "recv"]
                    side[int(bodies.handed[place, at])] = (number, (body, place)), at
    return found


def kinds_of(traces: TraceSet) -> set[tuple[str, Handover]]:
    """Which handovers each body of a program has, and whether they send or receive."""
    return {
        (action.kind, (body, action.peer.handed or 0))
        for action, _, body, _ in transfers(traces.classes[0])
        if action.peer is not None
    }


def check_met(one: Ends, other: Ends, iterations: Ints | None = None) -> None:
    """E0613 where two sides do not agree. `iterations` are those of either side, of every handover like this."""
    sent, got = one.in_order(), other.in_order()
    if sent.shape != got.shape or not np.array_equal(sent[:, :4], got[:, :4]):
        ways = [{tuple(row) for row in rows[:, :4].tolist()} for rows in (sent, got)]
        lonely = sorted(ways[0] ^ ways[1])
        source, destination = lonely[0][:2] if lonely else (0, 0)
        raise unpaired(source, destination, len(sent), len(got))
    for here, there in np.unique(np.stack([sent[:, 4], got[:, 4]], axis=1), axis=0).tolist():
        left, right = one.sizes[here], other.sizes[there]
        if iterations is not None:
            left = left[iterations[:, 0]] if left.ndim else left
            right = right[iterations[:, 1]] if right.ndim else right
        if (left != right).any():
            row = sent[(sent[:, 4] == here) & (got[:, 4] == there)][0]
            raise unpaired(int(row[0]), int(row[1]), len(sent), len(got))


def unpaired(source: int, destination: int, sent: int, got: int) -> TraceError:
    return TraceError(
        "E0613",
        f"ranks {source} and {destination} of two pools do not agree on what is handed over",
        note=f"{sent:,} messages are sent, {got:,} are waited for",
        help="a pass of the plan's own changed one of the pools: nothing is written",
    )


def joined(found: list[Ends]) -> Ends:
    """All messages together."""
    rows: list[Ints] = [np.zeros((0, 5), np.int64)]
    sizes: list[Ints] = []
    for each in found:
        rows.append(each.rows + np.array([0, 0, 0, 0, len(sizes)]))
        sizes += each.sizes
    return Ends(np.concatenate(rows), sizes)


def ends(traces: TraceSet, encoded: EncodedPools, number: int) -> dict[str, dict[Handover, Ends]]:
    """The messages that ranks of a pool send and take, by the handover that they are part of."""
    pool = encoded.pools[number]
    formulas = pool.formulas
    ranks = formulas.first + np.arange(pool.num_ranks, dtype=np.int64)
    members = dict(pool.by_class(ranks))
    found: dict[str, dict[Handover, list[Ends]]] = {"send": {}, "recv": {}}
    for at, each in enumerate(traces.classes):
        own = members[at]
        series = each.program.series
        for action, size, body, tags in transfers(each):
            assert action.peer is not None
            peers = formulas.at(action.peer.rank, own - formulas.first)
            ways = (own, peers) if action.kind == "send" else (peers, own)
            shape = (len(own), len(tags))
            columns = [np.broadcast_to(way[:, None], shape).ravel() for way in ways]
            columns.append(np.full(len(own) * len(tags), action.channel, np.int64))
            columns.append(np.broadcast_to(tags, shape).ravel())
            columns.append(np.zeros(len(own) * len(tags), np.int64))
            num_bytes = np.array(action.num_bytes)
            if size is not None and series is not None:
                num_bytes = series.numbers[size]
            handover = (body, action.peer.handed or 0)
            rows = Ends(np.stack(columns, axis=1), [num_bytes])
            found[action.kind].setdefault(handover, []).append(rows)
    return {
        kind: {handover: joined(rows) for handover, rows in of_kind.items()}
        for kind, of_kind in found.items()
    }


def transfers(rank_class: RankClass) -> Iterator[tuple[Transfer, Sum | None, int, Ints]]:
    """What a class hands to other pools or takes from them, and how much in a series; of each body of one, the tags of all times that it
    does, as if it were the first."""
    program = rank_class.program
    bodies = program.series.bodies if program.series is not None else None
    body = np.zeros(len(program.segment), np.int64) if bodies is None else bodies.of_instances()
    tags = tags_in_first(program)
    for index, segment in enumerate(program.segments):
        for node in segment.nodes:
            if not isinstance(node.action, Transfer) or node.action.peer is None:
                continue
            size = node.sizes[0] if node.sizes else None
            rows = np.flatnonzero(program.segment == index)
            for number in distinct(body[rows]).tolist():
                yield node.action, size, number, tags[rows[body[rows] == number]]
