"""What buffers of parameters and gradients have beside them (`bucket-gradients`), as rows of what a rank stores.

Between those that begin at multiples of some elements (`aligned`), and at the ends of buckets, where `fill-buckets` has a node for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stagec import symbolic
from stagec.analysis.segments import nodes_inside
from stagec.dialects import sched, stg
from stagec.dialects.interfaces import elements
from stagec.dialects.memory import Kind, Stored
from stagec.dialects.sched.tasks import Rows
from stagec.dialects.types import DTYPE_BITS, bytes_of, tensor_of
from stagec.symbolic import ZERO, Size


def padding_rows(program: stg.ProgramOp, tables: Sequence[Mapping[str, Rows]]) -> Iterator[Stored]:
    """The rows of padding for parameters and for gradients.

    Of stages that differ in their layers alone, the one that has most padding at the ends of its buckets counts.
    """
    between: dict[Kind, Size] = {}
    ends: dict[Kind, dict[int, Size]] = {}
    dtypes: dict[Kind, str] = {}
    for op, repeats in nodes_inside(program):
        if not isinstance(op, sched.CollectiveOp) or "bucket_end" not in stg.marks(op):
            continue
        gathers = op.kind.data == "all_gather"
        kind = Kind.PARAMETERS if gathers else Kind.GRADIENTS
        travelling, held = (op.bytes_out, op.outputs) if gathers else (op.bytes_in, op.values)
        whole = travelling.data * 8 / DTYPE_BITS[op.dtype.data]
        if "pads" in stg.marks(op):
            assert op.segment is not None
            ends.setdefault(kind, {})[op.segment.number] = whole
            continue
        layers = symbolic.product(repeat.count.data for repeat in repeats)
        more = layers * (whole - symbolic.total(map(elements, held)))
        between[kind] = between.get(kind, ZERO) + more
        dtypes[kind] = tensor_of(held[0].type).dtype
    for kind, size in between.items():
        own = ends.get(kind, {})
        last = max((at_ends(own, table) for table in tables), default=0)
        if size + last != ZERO:
            num_bytes = bytes_of(size + last, dtypes[kind])
            yield Stored("padding of buffers", kind, num_bytes, of_buffers=True)


def at_ends(elements_of: Mapping[int, Size], table: Mapping[str, Rows]) -> int:
    """Elements at the ends of the buckets of one stage."""
    numbers = {int(each) for rows in table.values() for each in rows.segment}
    return sum(size.integer({}) for number, size in elements_of.items() if number in numbers)
