"""Whether a step has so many microbatches that steps of few should tell of it (`few_microbatches`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from stagec.analysis.sizes import mesh_of, size_values
from stagec.dialects import stg
from stagec.dialects.types import TIME_AXIS
from stagec.estimate.repetition import may_repeat, timed_pairs
from stagec.plans.clauses import Plan
from stagec.plans.in_ir import read_plan, stated_plan
from stagec.rewriting import programs

MOST_OPS = 2**20
"""Ops that microbatches run on the ranks of one pipeline: of more, few microbatches are asked first."""


class ManyMicrobatches(Exception):
    """A step of so many microbatches that few should tell of it."""

    def __init__(self, plan: Plan, number: int, ranks: int, batch: str, size: int) -> None:
        super().__init__(number)
        self.plan = plan
        self.number = number
        self.ranks = ranks
        """Along the axis of the stages."""
        self.batch = batch
        self.size = size
        """The size of the batch."""


def look(module: ModuleOp, most: int | None = None) -> None:
    """Raises `ManyMicrobatches` where few microbatches may tell of all of them, which run more ops than `most`, or `MOST_OPS`. The microbatches are split."""
    most = MOST_OPS if most is None else most
    stated = stated_plan(module)
    plan, sizes = read_plan(stated, mesh_of(module)), size_values(module)
    pipeline, number = plan.pipeline, sizes.get(TIME_AXIS, 1)
    ranks = mesh_of(module).get(pipeline.axis, 1) if pipeline is not None else 1
    num_ops = sum(
        num_run(op.body.block.ops, sizes)
        for program in programs(module)
        for op in program.walk()
        if isinstance(op, stg.AccumulateOp)
    )
    if num_ops * number > most and may_repeat(plan) and any(timed_pairs(plan, ranks, number)):
        raise ManyMicrobatches(plan, number, ranks, stated.batch_dim, sizes[stated.batch_dim])


def num_run(ops: Iterable[Operation], sizes: Mapping[str, int]) -> int:
    """How many ops these are, those of a layer once for each layer."""
    return sum(
        op.count.data.integer(sizes) * num_run(op.body.block.ops, sizes)
        if isinstance(op, stg.RepeatOp)
        else 1
        for op in ops
    )
