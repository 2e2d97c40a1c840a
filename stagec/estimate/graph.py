"""The graph of what waits for what in one step of a whole job, with one rank for each rank class.

Every node has a position: those of the first class come first, in issue order, then those of the next. A node waits for the nodes that its trace names,
those that make what it reads and those before it on its streams, but for what it waits for through others (`stagec.estimate.waits`). Besides, a receive
waits for its send, and a collective whose members are of several classes waits for all that any of its members waits for. All ranks of a class do the same
at the same time.

Nodes are not kept one by one. A *piece* is a run of nodes of a segment between which nothing is heard of other ranks; it is kept once, with the positions
of all of its instances.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from stagec.arrays import Bools, Ints
from stagec.backend.class_map import ClassMap
from stagec.backend.program import Node, RankClass, TraceProgram, TraceSegment, TraceSet
from stagec.backend.ranks import ranks_where, shifted
from stagec.diagnostics import CompileError, refused
from stagec.dialects.sched.actions import Collective, Transfer
from stagec.estimate.waits import Waits

MOST_NOTES = 4

Static = tuple[tuple[str, ...], int, int]
"""What a send and its receive have in common in all instances: the axes, how far the receiver is from the sender along them, and the channel."""


@dataclass
class GraphPiece:
    """Nodes of a segment between which nothing is heard of other ranks, and all instances of them."""

    rank_class: int
    """The number of the class."""
    nodes: tuple[Node, ...]
    inside: list[list[int]]
    """For each node, the numbers of the nodes of the piece that it waits for."""
    outside: list[list[int]]
    """For each node, the numbers of the `columns` that it waits for."""
    first: Ints
    """`[instance]`: the position of the instance's first node."""
    columns: list[Ints]
    """`[instance]` each: the position of a node outside of the piece that some node of it waits for; -1 for the start of the step."""
    instance: Ints
    """`[instance]`: the number of the segment's run in the program of the class."""
    sends: list[int]
    """The numbers of the `columns` that are sends, if the piece is a receive."""
    segment: int
    """The number of the segment in the program of the class."""
    begin: int
    """The place of the piece's first node in the segment."""
    told: int | None = None
    """The number of the column with the node whose result the host has to read before it launches the piece; None if there is none."""

    def wait_for(self, columns: Sequence[Ints]) -> list[int]:
        """Let the first node wait for further columns. Returns their numbers."""
        new = list(range(len(self.columns), len(self.columns) + len(columns)))
        self.columns += columns
        self.outside[0] += new
        return new


@dataclass
class Awaited:
    """What nodes of a piece wait for outside of it, in all instances."""

    positions: Ints
    """`[instance]`: the position of a node; -1 for none."""
    by: list[int]
    """The numbers of the nodes that wait for it."""

    def add(self, by: int, positions: Ints) -> None:
        """Let another node wait, in the instances in which `positions` names one."""
        self.positions = np.maximum(self.positions, positions)
        if by not in self.by:
            self.by.append(by)


def joined(awaited: Iterable[Awaited]) -> list[Awaited]:
    """The same in fewer columns: those of the same nodes, of which no instance waits for more than one, are one."""
    found: list[Awaited] = []
    for each in awaited:
        for other in found:
            if other.by == each.by and not ((other.positions >= 0) & (each.positions >= 0)).any():
                other.positions = np.maximum(other.positions, each.positions)
                break
        else:
            found.append(each)
    return found


