"""Rules for sends and receives: each has its other half, with the same tag and size.

ASTRA-sim matches on (tag, source, destination, size), first come first served. What goes from one
rank to another is a `Channel`: equal channels at both ends match completely.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from stagec.checking.findings import Place
from stagec.checking.program import Channel
from stagec.checking.trace_set import CheckedSet

MAX_COMPARED = 64
"""Pairs of differing channels that are compared in full; more are only counted."""

Message = tuple[int, int]  # tag, size


@dataclass
class _Mismatch:
    """Pairs (source, destination) between which the same goes wrong."""

    pairs: list[tuple[int, int]] = field(default_factory=list)


def check_transfers(checked: CheckedSet) -> None:
    """Pair all sends with all receives."""
    _check_claims(checked)
    sent: dict[tuple[int, int], bytes] = {}
    received: dict[tuple[int, int], bytes] = {}
    lonely: dict[tuple[str, str, bytes, int], list[int]] = {}
    for rank in checked.ranks:
        summary = checked.summaries[rank]
        for slot, peer in enumerate(summary.peers if summary.is_comparable else ()):
            fault = _peer_fault(checked, rank, peer)
            if fault is not None:
                lonely.setdefault((*fault, summary.program, slot), []).append(rank)
            elif checked.summaries[peer].is_comparable:
                if summary.sends[slot]:
                    sent[rank, peer] = summary.channels[slot]
                else:
                    received[peer, rank] = summary.channels[slot]
    for (code, message, _, slot), ranks in lonely.items():
        _report_lonely(checked, code, message, slot, ranks)
    wrong: dict[tuple[bytes, bytes], _Mismatch] = {}
    for pair in sorted(sent.keys() | received.keys()):
        ends = sent.get(pair, b""), received.get(pair, b"")
        if ends[0] != ends[1]:
            wrong.setdefault(ends, _Mismatch()).pairs.append(pair)
    for number, (ends, mismatch) in enumerate(wrong.items()):
        if number < MAX_COMPARED:
            _report_mismatch(checked, ends, mismatch.pairs)


def _check_claims(checked: CheckedSet) -> None:
    for rank in checked.ranks:
        for claim in checked.summaries[rank].claims:
            if claim.rank != rank:
                checked.findings.add(
                    "E0658",
                    f"`{claim.attribute}` is not the rank of the trace",
                    Place(
                        checked.reader.file(rank),
                        rank,
                        claim.node,
                        claim.name,
                        f"it is {claim.rank}",
                    ),
                    count=claim.count,
                )


def _peer_fault(checked: CheckedSet, rank: int, peer: int) -> tuple[str, str] | None:
    if peer == rank:
        return "E0657", "a rank sends to or receives from itself"
    if peer not in checked.summaries:
        return "E0656", "the peer of a send or receive has no trace"
    return None


def _report_lonely(
    checked: CheckedSet, code: str, message: str, slot: int, ranks: list[int]
) -> None:
    rank = ranks[0]
    if checked.findings.is_full(code, message):
        checked.findings.add(code, message, Place(rank=rank), ranks=ranks)
        return
    at = _nodes(checked, rank, slot)
    peer = checked.summaries[rank].peers[slot]
    place = checked.reader.place(rank, at[0] if at else None, f"its peer is rank {peer}")
    checked.findings.add(code, message, place, ranks=ranks, count=max(1, len(at)))


def _nodes(checked: CheckedSet, rank: int, slot: int, message: int | None = None) -> list[int]:
    """Positions of the sends or receives of a peer slot, in issue order."""
    program = checked.reader.analysis(rank).program
    if program is None:
        return []
    chosen = (program.slot == slot) & (program.message >= 0)
    if message is not None:
        chosen &= program.message == message
    return program.in_issue_order(np.flatnonzero(chosen)).tolist()


def _report_mismatch(
    checked: CheckedSet, ends: tuple[bytes, bytes], pairs: list[tuple[int, int]]
) -> None:
    source, destination = pairs[0]
    sends, receives = (_messages(checked.scan.channels.get(digest)) for digest in ends)
    extra_sends, extra_receives = sends - receives, receives - sends
    for code, message, key in (
        ("E0654", "a send and its receive differ in size", 0),
        ("E0655", "a send and its receive differ in tag", 1),
    ):
        for one, other in _pair_up(extra_sends, extra_receives, key):
            word = ("tag", "size")[1 - key]
            detail = (
                f"{word} {one[1 - key]} is sent to rank {destination}, which expects {word} "
                f"{other[1 - key]} with {('tag', 'size')[key]} {one[key]}"
            )
            _add(checked, code, message, pairs, True, one, detail, 1)
    for one, count in extra_sends.items():
        detail = f"to rank {destination}, tag {one[0]}, {one[1]} bytes"
        _add(checked, "E0653", "a send has no receive", pairs, True, one, detail, count)
    for one, count in extra_receives.items():
        detail = f"from rank {source}, tag {one[0]}, {one[1]} bytes"
        _add(checked, "E0652", "a receive has no send", pairs, False, one, detail, count)


def _messages(channel: Channel | None) -> Counter[Message]:
    if channel is None:
        return Counter()
    keys = zip(channel.tag.tolist(), channel.size.tolist(), strict=True)
    return Counter(dict(zip(keys, channel.count.tolist(), strict=True)))


def _pair_up(
    sends: Counter[Message], receives: Counter[Message], key: int
) -> list[tuple[Message, Message]]:
    """Take out of both what agrees in one of tag and size, pair by pair."""
    pairs: list[tuple[Message, Message]] = []
    waiting: dict[int, list[Message]] = {}
    for message in receives.elements():
        waiting.setdefault(message[key], []).append(message)
    for message in list(sends.elements()):
        if waiting.get(message[key]):
            other = waiting[message[key]].pop(0)
            pairs.append((message, other))
            sends[message] -= 1
            receives[other] -= 1
    for counter in (sends, receives):
        for message in [m for m, count in counter.items() if not count]:
            del counter[message]
    return pairs


def _add(
    checked: CheckedSet,
    code: str,
    message: str,
    pairs: list[tuple[int, int]],
    at_source: bool,
    what: Message,
    detail: str,
    count: int,
) -> None:
    """Report a message at the sends (or receives) of the first pair, for all pairs."""
    ranks = [pair[0] if at_source else pair[1] for pair in pairs]
    if checked.findings.is_full(code, message):
        checked.findings.add(code, message, Place(rank=ranks[0]), ranks=ranks, count=count)
        return
    rank, peer = pairs[0] if at_source else pairs[0][::-1]
    position = None
    slots = checked.reader.analysis(rank).slots
    if slots is not None:
        slot = int(np.flatnonzero((slots.peers == peer) & (slots.sends == at_source))[0])
        channel = slots.channels[slot]
        index = int(np.flatnonzero((channel.tag == what[0]) & (channel.size == what[1]))[0])
        nodes = _nodes(checked, rank, slot, index)
        position = nodes[-1] if nodes else None
    place = checked.reader.place(rank, position, detail)
    checked.findings.add(code, message, place, ranks=ranks, count=count)
