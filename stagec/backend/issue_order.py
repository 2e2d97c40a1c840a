"""Checks that each rank keeps to one order, whatever the run times: the part of `stagec.backend.deadlock` that is about one rank alone."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from stagec.analysis.node_waits import Waiting, deps_of, edges, ready_early, so_far
from stagec.arrays import Ints, laid_out, places_of_each
from stagec.backend.program import Node, RankClass, TraceSegment
from stagec.diagnostics import CompileError, refused
from stagec.dialects.sched.actions import Collective, Compute, Transfer

COMPUTE, COLLECTIVE, SEND, RECV, COPY = range(5)
_MOST_ROUNDS = 100
"""Of finding out what is behind what. Nodes of a queue follow one another, so that what matters is a few queues away."""


def doubt(rank_class: RankClass, number: int, why: str) -> CompileError:
    program = rank_class.program
    first = program.first_number
    instance = int(np.flatnonzero(first <= number)[np.argmax(first[first <= number])])
    node = program.segments[int(program.segment[instance])].nodes[number - int(first[instance])]
    microbatch, stage = int(program.microbatch[instance]), int(program.stage[instance])
    when = f" in microbatch {microbatch}" if microbatch >= 0 else ""
    when += f" of stage {stage}" if stage >= 0 else ""
    message = f"ranks of `{rank_class.name}` might wait for each other for ever"
    note = f"`{node.op}` of `{node.scope or 'the step'}` (number {number}){when} {why}"
    help_ = "an order of the plan's own, or a pass, asks for what cannot be: nothing is written"
    return refused("E0613", message, node.span, notes=[note], help=help_)


class SegmentOrders:
    """The segments of all ranks: the kinds and the queues of their nodes, and what these wait for."""

    def __init__(self) -> None:
        self.queues: dict[str, int] = {}
        self._known: dict[int, tuple[TraceSegment, Ints, Ints, Ints]] = {}

    def of(self, segment: TraceSegment) -> tuple[Ints, Ints, Ints]:
        """Found once: ranks share segments."""
        if id(segment) not in self._known:
            kinds = np.array([_kind(node) for node in segment.nodes], np.int8)
            queues = [self.queues.setdefault(n.stream, len(self.queues)) for n in segment.nodes]
            deps = [
                [(dep.slot, dep.node) for dep in dict.fromkeys((*n.data_deps, *n.ctrl_deps))]
                for n in segment.nodes
            ]
            self._known[id(segment)] = segment, kinds, np.array(queues, np.int16), deps_of(deps)
        return self._known[id(segment)][1:]


class IssueOrder:
    """1 and 2 of `stagec.backend.deadlock`, for one program. A node is its number."""

    place: Ints
    """Of each node in an order that it and all that wait for it can keep to, whatever the times."""

    def __init__(self, rank_class: RankClass, segments: SegmentOrders) -> None:
        self.of = rank_class
        program = rank_class.program
        kinds, queues, deps = zip(*map(segments.of, program.segments), strict=True)
        lengths = np.array([len(each) for each in kinds])
        self.instance, self.node = laid_out(program.segment, lengths)
        """Of each node by position: its instance, and which it is of those of all segments."""
        self.total = len(self.node)
        self.number = np.arange(self.total, dtype=np.int32)
        """Of each node by position."""
        kind, queue = np.concatenate(kinds)[self.node], np.concatenate(queues)[self.node]
        if program.ahead is not None:
            self.number -= program.ahead[self.instance]
        self.kind, self.queue = np.empty_like(kind), np.empty_like(queue)
        self.kind[self.number], self.queue[self.number] = kind, queue
        found = edges(deps, program.segment, program.first_node, program.slots)
        self.owner, self.dep = (self.number[each] for each in found)
        self.turn = np.arange(self.total, dtype=np.int32)
        self.added = self.owner[:0], self.dep[:0]

    def check(self) -> None:
        """Find `place`."""
        late = np.flatnonzero(self.dep >= self.owner)
        if len(late):
            raise doubt(self.of, int(self.owner[late[0]]), "waits for a higher number")
        collectives = np.flatnonzero(self.kind == COLLECTIVE)
        if len(collectives):
            # Collectives are issued in order, so that an earlier one is no reason to come later.
            streams = self._streams()
            waiting = Waiting(self.queue, self.owner, self.dep)
            asked, done = waiting.asked(streams), self._done(waiting, streams, collectives)
            self._check_collectives(collectives, done, asked)
            self._issue_others(streams, collectives, done, asked)
            self._check_issued(collectives)
        self.place = self._placed()

    def _streams(self) -> list[Ints]:
        """Nodes of a queue that are of one kind, but for collectives."""
        key = np.where(self.kind == COLLECTIVE, -1, self.queue * (COPY + 1) + self.kind)
        return places_of_each(key)

    @cached_property
    def _queues(self) -> list[Ints]:
        return places_of_each(self.queue)

    def _done(self, waiting: Waiting, streams: list[Ints], collectives: Ints) -> Ints:
        """`[stream, collective]`: the last node of a stream that is done when a collective is ready, each node of a queue following the one before it.

        That a node follows it is seen by what it waits for itself, where nodes of lower numbers follow one another; so by the first that does not.
        """
        before = np.full(self.total, -1, np.int32)
        for on in self._queues:
            before[on[1:]] = on[:-1]
        is_said = before < 0
        is_said[self.owner[self.dep == before[self.owner]]] = True
        asks = ~is_said[self.owner]
        owner, dep = self.owner[asks], self.dep[asks]
        wanted = set(self.queue[owner].tolist()) | set(self.queue[~is_said].tolist())
        rows = [on for on in self._queues if int(self.queue[on[0]]) in wanted]
        known = waiting.last_done([*streams, *rows], np.concatenate([collectives, dep]))
        done = np.full(self.total, -1, np.int32)
        for on, last in zip(rows, known[len(streams) :, len(collectives) :], strict=True):
            here = self.queue[owner] == self.queue[on[0]]
            itself = np.where(self.queue[dep] == self.queue[owner], dep, -1)
            np.maximum.at(done, owner[here], np.maximum(last, itself)[here])
        apart = np.flatnonzero(~is_said & (done < before))
        if len(apart):
            raise doubt(self.of, int(apart[0]), "does not follow the one before it on its stream")
        return known[: len(streams), : len(collectives)]

    def _check_collectives(self, collectives: Ints, done: Ints, asked: Ints) -> None:
        """Check that no collective is ready before an earlier one is: what that asks for, it asks for too."""
        early = ready_early(done, asked[:, collectives])
        if len(early):
            node = int(collectives[early[0]])
            raise doubt(self.of, node, "may be ready before an earlier collective is")

    def _issue_others(
        self, streams: list[Ints], collectives: Ints, done: Ints, asked: Ints
    ) -> None:
        """Sends and copies are issued behind collectives of higher numbers that may be ready before they are."""
        others = np.flatnonzero((self.kind == SEND) | (self.kind == COPY))
        known = so_far(done)
        behind = np.searchsorted(collectives, others)
        # The first collective that is certain not to be ready before. What is behind another send or copy comes after that.
        certain = behind
        for number, each in enumerate(known):
            if self.kind[streams[number][0]] in (SEND, COPY):
                continue
            certain = np.maximum(certain, np.searchsorted(each, asked[number, others]))
        late = certain > behind
        self.turn[others[late]] = collectives[certain[late] - 1]
        self.added = (
            np.concatenate([collectives[1:], others[late]]),
            np.concatenate([collectives[:-1], collectives[certain[late] - 1]]),
        )

    def _check_issued(self, collectives: Ints) -> None:
        """What waits for them is issued behind them. No collective that they are behind may be among that."""
        turn, before = self.turn, np.arange(self.total)
        if np.array_equal(turn, before):
            return
        for _ in range(_MOST_ROUNDS):
            before = turn.copy()
            np.maximum.at(turn, self.owner, turn[self.dep])
            for on in self._queues:
                turn[on] = np.maximum.accumulate(turn[on])
            if (turn == before).all():
                break
        late = np.flatnonzero(turn[collectives] > collectives)
        if len(late) or (turn != before).any():
            node = int(collectives[late[0]]) if len(late) else 0
            raise doubt(self.of, node, "may be in the way of what it waits for")

    def receive_behind(self, received: Ints, sent: Ints) -> None:
        """Put what waits for each of these receives behind the send of the same number at its other end: that rank is as far as this one."""
        np.maximum.at(self.turn, received, self.turn[sent])
        self._check_issued(np.flatnonzero(self.kind == COLLECTIVE))
        self.place = self._placed()

    def _placed(self) -> Ints:
        """Receives wait for nobody: what waits for them does, so that each stands right before the first of that."""
        is_moved = self.turn > np.arange(self.total)
        place = np.empty(self.total, np.int32)
        place[np.lexsort((np.arange(self.total), is_moved, self.turn))] = 2 * np.arange(self.total)
        is_recv = self.kind == RECV
        late = np.where(is_recv, np.iinfo(np.int32).max, place - 1)
        awaited = is_recv[self.dep]
        dep, owner = self.dep[awaited], self.owner[awaited]
        for _ in range(_MOST_ROUNDS):
            before = late.copy()
            np.minimum.at(late, dep, late[owner])
            if (late == before).all():
                break
        return np.where(is_recv, late, place)


def _kind(node: Node) -> int:
    match node.action:
        case Compute():
            return COMPUTE
        case Collective():
            return COLLECTIVE
        case Transfer(kind="send"):
            return SEND
        case Transfer():
            return RECV
        case _:
            return COPY
