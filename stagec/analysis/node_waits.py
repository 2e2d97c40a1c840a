"""What is done when a node is ready, where nodes stand in queues: by numbers alone, of nodes that wait for lower numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stagec.arrays import Ints, laid_out


def deps_of(nodes: Iterable[Iterable[tuple[int, int]]]) -> Ints:
    """`[deps, 3]`: what the nodes of a segment wait for, whose instances have the same: a node, the slot in which what it waits for stands, or -1, and
    which of the segment's own nodes that is then."""
    found = [(node, *dep) for node, own in enumerate(nodes) for dep in own]
    return np.array(found, np.int32).reshape(-1, 3)


AT_ONCE = 256
"""Instances that are looked at together: what is in between takes several times as much memory as what is found."""


def edges(deps: Sequence[Ints], segment: Ints, first: Ints, slots: Ints) -> tuple[Ints, Ints]:
    """The nodes that wait for some, and those for which they do.

    `deps` are those of each segment. Of each instance `segment` says which it is of, `first` which its first node is, `slots` what stands in its slots.
    """
    lengths = np.array([len(each) for each in deps], np.int64)
    node, slot, own = np.concatenate(deps).T
    found = [(segment[:0].astype(np.int32),) * 2]
    for begin in range(0, len(segment), AT_ONCE):
        some = slice(begin, begin + AT_ONCE)
        instance, at = laid_out(segment[some], lengths)
        start = first[some].astype(np.int32)[instance]
        awaited = start + own[at]
        slot_of = slot[at]
        far = np.flatnonzero(slot_of >= 0)
        awaited[far] = slots[some][instance[far], slot_of[far]]
        there = awaited >= 0
        found.append(((start + node[at])[there], awaited[there]))
    owners, awaited = zip(*found, strict=True)
    return np.concatenate(owners), np.concatenate(awaited)


@dataclass(frozen=True)
class Waiting:
    """Which node waits for which. Nodes of a queue follow one another besides."""

    queue: Ints
    """The queue of each node."""
    owner: Ints
    dep: Ints
    """What each `owner` waits for: a lower number."""

    def asked(self, streams: list[Ints]) -> Ints:
        """`[stream, node]`: the last node of a stream that a node waits for itself; -1 for none."""
        found = np.full((len(streams), len(self.queue)), -1, np.int32)
        which = np.full(len(self.queue), -1, np.int16)
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
        crosses = self.queue[self.owner] != self.queue[self.dep]
        owner, dep = self.owner[crosses], self.dep[crosses]
        event_of, ends = self._events(owner)
        order = np.argsort(event_of[owner], kind="stable")
        owner, dep = owner[order], dep[order]
        begin = np.flatnonzero(np.diff(event_of[owner], prepend=-1))
        itself = np.full((len(streams), len(dep)), -1, np.int32)
        known = np.full((len(streams), len(nodes)), -1, np.int32)
        queue_of_dep, queue_of_node = self.queue[dep], self.queue[nodes]
        for on, waited, own in zip(streams, itself, known, strict=True):
            here, there = (
                np.flatnonzero(each == self.queue[on[0]]) for each in (queue_of_dep, queue_of_node)
            )
            last = np.concatenate([[-1], on])
            waited[here] = last[np.searchsorted(on, dep[here], side="right")]
            own[there] = last[np.searchsorted(on, nodes[there])]
        found = np.full((len(streams), len(begin) + 1), -1, np.int32)
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
        number = np.cumsum(waits[order], dtype=np.int32)
        begins = np.flatnonzero(np.diff(self.queue[order], prepend=-1))
        before = (number - waits[order])[begins]
        above = np.repeat(before, np.diff(begins, append=len(order)))
        found = np.empty(len(order), np.int32)
        found[order] = np.where(number > above, number - 1, -1)
        return found, [*before.tolist(), int(waits.sum())]


def ready_early(done: Ints, asked: Ints) -> Ints:
    """Which collectives, as they are issued, may be ready before an earlier one, as they do not wait for all that the earlier one waits for.

    `done` and `asked`, `[stream, collective]`, are the last nodes of streams that are done when each is ready, and that it waits for itself.
    """
    known = np.concatenate([np.full((len(done), 1), -1), so_far(done)[:, :-1]], axis=1)
    own = np.where(asked > known, asked, -1)
    before = np.concatenate([np.full((len(own), 1), -1), so_far(own)[:, :-1]], axis=1)
    return np.flatnonzero((done < before).any(axis=0))


def so_far(table: Ints) -> Ints:
    return np.maximum.accumulate(table, axis=1)
