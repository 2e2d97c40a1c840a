"""What waits for what in one step of a whole job: one rank of each class, and what passes between them.

The nodes of a class stand at positions, those of the next class behind them. A node waits for the nodes that its trace
names: those that make what it reads, and those before it on its streams. Besides, a receive waits for its send, and a
collective of several classes for what any of its members waits for. Ranks of one class keep step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
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

MOST_NOTES = 4

Static = tuple[tuple[str, ...], int, int]
"""What a send and its receive share whatever the instance: axes, the sender's shift, channel."""


@dataclass
class GraphPiece:
    """Nodes of a segment that run without hearing of other ranks in between, and all instances of them."""

    rank_class: int
    nodes: tuple[Node, ...]
    inside: list[list[int]]
    """For each node, those of the piece that it waits for."""
    outside: list[list[int]]
    """For each node, the columns that it waits for."""
    first: Ints
    """The position of each instance's first node."""
    columns: list[Ints]
    """Of each instance: positions, -1 for the start of the step."""
    instance: Ints
    """Which instances of the class' program they are."""
    sends: list[int]
    """The columns of the sends that a receive waits for."""
    segment: int
    begin: int
    """Which segment of the class' program its nodes are of, and the place of the first."""
    told: int | None = None
    """The column of what the host has to know before it launches the first node; None: it waits for nothing."""

    def wait_for(self, columns: Sequence[Ints]) -> list[int]:
        """Let the first node wait for more."""
        new = list(range(len(self.columns), len(self.columns) + len(columns)))
        self.columns += columns
        self.outside[0] += new
        return new


@dataclass(frozen=True)
class PieceGraph:
    """All pieces, where each class' nodes begin (one more is the total), and who meets whom."""

    pieces: list[GraphPiece]
    begins: list[int]
    meetings: list[dict[int, list[int]]]
    """Of each group of several classes: the pieces that are its collectives, by class."""
    classes: Sequence[RankClass]

    @cached_property
    def instances(self) -> Instances:
        """All instances of pieces, in an order in which each comes behind what it waits for."""
        return in_levels(self)

    @cached_property
    def exits(self) -> list[Ints]:
        """Of each piece the nodes that decide when others end, or the step: those that another piece waits for, or nobody."""
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
    def columns(self) -> InstanceColumns:
        return InstanceColumns.of(self)

    @cached_property
    def is_exit(self) -> Bools:
        """Of each node, whether it is one of the `exits` of its piece."""
        found = np.zeros(self.begins[-1], bool)
        for piece, exits in zip(self.pieces, self.exits, strict=True):
            found[(piece.first[:, None] + exits).ravel()] = True
        return found


@dataclass(frozen=True)
class Instances:
    """Instances of pieces in levels, each behind all that it waits for: those of a level wait for none of the same."""

    piece: Ints
    row: Ints
    """Of all instances, level by level."""
    begins: list[int]
    """Of each level; one more is the number of instances."""


@dataclass(frozen=True)
class InstanceColumns:
    """The columns and exits of the pieces of all instances, side by side to the width of the widest: instances as they stand in `Instances`."""

    widths: Ints
    """Of each piece: its columns, and the start of the step before them."""
    heights: Ints
    """Of each piece: its exits."""
    place: Ints
    """Of each instance: where it is among all of the pieces, one after the other."""
    reads: Ints
    """`[column, instance]`: the position that is waited for, -1 for the start of the step."""
    writes: Ints
    """`[instance, exit]`: the position of an exit; behind the last one that of the last."""

    @staticmethod
    def of(graph: PieceGraph) -> InstanceColumns:
        pieces, exits, instances = graph.pieces, graph.exits, graph.instances
        widths = np.array([len(piece.columns) + 1 for piece in pieces], np.int64)
        heights = np.array([len(own) for own in exits], np.int64)
        begin = np.cumsum([0, *(len(piece.first) for piece in pieces)])
        reads = np.full((widths.max(initial=0), begin[-1]), -1)
        writes = np.zeros((begin[-1], heights.max(initial=0)), np.int64)
        for start, stop, piece, at in zip(begin, begin[1:], pieces, exits, strict=False):
            for k, column in enumerate(piece.columns, 1):
                reads[k, start:stop] = column
            writes[start:stop, : len(at)] = piece.first[:, None] + at
            writes[start:stop, len(at) :] = piece.first[:, None] + at[-1]
        place = begin[instances.piece] + instances.row
        return InstanceColumns(widths, heights, place, reads[:, place], writes[place])


