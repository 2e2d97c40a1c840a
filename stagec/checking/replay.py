"""Run the ranks of a set as the target would, without its clock's precision.

The rules are those of ASTRA-sim's `Workload` and `HardwareResource`: a rank runs one compute node at
a time, one of the CPU, and one of communication (collectives, sends and memory accesses share that
slot); receives are unlimited. A free slot takes the ready node of lowest id. Sends are eager. The
n-th collective that a rank issues on a group meets the n-th of the other members, and all end
together. Receives take the first message of their tag, source and size.

Without slots every ready node runs at once, and collectives meet in the order of their ids: then
only a cycle of dependencies can stop the replay.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from stagec.checking.program import (
    KIND_COLL,
    KIND_COMP,
    KIND_CPU,
    KIND_OTHER,
    KIND_RECV,
    KIND_SEND,
    RankProgram,
)
from stagec.checking.structure import children
from stagec.checking.symmetry import Coloring

_COMM, _COMP, _CPU, _FREE = range(4)
_LANES = {KIND_COMP: _COMP, KIND_CPU: _CPU, KIND_RECV: _FREE, KIND_OTHER: _FREE}
_LANE = tuple(_LANES.get(kind, _COMM) for kind in range(KIND_OTHER + 1))

WAITING, RUNNING, DONE = range(3)


@dataclass
class Meeting:
    """The n-th collective of a group: who is there, as (color, slot), and with which node."""

    arrived: dict[tuple[int, int], int] = field(default_factory=dict)


class RankState:
    """One rank while it runs. Nodes are positions in its program."""

    def __init__(self, program: RankProgram, durations: np.ndarray, slots: bool) -> None:
        self.program = program
        self.kind = program.kind.data
        self.slot = program.slot.data
        self.message = program.message.data
        start, child = children(program.begin, program.dep)
        self.child_start, self.child = start.data, child.data
        left = np.diff(program.begin).astype(np.int32)
        self.durations = durations.data
        self.state = bytearray(program.num_nodes)
        self.num_done = 0
        self.ready: tuple[list[int], ...] = ([], [], [], [])
        self.busy: list[int] = [-1, -1, -1]
        """The node in each slot, -1 for none."""
        self.num_issued: dict[int, int] = defaultdict(int)
        """Collectives issued on each group slot."""
        self.order: np.ndarray | None = None if slots else _order_in_group(program)
        for node in np.flatnonzero(left == 0).tolist():
            self.ready[_LANE[self.kind[node]]].append(node)
        self.left = left.data

    @property
    def is_done(self) -> bool:
        return self.num_done == self.program.num_nodes

    def dependencies(self, node: int) -> list[int]:
        """What a node depends on and what is not done."""
        begin = self.program.begin
        deps = self.program.dep[begin[node] : begin[node + 1]].tolist()
        return [dep for dep in deps if self.state[dep] != DONE]


def _order_in_group(program: RankProgram) -> np.ndarray:
    """Number of each collective within its group, in issue order."""
    order = np.zeros(program.num_nodes, dtype=np.int64)
    at = program.in_issue_order(np.flatnonzero(program.kind == KIND_COLL))
    counts: dict[int, int] = defaultdict(int)
    for node, slot in zip(at.tolist(), program.slot[at].tolist(), strict=True):
        order[node] = counts[slot]
        counts[slot] += 1
    return order


class Replay:
    """A replay of one rank of each color. `run` returns whether it came to its end."""

    def __init__(
        self,
        coloring: Coloring,
        programs: Sequence[RankProgram],
        durations: Sequence[np.ndarray],
        slots: bool = True,
    ) -> None:
        self.coloring = coloring
        self.slots = slots
        self.states = [RankState(p, d, slots) for p, d in zip(programs, durations, strict=True)]
        self.meetings: dict[tuple[int, int], Meeting] = {}
        self.crossing: tuple[tuple[int, int], tuple[int, int]] | None = None
        """Two collectives, as (color, node), that met and differ."""
        self._events: list[tuple[float, int, int, int]] = []
        self._sequence = 0
        self._now = 0.0
        self._mail: dict[tuple[int, int, int], int] = defaultdict(int)
        self._expected: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)

    def run(self) -> bool:
        for color in range(len(self.states)):
            self._issue(color)
        events = self._events
        while events and self.crossing is None:
            self._now, _, color, node = heapq.heappop(events)
            self._finish(color, node)
            self._issue(color)
        return self.crossing is None and all(state.is_done for state in self.states)

    def _issue(self, color: int) -> None:
        state = self.states[color]
        for lane, ready in enumerate(state.ready):
            while ready and (lane == _FREE or not self.slots or state.busy[lane] < 0):
                node = heapq.heappop(ready)
                if lane != _FREE:
                    state.busy[lane] = node
                state.state[node] = RUNNING
                self._start(color, state, node)

    def _start(self, color: int, state: RankState, node: int) -> None:
        kind = state.kind[node]
        if kind == KIND_COLL:
            self._arrive(color, state, node)
        elif kind == KIND_RECV:
            key = (color, state.slot[node], state.message[node])
            if self._mail[key]:
                self._mail[key] -= 1
                self._schedule(color, node, 0.0)
            else:
                self._expected[key].append(node)
        else:
            self._schedule(color, node, state.durations[node])

    def _arrive(self, color: int, state: RankState, node: int) -> None:
        slot = state.slot[node]
        if state.order is None:
            number = state.num_issued[slot]
            state.num_issued[slot] += 1
        else:
            number = int(state.order[node])
        group = self.coloring.colors[color].groups[slot]
        meeting = self.meetings.setdefault((group, number), Meeting())
        if meeting.arrived:
            (first, _), met = next(iter(meeting.arrived.items()))
            there, here = self.states[first].program, state.program
            if (there.comm_type[met], there.size[met]) != (here.comm_type[node], here.size[node]):
                self.crossing = (first, met), (color, node)
                return
        meeting.arrived[color, slot] = node
        if len(meeting.arrived) == len(self.coloring.members[group]):
            del self.meetings[group, number]
            for (member, _), arrived in meeting.arrived.items():
                self._schedule(member, arrived, state.durations[node])

    def _schedule(self, color: int, node: int, after: float) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (self._now + after, self._sequence, color, node))

    def _finish(self, color: int, node: int) -> None:
        state = self.states[color]
        kind = state.kind[node]
        lane = _LANE[kind]
        if lane != _FREE:
            state.busy[lane] = -1
        state.state[node] = DONE
        state.num_done += 1
        left, child = state.left, state.child
        for k in range(state.child_start[node], state.child_start[node + 1]):
            after = child[k]
            left[after] -= 1
            if not left[after]:
                heapq.heappush(state.ready[_LANE[state.kind[after]]], after)
        if kind == KIND_SEND:
            peer, slot = self.coloring.colors[color].peers[state.slot[node]]
            key = (peer, slot, state.message[node])
            if self._expected[key]:
                self._schedule(peer, self._expected[key].popleft(), 0.0)
            else:
                self._mail[key] += 1
