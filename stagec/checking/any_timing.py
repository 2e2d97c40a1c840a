"""Proof that run times do not matter: which collectives a rank may issue in another order, if any.

ASTRA-sim gives a rank one slot for communication, and a free slot takes the ready node of lowest id. A collective holds
it until the last member has come; everything else in it ends by itself. So a set can deadlock under some run times and
not under others only where a rank may issue its collectives in several orders.

A rank has one order if its collectives stand in it by id and, whenever one of them is ready, all before it are ready
too or done: what an earlier one waits for, a later one waits for as well, or a still earlier one did. Then, by
induction, a free slot never finds a later one ready and an earlier one not. With orders that no timing changes, the
ranks can get through exactly if dependencies, these orders and the matching of messages and collectives form no
cycle, for which one replay is enough: of programs to which the orders were added as dependencies (`Steady.program`).

Sends and memory accesses need no order of their own: such a node ends by itself, but may find the slot taken by any
collective that is not certain to come after it. It is made to depend on the last of those.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stagec.checking.program import KIND_COLL, KIND_MEM, KIND_RECV, KIND_SEND, RankProgram

MAX_CHAINS = 48
"""Sequences into which what collectives wait for falls; with more, nothing is proved."""


@dataclass(frozen=True)
class Steady:
    """What is known of one program."""

    program: RankProgram | None = None
    """With the order of its collectives as dependencies; nothing if there may be several orders."""
    swapped: tuple[int, int] | None = None
    """Positions of two nodes that may be issued in either order; nothing if there are too many chains to tell."""


def steady(program: RankProgram) -> Steady:
    """Whether no run times change the order in which a rank issues its collectives."""
    return _Proof(program).run()


class _Proof:
    """One pass over a program in issue order."""

    def __init__(self, program: RankProgram) -> None:
        self.program = program
        self.kind: Sequence[int] = program.kind.tolist()
        self.begin: Sequence[int] = program.begin.tolist()
        self.dep: Sequence[int] = program.dep.tolist()
        collectives = program.in_issue_order(np.flatnonzero(program.kind == KIND_COLL))
        self.collectives: list[int] = collectives.tolist()
        self.by_id = bool((np.diff(collectives) > 0).all())
        self.chains: list[list[int]] = []
        """For each chain of nodes: by position, the number of its last node at or before that one; -1 for none."""
        self.ends: list[int] = []
        """The last number of each chain."""
        self.of: dict[int, tuple[int, int]] = {}
        """Chain and number of the nodes that matter."""

    def run(self) -> Steady:
        if not self.collectives and not (self.program.kind == KIND_RECV).any():
            return Steady(self.program)
        if not self._follow():
            return Steady()
        swapped = self._swapped_receives()
        if swapped is None:
            swapped = self._swapped_by_id() if self.by_id else self._swapped_by_dependencies()
        if swapped is not None:
            return Steady(swapped=swapped)
        return Steady(self._with_order())

    def _deps(self, node: int) -> Sequence[int]:
        return self.dep[self.begin[node] : self.begin[node + 1]]

    def _watched(self) -> set[int]:
        """Nodes of which it must be known what depends on them."""
        found = {
            dep for node in self.collectives for dep in self._deps(node) if self._ends_alone(dep)
        }
        if not self.by_id:
            found.update(self.collectives)
        for same in self._same_receives():
            found.update(same)
        # A send or an access of memory is certain to come before what all it waits for comes before.
        for node in self._passing():
            found.update(dep for dep in self._deps(node) if self._ends_alone(dep))
            found.add(node)
        return found

    def _ends_alone(self, node: int) -> bool:
        return self.kind[node] != KIND_COLL

    def _passing(self) -> list[int]:
        in_slot = np.isin(self.program.kind, (KIND_SEND, KIND_MEM))
        return np.flatnonzero(in_slot).tolist() if self.collectives else []

    def _same_receives(self) -> Iterator[list[int]]:
        """Receives that a message may reach in the place of each other, in issue order."""
        at = self.program.in_issue_order(np.flatnonzero(self.program.kind == KIND_RECV))
        slots, messages = self.program.slot[at].tolist(), self.program.message[at].tolist()
        same: dict[tuple[int, int], list[int]] = defaultdict(list)
        for node, slot, message in zip(at.tolist(), slots, messages, strict=True):
            same[slot, message].append(node)
        return (nodes for nodes in same.values() if len(nodes) > 1)

    def _follow(self) -> bool:
        """Put the watched nodes into chains, and find the last of each chain before every node."""
        watched = self._watched()
        size = self.program.num_nodes
        order = range(size) if self.program.issue is None else self.program.issue.tolist()
        chains, ends, begin, dep = self.chains, self.ends, self.begin, self.dep
        for node in order:
            before = dep[begin[node] : begin[node + 1]]
            if before:
                for last in chains:
                    latest = -1
                    for other in before:
                        if last[other] > latest:
                            latest = last[other]
                    last[node] = latest
            if node in watched:
                chain = next((k for k, last in enumerate(chains) if last[node] == ends[k]), -1)
                if chain < 0:
                    if len(chains) == MAX_CHAINS:
                        return False
                    chain = len(chains)
                    chains.append([-1] * size)
                    ends.append(-1)
                ends[chain] += 1
                chains[chain][node] = ends[chain]
                self.of[node] = chain, ends[chain]
        return True

    def _is_before(self, first: int, then: int) -> bool:
        chain, number = self.of[first]
        return self.chains[chain][then] >= number

    def _swapped_receives(self) -> tuple[int, int] | None:
        for nodes in self._same_receives():
            for first, then in itertools.pairwise(nodes):
                if not self._is_before(first, then):
                    return first, then
        return None

    def _swapped_by_dependencies(self) -> tuple[int, int] | None:
        for first, then in itertools.pairwise(self.collectives):
            if not self._is_before(first, then):
                return first, then
        return None

    def _swapped_by_id(self) -> tuple[int, int] | None:
        """The first collective that may be ready before an earlier one is."""
        width = len(self.chains)
        asked = [-1] * width
        """What later collectives must wait for, ..."""
        asking = [-1] * width
        """... and the collective that does."""
        sure = [-1] * width
        """What is done when all collectives so far are issued."""
        for node in self.collectives:
            for chain in range(width):
                if self.chains[chain][node] < asked[chain]:
                    return asking[chain], node
            for dep in self._deps(node):
                if dep in self.of:
                    chain, number = self.of[dep]
                    if number > sure[chain] and number > asked[chain]:
                        asked[chain], asking[chain] = number, node
            for chain in range(width):
                sure[chain] = max(sure[chain], self.chains[chain][node])
        return None

    def _with_order(self) -> RankProgram:
        """The program with what the slot adds: each collective ends before what may come after it begins."""
        added = list(itertools.pairwise(self.collectives))
        added += self._late_passing()
        program = self.program
        if not added:
            return program
        owner = np.repeat(np.arange(program.num_nodes), np.diff(program.begin))
        first, then = np.array(added, dtype=np.int64).T
        owner, dep = np.concatenate([owner, then]), np.concatenate([program.dep, first])
        at = np.argsort(owner, kind="stable")
        begin = np.zeros(program.num_nodes + 1, dtype=np.int32)
        begin[1:] = np.cumsum(np.bincount(owner, minlength=program.num_nodes))
        return replace(program, begin=begin, dep=dep[at].astype(np.int32))

    def _late_passing(self) -> Iterator[tuple[int, int]]:
        """For each send and access of memory, the last collective that it may have to wait for in the slot."""
        after = {node: number + 1 for number, node in enumerate(self.collectives)}
        """From which collective on a node of the slot is sure to be done when that is issued."""
        sure = self._done_before()
        passing = self.program.in_issue_order(np.array(self._passing(), dtype=np.int64))
        for node in passing.tolist():
            low, high = 0, len(self.collectives)
            while low < high:
                middle = (low + high) // 2
                if self._comes_before(node, middle, sure[middle], after):
                    high = middle
                else:
                    low = middle + 1
            after[node] = low
            if low:
                yield self.collectives[low - 1], node

    def _done_before(self) -> list[list[int]]:
        """For each collective: what is done when it is ready and all before it are issued."""
        found: list[list[int]] = []
        sure = [-1] * len(self.chains)
        for node in self.collectives:
            own = [chain[node] for chain in self.chains]
            sure = [max(a, b) for a, b in zip(sure, own, strict=True)]
            found.append(sure)
        return found

    def _comes_before(self, node: int, number: int, sure: list[int], after: dict[int, int]) -> bool:
        """Whether a node that ends by itself is issued before a collective, whatever the times."""
        collective = self.collectives[number]
        if self._is_before(node, collective):
            return True
        if node > collective:
            return False
        return all(
            after.get(dep, number + 1) <= number
            or (dep in self.of and self.of[dep][1] <= sure[self.of[dep][0]])
            for dep in self._deps(node)
        )
