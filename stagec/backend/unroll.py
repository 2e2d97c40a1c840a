"""Unroll a class: its table becomes the bytes of a trace, complete but for what ranks differ in.

Instances of a variant are copies of the same bytes with other numbers in the holes: rows of a
matrix, filled a column at a time. No Python object stands for a node.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np

from stagec.backend.class_table import ClassTable, pack
from stagec.backend.node_records import FIRST_ID
from stagec.backend.wire import MOST_HANDED, Form, NumberSource, fill

_BATCH_BYTES = 16 << 20
_MOST_COPIED = 256 << 20
"""Of series: a longer trace is made by itself."""
_MOST_SHARED = 8 << 20
"""Longer traces are made each for itself: what is kept for others would take too much memory."""


@dataclass(frozen=True)
class Column:
    """All places of a trace at which one rank variable stands."""

    variable: int
    form: Form
    width: int
    positions: np.ndarray  # int64, of the first byte, ascending


@dataclass(frozen=True)
class Template:
    """A trace with holes left: for the rank variables."""

    data: np.ndarray  # uint8; 0 in the holes
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class SizeHoles:
    """Places for numbers of nodes that iterations differ in: those of one width in the instances of a variant."""

    form: Form
    width: int
    argument: np.ndarray
    """int64 [holes]: which column of the class' sizes."""
    iteration: np.ndarray
    """int64 [instances]"""
    positions: np.ndarray
    """int64 [instances, holes], of the first byte."""

    @staticmethod
    def of(holes: np.ndarray, first_byte: np.ndarray, iteration: np.ndarray) -> Iterator[SizeHoles]:
        for width, form in np.unique(holes[["width", "form"]]).tolist():
            same = holes[(holes["width"] == width) & (holes["form"] == form)]
            positions = first_byte[:, None] + same["offset"].astype(np.int64)
            argument = same["argument"].astype(np.int64)
            yield SizeHoles(Form(form), width, argument, iteration, positions)

    def fill(self, data: np.ndarray, sizes: np.ndarray) -> None:
        """`sizes` are [columns, iterations]."""
        filled = fill(self.form, sizes.T[self.iteration][:, self.argument], self.width)
        for at in range(self.width):
            data[self.positions + at] = filled[..., at]


@dataclass(frozen=True)
class UnsizedTemplate:
    """The template that classes have in common which differ in numbers of nodes alone."""

    template: Template
    """0 where these numbers are."""
    holes: Sequence[SizeHoles]

    def with_sizes(self, sizes: np.ndarray) -> Template:
        data = self.template.data.copy()
        for each in self.holes:
            each.fill(data, sizes)
        return replace(self.template, data=data)


def unroll(table: ClassTable, header: bytes, tag_span: int) -> Template:
    """The template of a class' traces. Classes of a series that differ in numbers of nodes alone are copies of one, with these filled in."""
    if table.bodies is None or table.num_bytes_unrolled > _MOST_COPIED:
        return unroll_one(table, header, tag_span)
    return _UNSIZED.of(table, header, tag_span).with_sizes(table.sizes)


