"""Compute the statistics of an op over a split dim together: sums and maxima become collectives.

Before `decompose-statistics`:

    %l, %t = "test.op"() : () -> (!stg.tensor<[B, V/tp], bf16>, !stg.tensor<[B], i32>)
    %loss, %lse = stg.cross_entropy %l, %t
      : (!stg.tensor<[B, V/tp], bf16>, !stg.tensor<[B], i32>) -> (!stg.tensor<[], fp32>, !stg.tensor<[B], fp32>)
    "test.op"(%loss) : (!stg.tensor<[], fp32>) -> ()

After:

    %l, %t = "test.op"() : () -> (!stg.tensor<[B, V/tp], bf16>, !stg.tensor<[B], i32>)
    %m = stg.max_logit %l {part_of = "cross_entropy", made_by = "decompose-statistics"}
      : (!stg.tensor<[B, V/tp], bf16>) -> !stg.tensor<[B], fp32>
    %gm = dist.all_reduce "max" %m over [tp] {part_of = "cross_entropy", made_by = "decompose-statistics"}
      : !stg.tensor<[B], fp32> -> !stg.tensor<[B], fp32>
    %p = stg.target_logit %l, %t, %gm {part_of = "cross_entropy", made_by = "decompose-statistics"}
      : (!stg.tensor<[B, V/tp], bf16>, !stg.tensor<[B], i32>, !stg.tensor<[B], fp32>) -> !stg.tensor<[B], fp32, partial [tp]>
    %gp = dist.reshard %p {part_of = "cross_entropy", made_by = "decompose-statistics"}
      : !stg.tensor<[B], fp32, partial [tp]> -> !stg.tensor<[B], fp32>
    %s = stg.sum_exp %l, %gm {part_of = "cross_entropy", made_by = "decompose-statistics"}
      : (!stg.tensor<[B, V/tp], bf16>, !stg.tensor<[B], fp32>) -> !stg.tensor<[B], fp32, partial [tp]>
    %gs = dist.reshard %s {part_of = "cross_entropy", made_by = "decompose-statistics"}
      : !stg.tensor<[B], fp32, partial [tp]> -> !stg.tensor<[B], fp32>
    %loss, %lse = stg.loss_of_statistics %gm, %gp, %gs {part_of = "cross_entropy", made_by = "decompose-statistics"}
      : (!stg.tensor<[B], fp32>, !stg.tensor<[B], fp32>, !stg.tensor<[B], fp32>) -> (!stg.tensor<[], fp32>, !stg.tensor<[B], fp32>)
    "test.op"(%loss) : (!stg.tensor<[], fp32>) -> ()

Cross-entropy over a split vocabulary takes three all-reduces of one fp32 number per position: the maximum, the target's
logit, the sum of exponentials (Megatron-LM, `vocab_parallel_cross_entropy`), and no gathered logits. Softmax takes two,
an RMS norm one, a layer norm two; their gradients one, one and two. A maximum takes one; its gradient none. `part_of` says what the steps were.
An op that inserts steps and returns nothing is E0713.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern
from xdsl.rewriter import InsertPoint

from stagec.analysis.sizes import mesh_of
from stagec.diagnostics import refused, span_of
from stagec.dialects import dist, stg
from stagec.dialects.types import TIME_AXIS
from stagec.rewriting import rewrite
from stagec.symbolic.conditions import is_split

NAME = "decompose-statistics"


@dataclass(frozen=True)
class DecomposeStatistics(ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite(op, DecomposeStatistic(mesh_of(op)), NAME)


@dataclass(frozen=True)
class DecomposeStatistic(RewritePattern):
    """Takes apart an op whose statistics are split, if it says how."""

    mesh: Mapping[str, int]
    """Over an axis of size 1 nothing is split; in a part of a program that has no mesh, everything may be."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if not isinstance(op, stg.TensorOp) or stg.PART_OF in op.properties:
            return
        axes = split_statistics(op)
        if not any(axis not in self.mesh or is_split(axis, self.mesh) for axis in axes):
            return
        steps = InsertedSteps(op, axes, rewriter)
        results = op.decomposed(steps)
        if results is not None:
            for message in mistakes_of_results(op, results):
                text = f"the op `{op.name}`: `decomposed` {message}"
                raise refused("E0713", text, span_of(op.location))
            rewriter.replace(op, [], results)
        elif steps.made:
            message = f"the op `{op.name}`: `decomposed` inserts steps and returns nothing"
            help_ = "return what takes the place of its results; None, before any step, if each device's own statistics are meant"
            raise refused("E0713", message, span_of(op.location), help=help_)


def mistakes_of_results(op: stg.TensorOp, values: Sequence[object]) -> Iterator[str]:
    """What takes the place of an op's results is of their types."""
    if len(values) != len(op.results):
        yield f"returns {len(values)} values, and it has {len(op.results)} results"
        return
    for number, (value, result) in enumerate(zip(values, op.results, strict=True)):
        if not isinstance(value, SSAValue):
            what = f"`{value.name}`" if isinstance(value, Operation) else repr(value)
            yield f"returns {what} for result {number}: it is a value, as `steps.do` returns one"
        elif value.type != result.type:
            yield f"returns {value.type} for result {number}, which is {result.type}"


def split_statistics(op: stg.TensorOp) -> tuple[str, ...]:
    """The axes that split the dims over which an op takes statistics. A microbatch has its own."""
    statistics = op.indices().statistics
    if not statistics:
        return ()
    splits = stg.operand_splits(op)
    axes = [a for index, axes in splits.items() if index in statistics for a in axes]
    return tuple(a for a in axes if a != TIME_AXIS)


@dataclass(frozen=True)
class InsertedSteps(stg.Decomposition):
    """Inserts the steps before the op that they replace."""

    op: stg.TensorOp
    axes: tuple[str, ...]
    rewriter: PatternRewriter
    made: list[Operation] = field(default_factory=list)

    def do(self, step: Operation) -> SSAValue:
        self.made.append(step)
        stg.marks(step)[stg.PART_OF] = StringAttr(self.op.name.partition(".")[2])
        stg.add_names(step, stg.names_of(self.op))
        self.rewriter.insert(step, InsertPoint.before(self.op))
        return step.results[0]

    def total(self, partial: SSAValue) -> SSAValue:
        source = stg.tensor_type(partial)
        rest = [a for a in source.partial if a not in self.axes]
        return self.do(dist.ReshardOp(partial, source.with_partial(rest)))

    def largest(self, x: SSAValue) -> SSAValue:
        return self.do(dist.AllReduceOp(x, self.axes, "max"))