@dataclass(frozen=True)
class PieceGraph:
    """The graph of a job: all pieces of all classes."""

    pieces: list[GraphPiece]
    begins: list[int]
    """The position of the first node of each class, and at the end the number of all nodes."""
    meetings: list[dict[int, list[int]]]
    """For each group of ranks of several classes, the numbers of the pieces that are its collectives, by the number of the class."""
    classes: Sequence[RankClass]
    waits: Sequence[Waits]
    """What the nodes of each class wait for on their own rank."""

    @cached_property
    def instances(self) -> Instances:
        """All instances of all pieces, in an order in which each comes behind those that it waits for."""
        return in_levels(self)

    @cached_property
    def exits(self) -> list[Ints]:
        """For each piece, the nodes whose ends decide when other pieces start or the step ends: another piece waits for them, or nothing does."""
        awaited = np.zeros(self.begins[-1] + 1, bool)
        for piece in self.pieces:
            for column in piece.columns:
                awaited[column] = True
        found: list[Ints] = []
        for piece in self.pieces:
            is_exit = np.ones(len(piece.nodes), bool)
            is_exit[[other for inside in piece.inside for other in inside]] = False
            for at in range(len(piece.nodes)):
                is_exit[at] |= bool(awaited[piece.first + at].any())
            found.append(np.flatnonzero(is_exit))
        return found

    @cached_property
    def every_node(self) -> AskedNodes:
        """The ends of all nodes."""
        return AskedNodes(self, [np.arange(len(piece.first)) for piece in self.pieces])

    @cached_property
    def exits_alone(self) -> AskedNodes:
        """The ends of the exits, from which the end of the step follows."""
        return self.with_nodes(np.zeros(0, np.int64))

    def with_nodes(self, positions: Ints) -> AskedNodes:
        """The ends of the exits, and those of all instances that have a node at one of these positions, which are in ascending order."""
        ends = [np.searchsorted(positions, p.first + len(p.nodes)) for p in self.pieces]
        begins = [np.searchsorted(positions, p.first) for p in self.pieces]
        return AskedNodes(self, [np.flatnonzero(b < e) for b, e in zip(begins, ends, strict=True)])

    @cached_property
    def is_exit(self) -> Bools:
        """`[position]`: whether a node is one of the `exits` of its piece."""
        found = np.zeros(self.begins[-1], bool)
        for piece, exits in zip(self.pieces, self.exits, strict=True):
            found[(piece.first[:, None] + exits).ravel()] = True
        return found

    def exits_of(self, number: int) -> Bools:
        """`[node]`: whether a node of a class is an exit."""
        return self.is_exit[self.begins[number] : self.begins[number + 1]]


@dataclass(frozen=True)
class Instances:
    """All instances of pieces, level by level. An instance waits for instances of earlier levels alone, so that those of one level are solved together."""

    piece: Ints
    """`[instance]`: the number of its piece."""
    row: Ints
    """`[instance]`: its number among the instances of its piece."""
    begins: list[int]
    """Where each level begins, and at the end the number of all instances."""


@dataclass(frozen=True)
class AskedNodes:
    """Nodes of a graph whose ends are asked for: those of some instances, and the exits of all."""

    graph: PieceGraph
    rows: list[Ints]
    """For each piece, its instances whose nodes are all asked for."""

    @cached_property
    def index(self) -> Ints:
        """`[position + 1]`: the number of a node among those that are asked for, or -1; the last entry is that of the start of the step, which comes last."""
        is_asked = np.append(self.graph.is_exit, True)
        for piece, rows in zip(self.graph.pieces, self.rows, strict=True):
            is_asked[piece.first[rows, None] + np.arange(len(piece.nodes))] = True
        return np.where(is_asked, np.cumsum(is_asked) - 1, -1)

    @property
    def count(self) -> int:
        """How many there are, with the start of the step."""
        return int(self.index[-1]) + 1

    @cached_property
    def exits(self) -> list[Ints]:
        """For each piece, `[instance, exit]`: the numbers of its exits."""
        pieces = zip(self.graph.pieces, self.graph.exits, strict=True)
        return [self.index[piece.first[:, None] + at] for piece, at in pieces]

    @cached_property
    def awaited(self) -> list[Ints]:
        """For each piece, `[instance, column]`: the numbers of the nodes that its instances wait for, and last that of the start of the step."""
        return [
            self.index[np.stack([*piece.columns, np.full(len(piece.first), -1)], axis=1)]
            for piece in self.graph.pieces
        ]

    @cached_property
    def columns(self) -> InstanceColumns:
        """The columns and exits of all pieces as arrays."""
        return InstanceColumns.of(self)