def in_levels(graph: PieceGraph) -> Instances:
    """All instances, each in the first level behind those of what it waits for. E0613 where ranks wait for each other."""
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
    """What members of a group have to agree on of a collective."""
    assert isinstance(node.action, Collective)
    return node.action.kind, node.action.operand_bytes


def waits_for_ever(
    classes: Sequence[RankClass], stuck: Sequence[tuple[GraphPiece, int]], why: str
) -> CompileError:
    """E0613, as the writer says it of a set that it can not prove to get through. `stuck`: pieces, and which instance of each."""
    notes = [f"{where_is(classes, piece, row)} {why}" for piece, row in stuck]
    help_ = "an order of the plan's own, or a pass, asks for what cannot be: nothing is written"
    message = "ranks wait for each other for ever"
    place = stuck[0][0].nodes[0].span
    return refused("E0613", message, place, notes=notes, help=help_)


def where_is(classes: Sequence[RankClass], piece: GraphPiece, row: int) -> str:
    """The first node of an instance, by its ranks, its module, its microbatch and its stage."""
    ranks, node = classes[piece.rank_class], piece.nodes[0]
    at = int(piece.instance[row])
    microbatch, stage = int(ranks.program.microbatch[at]), int(ranks.program.stage[at])
    when = f" in microbatch {microbatch}" if microbatch >= 0 else ""
    when += f" of stage {stage}" if stage >= 0 else ""
    return f"`{node.op}` of `{node.scope or 'the step'}`{when}, on ranks `{ranks.name or 'all'}`,"


def unpaired(pieces: Sequence[GraphPiece], tags: Ints, others: Ints) -> tuple[GraphPiece, int]:
    """A receive that has no send, of the receives of a channel in their order: by the `tags` of those, and of the `others`, which send."""
    shared = min(len(tags), len(others))
    differs = np.flatnonzero(tags[:shared] != others[:shared])
    at = int(differs[0]) if len(differs) else min(shared, len(tags) - 1)
    for piece in pieces:
        if at < len(piece.first):
            return piece, at
        at -= len(piece.first)
    return pieces[0], 0


def build_graph(traces: TraceSet, alone: bool = True, launches: bool = False) -> PieceGraph:
    """`alone`: what is over all pools is over these ranks. `launches`: hosts launch kernels one by one, and so wait for sizes that devices make."""
    return GraphBuilder(traces, alone, launches).build()


