"""How long those reductions of gradients take that no backward pass hides, since their gradients are the last to be there.

Outlines are made before `fill-buckets`, so the last bucket of a stream is found here: reductions join until it is full. What it reduces may be reduced
further on another stream, as shards are over replicas. That begins when the bucket is there, so the two take one after the other. Left out are a first bucket
that is smaller, and buckets that end with a module (`bucket_end`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
from xdsl.ir import Operation

from stagec.analysis.segments import whole_number
from stagec.arrays import Floats
from stagec.dialects import stg
from stagec.dialects.sched import CollectiveOp
from stagec.dialects.use_def import followed, from_body, from_stack, viewed
from stagec.explaining.rolled_operations import Term
from stagec.passes.schedule.fill_buckets import bucket_key
from stagec.symbolic.columns import Columns


class Reduction(NamedTuple):
    """A term that reduces gradients, and how long one run of it takes."""

    term: Term
    seconds: Floats

    @property
    def op(self) -> CollectiveOp:
        found = self.term.counted.op
        assert isinstance(found, CollectiveOp)
        return found

    @property
    def stream(self) -> str:
        return self.op.stream.data

    def makers(self) -> Iterator[Operation]:
        """What makes the values that are reduced."""
        for value in self.op.operands:
            owner = followed(value, viewed, from_stack, from_body).owner
            if isinstance(owner, Operation):
                yield owner


@dataclass
class LastReductions:
    """The reductions of one task of the stage that a rank is done with last."""

    every: Sequence[Reduction]
    """In the order of the program."""
    sizes: Columns

    @property
    def nothing(self) -> Floats:
        return np.zeros(self.sizes.count)

    def ends(self) -> dict[str, Floats]:
        """When each stream has reduced its last bucket, `[plan]`: in seconds from the moment when the last gradient is there."""
        order = sorted(self.every, key=lambda each: "late" in stg.marks(each.op))
        last = {each.stream: each for each in order}
        own = {stream: self.of_last_bucket(each, order) for stream, each in last.items()}
        by_op: dict[Operation, Reduction] = {each.op: each for each in order}

        def until(each: Reduction) -> Floats:
            makers = (by_op[op] for op in each.makers() if op in by_op)
            before = [until(maker) for maker in makers if maker.stream != each.stream]
            return own[each.stream] + np.max([self.nothing, *before], axis=0)

        return {stream: until(each) for stream, each in last.items()}

    def of_last_bucket(self, last: Reduction, order: Sequence[Reduction]) -> Floats:
        """The seconds of the last bucket on a stream, whose last member is known."""
        limit = whole_number(last.op, "bucket_bytes")
        members: list[tuple[Floats, Floats, Floats]] = []
        for seconds, num_bytes, has_it in self.backwards(last, order):
            if members and (has_it & (num_bytes >= limit)).all():
                break
            members.append((seconds, num_bytes, has_it))
        held, found, full = self.nothing, self.nothing, np.ones(self.sizes.count, bool)
        for seconds, num_bytes, has_it in reversed(members):
            begins = has_it & full
            held = np.where(begins, 0, held) + has_it * num_bytes
            found = np.where(begins, 0, found) + has_it * seconds
            full = held >= limit
        return found

    def backwards(
        self, last: Reduction, order: Sequence[Reduction]
    ) -> Iterator[tuple[Floats, Floats, Floats]]:
        """What joins with `last`, from there on backwards: seconds, bytes, and whether a plan has it, as repeats of some plans are longer."""
        key = bucket_key(last.op)
        joining = [each for each in reversed(order) if bucket_key(each.op) == key]
        for _, group in groupby(joining, lambda each: each.term.counted.repeats):
            rows = [
                (each.seconds, self.bytes_of(each), self.sizes.number(each.term.rows))
                for each in group
            ]
            for iteration in reversed(range(max(int(times.max()) for *_, times in rows))):
                for seconds, num_bytes, times in rows:
                    yield seconds + self.nothing, num_bytes, times > iteration

    def bytes_of(self, each: Reduction) -> Floats:
        """Those of the ends of a reduction that are more."""
        amounts = each.term.amounts
        ends = (self.sizes.number(end.form) for end in (amounts.before, amounts.after))
        return np.maximum(*ends).astype(float)