def unroll_one(
    table: ClassTable, header: bytes, tag_span: int, left_out: list[SizeHoles] | None = None
) -> Template:
    """Of one class; the numbers of nodes are `left_out`, if there is where to say their places."""
    table, iteration = table.in_full()
    first_byte = table.first_byte + len(header)
    data = np.empty(first_byte[-1], dtype=np.uint8)
    data[: len(header)] = np.frombuffer(header, dtype=np.uint8)
    first_id = table.first_node[:-1] - table.ahead + FIRST_ID
    shared = len(data) <= _MOST_SHARED and table.bodies is None
    numbers = _NUMBERS.of(table, tag_span) if shared else {}
    places: dict[tuple[int, int, int], list[np.ndarray]] = {}
    by_variant = np.argsort(table.variant, kind="stable")
    ends = np.cumsum(np.bincount(table.variant, minlength=table.num_variants))
    for v in range(table.num_variants):
        instances = by_variant[ends[v - 1] if v else 0 : ends[v]]
        pattern, holes = table.variant_data(v), table.variant_holes(v)
        is_size = holes["source"] == NumberSource.SIZE
        told = holes if left_out is None else holes[~is_size]
        batch = max(1, _BATCH_BYTES // max(1, len(pattern)))
        for start in range(0, len(instances), batch):
            rows = instances[start : start + batch]
            block = np.tile(pattern, (len(rows), 1))
            key = v, start, told[_WHAT].tobytes()
            if key not in numbers:
                numbers[key] = _filled(told, table, rows, first_id, tag_span, iteration)
            for chosen, width, filled in numbers[key]:
                at = told["offset"][chosen][:, None] + np.arange(width)
                block[:, at.ravel()] = filled
            for at, row in zip(first_byte[rows].tolist(), block, strict=True):
                data[at : at + len(row)] = row
        if left_out is not None:
            sized = holes[is_size]
            left_out += SizeHoles.of(sized, first_byte[instances], iteration[instances])
        for hole in holes[holes["source"] == NumberSource.RANK]:
            column = int(hole["argument"]), int(hole["form"]), int(hole["width"])
            places.setdefault(column, []).append(first_byte[instances] + int(hole["offset"]))
    return Template(
        data,
        tuple(
            Column(variable, Form(form), width, np.sort(np.concatenate(found)))
            for (variable, form, width), found in sorted(places.items())
        ),
    )


Filled = list[tuple[np.ndarray, int, np.ndarray]]
"""Which holes of a variant, how wide they are, and the bytes in them for each instance."""

_WHAT = ["width", "form", "source", "argument"]
"""What the bytes in a hole depend on, besides the instance."""


def _filled(
    holes: np.ndarray,
    table: ClassTable,
    rows: np.ndarray,
    first_id: np.ndarray,
    tag_span: int,
    iteration: np.ndarray,
) -> Filled:
    """The numbers of the instances `rows`, one row each, but for those of ranks."""
    found: Filled = []
    for source in np.unique(holes["source"]).tolist():
        if source == NumberSource.RANK:
            continue
        kinds = holes[holes["source"] == source][["width", "form"]]
        for width, form in np.unique(kinds).tolist():
            chosen = np.flatnonzero(
                (holes["source"] == source) & (holes["width"] == width) & (holes["form"] == form)
            )
            argument = holes["argument"][chosen].astype(np.int64)
            match NumberSource(source):
                case NumberSource.NODE:
                    values = first_id[rows, None] + argument
                case NumberSource.SLOT:
                    values = first_id[rows, None] - table.back[rows][:, argument]
                case NumberSource.TAG:
                    values = argument * tag_span + table.tag[rows, None]
                case NumberSource.HANDED:
                    assert table.bodies is not None
                    channel, number = np.divmod(argument, MOST_HANDED)
                    own = iteration[rows, None]
                    further = table.bodies.handed[number[None, :], own] - own
                    values = (
                        channel * tag_span + table.tag[rows, None] + further * table.bodies.tags
                    )
                case NumberSource.LAYER:
                    values = np.repeat(table.layer[rows, None], len(chosen), axis=1)
                case NumberSource.SIZE:
                    values = table.sizes[argument][:, iteration[rows]].T
                case NumberSource.ITERATION:
                    values = np.repeat(iteration[rows, None], len(chosen), axis=1)
                case NumberSource.MICROBATCH:
                    values = np.repeat(table.microbatch[rows, None], len(chosen), axis=1)
                case _:
                    values = np.repeat(table.stage[rows, None], len(chosen), axis=1)
            filled = fill(Form(form), values, width).reshape(len(rows), -1)
            found.append((chosen, width, filled))
    return found


class _Numbers:
    """The numbers in holes, for classes whose instances are the same: those whose costs alone differ.

    Kept for the classes that were made last. Threads may make them twice.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._known: OrderedDict[bytes, dict[tuple[int, int, bytes], Filled]] = OrderedDict()

    def of(self, table: ClassTable, tag_span: int) -> dict[tuple[int, int, bytes], Filled]:
        digest = blake2b(str(tag_span).encode(), digest_size=16)
        instances = (table.layer, table.microbatch, table.stage, table.tag)
        for array in (table.num_nodes, table.variant, table.back, table.ahead, *instances):
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(array.tobytes())
        found = self._known.setdefault(digest.digest(), {})
        with suppress(KeyError):  # Another thread may drop it.
            self._known.move_to_end(digest.digest())
        while len(self._known) > self.most:
            with suppress(KeyError):
                self._known.popitem(last=False)
        return found


_NUMBERS = _Numbers(32)


class _Unsized:
    """What was made last of what classes of a series share: the first that asks makes it, other threads wait."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.lock = threading.Lock()
        self.known: OrderedDict[bytes, UnsizedTemplate] = OrderedDict()

    def of(self, table: ClassTable, header: bytes, tag_span: int) -> UnsizedTemplate:
        without = replace(table, sizes=np.zeros_like(table.sizes, shape=(0, table.num_iterations)))
        digest = blake2b(f"{tag_span} {table.num_iterations}".encode(), digest_size=16)
        digest.update(header)
        digest.update(pack(without))
        key = digest.digest()
        with self.lock:
            if key not in self.known:
                holes: list[SizeHoles] = []
                template = unroll_one(without, header, tag_span, holes)
                self.known[key] = UnsizedTemplate(template, holes)
            self.known.move_to_end(key)
            while len(self.known) > self.most:
                self.known.popitem(last=False)
            return self.known[key]


_UNSIZED = _Unsized(2)