class GraphBuilder:
    def __init__(self, traces: TraceSet, alone: bool, launches: bool) -> None:
        self.traces, self.alone, self.launches = traces, alone, launches
        self.mesh = traces.mesh
        self.class_map = ClassMap.make(traces.mesh, [c.where for c in traces.classes])
        self.pieces: list[GraphPiece] = []
        self.sends: dict[tuple[int, Static], list[tuple[Ints, Ints]]] = defaultdict(list)
        """By class: tags and positions."""
        self._members: dict[tuple[object, ...], tuple[int, ...]] = {}

    def build(self) -> PieceGraph:
        begins = [0]
        for number, rank_class in enumerate(self.traces.classes):
            program = rank_class.program
            first = begins[-1] + program.first_node
            slots = np.where(program.slots >= 0, program.slots + begins[-1], -1)
            told = self.told(program, first)
            for index, segment in enumerate(program.segments):
                rows = np.flatnonzero(program.segment == index)
                if len(rows):
                    self.note_sends(number, segment, first[rows], program.tag[rows])
                    self.split(number, index, rows, first[rows], slots[rows], told)
            begins.append(int(first[-1]))
        meetings = self.join_collectives()
        self.join_transfers()
        return PieceGraph(self.pieces, begins, meetings, self.traces.classes)

    # One class

    def note_sends(self, number: int, segment: TraceSegment, first: Ints, tags: Ints) -> None:
        for i, node in enumerate(segment.nodes):
            action = node.action
            if isinstance(action, Transfer) and action.kind == "send":
                self.sends[number, self.static(action)].append((tags, first + i))

    def told(self, program: TraceProgram, first: Ints) -> Ints:
        """The positions of what a host has to know before it launches more, in order. `first`: of the first node of each instance."""
        found = [
            first[np.flatnonzero(program.segment == index)] + i
            for index, segment in enumerate(program.segments)
            for i, node in enumerate(segment.nodes)
            if self.launches and node.told
        ]
        return np.sort(np.concatenate([np.zeros(0, np.int64), *found]))

    def split(
        self, number: int, index: int, rows: Ints, first: Ints, slots: Ints, told: Ints
    ) -> None:
        """A node that hears of other ranks is a piece of its own, and behind one that a host has to know of another begins."""
        segment = self.traces.classes[number].program.segments[index]
        bounds = {0, len(segment.nodes)}
        for i, node in enumerate(segment.nodes):
            if self.hears(number, node):
                bounds |= {i, i + 1}
            if len(told) and node.told:
                bounds.add(i + 1)
        edges = sorted(bounds)
        for begin, end in pairwise(edges):
            columns: dict[tuple[int, int], int] = {}
            inside: list[list[int]] = []
            outside: list[list[int]] = []
            for node in segment.nodes[begin:end]:
                deps = (*node.data_deps, *node.ctrl_deps)
                near = [d.node - begin for d in deps if d.slot < 0 and d.node >= begin]
                keys = [
                    (d.slot, 0 if d.slot >= 0 else d.node)
                    for d in deps
                    if d.slot >= 0 or d.node < begin
                ]
                inside.append(near)
                outside.append([columns.setdefault(key, len(columns)) for key in keys])
            arrays = [slots[:, slot] if slot >= 0 else first + node for slot, node in columns]
            nodes = segment.nodes[begin:end]
            piece = GraphPiece(
                number, nodes, inside, outside, first + begin, arrays, rows, [], index, begin
            )
            if len(told):
                before = np.searchsorted(told, piece.first)
                piece.told = len(arrays)
                arrays.append(np.where(before > 0, told[np.maximum(before - 1, 0)], -1))
            self.pieces.append(piece)

    def hears(self, number: int, node: Node) -> bool:
        """Whether what other classes do, or other ranks of its own, decides when a node ends."""
        action = node.action
        if isinstance(action, Transfer):
            return action.kind == "recv"
        return isinstance(action, Collective) and (
            action.ranks > 0 or len(self.members(number, action)) > 1
        )

    # Between classes

    def members(self, number: int, action: Collective) -> tuple[int, ...]:
        """The classes of a collective's ranks, of this mesh."""
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
        return tuple(np.unique(self.class_map.of(ranks)).tolist())

    def join_collectives(self) -> list[dict[int, list[int]]]:
        """The n-th collective of a group waits for what its members' n-th waits for. E0613 where that is another one."""
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
        """The n-th receive of a channel and tag waits for the n-th send of the rank it comes from."""
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
        size = 1
        for axis in action.axes:
            size *= self.mesh.size(axis)
        shift = action.shift if action.kind == "send" else -action.shift
        return action.axes, shift % size, action.channel

    def peers(self, number: int, action: Transfer) -> tuple[int, ...]:
        """The classes of the ranks that a class' ranks receive from."""
        where = self.traces.classes[number].where
        box = {
            axis: where.get(axis, tuple(range(size)) if axis in action.axes else (0,))
            for axis, size in zip(self.mesh.axes, self.mesh.sizes, strict=True)
        }
        ranks = ranks_where(self.mesh, box)
        return self.classes_of(shifted(self.mesh, action.axes, action.shift, ranks))


def is_of_job(pieces: Sequence[GraphPiece], by_class: Mapping[int, Sequence[int]]) -> bool:
    """Whether those who meet are the ranks of all pools."""
    action = pieces[next(iter(by_class.values()))[0]].nodes[0].action
    return isinstance(action, Collective) and action.ranks > 0


def join(
    by_class: Mapping[int, Sequence[int]],
    pieces: Sequence[GraphPiece],
    classes: Sequence[RankClass],
) -> None:
    """Let the n-th collective of a group on each class wait for what that of each other class waits for. `by_class`: numbers of pieces."""
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
    """That classes issue the same collectives of a group, by kind and bytes, in the same order. E0613 else."""
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
    """The positions of collectives in order, and what each waits for, -1 where there is less."""
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
    """Tags and positions, by tag and then by position."""
    if not found:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    tags = np.concatenate([tags for tags, _ in found])
    positions = np.concatenate([positions for _, positions in found])
    order = np.lexsort((positions, tags))
    return tags[order], positions[order]
