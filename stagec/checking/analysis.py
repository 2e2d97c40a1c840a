"""Everything that one trace says on its own, as a summary that is small and the same for equal traces.

A trace that differs from one seen before only in its groups, peers and tags is not decoded again:
its bytes are compared with those of the other (a `KnownTrace`), and what differs is patched in. That
is so for the ranks of one class in the sets of most tools.
"""

from dataclasses import dataclass, replace

import numpy as np

from stagec.checking.memory_rules import check_memory
from stagec.checking.node_decoding import FileFindings, LoadedTrace, LocalFinding
from stagec.checking.node_rules import check_nodes, communication_is_known
from stagec.checking.node_table import Column, NodeTable, TraceLimitError
from stagec.checking.program import (
    CommunicationSlots,
    RankProgram,
    build_program,
    digest_of,
    fill_slots,
    nominal_durations,
    number,
)
from stagec.checking.schema import ABSENT, RECV, SEND, STRING
from stagec.checking.structure import DependencyGraph, build_graph
from stagec.checking.wire import read_varints

_PATCHABLE = ("pg_name", "comm_src", "comm_dst", "comm_tag")
_LARGEST_PATCH = np.uint64(1 << 31)


@dataclass(frozen=True)
class Claim:
    """A rank that nodes of a trace name as their own: `comm_src` of sends, `comm_dst` of receives."""

    attribute: str
    rank: int
    count: int
    node: int
    name: str


@dataclass(frozen=True)
class FileSummary:
    """What is kept of a trace. Digests name objects that many summaries share."""

    num_nodes: int
    num_bytes: int
    compressed: bool
    found: tuple[LocalFinding, ...]
    is_comparable: bool = False
    """Whether its communication is all known. If not, other ranks are not compared with it."""
    program: bytes = b""
    """Empty if the trace has no program: it cannot be read, or has cycles or repeated ids."""
    durations: bytes = b""
    groups: tuple[str, ...] = ()
    sequences: tuple[bytes, ...] = ()
    peers: tuple[int, ...] = ()
    sends: tuple[bool, ...] = ()
    channels: tuple[bytes, ...] = ()
    claims: tuple[Claim, ...] = ()


@dataclass
class TraceAnalysis:
    """One trace, in full."""

    table: NodeTable | None
    graph: DependencyGraph | None
    program: RankProgram | None
    slots: CommunicationSlots | None
    durations: np.ndarray | None
    summary: FileSummary

    def shared(self) -> dict[bytes, object]:
        """The objects behind the digests of the summary."""
        if self.program is None or self.slots is None:
            return {}
        channels = dict(zip(self.summary.channels, self.slots.channels, strict=True))
        return {
            self.summary.program: self.program,
            self.summary.durations: self.durations,
            **channels,
        }

    def label(self, position: int) -> tuple[int, str]:
        """The id and the name of the node at a position."""
        assert self.table is not None
        assert self.graph is not None
        row = int(self.graph.row[position])
        return int(self.table.id[row]), self.table.name(row)


def analyse(loaded: LoadedTrace, astra_sim: bool) -> TraceAnalysis:
    """Apply every rule that concerns one trace."""
    found = loaded.found
    graph = program = slots = durations = None
    claims: tuple[Claim, ...] = ()
    table = loaded.table
    if table is not None:
        check_nodes(table, found, astra_sim)
        graph = build_graph(table, found)
        claims = _claims(table)
    if table is not None and graph is not None:
        if astra_sim:
            check_memory(table, graph, found)
        try:
            program, slots = build_program(table, graph)
            durations = nominal_durations(table, graph, program)
        except TraceLimitError as error:
            found.add("E0698", "the trace is too large", str(error))
    summary = FileSummary(
        num_nodes=table.num_nodes if table is not None else 0,
        num_bytes=loaded.num_bytes,
        compressed=loaded.compressed,
        found=tuple(found.found),
        claims=claims,
    )
    if table is not None and program is not None and slots is not None and durations is not None:
        summary = replace(
            _with_slots(summary, slots),
            program=program.digest(),
            durations=digest_of(durations),
            is_comparable=_is_whole(found) and communication_is_known(table),
        )
    return TraceAnalysis(table, graph, program, slots, durations, summary)


def _is_whole(found: FileFindings) -> bool:
    return not any(finding.code == "E0692" for finding in found.found)


def _with_slots(summary: FileSummary, slots: CommunicationSlots) -> FileSummary:
    return replace(
        summary,
        groups=slots.groups,
        sequences=slots.sequences,
        peers=tuple(slots.peers.tolist()),
        sends=tuple(slots.sends.tolist()),
        channels=tuple(channel.digest() for channel in slots.channels),
    )