@dataclass(frozen=True)
class InstanceColumns:
    """The columns and exits of the pieces of all instances as arrays, wide enough for the piece that has most. Instances are ordered as in `Instances`."""

    widths: Ints
    """`[piece]`: the number of its columns, plus one for the start of the step."""
    heights: Ints
    """`[piece]`: the number of its exits."""
    place: Ints
    """`[instance]`: its number if instances are counted piece by piece."""
    reads: Ints
    """`[column, instance]`: the number, among those that are asked for, of the node that is waited for; first that of the start of the step."""
    writes: Ints
    """`[instance, exit]`: the number of an exit. A piece with fewer exits repeats its last one."""

    @staticmethod
    def of(asked: AskedNodes) -> InstanceColumns:
        graph = asked.graph
        pieces, exits, instances = graph.pieces, graph.exits, graph.instances
        widths = np.array([len(piece.columns) + 1 for piece in pieces], np.int64)
        heights = np.array([len(own) for own in exits], np.int64)
        begin = np.cumsum([0, *(len(piece.first) for piece in pieces)])
        reads = np.full((widths.max(initial=0), begin[-1]), asked.index[-1])
        writes = np.zeros((begin[-1], heights.max(initial=0)), np.int64)
        for start, stop, awaited, own in zip(
            begin, begin[1:], asked.awaited, asked.exits, strict=False
        ):
            reads[1 : awaited.shape[1], start:stop] = awaited[:, :-1].T
            writes[start:stop, : own.shape[1]] = own
            writes[start:stop, own.shape[1] :] = own[:, -1:]
        place = begin[instances.piece] + instances.row
        return InstanceColumns(widths, heights, place, reads[:, place], writes[place])


def in_levels(graph: PieceGraph) -> Instances:
    """All instances of pieces, each in the first level behind all that it waits for. E0613 where ranks wait for each other."""
    first = np.concatenate([np.zeros(0, np.int64), *(piece.first for piece in graph.pieces)])
    numbers = np.repeat(np.arange(len(graph.pieces)), [len(p.first) for p in graph.pieces])
    rows = np.concatenate([np.zeros(0, np.int64), *(np.arange(len(p.first)) for p in graph.pieces)])
    order = np.argsort(first)
    begins = first[order]
    sources: list[np.ndarray] = []
    targets: list[np.ndarray] = []
    for piece in graph.pieces:
        here = np.searchsorted(begins, piece.first)
        for column in piece.columns:
            known = column >= 0
            sources.append(np.searchsorted(begins, column[known], side="right") - 1)
            targets.append(here[known])
    source = np.concatenate([np.zeros(0, np.int64), *sources])
    target = np.concatenate([np.zeros(0, np.int64), *targets])
    waiting = np.bincount(target, minlength=len(begins))
    readers = target[np.argsort(source, kind="stable")]
    count = np.bincount(source, minlength=len(begins))
    begin = np.cumsum(count) - count
    levels: list[Ints] = []
    now = np.flatnonzero(waiting == 0)
    while len(now):
        levels.append(now)
        own = count[now]
        ends = np.cumsum(own)
        told = readers[np.repeat(begin[now] - ends + own, own) + np.arange(ends[-1])]
        np.subtract.at(waiting, told, 1)
        now = np.unique(told[waiting[told] == 0])
    found = order[np.concatenate([np.zeros(0, np.int64), *levels])]
    if len(found) < len(begins):
        # Of each class, the first that never begins.
        firsts: dict[int, tuple[GraphPiece, int]] = {}
        for at in order[waiting > 0].tolist():
            piece = graph.pieces[int(numbers[at])]
            firsts.setdefault(piece.rank_class, (piece, int(rows[at])))
        stuck = list(firsts.values())[:MOST_NOTES]
        raise waits_for_ever(graph.classes, stuck, "waits for what other ranks do after it")
    sizes = [0, *map(len, levels)]
    return Instances(numbers[found], rows[found], np.cumsum(sizes).tolist())


def meaning(node: Node) -> tuple[str, int]:
    """The facts of a collective on which all members of its group have to agree: its kind and the bytes of its operand."""
    assert isinstance(node.action, Collective)
    return node.action.kind, node.action.operand_bytes


def waits_for_ever(
    classes: Sequence[RankClass], stuck: Sequence[tuple[GraphPiece, int]], why: str
) -> CompileError:
    """E0613 for ranks that wait for each other. `stuck` are places at which they do: a piece, and the number of its instance."""
    notes = [f"{where_is(classes, piece, row)} {why}" for piece, row in stuck]
    help_ = "an order of the plan's own, or a pass, asks for what cannot be: nothing is written"
    message = "ranks wait for each other for ever"
    place = stuck[0][0].nodes[0].span
    return refused("E0613", message, place, notes=notes, help=help_)


def where_is(classes: Sequence[RankClass], piece: GraphPiece, row: int) -> str:
    """The first node of an instance in words for the user: its module, its microbatch and stage, and its ranks."""
    ranks, node = classes[piece.rank_class], piece.nodes[0]
    at = int(piece.instance[row])
    microbatch, stage = int(ranks.program.microbatch[at]), int(ranks.program.stage[at])
    when = f" in microbatch {microbatch}" if microbatch >= 0 else ""
    when += f" of stage {stage}" if stage >= 0 else ""
    return f"`{node.op}` of `{node.scope or 'the step'}`{when}, on ranks `{ranks.name or 'all'}`,"


