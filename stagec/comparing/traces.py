"""Two sets of traces, compared by class of node, for each class of ranks.

A rank's nodes are counted by what they do, with whom, and by name. Ranks that count the same on both
sides are one row of the result, however many they are. Each file is read once; one that differs from
another only in groups, peers and tags is not counted again.
"""

from __future__ import annotations

import filecmp
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stagec.checking.analysis import analyse
from stagec.checking.comm_groups import find_group_file, read_groups
from stagec.checking.findings import Findings
from stagec.checking.known_traces import KnownTraces
from stagec.checking.node_decoding import FileFindings, LoadedTrace, decode_trace
from stagec.checking.program import CommunicationSlots
from stagec.checking.trace_file import (
    TraceFile,
    TraceFileError,
    TraceFiles,
    find_traces,
    read_bytes,
)
from stagec.comparing.comparison import Comparison, Section, compare, differ
from stagec.comparing.labels import Labels, mesh_of_manifest
from stagec.comparing.node_counts import GROUP, NOBODY, NodeCount, tally
from stagec.diagnostics import CompileError, refused

Progress = Callable[[int, int], None]
Key = tuple[str, ...]
"""Kind, partner and name."""
Amounts = tuple[tuple[str, int], ...]

KEYS = ("node", "with", "name")

READ = ("E0692", "E0693", "E0695", "E0698")
"""Findings after which nodes are missing."""


def refuse(path: str, message: str, note: str = "", help: str = "") -> CompileError:
    notes = (note,) if note else ()
    return refused("E0714", message, origin=path, notes=notes, help=help)


@dataclass
class TraceSide:
    """One set: what each rank does, as the number of its class."""

    directory: str
    files: Mapping[int, TraceFile]
    labels: Labels
    class_of: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RankClassChange:
    """What differs between the two traces of each of these ranks."""

    ranks: tuple[int, ...]
    comparison: Comparison


@dataclass(frozen=True)
class TraceComparison:
    """`classes` are the ranks whose nodes differ; `only` those that one side has."""

    before: TraceSide
    after: TraceSide
    totals: Comparison
    classes: tuple[RankClassChange, ...]
    only: tuple[tuple[int, ...], tuple[int, ...]]
    same_bytes: bool
    """Whether the files of all ranks are equal byte for byte."""

    @property
    def differs(self) -> bool:
        return bool(self.classes or any(self.only)) or differ([self.totals])


def open_side(directory: str) -> TraceSide:
    """The files of a set. E0714 if there is not one complete set."""
    sets, stray = find_traces(directory)
    for code, _, detail in stray:
        if code == "E0690":
            raise refuse(directory, "the directory cannot be read", detail)
    if len(sets) != 1:
        message = "the directory holds several sets" if sets else "there are no traces"
        names = ", ".join(f"{each.prefix[:40]}.*.et" for each in sets[:6])
        raise refuse(directory, message, names, "name a directory with files PREFIX.<rank>.et")
    (found,) = sets
    for _, name, detail in found.faults[:1]:
        path = os.path.join(directory, name)
        raise refuse(path, "the file is not a trace of one rank", detail, checks(directory))
    return TraceSide(directory, found.files, labels_of(directory, found))


def labels_of(directory: str, found: TraceFiles) -> Labels:
    findings = Findings()
    path = find_group_file(directory, found.prefix)
    groups = read_groups(path, set(found.files), findings, astra_sim=False)
    if not groups.usable:
        assert path is not None
        reason = findings.all()[0].places[0].first.detail
        raise refuse(path, "the file of groups cannot be read", reason, checks(directory))
    return Labels(groups.members, len(found.files), mesh_of_manifest(directory))


def checks(directory: str) -> str:
    return f"`stagec check {directory}` says what is wrong with the set"


