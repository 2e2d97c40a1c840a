"""Unroll a class: its table becomes the bytes of a trace, complete but for what ranks differ in.

Instances of a variant are copies of the same bytes with other numbers in the holes: rows of a
matrix, filled a column at a time. No Python object stands for a node.
"""

from dataclasses import dataclass

import numpy as np

from stagec.backend.class_table import ClassTable
from stagec.backend.node_records import FIRST_ID
from stagec.backend.wire import Form, Source, fill

_BATCH_BYTES = 16 << 20


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


def unroll(table: ClassTable, header: bytes, tag_span: int) -> Template:
    """The template of a class' traces."""
    first_byte = table.first_byte + len(header)
    data = np.empty(first_byte[-1], dtype=np.uint8)
    data[: len(header)] = np.frombuffer(header, dtype=np.uint8)
    first_id = table.first_node[:-1] + FIRST_ID
    places: dict[tuple[int, int, int], list[np.ndarray]] = {}
    by_variant = np.argsort(table.variant, kind="stable")
    ends = np.cumsum(np.bincount(table.variant, minlength=table.num_variants))
    for v in range(table.num_variants):
        instances = by_variant[ends[v - 1] if v else 0 : ends[v]]
        pattern, holes = table.variant_data(v), table.variant_holes(v)
        batch = max(1, _BATCH_BYTES // max(1, len(pattern)))
        for start in range(0, len(instances), batch):
            rows = instances[start : start + batch]
            block = np.tile(pattern, (len(rows), 1))
            _fill_block(block, holes, table, rows, first_id, tag_span)
            for at, row in zip(first_byte[rows].tolist(), block, strict=True):
                data[at : at + len(row)] = row
        for hole in holes[holes["source"] == Source.RANK]:
            column = int(hole["argument"]), int(hole["form"]), int(hole["width"])
            places.setdefault(column, []).append(first_byte[instances] + int(hole["offset"]))
    return Template(
        data,
        tuple(
            Column(variable, Form(form), width, np.sort(np.concatenate(found)))
            for (variable, form, width), found in sorted(places.items())
        ),
    )


def _fill_block(
    block: np.ndarray,
    holes: np.ndarray,
    table: ClassTable,
    rows: np.ndarray,
    first_id: np.ndarray,
    tag_span: int,
) -> None:
    """Write the numbers of the instances `rows`, one row each, into the holes."""
    for source in np.unique(holes["source"]).tolist():
        if source == Source.RANK:
            continue
        chosen = holes[holes["source"] == source]
        for width, form in np.unique(chosen[["width", "form"]]).tolist():
            here = chosen[(chosen["width"] == width) & (chosen["form"] == form)]
            argument = here["argument"].astype(np.int64)
            match Source(source):
                case Source.NODE:
                    values = first_id[rows, None] + argument
                case Source.SLOT:
                    values = first_id[rows, None] - table.back[rows][:, argument]
                case Source.TAG:
                    values = argument * tag_span + table.tag[rows, None]
                case Source.LAYER:
                    values = np.repeat(table.layer[rows, None], len(here), axis=1)
                case Source.MICROBATCH:
                    values = np.repeat(table.microbatch[rows, None], len(here), axis=1)
                case _:
                    values = np.repeat(table.stage[rows, None], len(here), axis=1)
            at = here["offset"][:, None] + np.arange(width)
            block[:, at.ravel()] = fill(Form(form), values, width).reshape(len(rows), -1)
