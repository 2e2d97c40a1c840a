"""Experts whose router is learned: how many tokens a rank computes is in the data; all else follows from that, to the token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tests.fidelity.oracle import DTYPE_BYTES, Case, coordinates
from tests.fidelity.record import MATMUL, Communication, Compute, RankRecord

PRODUCTS = {"fwd": (3,), "bwd": (6,), "recompute": (0, 1, 2, 3)}
"""Of an expert with a token: gate, up and down, and two gradients of each; of how many are computed again any number, one for all."""


def has_learned_loads(case: Case) -> bool:
    return case.degree("ep") > 1 and case.model["router"] != "balanced"


def experts_of_a_rank(case: Case) -> int | None:
    """Each with as many tokens; one where there are no experts, nothing where tokens are not shared out evenly."""
    m = case.model
    if m["arch"] != "moe":
        return 1
    slots = case.new_positions * m["batch"] * m["top_k"]
    microbatches = int(case.parallel.get("microbatches", case.accumulated))
    ranks = case.degree("cp") if case.has_rings else 1
    if (
        has_learned_loads(case)
        or m["router"] != "balanced"
        or slots % (m["experts"] * microbatches * ranks)
    ):
        return None
    return m["experts"] // case.degree("ep")


def with_equal_loads(case: Case, rank: int, records: Mapping[int, RankRecord]) -> RankRecord:
    """As if each rank of an expert-parallel group had as many tokens, if they do what those that they have make of it.

    What a rank sends out and gets back is all of its own tokens. What it receives of others it sends back, in both passes, and computes: its FLOPs are
    those of equal loads and the products of the tokens that it has beyond.
    """
    group = group_of(case, rank)
    members = [records[each] for each in group]
    traffic = [exchanges_of(each) for each in members]
    even = even_bytes(traffic)
    if even is None or not all(goes_back(each, even) for each in traffic):
        return records[rank]
    computes = even_computes(case, rank, dict(zip(group, members, strict=True)), traffic, even)
    if computes is None:
        return records[rank]
    own = records[rank]
    communications = list(own.communications)
    places = [n for n, c in enumerate(communications) if is_of_tokens(c)]
    for place, size in zip(places, even, strict=True):
        communications[place] = replace(communications[place], bytes_in=size, bytes_out=size)
    return replace(own, communications=tuple(communications), computes=computes)


def is_of_tokens(communication: Communication) -> bool:
    """Counts are as many, whatever they are."""
    return communication.kind == "all_to_all" and communication.dtype != "i64"


def exchanges_of(record: RankRecord) -> list[Communication]:
    return [c for c in record.communications if is_of_tokens(c)]


def even_bytes(traffic: Sequence[Sequence[Communication]]) -> list[int] | None:
    """Of each exchange the bytes of a rank's own tokens, which are as many on all; nothing if all together do not receive, or send, as many."""
    found: list[int] = []
    if len({len(each) for each in traffic}) != 1:
        return None
    for all_of_group in zip(*traffic, strict=True):
        sent = [c.bytes_in for c in all_of_group]
        received = [c.bytes_out for c in all_of_group]
        own, others = (sent, received) if len(set(sent)) == 1 else (received, sent)
        if len(set(own)) != 1 or sum(others) != sum(own):
            return None
        found.append(own[0])
    return found


@dataclass(frozen=True)
class Load:
    """What a rank has beyond an equal part of the tokens, by pass, in order: as it receives it, and as it sends it back. In elements."""

    received: Mapping[str, list[int]]
    returned: Mapping[str, list[int]]


def load_of(exchanges: Sequence[Communication], even: Sequence[int]) -> Load:
    received: dict[str, list[int]] = {}
    returned: dict[str, list[int]] = {}
    for each, size in zip(exchanges, even, strict=True):
        width = DTYPE_BYTES[each.dtype]
        if each.bytes_in == size:
            received.setdefault(each.phase, []).append((each.bytes_out - size) // width)
        if each.bytes_out == size:
            returned.setdefault(each.phase, []).append((each.bytes_in - size) // width)
    return Load(received, returned)


def goes_back(exchanges: Sequence[Communication], even: Sequence[int]) -> bool:
    """Whether what a rank receives it sends back, in the forward and in the backward pass alike; what it receives again it had before."""
    load = load_of(exchanges, even)
    forward = uneven(load.received, "fwd")
    again = uneven(load.received, "recompute")
    passes = [
        uneven(load.returned, "fwd"),
        *(uneven(each, "bwd") for each in (load.received, load.returned)),
    ]
    is_trained = any(each.phase == "bwd" for each in exchanges)
    return all(each == forward for each in passes[: 3 if is_trained else 1]) and again <= forward


def uneven(loads: Mapping[str, list[int]], phase: str) -> Counter[int]:
    return Counter(each for each in loads.get(phase, []) if each)


def even_computes(
    case: Case,
    rank: int,
    records: Mapping[int, RankRecord],
    traffic: Sequence[Sequence[Communication]],
    even: Sequence[int],
) -> tuple[Compute, ...] | None:
    """FLOPs by phase and kind, less those of the tokens that a rank has beyond an equal part; nothing unless they are the same on all ranks then."""
    product = 2 * case.model["moe_ffn"]
    loads = {each: load_of(own, even) for each, own in zip(records, traffic, strict=True)}
    found: list[Compute] = []
    for phase, kind in records[rank].flops():
        made = {each: record.flops()[phase, kind] for each, record in records.items()}
        if kind == MATMUL and phase in PRODUCTS:
            beyond = {each: elements_beyond(load, phase) for each, load in loads.items()}
            equal = (
                {each: made[each] - number * product * beyond[each] for each in made}
                for number in PRODUCTS[phase]
            )
            made = next((each for each in equal if len(set(each.values())) == 1), made)
        if len(set(made.values())) != 1:
            return None
        found.append(Compute(phase, kind, made[rank]))
    return tuple(found)


def elements_beyond(load: Load, phase: str) -> int:
    """Of the tokens that a rank has in a pass. What is computed again without an exchange is of the tokens of the forward pass."""
    received = load.received if phase in load.received else {phase: load.received.get("fwd", [])}
    return sum(received[phase])


def group_of(case: Case, rank: int) -> list[int]:
    """The ranks that share out experts with a rank."""
    axis = "ep" if "ep" in case.mesh else "dp"
    at = coordinates(rank, case.mesh)
    return [
        each
        for each in case.ranks
        if all(
            place == at[name]
            for name, place in coordinates(each, case.mesh).items()
            if name != axis
        )
    ]
