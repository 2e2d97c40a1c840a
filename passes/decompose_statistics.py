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
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from stagec.dialects import dist, stg
from stagec.dialects.types import TIME_AXIS
from stagec.rewriting import insert_before

NAME = "decompose-statistics"


@dataclass(frozen=True)
class DecomposeStatistics(ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for candidate in list(op.walk()):
            if isinstance(candidate, stg.TensorOp) and is_whole(candidate):
                axes = split_statistics(candidate)
                if axes:
                    steps = Steps(candidate, axes)
                    results = DECOMPOSITIONS[type(candidate)](candidate, steps)
                    for old, new in zip(candidate.results, results, strict=True):
                        assert new.type == old.type, (candidate, new.type)
                        old.replace_all_uses_with(new)
                    Rewriter.erase_op(candidate)


def is_whole(op: stg.TensorOp) -> bool:
    """Whether an op has a decomposition, and is not part of one."""
    return type(op) in DECOMPOSITIONS and stg.PART_OF not in op.attributes


def split_statistics(op: stg.TensorOp) -> tuple[str, ...]:
    """The axes that split the dims over which an op takes statistics. A microbatch has its own."""
    splits = stg.operand_splits(op)
    statistics = op.indices().statistics
    axes = [a for index, axes in splits.items() if index in statistics for a in axes]
    return tuple(a for a in axes if a != TIME_AXIS)


@dataclass(frozen=True)
class Steps:
    """Inserts the steps that replace `op`."""

    op: Operation
    axes: tuple[str, ...]

    def do(self, step: Operation) -> SSAValue:
        step.attributes[stg.PART_OF] = StringAttr(self.op.name.partition(".")[2])
        stg.add_names(step, stg.names_of(self.op))
        insert_before(self.op, [step], NAME)
        return step.results[0]

    def total(self, partial: SSAValue) -> SSAValue:
        """The sum over the axes of a partial value."""
        return self.do(
            dist.ReshardOp(
                partial,
                stg.tensor_type(partial).with_partial(
                    [a for a in stg.tensor_type(partial).partial if a not in self.axes]
                ),
            )
        )

    def sum(self, x: SSAValue, over: tuple[str, ...]) -> SSAValue:
        return self.total(self.do(stg.ReduceOp("sum", x, over)))

    def mean(self, x: SSAValue, over: tuple[str, ...]) -> SSAValue:
        return self.total(self.do(stg.ReduceOp("mean", x, over)))

    def max(self, x: SSAValue, over: tuple[str, ...]) -> SSAValue:
        local = self.do(stg.ReduceOp("max", x, over))
        return self.do(dist.AllReduceOp(local, self.axes, "max"))

    def cast(self, x: SSAValue, dtype: str) -> SSAValue:
        """In this dtype: a cast only where it is another."""
        return x if stg.tensor_type(x).dtype == dtype else self.do(stg.CastOp(x, dtype))

    def scaled(self, x: SSAValue, weight: SSAValue | None, dtype: str) -> SSAValue:
        """Times a weight, if there is one. The weight is cast, so that the product keeps the dtype."""
        return x if weight is None else self.mul(x, self.cast(weight, dtype))

    def mul(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.do(stg.MulOp(a, b))

    def sub(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.do(stg.SubOp(a, b))


def statistics_of_loss(logits: SSAValue, targets: SSAValue, steps: Steps) -> list[SSAValue]:
    """Loss and log-sum-exp from the three statistics of each position."""
    largest = steps.do(stg.MaxLogitOp(logits))
    largest = steps.do(dist.AllReduceOp(largest, steps.axes, "max"))
    target = steps.total(steps.do(stg.TargetLogitOp(logits, targets, largest)))
    sums = steps.total(steps.do(stg.SumExpOp(logits, largest)))
    finish = stg.LossOfStatisticsOp(largest, target, sums)
    steps.do(finish)
    return list(finish.results)


def cross_entropy(op: stg.CrossEntropyOp, steps: Steps) -> list[SSAValue]:
    return statistics_of_loss(op.logits, op.targets, steps)


def log_softmax_loss(op: stg.LogSoftmaxLossOp, steps: Steps) -> list[SSAValue]:
    loss, lse = statistics_of_loss(op.logits, op.targets, steps)
    dtype = stg.tensor_type(op.logits).dtype
    return [loss, steps.sub(op.logits, steps.cast(lse, dtype))]


def reduce(op: stg.ReduceOp, steps: Steps) -> list[SSAValue]:
    """A maximum: nothing else that `stg.reduce` computes has statistics."""
    return [steps.max(op.x, op.over.data)]


def softmax(op: stg.SoftmaxOp, steps: Steps) -> list[SSAValue]:
    largest = steps.max(op.x, op.over.data)
    powers = steps.do(stg.UnaryOp("exp", steps.sub(op.x, largest)))
    return [steps.do(stg.DivOp(powers, steps.sum(powers, op.over.data)))]


def softmax_grad(op: stg.SoftmaxGradOp, steps: Steps) -> list[SSAValue]:
    inner = steps.sum(steps.mul(op.dy, op.y), op.over.data)
    return [steps.mul(steps.sub(op.dy, inner), op.y)]


def rms_norm(op: stg.RmsNormOp, steps: Steps) -> list[SSAValue]:
    dtype = stg.tensor_type(op.x).dtype
    squares = steps.cast(steps.do(stg.UnaryOp("square", op.x)), "fp32")
    rstd = steps.do(stg.UnaryOp("rsqrt", steps.mean(squares, op.over.data)))
    normal = steps.mul(op.x, steps.cast(rstd, dtype))
    return [steps.scaled(normal, op.weight, dtype), rstd]


def rms_norm_grad(op: stg.RmsNormGradOp, steps: Steps) -> list[SSAValue]:
    dtype = stg.tensor_type(op.x).dtype
    rstd = steps.cast(op.rstd, dtype)
    scaled = steps.scaled(op.dy, op.weight, dtype)
    normal = steps.mul(op.x, rstd)
    inner = steps.mean(steps.mul(scaled, normal), op.over.data)
    return [steps.mul(steps.sub(scaled, steps.mul(inner, normal)), rstd)]


def layer_norm(op: stg.LayerNormOp, steps: Steps) -> list[SSAValue]:
    dtype, over = stg.tensor_type(op.x).dtype, op.over.data
    mean = steps.mean(steps.cast(op.x, "fp32"), over)
    centred = steps.sub(op.x, steps.cast(mean, dtype))
    squares = steps.cast(steps.do(stg.UnaryOp("square", centred)), "fp32")
    rstd = steps.do(stg.UnaryOp("rsqrt", steps.mean(squares, over)))
    result = steps.scaled(steps.mul(centred, steps.cast(rstd, dtype)), op.weight, dtype)
    if op.bias is not None:
        result = steps.do(stg.AddOp(result, steps.cast(op.bias, dtype)))
    return [result, mean, rstd]


def layer_norm_grad(op: stg.LayerNormGradOp, steps: Steps) -> list[SSAValue]:
    dtype, over = stg.tensor_type(op.x).dtype, op.over.data
    rstd = steps.cast(op.rstd, dtype)
    scaled = steps.scaled(op.dy, op.weight, dtype)
    centred = steps.sub(op.x, steps.cast(op.mean, dtype))
    normal = steps.mul(centred, rstd)
    first = steps.mean(scaled, over)
    second = steps.mean(steps.mul(scaled, normal), over)
    rest = steps.sub(steps.sub(scaled, first), steps.mul(second, normal))
    return [steps.mul(rest, rstd)]


DECOMPOSITIONS: dict[type[Operation], Callable[..., list[SSAValue]]] = {
    stg.CrossEntropyOp: cross_entropy,
    stg.LogSoftmaxLossOp: log_softmax_loss,
    stg.ReduceOp: reduce,
    stg.SoftmaxOp: softmax,
    stg.SoftmaxGradOp: softmax_grad,
    stg.RmsNormOp: rms_norm,
    stg.RmsNormGradOp: rms_norm_grad,
    stg.LayerNormOp: layer_norm,
    stg.LayerNormGradOp: layer_norm_grad,
}
