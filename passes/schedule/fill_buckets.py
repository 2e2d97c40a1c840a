"""Join reductions of gradients into buckets, which travel as one collective.

Before `fill-buckets`:

    !t = !stg.tensor<[B], bf16>
    stg.dim "B" = "8"
    stg.dim "mb" = "2"
    dist.mesh <dp = 2>
    stg.program "M" (%g : !stg.stack<"6" x !t>) {
      %s = stg.repeat "6" slice(%t = %g : !stg.stack<"6" x !t>) -> (!stg.stack<"6" x !t>) {
        %r = sched.collective "all_reduce" (%t) over [dp] in "bf16" bytes "2*B" to "2*B" on "comm.dp" bucket 32 first 32 in step.0
          {phase = "grad_reduce"} : (!t) -> !t
        stg.yield %r : !t
      }
      sched.compute "optimizer_step" (%s) flops "B" reads "B" writes "B" on "compute" in step.1 {phase = "optim"}
        : (!stg.stack<"6" x !t>) -> ()
      stg.output
    }
    sched.tasks @model of "" layers {} {
      step = "(0@0+1)*6 1"
    }

After:

    ...
    sched.tasks @model of "" layers {} {
      step = "(0@0+2 ~0@1+2)*3 1"
    }

A row with `~` joins the row before. A reduction says how large a bucket gets (`bucket-gradients`); one is issued as soon as it is
full, with what it still lacks of what other buckets reduce first, and the last with its last gradient. So do PyTorch's DDP
(Li et al. 2020, arXiv:2006.15704, section 3.2.3; its first bucket is smaller) and Megatron-LM's `_ParamAndGradBuffer`. Buckets cross layers
and layers are rolled, which is why this is a table and no op.

A bucket of which the reductions say where it ends (`bucket_end`) gets one member more, which `pads` it: to a multiple of so many elements and of the ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, UnitAttr
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from stagec.analysis.dataflow import Dataflow, OpInstance
from stagec.analysis.segments import Segment, path_of, scheduled, whole_number
from stagec.dialects import sched, stg
from stagec.dialects.interfaces import elements
from stagec.dialects.op import around
from stagec.dialects.sched.tasks import NOWHERE, Rows, SegmentAttr
from stagec.dialects.types import DTYPE_BITS, bytes_of
from stagec.rewriting import insert_before, output_of
from stagec.symbolic import Size, constant, total

NAME = "fill-buckets"
ENDS = ("bytes_in", "bytes_out")
KEPT = ("phase", "late", "lag", "issued", "bucket_end", "serial")
"""What a node that pads a bucket has of the bucket's first."""


