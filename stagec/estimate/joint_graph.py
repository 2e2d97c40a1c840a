"""The graph of what waits for what in a step of several pools that wait for each other: the graph of each pool, joined by the messages between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stagec.arrays import Ints
from stagec.backend.errors import TraceError
from stagec.backend.pool_links import Key, Party, PoolLink, handed, links
from stagec.backend.program import PooledTraces
from stagec.backend.ranks import ranks_where
from stagec.dialects.sched.actions import Transfer
from stagec.estimate.graph import (
    GraphPiece,
    PieceGraph,
    build_graph,
    is_of_job,
    join,
    waits_for_ever,
)
from stagec.estimate.timeline import Timeline


@dataclass(frozen=True)
class JointGraph:
    """The graph of all pools. Their nodes and classes follow each other in the order of the pools."""

    graph: PieceGraph
    own: dict[str, PieceGraph]
    """The graph of each pool by itself, with its own numbers of classes and positions."""
    pool_of: Sequence[str]
    """`[piece]`: the name of the pool that each piece of `graph` belongs to."""

    @staticmethod
    def of(traces: PooledTraces) -> JointGraph:
        """Build the graph. E0613 where pools wait for each other for ever."""
        own = {name: build_graph(each, alone=False) for name, each in traces.pools}
        pieces: list[GraphPiece] = []
        begins: list[int] = [0]
        meetings: list[dict[int, list[int]]] = []
        pool_of: list[str] = []
        classes_ = [each for graph in own.values() for each in graph.classes]
        waits = [each for graph in own.values() for each in graph.waits]
        for name, graph in own.items():
            classes, above, before = len(begins) - 1, begins[-1], len(pieces)
            pieces += [renumbered(piece, classes, above) for piece in graph.pieces]
            meetings += [
                {n + classes: [i + before for i in which] for n, which in each.items()}
                for each in graph.meetings
            ]
            pool_of += [name] * len(graph.pieces)
            begins += [above + begin for begin in graph.begins[1:]]
        joint = JointGraph(PieceGraph(pieces, begins, meetings, classes_, waits), own, pool_of)
        joint.meet()
        joint.link(traces)
        return joint

    def own_pieces(self, name: str) -> Sequence[GraphPiece]:
        """The pieces of one pool, with the pool's own numbers."""
        return self.own[name].pieces

    def begin(self, name: str) -> int:
        """The position of a pool's first node."""
        before = list(self.own)[: list(self.own).index(name)]
        return sum(self.own[each].begins[-1] for each in before)

    def of_pool(self, timeline: Timeline, name: str) -> Timeline:
        """The part of a timeline of all pools that is about one pool."""
        begins, first = self.own[name].begins, self.begin(name)
        here = slice(first, first + begins[-1])
        launched = timeline.launched_us
        return Timeline(
            timeline.start_us[here],
            timeline.end_us[here],
            tuple(begins),
            None if launched is None else launched[here],
        )

    def meet(self) -> None:
        """Let a collective over all pools wait for what all of them wait for."""
        graph = self.graph
        found = [each for each in graph.meetings if is_of_job(graph.pieces, each)]
        if found:
            of_job = {number: which for each in found for number, which in each.items()}
            join(of_job, graph.pieces, graph.classes)
            graph.meetings[:] = [of_job, *(each for each in graph.meetings if each not in found)]

    def link(self, traces: PooledTraces) -> None:
        """Let each receive from another pool wait for its send."""
        for once in (False, True):
            self.link_parties({party.key: party for party in self.parties(traces, once)})

    def link_parties(self, parties: Mapping[Key, Party]) -> None:
        """Let each receive of these classes wait for its send. E0613 where a send or a receive has no other end."""
        try:
            found = links(list(parties.values()))
        except TraceError:
            why = "waits for what other ranks do after it"
            raise waits_for_ever(self.graph.classes, [(self.graph.pieces[0], 0)], why) from None
        columns = list(self.sources(found, parties))
        for piece in self.graph.pieces:
            action = piece.nodes[0].action
            if not isinstance(action, Transfer) or action.peer is None or action.kind != "recv":
                continue
            for column in columns:
                own = column[piece.first]
                if (own >= 0).any():
                    piece.sends += piece.wait_for([own])

    def sources(self, found: Sequence[PoolLink], parties: Mapping[Key, Party]) -> Iterator[Ints]:
        """Columns that say for each position in the graph the position of a send that it waits for, or -1. There are as many columns as the most sends that
        one receive waits for.
        """
        first = {key: self.position(key) for key in parties}
        pairs = [np.zeros((2, 0), np.int64)]
        for link in found:
            taken = first[link.taker] + parties[link.taker].takes.position[:, link.taken]
            sent = first[link.giver] + parties[link.giver].sends.position[:, link.sent]
            pairs.append(np.stack([taken, sent]))
        taken, sent = np.concatenate(pairs, axis=1)
        order = np.argsort(taken, kind="stable")
        taken, sent = taken[order], sent[order]
        turn = np.arange(len(taken)) - np.searchsorted(taken, taken)
        for number in range(turn.max(initial=-1) + 1):
            column = np.full(self.graph.begins[-1], -1, np.int64)
            column[taken[turn == number]] = sent[turn == number]
            yield column

    def parties(self, traces: PooledTraces, once: bool) -> Iterator[Party]:
        """Each class of each pool, with its sends to other pools and its receives from them: those that run once per step, or those of microbatches."""
        for name, each in traces.pools:
            for number, rank_class in enumerate(each.classes):
                sends, takes = (handed(rank_class.program, kind, once) for kind in ("send", "recv"))
                ranks = ranks_where(each.mesh, rank_class.where)
                yield Party((name, number), ranks, traces.firsts[name], each.mesh, sends, takes)

    def position(self, key: tuple[int | str, ...]) -> int:
        """The position of the first node of a class, which is given by its pool and its number there."""
        name, number = key
        assert isinstance(name, str) and isinstance(number, int)
        return self.begin(name) + self.own[name].begins[number]


def renumbered(piece: GraphPiece, classes: int, positions: int) -> GraphPiece:
    """A piece of one pool, numbered as it stands in the graph of all pools: behind this many classes and positions of other pools."""

    def shifted(column: Ints) -> Ints:
        return np.where(column >= 0, column + positions, -1)

    return replace(
        piece,
        rank_class=piece.rank_class + classes,
        first=piece.first + positions,
        columns=[shifted(column) for column in piece.columns],
        outside=[list(columns) for columns in piece.outside],
        sends=list(piece.sends),
    )