def unpaired(pieces: Sequence[GraphPiece], tags: Ints, others: Ints) -> tuple[GraphPiece, int]:
    """A receive of a channel that has no send, as a piece and the number of its instance.

    `pieces` are the receives of the channel, `tags` the tags of all their instances in ascending order, and `others` those of the sends.
    """
    shared = min(len(tags), len(others))
    differs = np.flatnonzero(tags[:shared] != others[:shared])
    at = int(differs[0]) if len(differs) else min(shared, len(tags) - 1)
    for piece in pieces:
        if at < len(piece.first):
            return piece, at
        at -= len(piece.first)
    return pieces[0], 0


def build_graph(traces: TraceSet, alone: bool = True, launches: bool = False) -> PieceGraph:
    """Build the graph of a job. E0613 where ranks wait for each other.

    `alone`: a collective over all pools is over the ranks of these traces alone. `launches`: hosts launch kernels one by one, and so have to wait for sizes
    that devices compute.
    """
    return GraphBuilder(traces, alone, launches).build()


class GraphBuilder:
    """Builds the graph of a job; `build_graph` explains its settings."""

    def __init__(self, traces: TraceSet, alone: bool, launches: bool) -> None:
        self.traces, self.alone, self.launches = traces, alone, launches
        self.mesh = traces.mesh
        self.class_map = ClassMap.make(traces.mesh, [c.where for c in traces.classes])
        self.pieces: list[GraphPiece] = []
        self.sends: dict[tuple[int, Static], list[tuple[Ints, Ints]]] = defaultdict(list)
        """The sends of each class and channel: the tags and positions of the instances of each node."""
        self._members: dict[tuple[object, ...], tuple[int, ...]] = {}

    def build(self) -> PieceGraph:
        """The graph: the pieces of each class, then what pieces of different classes wait for of each other."""
        begins, every = [0], [Waits(each.program) for each in self.traces.classes]
        for number, rank_class in enumerate(self.traces.classes):
            program = rank_class.program
            first = begins[-1] + program.first_node
            slots = np.where(program.slots >= 0, program.slots + begins[-1], -1)
            told, waits = self.told(program, first), every[number]
            for index, segment in enumerate(program.segments):
                rows = np.flatnonzero(program.segment == index)
                if len(rows):
                    self.note_sends(number, segment, first[rows], program.tag[rows])
                    self.split(number, index, rows, first[rows], slots[rows], told, waits)
            begins.append(int(first[-1]))
        meetings = self.join_collectives()
        self.join_transfers()
        return PieceGraph(self.pieces, begins, meetings, self.traces.classes, every)

    # One class

    def note_sends(self, number: int, segment: TraceSegment, first: Ints, tags: Ints) -> None:
        """Note the sends of a segment of class `number`. `first` and `tags` are those of the segment's instances."""
        for i, node in enumerate(segment.nodes):
            action = node.action
            if isinstance(action, Transfer) and action.kind == "send":
                self.sends[number, self.static(action)].append((tags, first + i))

    def told(self, program: TraceProgram, first: Ints) -> Ints:
        """The positions, in ascending order, of the nodes whose results the host has to read before it launches more. `first` are the positions of the first
        nodes of all instances of segments.

        Before it launches a node that is checked, that is the last computation before it.
        """
        if not self.launches:
            return np.zeros(0, np.int64)

        def where(belongs: Callable[[Node], bool]) -> Ints:
            found = [
                first[np.flatnonzero(program.segment == index)] + i
                for index, segment in enumerate(program.segments)
                for i, node in enumerate(segment.nodes)
                if belongs(node)
            ]
            return np.sort(np.concatenate([np.zeros(0, np.int64), *found]))

        told, checked = where(lambda node: node.told), where(lambda node: node.checked)
        if not len(checked):
            return told
        computing = where(lambda node: node.computes)
        before = np.searchsorted(computing, checked)
        return np.union1d(told, computing[before[before > 0] - 1])

    def split(
        self,
        number: int,
        index: int,
        rows: Ints,
        first: Ints,
        slots: Ints,
        told: Ints,
        waits: Waits,
    ) -> None:
        """Cut a segment into pieces. A node that hears of other ranks is a piece by itself; behind a node whose result the host has to read, a piece begins.

        What a node waits for through others (`waits`) is left out.
        """
        segment = self.traces.classes[number].program.segments[index]
        into = told - first[np.searchsorted(first[1:], told, side="right")]
        here = (into >= 0) & (into < len(segment.nodes))
        bounds = {0, len(segment.nodes), *(into[here] + 1).tolist()}
        for i, node in enumerate(segment.nodes):
            if self.hears(number, node):
                bounds |= {i, i + 1}
        edges = sorted(bounds)
        for begin, end in pairwise(edges):
            nodes = segment.nodes[begin:end]
            inside: list[list[int]] = [[] for _ in nodes]
            awaited: dict[tuple[int, int], Awaited] = {}
            for i, node in enumerate(nodes):
                for k, dep in enumerate((*node.data_deps, *node.ctrl_deps)):
                    is_needed = waits.is_needed(index, begin + i, k)
                    if not is_needed.any():
                        continue
                    if dep.slot < 0 and dep.node >= begin:
                        inside[i].append(dep.node - begin)
                        continue
                    key = (dep.slot, 0 if dep.slot >= 0 else dep.node)
                    found = first + dep.node if dep.slot < 0 else slots[:, dep.slot]
                    awaited.setdefault(key, Awaited(np.full(len(rows), -1), [])).add(
                        i, np.where(is_needed, found, -1)
                    )
            columns = joined(awaited.values())
            outside = [
                [k for k, each in enumerate(columns) if i in each.by] for i in range(len(nodes))
            ]
            arrays = [each.positions for each in columns]
            piece = GraphPiece(
                number, nodes, inside, outside, first + begin, arrays, rows, [], index, begin
            )
            if len(told):
                before = np.searchsorted(told, piece.first)
                piece.told = len(arrays)
                arrays.append(np.where(before > 0, told[np.maximum(before - 1, 0)], -1))
            self.pieces.append(piece)

    def hears(self, number: int, node: Node) -> bool:
        """Whether other classes, or other ranks of its own class, decide when a node ends."""
        action = node.action
        if isinstance(action, Transfer):
            return action.kind == "recv"
        return isinstance(action, Collective) and (
            action.ranks > 0 or len(self.members(number, action)) > 1
        )

    # Between classes

    def members(self, number: int, action: Collective) -> tuple[int, ...]:
        """The numbers of the classes that a collective's ranks belong to, in this mesh."""
        if action.ranks:
            return tuple(range(len(self.traces.classes)))
        key = (number, action.axes, action.among)
        if key not in self._members:
            where = self.traces.classes[number].where
            among = dict(action.among)
            box = {
                axis: among.get(axis, tuple(range(self.mesh.size(axis))))
                if axis in action.axes
                else where.get(axis, (0,))
                for axis in self.mesh.axes
            }
            self._members[key] = self.classes_of(ranks_where(self.mesh, box))
        return self._members[key]

    def classes_of(self, ranks: Ints) -> tuple[int, ...]:
        """The numbers of the classes of these ranks, each once."""
        return tuple(np.unique(self.class_map.of(ranks)).tolist())

    def join_collectives(self) -> list[dict[int, list[int]]]:
        """Let the n-th collective of a group wait, on each member, for all that the n-th one of any member waits for. E0613 if members have different ones.

        Returns `PieceGraph.meetings`.
        """
        groups: dict[tuple[object, ...], dict[int, list[int]]] = {}
        for i, piece in enumerate(self.pieces):
            action = piece.nodes[0].action
            if isinstance(action, Collective) and self.hears(piece.rank_class, piece.nodes[0]):
                members = self.members(piece.rank_class, action)
                by_class = groups.setdefault((action.axes, action.among, members), {})
                by_class.setdefault(piece.rank_class, []).append(i)
        for by_class in groups.values():
            if self.alone or not is_of_job(self.pieces, by_class):
                join(by_class, self.pieces, self.traces.classes)
        return list(groups.values())

    def join_transfers(self) -> None:
        """Let the n-th receive of a channel and tag wait for the n-th send of the rank that it comes from. E0613 if there is none."""
        groups: dict[tuple[int, Static], list[GraphPiece]] = defaultdict(list)
        sources: dict[tuple[int, Static], tuple[int, ...]] = {}
        for piece in self.pieces:
            action = piece.nodes[0].action
            if isinstance(action, Transfer) and action.kind == "recv" and action.peer is None:
                key = (piece.rank_class, self.static(action))
                groups[key].append(piece)
                if key not in sources:
                    sources[key] = self.peers(piece.rank_class, action)
        for (number, static), pieces in groups.items():
            program = self.traces.classes[number].program
            received = [(program.tag[p.instance], p.first) for p in pieces]
            tags, positions = in_order(received)
            for source in sources[number, static]:
                sent_tags, sent = in_order(self.sends[source, static])
                if not np.array_equal(tags, sent_tags):
                    raise waits_for_ever(
                        self.traces.classes, [unpaired(pieces, tags, sent_tags)], "has no other end"
                    )
                by_position = np.argsort(positions)
                for piece in pieces:
                    nth = np.searchsorted(positions, piece.first, sorter=by_position)
                    piece.sends += piece.wait_for([sent[by_position[nth]]])

    def static(self, action: Transfer) -> Static:
        """The key under which a receive finds its sends."""
        size = 1
        for axis in action.axes:
            size *= self.mesh.size(axis)
        shift = action.shift if action.kind == "send" else -action.shift
        return action.axes, shift % size, action.channel

    def peers(self, number: int, action: Transfer) -> tuple[int, ...]:
        """The numbers of the classes whose ranks send to the ranks of a class."""
        where = self.traces.classes[number].where
        box = {
            axis: where.get(axis, tuple(range(size)) if axis in action.axes else (0,))
            for axis, size in zip(self.mesh.axes, self.mesh.sizes, strict=True)
        }
        ranks = ranks_where(self.mesh, box)
        return self.classes_of(shifted(self.mesh, action.axes, action.shift, ranks))