@dataclass(frozen=True)
class FillBuckets(ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for tasks, segments, values in scheduled(op):
            rows = in_buckets(tasks.rows.data, segments, values)
            tasks.with_rows(padded(rows, segments, values))


def in_buckets(
    tasks: Mapping[str, Rows], segments: Mapping[int, Segment], values: Mapping[str, int]
) -> Mapping[str, Rows]:
    """The rows of each task, with reductions in buckets."""
    bucketed = {n: each for n, each in segments.items() if whole_number(each.first, "bucket_bytes")}
    if not bucketed:
        return tasks
    flow, found = Dataflow(values), dict(tasks)
    for task, rows in tasks.items():
        if np.isin(rows.segment, list(bucketed)).any():
            found[task] = Filler(task, rows, segments, bucketed, flow).filled()
    return found


Key = tuple[str, str, str, int]
"""What joins: reductions of a kind on a stream, of a dtype, in buckets of a size."""


def bucket_key(op: sched.CollectiveOp) -> Key:
    return op.kind.data, op.stream.data, op.dtype.data, whole_number(op, "bucket_bytes")


@dataclass
class Bucket:
    """Reductions that will be one collective."""

    first: sched.CollectiveOp
    is_first: bool = True
    members: list[int] = field(default_factory=list)
    sources: set[OpInstance] = field(default_factory=set)
    read: set[OpInstance | None] = field(default_factory=set)
    num_bytes: int = 0

    @property
    def limit(self) -> int:
        return whole_number(self.first, "first_bucket_bytes" if self.is_first else "bucket_bytes")


@dataclass
class Filler:
    """Fills the buckets of one task."""

    task: str
    rows: Rows
    segments: Mapping[int, Segment]
    bucketed: Mapping[int, Segment]
    flow: Dataflow
    order: list[int] = field(default_factory=list)
    joins: list[bool] = field(default_factory=list)
    open: dict[Key, Bucket] = field(default_factory=dict)
    last: dict[Key, int] = field(default_factory=dict)
    """The row with which the last bucket of a key is whole, where no late ones follow."""
    _bytes: dict[int, int] = field(default_factory=dict)

    def filled(self) -> Rows:
        late: list[tuple[int, int]] = []
        self.last = self.last_rows()
        for row, number in enumerate(self.rows.segment.tolist()):
            if number in self.bucketed:
                if self.has_early and "late" in stg.marks(self.bucketed[number].first):
                    late.append((row, number))
                else:
                    self.fill(row, number)
                continue
            if self.task in ("norm", "step") and not self.reduces(number):
                self.fill_all(late)
                self.close()
            if "of_whole" in stg.marks(self.segments[number].first):
                self.fill_all(late)
                self.close()
            self.issue_what_is_read(row, number)
            self.order.append(row)
            self.joins.append(False)
        self.fill_all(late)
        self.close()
        table = self.rows.table[self.order]
        table[:, 1] = self.joins
        return Rows.of_table(table)

    @property
    def has_early(self) -> bool:
        """Whether some reductions go during the backward pass: those that go after it (`late`) come behind them, and may share a bucket with the last."""
        ops = [each.first for each in self.bucketed.values()]
        return any("late" not in stg.marks(op) and stg.phase_of(op) == "grad_reduce" for op in ops)

    def fill_all(self, rows: list[tuple[int, int]]) -> None:
        for row, number in rows:
            self.fill(row, number)
        rows.clear()

    def fill(self, row: int, number: int) -> None:
        op, key = self.reduction(number)
        for other in [k for k in self.open if k[:3] == key[:3] and k != key]:
            # Buckets of one size end where those of another begin.
            if self.open[other].members:
                self.issue(other)
        bucket = self.open.setdefault(key, Bucket(op))
        path = path_of(self.rows, row)
        bucket.members.append(row)
        bucket.sources.add(OpInstance(op, path))
        bucket.read |= {self.flow.source(value, path) for value in op.operands}
        is_full = bucket.num_bytes + self.bytes_alone(number, op) >= bucket.limit
        bucket.num_bytes += self.num_bytes(number, op)
        if is_full or row == self.last.get(key):
            self.issue(key)

    def reduction(self, number: int) -> tuple[sched.CollectiveOp, Key]:
        op = self.bucketed[number].first
        assert isinstance(op, sched.CollectiveOp)
        return op, bucket_key(op)

    def last_rows(self) -> dict[Key, int]:
        found: dict[Key, int] = {}
        for row, number in enumerate(self.rows.segment.tolist()):
            if number in self.bucketed:
                op, key = self.reduction(number)
                is_late = self.has_early and "late" in stg.marks(op)
                found[key] = -1 if is_late or found.get(key) == -1 else row
        return found

    def issue_what_is_read(self, row: int, number: int) -> None:
        """Reductions that a row reads go before it, however little there is in their buckets."""
        if not any(bucket.members for bucket in self.open.values()):
            return
        path = path_of(self.rows, row)
        read = {self.flow.source(v, path) for op in self.segments[number].ops for v in op.operands}
        for key, bucket in list(self.open.items()):
            if not read.isdisjoint(bucket.sources) and self.open[key].members:
                self.issue(key)

    def reduces(self, number: int) -> bool:
        """Whether a segment is of what reduces gradients: what follows that needs them."""
        segment = self.segments[number]
        if stg.LEAVES in stg.marks(segment.first):
            return False
        return stg.phase_of((*segment.repeats, segment.first)[0]) == "grad_reduce"

    def num_bytes(self, number: int, op: sched.CollectiveOp) -> int:
        if number not in self._bytes:
            sizes: tuple[Size, ...] = (op.bytes_in.data, op.bytes_out.data)
            exact = max(size.evaluate(self.flow.values) for size in sizes)
            self._bytes[number] = -(-exact.numerator // exact.denominator)
        return self._bytes[number]

    def bytes_alone(self, number: int, op: sched.CollectiveOp) -> int:
        """Without what is between it and what comes next."""
        if "bucket_end" not in stg.marks(op):
            return self.num_bytes(number, op)
        held = op.outputs if op.kind.data == "all_gather" else op.values
        exact = bytes_of(total(map(elements, held)), op.dtype.data)
        return exact.integer(self.flow.values)

    def issue(self, key: Key) -> None:
        """A bucket; before it those whose results it reduces further: over other axes, in other amounts."""
        bucket = self.open[key]
        for other_key, other in list(self.open.items()):
            if other is not bucket and not bucket.read.isdisjoint(other.sources):
                self.issue(other_key)
        self.order += bucket.members
        self.joins += [i > 0 for i in range(len(bucket.members))]
        self.open[key] = Bucket(bucket.first, is_first=False)

    def close(self) -> None:
        """Issue what is left."""
        for key in list(self.open):
            if self.open[key].members:
                self.issue(key)


def padded(
    tasks: Mapping[str, Rows], segments: Mapping[int, Segment], values: Mapping[str, int]
) -> Mapping[str, Rows]:
    """The rows of each task, with one more at the end of each bucket that is to end at a multiple of some elements."""
    found = dict(tasks)
    for task, rows in tasks.items():
        numbers = rows.segment.tolist()
        if any("bucket_end" in stg.marks(segments[n].first) for n in {*numbers}):
            found[task] = Padder(task, rows, segments, values).padded()
    return found


@dataclass
class Padder:
    """Ends the buckets of one task where they are to end."""

    task: str
    rows: Rows
    segments: Mapping[int, Segment]
    values: Mapping[str, int]
    used: set[int] = field(default_factory=set)
    """Segments that end some bucket."""

    def padded(self) -> Rows:
        table, starts = self.rows.table, np.flatnonzero(~self.rows.joins).tolist()
        parts: list[np.ndarray] = []
        for start, stop in pairwise([*starts, len(table)]):
            parts.append(table[start:stop])
            members = [self.segments[int(n)].first for n in self.rows.segment[start:stop]]
            number = self.end_of(members)
            if number is not None:
                parts.append(np.full((1, table.shape[1]), NOWHERE, np.int64))
                parts[-1][0, :2] = number, True
        return Rows.of_table(np.concatenate(parts))

    def end_of(self, members: Sequence[Operation]) -> int | None:
        """The segment of what a bucket has at its end; nothing where it ends as it should."""
        first = members[0]
        unit = whole_number(first, "bucket_end")
        if not isinstance(first, sched.CollectiveOp) or not unit:
            return None
        ways = math.prod(self.values[axis] for axis in first.axes.data)
        unit = math.lcm(ways, unit) * DTYPE_BITS[first.dtype.data] // 8
        sums = [sum(getattr(op, each).data.integer(self.values) for op in members) for each in ENDS]
        most = -(-max(sums) // unit) * unit
        ends = [most if each == max(sums) else most // ways for each in sums]
        bytes_in, bytes_out = (end - each for end, each in zip(ends, sums, strict=True))
        return self.segment(first, bytes_in, bytes_out) if bytes_in or bytes_out else None

    def segment(self, first: sched.CollectiveOp, bytes_in: int, bytes_out: int) -> int:
        """The segment of a node of these bytes: one that another stage of the same kind has, or a new one."""
        program = next(each for each in around(first) if isinstance(each, stg.ProgramOp))
        made = sched.CollectiveOp(
            first.kind.data,
            [],
            first.axes.data,
            [],
            first.dtype.data,
            constant(bytes_in),
            constant(bytes_out),
            bucket=(whole_number(first, "bucket_bytes"), whole_number(first, "first_bucket_bytes")),
        )
        marks = stg.marks(made)
        kept = {key: stg.marks(first)[key] for key in KEPT if key in stg.marks(first)}
        marks.take({**kept, "pads": UnitAttr(), stg.MADE_BY: StringAttr(NAME)})
        made.location = first.location
        last = -1
        for op in program.walk():
            if not isinstance(op, sched.NodeOp) or op.segment is None:
                continue
            last = max(last, op.segment.number)
            if is_like(op, made) and op.segment.number not in self.used:
                self.used.add(op.segment.number)
                return op.segment.number
        made.segment = SegmentAttr((self.task, last + 1))
        insert_before(output_of(program), [made], NAME)
        self.used.add(last + 1)
        return last + 1


def is_like(op: Operation, pad: sched.CollectiveOp) -> bool:
    """Whether a node that pads a bucket does for another."""
    own = {**op.properties, "segment": None}
    return "pads" in op.properties and own == {**pad.properties, "segment": None}
