"""Unroll a class: its table becomes the bytes of a trace, complete but for what ranks differ in.

Instances of a variant are copies of the same bytes with other numbers in the holes: rows of a
matrix, filled a column at a time. No Python object stands for a node.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from stagec.arrays import distinct
from stagec.backend.class_table import ClassTable, digest_of
from stagec.backend.node_records import FIRST_ID
from stagec.backend.wire import MOST_HANDED, Form, NumberSource, fill

_BATCH_BYTES = 16 << 20
_MOST_SHARED = 8 << 20
"""Longer traces are made each for itself: what is kept for others would take too much memory."""


@dataclass(frozen=True)
class HoleColumn:
    """All places of a trace at which one rank variable stands."""

    variable: int
    form: Form
    width: int
    positions: np.ndarray  # int64, of the first byte, ascending


@dataclass(frozen=True)
class TraceTemplate:
    """A trace with holes left: for the rank variables."""

    data: np.ndarray  # uint8; 0 in the holes
    columns: tuple[HoleColumn, ...]


@dataclass(frozen=True)
class SizeHoles:
    """Places of one width for numbers of nodes that iterations differ in."""

    form: Form
    width: int
    columns: np.ndarray
    """int64: those of the class' sizes that stand there."""
    source: np.ndarray
    """int64 [holes]: which number of these columns, one behind the other."""
    positions: np.ndarray
    """int64 [holes], of the first byte."""

    def fill(self, data: np.ndarray, sizes: np.ndarray) -> None:
        """`sizes` are [columns, iterations]."""
        filled = fill(self.form, sizes[self.columns].ravel(), self.width)
        # As one item each: all runs of so many bytes, wherever they begin.
        runs = np.ndarray(len(data) - self.width + 1, f"V{self.width}", data, strides=(1,))
        runs[self.positions] = filled.view(runs.dtype)[self.source, 0]


@dataclass(frozen=True)
class UnsizedTemplate:
    """The template that classes have in common which differ in numbers of nodes alone."""

    template: TraceTemplate
    """0 where these numbers are."""
    holes: Sequence[SizeHoles] = ()


def unroll_unsized(table: ClassTable, header: bytes, tag_span: int) -> UnsizedTemplate:
    """What a class of a series has in common with others."""
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    template = unroll(table, header, tag_span, found)
    kinds = distinct(np.concatenate([holes[["width", "form"]] for holes, *_ in found]))
    made: list[SizeHoles] = []
    for width, form in kinds.tolist():
        columns: list[np.ndarray] = []
        places: list[np.ndarray] = []
        iterations: list[np.ndarray] = []
        for holes, first_byte, iteration in found:
            same = holes[(holes["width"] == width) & (holes["form"] == form)]
            shape = len(first_byte), len(same)
            places.append((first_byte[:, None] + same["offset"].astype(np.int64)).ravel())
            columns.append(np.broadcast_to(same["argument"].astype(np.int64), shape).ravel())
            iterations.append(np.repeat(iteration, len(same)))
        used, column = np.unique(np.concatenate(columns), return_inverse=True)
        source = column * table.num_iterations + np.concatenate(iterations)
        made.append(SizeHoles(Form(form), width, used, source, np.concatenate(places)))
    return UnsizedTemplate(template, made)


def unroll(
    table: ClassTable,
    header: bytes,
    tag_span: int,
    left_out: list[tuple[np.ndarray, np.ndarray, np.ndarray]] | None = None,
) -> TraceTemplate:
    """The template of a class' traces. The numbers of nodes are `left_out`, if there is where to say their places: holes, and where and in which iteration
    the instances are that have them."""
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
            left_out.append((holes[is_size], first_byte[instances], iteration[instances]))
        for hole in holes[holes["source"] == NumberSource.RANK]:
            column = int(hole["argument"]), int(hole["form"]), int(hole["width"])
            places.setdefault(column, []).append(first_byte[instances] + int(hole["offset"]))
    return TraceTemplate(
        data,
        tuple(
            HoleColumn(variable, Form(form), width, np.sort(np.concatenate(found)))
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
    for source in distinct(holes["source"]).tolist():
        if source == NumberSource.RANK:
            continue
        kinds = holes[holes["source"] == source][["width", "form"]]
        for width, form in distinct(kinds).tolist():
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
        instances = ("num_nodes", "variant", "back", "ahead", "layer", "microbatch", "stage", "tag")
        key = digest_of({name: getattr(table, name) for name in instances}, tag_span)
        found = self._known.setdefault(key, {})
        with suppress(KeyError):  # Another thread may drop it.
            self._known.move_to_end(key)
        while len(self._known) > self.most:
            with suppress(KeyError):
                self._known.popitem(last=False)
        return found


_NUMBERS = _Numbers(32)
