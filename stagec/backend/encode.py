"""Encode a `TraceSet`: each rank class once, into bytes with holes, still rolled."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from stagec.arrays import distinct, distinct_rows
from stagec.backend import wire
from stagec.backend.class_map import ClassMap
from stagec.backend.class_table import HOLE, ClassTable, pack
from stagec.backend.deadlock import check_progress, check_progress_of_pools
from stagec.backend.encoded import (
    EncodedClass,
    EncodedPools,
    EncodedTraces,
    GroupOf,
    RankAt,
    RankFormulas,
    RankOf,
    TraceOptions,
    Variable,
    header_record,
)
from stagec.backend.errors import TraceError
from stagec.backend.groups import GroupIds, GroupKind, kind_of
from stagec.backend.node_records import (
    FIRST_ID,
    DepSource,
    NodeLabels,
    NodeStyle,
    RankVariables,
    RecordFrame,
    Widths,
    add_record,
    frame,
    frame_key,
)
from stagec.backend.pool_links import waits_both_ways
from stagec.backend.pool_pairs import check_pairs
from stagec.backend.program import (
    Dep,
    Mesh,
    Node,
    PooledTraces,
    PoolSeries,
    RankClass,
    SeriesTraces,
    TraceProgram,
    TraceSegment,
    TraceSet,
)
from stagec.backend.series import chained_pools, chained_set, tags_in_first, tags_of_iteration
from stagec.backend.wire import NumberSource, Piece
from stagec.dialects.sched.actions import Collective, Sum, Transfer

MAX_TAG = 500_000_000
"""ASTRA-sim takes tags modulo this number."""


@overload
def encode_traces(
    traces: TraceSet | SeriesTraces, options: TraceOptions | None = None
) -> EncodedTraces: ...
@overload
def encode_traces(
    traces: PooledTraces | PoolSeries, options: TraceOptions | None = None
) -> EncodedPools: ...
def encode_traces(
    traces: TraceSet | SeriesTraces | PooledTraces | PoolSeries, options: TraceOptions | None = None
) -> EncodedTraces | EncodedPools:
    """Encode every class of a job. E0613 for one whose ranks might wait for each other for ever."""
    if isinstance(traces, PooledTraces):
        if waits_both_ways(traces):
            check_progress_of_pools(traces)
        else:
            for _, each in traces.pools:
                check_progress(each)
        return encode_pools(traces, options)
    # If an iteration cannot deadlock whenever its ranks begin, no series can.
    if isinstance(traces, PoolSeries):
        if traces.is_together:
            for part in traces.iterations:
                check_progress_of_pools(part)
        else:
            for part in (part for _, each in traces.pools for part in each.parts):
                check_progress(part)
        return encode_pools(chained_pools(traces), options)
    for part in traces.parts if isinstance(traces, SeriesTraces) else [traces]:
        check_progress(part)
    return encode_unproved(chained_set(traces), options)


def encode_pools(traces: PooledTraces, options: TraceOptions | None = None) -> EncodedPools:
    """The pools of a job: their ranks and groups are numbered one after the other, and their tags are of one span.

    Where what they hand over goes one way, from pools that do not wait for the ones that take it, each was proved to get through when what it takes
    is there, and all of them together where they wait for each other. What is left is that each receive has its send: E0613 else.
    """
    span = max(tag_span_of(each) for _, each in traces.pools)
    found: list[EncodedTraces] = []
    above = 0
    for name, each in traces.pools:
        place = RankPlace(traces.firsts[name], traces.num_ranks, above, span)
        found.append(encode_unproved(each, options, place))
        above = found[-1].formulas.groups.largest(each.mesh)
    encoded = EncodedPools(tuple(name for name, _ in traces.pools), tuple(found))
    check_pairs(traces, encoded)
    return encoded


@dataclass(frozen=True)
class RankPlace:
    """Where a pool is in its job."""

    first: int
    num_ranks: int
    """The number of ranks of the job."""
    above: int
    """The largest id of a group before it."""
    tag_span: int


def tag_span_of(traces: TraceSet) -> int:
    """Tags that a channel needs."""
    series = traces.classes[0].program.series
    iterations = 1 if series is None else series.count
    if series is not None and series.bodies is not None:
        iterations = max(iterations, 1 + int(series.bodies.handed.max(initial=0)))
    return iterations * tags_of_iteration(traces)


def encode_unproved(
    traces: TraceSet, options: TraceOptions | None = None, place: RankPlace | None = None
) -> EncodedTraces:
    """The same of any job: for tests, and for a pool of a job that is proved as a whole."""
    options = options or TraceOptions()
    mesh = traces.mesh
    place = place or RankPlace(0, mesh.num_ranks, 0, tag_span_of(traces))
    kinds: set[GroupKind] = set()
    of_job = False
    peers: set[RankAt | RankOf] = set()
    channels = 0
    for program in (c.program for c in traces.classes):
        for node in program.nodes_that_run():
            match node.action:
                case Collective(ranks=0):
                    kinds.add(kind_of(node.action, mesh))
                case Collective():
                    of_job = True
                case Transfer():
                    peers |= {RankAt(), _peer(node.action, mesh)}
                    channels = max(channels, node.action.channel + 1)
                case _:
                    pass
    groups = GroupIds.assign(tuple(kinds), mesh, place.above, of_job)
    ordered_peers = sorted(peers, key=_order_of_peer)
    variables = (*(GroupOf(k) for k in range(len(groups.kinds))), *ordered_peers)
    programs = [c.program for c in traces.classes]
    iterations = max((p.num_iterations for p in programs), default=1)
    tag_span = place.tag_span
    if channels * tag_span > MAX_TAG:
        raise TraceError(
            "E0610",
            f"transfers need {channels * tag_span} different tags",
            help="fewer microbatches, or stages of a rank, need fewer",
            note=f"{channels} channels with {tag_span} tags each; ASTRA-sim has {MAX_TAG}",
        )
    num_nodes = max(p.num_nodes for p in programs)
    columns = columns_of(programs)
    widths = Widths(
        node=wire.varint_width(num_nodes + FIRST_ID),
        tag=wire.varint_width(max(0, channels * tag_span - 1)),
        rank=wire.varint_width(place.num_ranks - 1),
        group=groups.width,
        layer=max(3, len(str(_largest(p.layer for p in programs)))),
        microbatch=max(2, len(str(_largest(p.microbatch for p in programs)))),
        stage=max(2, len(str(_largest(p.stage for p in programs)))),
        tensor=len(str(num_nodes + FIRST_ID)),
        iteration=max(4, len(str(iterations - 1))) if iterations > 1 else 0,
        sizes=tuple(column.width for column in columns.values()),
    )
    encoder = _Encoder(
        mesh, groups, variables, NodeStyle(options.names, options.provenance, widths), columns
    )
    encoded = EncodedTraces(
        model=traces.model,
        options=options,
        header=header_record(),
        tag_span=tag_span,
        formulas=RankFormulas(mesh, groups, variables, place.first),
        classes=tuple(encoder.encode_class(c) for c in traces.classes),
    )
    _check_groups_agree(encoded)
    return encoded


@dataclass(frozen=True)
class SizeColumn:
    """What a sum of sizes is in each iteration of a series."""

    number: int
    width: int
    """Bytes that the largest takes, in any class."""


def columns_of(programs: Sequence[TraceProgram]) -> dict[Sum, SizeColumn]:
    """The sums that nodes have, and how wide they are."""
    most: dict[Sum, int] = {}
    for program in programs:
        for segment in program.segments:
            for node in segment.nodes:
                # What a collective leaves is in no record.
                said = node.sizes[: 1 if isinstance(node.action, Collective) else 2]
                for size in (*said, *(() if node.durations is None else (node.durations,))):
                    assert program.series is not None
                    largest = int(program.series.numbers[size].max(initial=1))
                    most[size] = max(largest, most.get(size, 1))
    return {
        size: SizeColumn(number, wire.varint_width(largest))
        for number, (size, largest) in enumerate(most.items())
    }


def _largest(arrays: Iterator[np.ndarray]) -> int:
    return max((int(a.max()) for a in arrays if len(a)), default=0)


def _order_of_peer(peer: RankAt | RankOf) -> tuple[str, tuple[str, ...], int]:
    if isinstance(peer, RankOf):
        return str(peer.formula), (), 0
    return "", peer.axes, peer.shift


def _peer(transfer: Transfer, mesh: Mesh) -> RankAt | RankOf:
    if transfer.peer is not None:
        return RankOf(transfer.peer.rank)
    axes = tuple(axis for axis in transfer.axes if mesh.size(axis) > 1)
    length = int(np.prod([mesh.size(axis) for axis in axes], dtype=np.int64))
    shift = transfer.shift % length
    assert shift, f"{transfer} goes to the rank that it comes from"
    return RankAt(axes, shift)


@dataclass(frozen=True, slots=True)
class EncodedSegment:
    """The records of a segment, and the holes in them."""

    data: bytes
    holes: np.ndarray  # HOLE


def encoded_segment(piece: Piece) -> EncodedSegment:
    return EncodedSegment(bytes(piece.data), np.array(piece.holes, dtype=HOLE))


class _Encoder:
    """Encodes classes; equal segments of different classes are encoded once."""

    def __init__(
        self,
        mesh: Mesh,
        groups: GroupIds,
        variables: tuple[Variable, ...],
        style: NodeStyle,
        columns: Mapping[Sum, SizeColumn],
    ) -> None:
        self.mesh = mesh
        self.columns = columns
        self.groups = groups
        self.variables = {variable: number for number, variable in enumerate(variables)}
        self.style = style
        self.pieces: dict[tuple[TraceSegment, tuple[int, ...]], EncodedSegment] = {}
        self.same: dict[tuple[int, tuple[int, ...]], tuple[TraceSegment, EncodedSegment]] = {}
        """Those of segments that are not only equal but the same, by id: hashing a segment takes as long as encoding it."""
        self.frames: dict[Hashable, RecordFrame] = {}
        """What records of nodes share that have other numbers; `shapes` numbers what it depends on besides the node."""
        self.shapes: dict[tuple[str, NodeLabels, tuple[int, ...]], int] = {}
        self.variants: dict[tuple[int, ...], tuple[TraceProgram, np.ndarray, np.ndarray]] = {}
        """Of a program, by its arrays: programs that differ in numbers alone have the same ones."""

    def encode_class(self, rank_class: RankClass) -> EncodedClass:
        program = rank_class.program
        keys, variant = self._known_variants(program)
        pieces = [
            self._piece(
                program.segments[row[0]], tuple(row[1 : 4 + program.segments[row[0]].num_slots])
            )
            for row in keys.tolist()
        ]
        holes = np.concatenate([p.holes for p in pieces])
        first = program.first_number[:, None]
        table = ClassTable(
            data=np.frombuffer(b"".join(p.data for p in pieces), dtype=np.uint8),
            data_ends=np.cumsum([len(p.data) for p in pieces], dtype=np.int64),
            holes=holes,
            hole_ends=np.cumsum([len(p.holes) for p in pieces], dtype=np.int64),
            num_nodes=np.array(
                [len(program.segments[s].nodes) for s in keys[:, 0]], dtype=np.int64
            ),
            variant=variant,
            back=np.where(program.slots >= 0, first - program.numbers(program.slots), 0),
            layer=program.layer,
            microbatch=program.microbatch,
            stage=program.stage,
            tag=tags_in_first(program),
            ahead=np.zeros(len(first), np.int64) if program.ahead is None else program.ahead,
            bodies=program.series.bodies if program.series is not None else None,
            sizes=self._sizes(program),
        )
        return EncodedClass(
            name=rank_class.name,
            where=tuple(
                (axis, tuple(sorted(rank_class.where[axis])))
                for axis in self.mesh.axes
                if axis in rank_class.where
            ),
            num_nodes=table.num_nodes_unrolled,
            num_bytes=len(header_record()) + table.num_bytes_unrolled,
            variables=tuple(
                distinct(holes["argument"][holes["source"] == NumberSource.RANK]).tolist()
            ),
            payload=pack(table),
        )

    def _sizes(self, program: TraceProgram) -> np.ndarray:
        """[columns, iterations]: numbers of nodes as records have them, at least 1; 0 for those of other classes."""
        if program.series is None:
            return np.zeros((0, 1), np.int64)
        found = np.zeros((len(self.columns), program.series.count), np.int64)
        for size, column in self.columns.items():
            numbers = program.series.numbers.get(size)
            if numbers is not None:
                found[column.number] = np.maximum(numbers, 1)
        return found

    def _known_variants(self, program: TraceProgram) -> tuple[np.ndarray, np.ndarray]:
        arrays = (program.segment, program.slots, program.layer, program.microbatch, program.stage)
        key = tuple(map(id, arrays))
        if key not in self.variants:
            _check_program(program)
            # With the program, so that no other array gets the same id.
            self.variants[key] = program, *self._variants(program)
        return self.variants[key][1:]

    def _variants(self, program: TraceProgram) -> tuple[np.ndarray, np.ndarray]:
        """The variants of a program and each instance's. A variant is a row: its segment, whether
        there is a layer, a microbatch, a stage; then for each slot the first slot with the same
        node, or -1 for none."""
        shown = self.style.names == "full" or self.style.provenance
        rows = np.empty((len(program.segment), 4 + program.slots.shape[1]), dtype=np.int64)
        rows[:, 0] = program.segment
        rows[:, 1] = (program.layer >= 0) & shown
        rows[:, 2] = (program.microbatch >= 0) & shown
        rows[:, 3] = (program.stage >= 0) & self.style.provenance
        rows[:, 4:] = _first_equal(program.slots)
        keys, _, variant = distinct_rows(rows)
        return keys, variant

    def _piece(self, segment: TraceSegment, pattern: tuple[int, ...]) -> EncodedSegment:
        same = self.same.get((id(segment), pattern))
        if same is not None:
            return same[1]
        piece = self.pieces.get((segment, pattern))
        if piece is None:
            labels = NodeLabels(*map(bool, (*pattern[:3], self.style.widths.iteration)))
            piece = encoded_segment(self._encode_segment(segment, labels, pattern[3:]))
            self.pieces[segment, pattern] = piece
        self.same[id(segment), pattern] = segment, piece
        return piece

    def _encode_segment(
        self, segment: TraceSegment, labels: NodeLabels, slots: tuple[int, ...]
    ) -> Piece:
        piece = Piece()
        shape = self.shapes.setdefault((segment.task, labels, slots), len(self.shapes))
        for index, node in enumerate(segment.nodes):
            key = (frame_key(node), index, shape)
            if key not in self.frames:
                self.frames[key] = self._frame(node, index, segment.task, labels, slots)
            add_record(
                piece,
                self.frames[key],
                node.action,
                self._rank_variables(node),
                self.style.widths,
                [self.columns[size].number for size in node.sizes if size in self.columns],
            )
        return piece

    def _frame(
        self, node: Node, index: int, task: str, labels: NodeLabels, slots: tuple[int, ...]
    ) -> RecordFrame:
        data_deps = _sources(node.data_deps, index, slots, exclude=())
        ctrl_deps = _sources(node.ctrl_deps, index, slots, exclude=data_deps)
        column = None if node.durations is None else self.columns[node.durations].number
        return frame(node, index, task, labels, ctrl_deps, data_deps, self.style, slots, column)

    def _rank_variables(self, node: Node) -> RankVariables:
        match node.action:
            case Collective(ranks=0):
                kind = self.groups.kinds.index(kind_of(node.action, self.mesh))
                return RankVariables(group=self.variables[GroupOf(kind)])
            case Transfer():
                own = self.variables[RankAt()]
                peer = self.variables[_peer(node.action, self.mesh)]
                if node.action.kind == "send":
                    return RankVariables(source=own, destination=peer)
                return RankVariables(source=peer, destination=own)
            case _:
                return RankVariables()


def _sources(
    deps: tuple[Dep, ...], index: int, slots: tuple[int, ...], exclude: tuple[DepSource, ...]
) -> tuple[DepSource, ...]:
    """The dependencies that there are, each once, in order; none of `exclude`."""
    found: dict[DepSource, None] = {}
    for dep in deps:
        if dep.slot < 0:
            assert 0 <= dep.node < index, f"node {index} depends on node {dep.node}"
            source = (NumberSource.NODE, dep.node)
        elif slots[dep.slot] < 0:
            continue
        else:
            source = (NumberSource.SLOT, slots[dep.slot])
        if source not in exclude:
            found[source] = None
    return tuple(found)


def _first_equal(slots: np.ndarray) -> np.ndarray:
    """For each slot the first slot of its row with the same value; -1 where the value is."""
    found = np.full_like(slots, -1)
    row, column = np.nonzero(slots >= 0)
    key = row * (int(slots.max(initial=0)) + 1) + slots[row, column]
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    found[row, column] = column[first[which]]
    return found


def _check_program(program: TraceProgram) -> None:
    """What the passes promise of a program."""
    n = len(program.segment)
    assert n, "a rank class runs nothing"
    for array in (program.layer, program.microbatch, program.stage, program.tag, program.slots):
        assert len(array) == n, "an array has not one row per instance"
    assert program.segment.min() >= 0
    assert program.segment.max() < len(program.segments)
    num_slots = np.array([s.num_slots for s in program.segments])[program.segment]
    assert (num_slots <= program.slots.shape[1]).all(), "a segment has slots beyond the array"
    beyond = np.arange(program.slots.shape[1]) >= num_slots[:, None]
    assert (program.slots[beyond] == -1).all(), "slots beyond a segment's are not -1"
    assert (program.slots >= -1).all()
    assert (program.slots < program.first_node[:-1, None]).all(), "a slot names a later node"


def _check_groups_agree(encoded: EncodedTraces) -> None:
    """All members of a group that some rank names belong to it and name it: else none gets past it."""
    mesh, kinds = encoded.mesh, encoded.formulas.groups.kinds
    wheres = [dict(c.where) for c in encoded.classes]
    classes = ClassMap.make(mesh, wheres, also=[dict(kind.among) for kind in kinds])
    for number, kind in enumerate(kinds):
        variable = encoded.formulas.variables.index(GroupOf(number))
        using = np.array([variable in c.variables for c in encoded.classes])
        users = using[classes.owner]
        members = users[np.ix_(*classes.inside(dict(kind.among)))]
        assert members.sum() == users.sum(), f"a rank uses a group of {kind} that it is not in"
        along = tuple(i for i, axis in enumerate(mesh.axes) if axis in kind.axes)
        agreed = members.all(axis=along) == members.any(axis=along)
        assert agreed.all(), f"not all members of a group of {kind} use it"