def _claims(table: NodeTable) -> tuple[Claim, ...]:
    claims: list[Claim] = []
    for node_type, name in ((SEND, "comm_src"), (RECV, "comm_dst")):
        column = table.attributes[name]
        rows = np.flatnonzero(table.type == node_type)
        rows = rows[column.is_integer(rows)]
        ranks, first, counts = np.unique(
            number(table, name, rows), return_index=True, return_counts=True
        )
        for k in range(min(ranks.size, 16)):
            row = int(rows[first[k]])
            claims.append(
                Claim(name, int(ranks[k]), int(counts[k]), int(table.id[row]), table.name(row))
            )
    return tuple(claims)


class KnownTrace:
    """A trace that others are compared with."""

    def __init__(self, analysis: TraceAnalysis) -> None:
        self.analysis = analysis
        table = analysis.table
        assert table is not None
        columns = [table.attributes[name] for name in _PATCHABLE]
        rows = [np.flatnonzero(column.kind != ABSENT) for column in columns]
        start = np.concatenate([c.start[r] for c, r in zip(columns, rows, strict=True)])
        end = np.concatenate([c.end[r] for c, r in zip(columns, rows, strict=True)])
        column = np.repeat(np.arange(len(columns)), [r.size for r in rows])
        order = np.argsort(start)
        self._start = start[order].astype(np.int64)
        self._end = end[order].astype(np.int64)
        self._column = column[order]
        self._row = np.concatenate(rows)[order]
        self._slim(table)

    def _slim(self, table: NodeTable) -> None:
        """Keep of the table what a patch needs."""
        nothing = np.zeros(0, dtype=np.int64)
        kept = (*_PATCHABLE, "comm_type", "comm_size")
        attributes = {name: table.attributes[name] for name in kept}
        slim = replace(
            table,
            attributes=attributes,
            **dict.fromkeys(("start", "end", "duration", "dep_owner", "dep"), nothing),
        )
        self.analysis = replace(self.analysis, table=slim)

    @staticmethod
    def suits(analysis: TraceAnalysis) -> bool:
        """Whether others may be compared with it: nothing was found that quotes what is patched."""
        return analysis.summary.is_comparable and not any(
            finding.code in ("E0633", "W0633") for finding in analysis.summary.found
        )

    @property
    def num_bytes(self) -> int:
        """About how many bytes of memory this takes."""
        assert self.analysis.table is not None
        return self.analysis.table.buffer.size + 300 * self.analysis.table.num_nodes

    def patch(self, loaded_buffer: np.ndarray) -> TraceAnalysis | None:
        """The analysis of a trace that is as long, if it differs only in what can be patched."""
        ours = self.analysis
        assert ours.table is not None
        assert ours.graph is not None
        assert ours.program is not None
        differing = _differing_bytes(ours.table.buffer, loaded_buffer)
        if not differing.size:
            return ours
        span = np.searchsorted(self._start, differing, side="right") - 1
        if (span < 0).any() or (differing >= self._end[span]).any():
            return None
        span = np.unique(span)
        columns = dict(ours.table.attributes)
        for k, name in enumerate(_PATCHABLE):
            touched = span[self._column[span] == k]
            if touched.size:
                column = self._patch_column(columns[name], touched, loaded_buffer)
                if column is None:
                    return None
                columns[name] = column
        table = replace(ours.table, buffer=loaded_buffer, attributes=columns)
        program = replace(
            ours.program, slot=ours.program.slot.copy(), message=ours.program.message.copy()
        )
        slots = fill_slots(table, ours.graph, program)
        same = np.array_equal(program.slot, ours.program.slot) and np.array_equal(
            program.message, ours.program.message
        )
        summary = replace(
            _with_slots(ours.summary, slots),
            program=ours.summary.program if same else program.digest(),
            claims=_claims(table),
        )
        return TraceAnalysis(table, ours.graph, program, slots, ours.durations, summary)

    def _patch_column(self, column: Column, spans: np.ndarray, buffer: np.ndarray) -> Column | None:
        rows = self._row[spans]
        text = column.kind[rows] == STRING
        if text.all():
            return column
        if text.any():
            return None
        value, after = read_varints(buffer, self._start[spans])
        if (after != self._end[spans]).any() or (value >= _LARGEST_PATCH).any():
            return None
        if not column.is_integer(rows).all() or not _plain_varint(column.kind[rows]):
            return None
        patched = column.value.copy()
        patched[rows] = value
        return replace(column, value=patched)


def _plain_varint(kinds: np.ndarray) -> bool:
    """Whether all values are varints that mean themselves: int32, int64, uint32, uint64."""
    return bool(np.isin(kinds, (7, 9, 11, 13)).all())


def _differing_bytes(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Positions at which two equally long arrays of bytes differ."""
    whole = first.size // 8 * 8
    words = np.flatnonzero(first[:whole].view(np.uint64) != second[:whole].view(np.uint64))
    candidates = (words[:, None] * 8 + np.arange(8)).ravel()
    candidates = np.concatenate([candidates, np.arange(whole, first.size)])
    return candidates[first[candidates] != second[candidates]]