class TraceCounter:
    """Counts the nodes of files. What both sides share is counted once."""

    def __init__(self) -> None:
        self._templates = KnownTraces()
        self._of_template: dict[int, int] = {}
        self._tallies: dict[tuple[NodeCount, ...], int] = {}
        self._counts: list[tuple[NodeCount, ...]] = []
        self._known: dict[tuple[object, ...], int] = {}
        self._classes: dict[tuple[tuple[Key, Amounts], ...], int] = {}
        self.rows: list[tuple[tuple[Key, Amounts], ...]] = []
        """The nodes of each class of ranks, by its number."""

    def read(self, side: TraceSide, ranks: Sequence[int]) -> None:
        """Find the class of ranks that share a file."""
        number, slots = self._count(side, side.files[ranks[0]].path)
        labels = side.labels
        groups = [labels.group(name) for name in slots.groups]
        for rank in ranks:
            peers = [labels.peer(rank, peer) for peer in slots.peers.tolist()]
            key = (number, *groups, *peers)
            if key not in self._known:
                rows = labelled(self._counts[number], groups, peers)
                self._known[key] = self._classes.setdefault(rows, len(self._classes))
                if len(self.rows) < len(self._classes):
                    self.rows.append(rows)
            side.class_of[rank] = self._known[key]

    def _count(self, side: TraceSide, path: str) -> tuple[int, CommunicationSlots]:
        """The number of a file's tally, and its groups and peers."""
        found = FileFindings()
        try:
            buffer, compressed = read_bytes(path)
        except TraceFileError as error:
            raise refuse(path, "the file cannot be read", str(error)) from None
        known = self._templates.patched(buffer, compressed)
        if known is not None and known[0] in self._of_template:
            number, analysis = known
            assert analysis.slots is not None
            return self._of_template[number], analysis.slots
        try:
            table = decode_trace(buffer, found)
            self._refuse(side, path, found, READ)
            analysis = analyse(LoadedTrace(table, compressed, buffer.size, found), astra_sim=False)
        except MemoryError:
            raise refuse(path, "the trace does not fit into memory") from None
        if analysis.program is None or analysis.slots is None:
            self._refuse(side, path, found, ("E",))
            raise AssertionError(path)
        counts = tuple(tally(analysis))
        tallied = self._tallies.setdefault(counts, len(self._tallies))
        if len(self._counts) < len(self._tallies):
            self._counts.append(counts)
        template = self._templates.remember(analysis)
        if template is not None:
            self._of_template[template] = tallied
        return tallied, analysis.slots

    def _refuse(
        self, side: TraceSide, path: str, found: FileFindings, codes: tuple[str, ...]
    ) -> None:
        """E0714 if something of that kind was found in a file."""
        for each in found.found:
            if each.code.startswith(codes):
                reason = f"{each.code}: {each.message}"
                raise refuse(path, "the trace cannot be read whole", reason, checks(side.directory))


def labelled(
    counts: Sequence[NodeCount], groups: Sequence[str], peers: Sequence[str]
) -> tuple[tuple[Key, Amounts], ...]:
    """Counts with the partners of a rank in words, those that are now alike added up, in order of appearance."""
    section = Section("", KEYS)
    for each in counts:
        if each.partner == NOBODY:
            partner = ""
        else:
            partner = (groups if each.partner == GROUP else peers)[each.slot]
        section.add((each.kind, partner, each.name), **dict(each.amounts))
    return tuple((key, tuple(row.items())) for key, row in section.rows.items())


def compare_traces(before: str, after: str, progress: Progress | None = None) -> TraceComparison:
    """Compare two directories. E0714 for one that cannot be read."""
    sides = (open_side(before), open_side(after))
    if sides[0].labels.mesh is None or sides[1].labels.mesh is None:
        # One set names no mesh: groups of both are told apart by their shape.
        for side in sides:
            side.labels.mesh = None
    reader = TraceCounter()
    total = sum(len(side.files) for side in sides)
    done = 0
    for side in sides:
        for ranks in by_identity(side.files).values():
            reader.read(side, ranks)
            done += len(ranks)
            if progress is not None:
                progress(done, total)
    first, second = (set(side.files) for side in sides)
    result = TraceComparison(
        before=sides[0],
        after=sides[1],
        totals=totals_of(sides, reader),
        classes=tuple(class_changes(sides, reader)),
        only=(tuple(sorted(first - second)), tuple(sorted(second - first))),
        same_bytes=False,
    )
    if result.differs:
        return result
    return replace(result, same_bytes=same_files(*sides))


def by_identity(files: Mapping[int, TraceFile]) -> dict[tuple[int, int], list[int]]:
    """The ranks of each file: hard links to one are read once."""
    found: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rank in sorted(files):
        found[files[rank].identity].append(rank)
    return found


def section_of(title: str, rows: Sequence[tuple[Key, Amounts]]) -> Section:
    section = Section(title, KEYS)
    for key, amounts in rows:
        section.add(key, **dict(amounts))
    return section


def class_changes(sides: Sequence[TraceSide], reader: TraceCounter) -> Iterator[RankClassChange]:
    """The ranks that both sides have, by the pair of their classes; those that differ."""
    before, after = sides
    pairs: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rank in sorted(before.class_of.keys() & after.class_of.keys()):
        pairs[before.class_of[rank], after.class_of[rank]].append(rank)
    for (old, new), ranks in pairs.items():
        if old == new:
            continue
        comparison = compare(section_of("", reader.rows[old]), section_of("", reader.rows[new]))
        if comparison.differing:
            yield RankClassChange(tuple(ranks), comparison)


def totals_of(sides: Sequence[TraceSide], reader: TraceCounter) -> Comparison:
    """All ranks together, by what nodes do."""
    sections: list[Section] = []
    for side in sides:
        section = Section("all ranks", ("node",))
        section.add(("all",), ranks=len(side.files))
        for number, times in Counter(side.class_of.values()).items():
            for (kind, _, _), amounts in reader.rows[number]:
                section.add((kind,), **{what: times * each for what, each in amounts})
        sections.append(section)
    return compare(*sections)


def same_files(before: TraceSide, after: TraceSide) -> bool:
    """Whether each rank's files are equal. Each pair of files is compared once."""
    pairs = {
        (before.files[rank].identity, after.files[rank].identity): rank for rank in before.files
    }
    return all(
        first == second or filecmp.cmp(before.files[rank].path, after.files[rank].path, False)
        for (first, second), rank in pairs.items()
    )