def is_of_job(pieces: Sequence[GraphPiece], by_class: Mapping[int, Sequence[int]]) -> bool:
    """Whether collectives (the numbers of their pieces by class) are over the ranks of all pools."""
    action = pieces[next(iter(by_class.values()))[0]].nodes[0].action
    return isinstance(action, Collective) and action.ranks > 0


def join(
    by_class: Mapping[int, Sequence[int]],
    pieces: Sequence[GraphPiece],
    classes: Sequence[RankClass],
) -> None:
    """Let the n-th collective of a group wait, on each class, for all that the n-th one of each other class waits for.

    `by_class` has the numbers of the pieces that are the group's collectives. E0613 where classes have different ones.
    """
    found = {n: [pieces[i] for i in which] for n, which in by_class.items()}
    tables = {number: waits(own) for number, own in found.items()}
    check_alike(found, classes)
    for number, own in found.items():
        positions = tables[number][0]
        others = [table for n, (_, table) in tables.items() if n != number]
        for piece in own:
            nth = np.searchsorted(positions, piece.first)
            piece.wait_for([column for table in others for column in table[nth].T])


def check_alike(members: Mapping[int, Sequence[GraphPiece]], classes: Sequence[RankClass]) -> None:
    """Check that all classes of a group issue the same collectives, by kind and bytes, in the same order. E0613 if they do not."""
    kinds: dict[tuple[str, int], int] = {}
    first: Ints | None = None
    for pieces in members.values():
        own = [kinds.setdefault(meaning(piece.nodes[0]), len(kinds)) for piece in pieces]
        position = np.concatenate([piece.first for piece in pieces])
        issued = np.repeat(own, [len(piece.first) for piece in pieces])[np.argsort(position)]
        if first is not None and not np.array_equal(first, issued):
            why = "meets another collective of its group on other ranks"
            raise waits_for_ever(classes, [(pieces[0], 0)], why)
        first = issued


def waits(pieces: Sequence[GraphPiece]) -> tuple[Ints, Ints]:
    """The positions of a class's collectives in ascending order, `[n]`, and the positions that each waits for, `[n, column]`, filled up with -1."""
    width = max(len(piece.columns) for piece in pieces)
    positions = np.concatenate([piece.first for piece in pieces])
    table = np.full((len(positions), width), -1, np.int64)
    at = 0
    for piece in pieces:
        for k, column in enumerate(piece.columns):
            table[at : at + len(column), k] = column
        at += len(piece.first)
    order = np.argsort(positions)
    return positions[order], table[order]


def in_order(found: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    """The tags and the positions of sends or receives, sorted by tag and then by position."""
    if not found:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    tags = np.concatenate([tags for tags, _ in found])
    positions = np.concatenate([positions for _, positions in found])
    order = np.lexsort((positions, tags))
    return tags[order], positions[order]
