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
      step = "(0@0+2 ~0@1+2)*3 1"
    }

A row with `~` joins the row before. A reduction says how large a bucket gets (`bucket-gradients`); one is issued as soon as it is
full, with what it still lacks of what other buckets reduce first, and what is left when the gradients end. So do PyTorch's DDP
(Li et al. 2020, arXiv:2006.15704, section 3.2.3; its first bucket is smaller) and Megatron-LM's `_ParamAndGradBuffer`. Buckets cross layers
and layers are rolled, which is why this is a table and no op.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from stagec.analysis.dataflow import Dataflow, OpInstance
from stagec.analysis.segments import Segment, path_of, scheduled, whole
from stagec.dialects import sched, stg
from stagec.dialects.sched.tasks import Rows
from stagec.symbolic import Size

NAME = "fill-buckets"


@dataclass(frozen=True)
class FillBuckets(ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for tasks, segments, values in scheduled(op):
            tasks.with_rows(in_buckets(tasks.rows.data, segments, values))


def in_buckets(
    tasks: Mapping[str, Rows], segments: Mapping[int, Segment], values: Mapping[str, int]
) -> Mapping[str, Rows]:
    """The rows of each task, with reductions in buckets."""
    bucketed = {n: each for n, each in segments.items() if whole(each.first, "bucket_bytes")}
    if not bucketed:
        return tasks
    flow, found = Dataflow(values), dict(tasks)
    for task, rows in tasks.items():
        if np.isin(rows.segment, list(bucketed)).any():
            found[task] = Filler(task, rows, segments, bucketed, flow).filled()
    return found


Key = tuple[str, str, int]
"""What joins: reductions of a kind on a stream, in buckets of a size."""


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
        return whole(self.first, "first_bucket_bytes" if self.is_first else "bucket_bytes")


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
    _bytes: dict[int, int] = field(default_factory=dict)

    def filled(self) -> Rows:
        late: list[tuple[int, int]] = []
        for row, number in enumerate(self.rows.segment.tolist()):
            if number in self.bucketed:
                if self.has_early and "late" in stg.marks(self.bucketed[number].first):
                    late.append((row, number))
                else:
                    self.fill(row, number)
                continue
            if self.task == "step" and not self.reduces(number):
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
        return any("late" not in stg.marks(each.first) for each in self.bucketed.values())

    def fill_all(self, rows: list[tuple[int, int]]) -> None:
        for row, number in rows:
            self.fill(row, number)
        rows.clear()

    def fill(self, row: int, number: int) -> None:
        op = self.bucketed[number].first
        assert isinstance(op, sched.CollectiveOp)
        key = (op.kind.data, op.stream.data, whole(op, "bucket_bytes"))
        for other in [k for k in self.open if k[:2] == key[:2] and k != key]:
            # Buckets of one size end where those of another begin.
            if self.open[other].members:
                self.issue(other)
        bucket = self.open.setdefault(key, Bucket(op))
        path = path_of(self.rows, row)
        bucket.members.append(row)
        bucket.sources.add(OpInstance(op, path))
        bucket.read |= {self.flow.source(value, path) for value in op.operands}
        bucket.num_bytes += self.num_bytes(number, op)
        if bucket.num_bytes >= bucket.limit:
            self.issue(key)

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
        return stg.phase_of((*segment.repeats, segment.first)[0]) == "grad_reduce"

    def num_bytes(self, number: int, op: sched.CollectiveOp) -> int:
        if number not in self._bytes:
            sizes: tuple[Size, ...] = (op.bytes_in.data, op.bytes_out.data)
            exact = max(size.evaluate(self.flow.values) for size in sizes)
            self._bytes[number] = -(-exact.numerator // exact.denominator)
        return self._bytes[number]

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
