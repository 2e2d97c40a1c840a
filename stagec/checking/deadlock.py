"""No set of ranks waits for itself: a replay under the target's rules, and why it stops if it does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from stagec.checking.any_timing import steady
from stagec.checking.findings import Place
from stagec.checking.group_rules import Disagreement, report_order
from stagec.checking.program import (
    KIND_COLL,
    KIND_COMP,
    KIND_CPU,
    KIND_RECV,
    KIND_SEND,
    RankProgram,
)
from stagec.checking.replay import DONE, RUNNING, RankState, Replay
from stagec.checking.schema import COLLECTIVES
from stagec.checking.symmetry import Coloring, color_ranks
from stagec.checking.trace_set import CheckedSet

MAX_REPLAYED_NODES = 6_000_000
"""Nodes of one rank of each color together."""
MAX_VARIED_NODES = 400_000
"""The same, where run times are varied."""
_SHOWN_STEPS = 8
_JITTER_SEED = 20240607

ANY_TIMES = "none, whatever the run times"
ONE_REPLAY = "none in a replay with nominal run times"
FOUND = "found"
NOT_CHECKED = "not looked for"


def check_deadlock(
    checked: CheckedSet, orders: Sequence[Disagreement] = (), stress: int = 0
) -> str:
    """Replay the set; what was proved, in words.

    `orders` are groups whose members would issue collectives in different orders if each ran alone.
    `stress` replays more, with random run times.
    """
    summaries = checked.summaries
    if not checked.scan.complete:
        return _give_up(checked)
    doubt = "members of a group may issue collectives in different orders"
    if not orders:
        doubt = _doubt(checked)
        if not doubt:
            return ANY_TIMES
    coloring = color_ranks(checked, lambda r: (summaries[r].program, summaries[r].durations))
    if _size(checked, coloring) > MAX_REPLAYED_NODES:
        # Let ranks that run one program take the same times.
        coloring = color_ranks(checked, lambda r: summaries[r].program)
    size = _size(checked, coloring)
    if size > MAX_REPLAYED_NODES:
        return _give_up(checked)
    programs, durations = _of_colors(checked, coloring)
    replay = Replay(coloring, programs, durations, slots=checked.astra_sim)
    if not replay.run():
        _report(checked, replay, programs, durations, orders)
        return FOUND
    survives = True
    if checked.astra_sim and size <= MAX_VARIED_NODES:
        for times in ("instant compute", "instant communication"):
            varied = [_vary(p, d, times) for p, d in zip(programs, durations, strict=True)]
            survives = survives and _survives(checked, coloring, programs, varied, f"with {times}")
    if checked.astra_sim and stress and survives:
        survives = _check_stress(checked, stress)
    for order in orders if survives else ():
        message = "members of a group may issue collectives in different orders"
        report_order(checked, order, "W0660", message)
    return f"{ONE_REPLAY}, not proved for all ({doubt})"


def _doubt(checked: CheckedSet) -> str:
    """Why it is not proved that the ranks get through, whatever the run times; nothing if it is."""
    summaries = checked.summaries
    coloring = color_ranks(checked, lambda rank: summaries[rank].program)
    if _size(checked, coloring) > MAX_REPLAYED_NODES:
        return "the ranks have too little in common"
    proved: dict[bytes, RankProgram] = {}
    for color in coloring.colors:
        digest = summaries[color.rank].program
        if digest in proved:
            continue
        order = steady(checked.scan.programs[digest])
        if order.program is None:
            return _ambiguity(checked, color.rank, order.swapped)
        proved[digest] = order.program
    programs, durations = _of_colors(checked, coloring)
    programs = [proved[summaries[color.rank].program] for color in coloring.colors]
    if Replay(coloring, programs, durations, slots=False).run():
        return ""
    return "in one slot, what is ready first may wait for what comes later"


def _ambiguity(checked: CheckedSet, rank: int, swapped: tuple[int, int] | None) -> str:
    if swapped is None:
        return f"too much of rank {rank} has no order"
    first, then = (checked.reader.place(rank, node, "").node for node in swapped)
    return f"rank {rank} may issue nodes {first} and {then} in either order"


def _give_up(checked: CheckedSet) -> str:
    checked.findings.add("W0661", "deadlock was not looked for", Place())
    return NOT_CHECKED


def _size(checked: CheckedSet, coloring: Coloring) -> int:
    """Nodes of one rank of each color."""
    return sum(checked.summaries[color.rank].num_nodes for color in coloring.colors)


def _of_colors(
    checked: CheckedSet, coloring: Coloring
) -> tuple[list[RankProgram], list[np.ndarray]]:
    summaries = [checked.summaries[color.rank] for color in coloring.colors]
    return (
        [checked.scan.programs[summary.program] for summary in summaries],
        [checked.scan.durations[summary.durations] for summary in summaries],
    )


def _vary(program: RankProgram, durations: np.ndarray, times: str) -> np.ndarray:
    computes = np.isin(program.kind, (KIND_COMP, KIND_CPU))
    instant = computes if times == "instant compute" else ~computes
    return np.where(instant, np.float32(1e-3), durations).astype(np.float32)


def _check_stress(checked: CheckedSet, stress: int) -> bool:
    """Replay each rank apart, its run times drawn between half and one and a half times nominal."""
    coloring = color_ranks(checked, lambda rank: rank)
    if _size(checked, coloring) > MAX_REPLAYED_NODES:
        return True
    programs, durations = _of_colors(checked, coloring)
    random = np.random.default_rng(_JITTER_SEED)
    for number in range(stress):
        varied = [(d * random.uniform(0.5, 1.5, d.size)).astype(np.float32) for d in durations]
        if not _survives(checked, coloring, programs, varied, f"with random times {number}"):
            return False
    return True


def _survives(
    checked: CheckedSet,
    coloring: Coloring,
    programs: Sequence[RankProgram],
    durations: Sequence[np.ndarray],
    times: str,
) -> bool:
    replay = Replay(coloring, programs, durations)
    if replay.run():
        return True
    message = "ranks may wait for each other for ever, depending on run times"
    if replay.crossing is not None:
        _report_crossing(checked, replay, "W0660", message, times)
    else:
        _report_wait(checked, replay, "W0660", message, times)
    return False


def _report(
    checked: CheckedSet,
    replay: Replay,
    programs: Sequence[RankProgram],
    durations: Sequence[np.ndarray],
    orders: Sequence[Disagreement],
) -> None:
    if orders:
        for order in orders:
            message = "members of a group issue collectives in different orders"
            report_order(checked, order, "E0649", message)
        if replay.crossing is None:
            _report_wait(checked, replay, "E0661", "the ranks wait for each other for ever", "")
        return
    free = Replay(replay.coloring, programs, durations, slots=False) if replay.slots else replay
    if not (free.run() if replay.slots else False):
        message = "dependencies form a cycle across ranks"
        _report_wait(checked, free, "E0660", message, "")
    elif replay.crossing is not None:
        message = "members of a group would issue different collectives at the same time"
        _report_crossing(checked, replay, "E0662", message, "")
    else:
        _report_wait(checked, replay, "E0661", "the ranks wait for each other for ever", "")


def _report_crossing(
    checked: CheckedSet, replay: Replay, code: str, message: str, times: str
) -> None:
    assert replay.crossing is not None
    texts: list[str] = []
    for color, node in replay.crossing:
        rank, program = replay.coloring.colors[color].rank, replay.states[color].program
        kind = COLLECTIVES[program.comm_type[node]]
        place = checked.reader.place(rank, node, "")
        texts.append(f"rank {rank} issues {kind} of {program.size[node]} bytes (node {place.node})")
    color, node = replay.crossing[1]
    detail = "\n".join([*([times] if times else []), *texts])
    checked.findings.add(
        code, message, checked.reader.place(replay.coloring.colors[color].rank, node, detail)
    )


@dataclass(frozen=True)
class _Wait:
    """A node that does not end. `text` says, when asked, what made it the next of the walk."""

    text: Callable[[], str]
    rank: int
    node: int


def _report_wait(checked: CheckedSet, replay: Replay, code: str, message: str, times: str) -> None:
    walker = _Walker(checked, replay)
    steps, first = walker.cycle()
    # Naming a node reads its trace again: only those that are shown are named.
    texts = [step.text() for step in steps[:_SHOWN_STEPS]]
    if len(steps) > _SHOWN_STEPS:
        texts.append(f"... and so on, through {len(steps)} such steps")
    if times:
        texts.insert(0, times)
    place = checked.reader.place(first.rank, first.node, "\n".join(texts))
    ranks = sorted({step.rank for step in steps})
    checked.findings.add(code, message, place, ranks=ranks)


class _Walker:
    """Follows what stuck ranks wait for, until it comes round."""

    def __init__(self, checked: CheckedSet, replay: Replay) -> None:
        self._checked = checked
        self._replay = replay
        self._coloring = replay.coloring

    def cycle(self) -> tuple[list[_Wait], _Wait]:
        """The steps of a cycle of waits, from the first stuck rank on; and its first node."""
        at = self._start()
        seen: dict[tuple[int, int], int] = {}
        steps: list[_Wait] = []
        path: list[_Wait] = []
        while (at.rank, at.node) not in seen:
            seen[at.rank, at.node] = len(steps)
            path.append(at)
            at = self._next(at.rank, at.node)
            steps.append(at)
        first = seen[at.rank, at.node]
        return steps[first:], path[first]

    def _state(self, rank: int) -> RankState:
        return self._replay.states[self._coloring.of_rank[rank]]

    def _start(self) -> _Wait:
        color = next(c for c, state in enumerate(self._replay.states) if not state.is_done)
        state = self._replay.states[color]
        undone = np.flatnonzero(np.frombuffer(state.state, dtype=np.uint8) != DONE)
        running = [node for node in undone.tolist() if state.state[node] == RUNNING]
        node = running[0] if running else int(undone[0])
        return _Wait(str, self._coloring.colors[color].rank, node)

    def _next(self, rank: int, node: int) -> _Wait:
        state = self._state(rank)
        if state.state[node] == RUNNING:
            if state.kind[node] == KIND_COLL:
                return self._absent_member(rank, node)
            return self._sender(rank, node)
        then, between = node, -1
        while dependencies := state.dependencies(then):
            then, between = dependencies[0], between + 1
        if then != node:
            through = f", through {between} more," if between else ""
            return _Wait(
                lambda: f"{self._name(rank, node)} depends{through} on node {self._id(rank, then)}",
                rank,
                then,
            )
        held = state.busy[0]
        assert held >= 0, "a ready node that finds a free slot runs"
        return _Wait(
            lambda: (
                f"{self._name(rank, node)} is ready, but node {self._id(rank, held)} has the slot"
            ),
            rank,
            held,
        )

    def _absent_member(self, rank: int, node: int) -> _Wait:
        """The rank that a collective waits for, and the node with which it would come."""
        color = self._coloring.of_rank[rank]
        slot = self._state(rank).slot[node]
        group_color = self._coloring.colors[color].groups[slot]
        number, meeting = next(
            (number, meeting)
            for (group, number), meeting in self._replay.meetings.items()
            if group == group_color and meeting.arrived.get((color, slot)) == node
        )
        group = self._checked.summaries[rank].groups[slot]

        def slot_at(member: int) -> int:
            return self._checked.summaries[member].groups.index(group)

        member = next(
            m
            for m in self._checked.members(group)
            if (self._coloring.of_rank[m], slot_at(m)) not in meeting.arrived
        )
        state = self._state(member)
        order = state.program.collectives_of(slot_at(member))
        where = f" in group `{group}`" if group else ""
        return _Wait(
            lambda: f"{self._name(rank, node)} waits for rank {member}{where}",
            member,
            self._coming(state, order, number),
        )

    @staticmethod
    def _coming(state: RankState, order: np.ndarray, number: int) -> int:
        """The collective with which a member will reach meeting `number` of a group."""
        if state.order is not None:
            return int(order[number])
        waiting = [node for node in order.tolist() if not state.state[node]]
        return waiting[max(0, number - state.num_issued[state.slot[order[0]]])]

    def _sender(self, rank: int, node: int) -> _Wait:
        state = self._state(rank)
        assert state.kind[node] == KIND_RECV, "only collectives and receives wait"
        slot = state.slot[node]
        peer = self._checked.summaries[rank].peers[slot]
        _, back = self._coloring.colors[self._coloring.of_rank[rank]].peers[slot]
        program = self._state(peer).program
        sends = np.flatnonzero(
            (program.slot == back)
            & (program.kind == KIND_SEND)
            & (program.message == state.message[node])
        )
        unsent = next(s for s in sends.tolist() if self._state(peer).state[s] != DONE)
        return _Wait(
            lambda: f"{self._name(rank, node)} waits for rank {peer} to send", peer, unsent
        )

    def _id(self, rank: int, node: int) -> int | None:
        return self._checked.reader.place(rank, node, "").node

    def _name(self, rank: int, node: int) -> str:
        place = self._checked.reader.place(rank, node, "")
        return f"rank {rank}: node {place.node}" + (f" `{place.name}`" if place.name else "")
