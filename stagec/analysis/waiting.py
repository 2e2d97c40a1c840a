"""What is done when a node is ready, where nodes stand in queues: by numbers alone, of nodes that wait for lower numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stagec.arrays import Ints


@dataclass(frozen=True)
class Deps:
    """What the nodes of a segment wait for, whose instances have the same: a node of their own, or one that stands in a slot."""

    node: Ints
    slot: Ints
    """-1 for a node of the segment's own,"""
    own: Ints
    """which it is."""

    @staticmethod
    def of(deps: Sequence[Iterable[tuple[int, int]]]) -> Deps:
        """For each node, slots and nodes."""
        found = [(node, *dep) for node, own in enumerate(deps) for dep in own]
        return Deps(*np.array(found, np.int64).reshape(-1, 3).T)


def edges(deps: Deps, first: Ints, slots: Ints) -> tuple[Ints, Ints]:
    """The nodes of a segment's instances that wait for some, and those for which they do.

    `first` is the first node of each instance, `slots` what stands in its slots.
    """
    awaited = np.where(deps.slot < 0, first[:, None] + deps.own, -1)
    if slots.shape[1]:
        awaited = np.where(deps.slot < 0, awaited, slots[:, np.maximum(deps.slot, 0)])
    there = awaited >= 0
    return (first[:, None] + deps.node)[there], awaited[there]


@dataclass(frozen=True)
class Waiting:
    """Which node waits for which. Nodes of a queue follow one another besides."""

    queue: Ints
    """Of each node."""
    owner: Ints
    dep: Ints
    """What each `owner` waits for: a lower number."""

    def asked(self, streams: list[Ints]) -> Ints:
        """`[stream, node]`: the last node of a stream that a node waits for itself; -1 for none."""
        found = np.full((len(streams), len(self.queue)), -1, np.int64)
        which = np.full(len(self.queue), -1, np.int64)
        for number, on in enumerate(streams):
            which[on] = number
        which = which[self.dep]
        for number, each in enumerate(found):
            here = which == number
            np.maximum.at(each, self.owner[here], self.dep[here])
        return found

    def last_done(self, streams: list[Ints], nodes: Ints) -> Ints:
        """`[stream, node]`: the last node of a stream that is done when a node is ready; -1 for none. Each stream is some nodes of one queue, ascending.

        Along a queue more and more is done, so that only nodes that wait for another queue are looked at: what is done then is what is done
        where those are ready, and they themselves. That is found out until nothing is added.
        """
        total = len(self.queue)
        crosses = self.queue[self.owner] != self.queue[self.dep]
        owner, dep = self.owner[crosses], self.dep[crosses]
        event_of, ends = self._events(owner)
        order = np.argsort(event_of[owner], kind="stable")
        owner, dep = owner[order], dep[order]
        begin = np.flatnonzero(np.diff(event_of[owner], prepend=-1))
        itself = np.full((len(streams), len(dep)), -1, np.int64)
        known = np.full((len(streams), len(nodes)), -1, np.int64)
        for on, waited, own in zip(streams, itself, known, strict=True):
            last = np.full(total + 1, -1, np.int64)
            last[on + 1] = on
            last = np.maximum.accumulate(last)
            queue = self.queue[on[0]]
            waited[:] = np.where(self.queue[dep] == queue, last[dep + 1], -1)
            own[:] = np.where(self.queue[nodes] == queue, last[nodes], -1)
        found = np.full((len(streams), len(begin) + 1), -1, np.int64)
        behind = event_of[dep]
        while len(begin):
            done = np.maximum.reduceat(np.maximum(itself, found[:, behind]), begin, axis=1)
            for first, end in pairwise(ends):
                np.maximum.accumulate(done[:, first:end], axis=1, out=done[:, first:end])
            if np.array_equal(done, found[:, :-1]):
                break
            found[:, :-1] = done
        return np.maximum(known, found[:, event_of[nodes]])

    def _events(self, owner: Ints) -> tuple[Ints, list[int]]:
        """Nodes that wait, numbered queue by queue: for each node the last one of its queue up to there, -1 for none; where those of each queue begin."""
        order = np.argsort(self.queue, kind="stable")
        waits = np.zeros(len(order), bool)
        waits[owner] = True
        number = np.cumsum(waits[order])
        begins = np.flatnonzero(np.diff(self.queue[order], prepend=-1))
        before = (number - waits[order])[begins]
        above = np.repeat(before, np.diff(begins, append=len(order)))
        found = np.empty(len(order), np.int64)
        found[order] = np.where(number > above, number - 1, -1)
        return found, [*before.tolist(), int(waits.sum())]


def ready_early(done: Ints, asked: Ints) -> Ints:
    """Of collectives as they are issued, those that may be ready before an earlier one: what that asks for, it does not ask for.

    `done` and `asked`, `[stream, collective]`, are the last nodes of streams that are done when each is ready, and that it waits for itself.
    """
    known = np.concatenate([np.full((len(done), 1), -1), so_far(done)[:, :-1]], axis=1)
    own = np.where(asked > known, asked, -1)
    before = np.concatenate([np.full((len(own), 1), -1), so_far(own)[:, :-1]], axis=1)
    return np.flatnonzero((done < before).any(axis=0))


def so_far(table: Ints) -> Ints:
    return np.maximum.accumulate(table, axis=1)
