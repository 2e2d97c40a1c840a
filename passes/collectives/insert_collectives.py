"""Turn each change of placement into the collectives that make it.

Before `insert-collectives`:

    %x, %p = "test.op"() : () -> (!stg.tensor<[B/dp, S/tp, D], bf16>, !stg.tensor<[B/dp, S, D], bf16, partial [tp]>)
    %g = dist.reshard %x : !stg.tensor<[B/dp, S/tp, D], bf16> -> !stg.tensor<[B/dp, S, D], bf16>
    %r = dist.reshard %p : !stg.tensor<[B/dp, S, D], bf16, partial [tp]> -> !stg.tensor<[B/dp, S/tp, D], bf16>

After:

    %x, %p = "test.op"() : () -> (!stg.tensor<[B/dp, S/tp, D], bf16>, !stg.tensor<[B/dp, S, D], bf16, partial [tp]>)
    %g = dist.all_gather %x dim "S" over [tp] {made_by = "insert-collectives"}
      : !stg.tensor<[B/dp, S/tp, D], bf16> -> !stg.tensor<[B/dp, S, D], bf16>
    %r = dist.reduce_scatter %p dim "S" over [tp] {made_by = "insert-collectives"}
      : !stg.tensor<[B/dp, S, D], bf16, partial [tp]> -> !stg.tensor<[B/dp, S/tp, D], bf16>

An axis that is summed over and then splits a dim is reduce-scattered, one that is only summed over all-reduced
(after the scatters, over all such axes at once); one that stops splitting a dim is gathered, or
exchanged by an all-to-all if it splits another dim instead; one that starts to split costs a slice. What a reshard gathers of several dims,
or scatters to them, is a collective for each, or one over the axes of all if it is `at_once`.

These are the collectives of resharding in GSPMD (arXiv:2105.04663) and of `redistribute` of PyTorch's DTensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from stagec.diagnostics import CompileError, Diagnostic, span_of
from stagec.dialects import dist, stg
from stagec.dialects.attributes import Dim, PlacementAttr
from stagec.dialects.types import TIME_AXIS, TensorType
from stagec.rewriting import rewrite

NAME = "insert-collectives"


@dataclass(frozen=True)
class InsertCollectives(ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite(op, MakeReshard(), NAME)
        verify_no_reshard(op)


class MakeReshard(RewritePattern):
    """Replaces a reshard by the steps that make it."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: dist.ReshardOp, rewriter: PatternRewriter) -> None:
        steps = steps_of(op)
        if of_experts(op):
            for step in steps:
                if isinstance(step, dist.AllToAllOp):
                    stg.marks(step)["purpose"] = StringAttr("ep")
        rewriter.replace(op, steps, [steps[-1].result if steps else op.operand])


def steps_of(reshard: dist.ReshardOp) -> list[dist.Movement]:
    """Collectives and slices, one after the other. E0307 if there are none that do."""
    value, target = reshard.operand, reshard.target
    steps: list[dist.Movement] = []
    while not same(current := tensor(value), target):
        step = next_step(value, current, target, at_once=reshard.at_once is not None)
        if step is None:
            raise CompileError([cannot_reshard(reshard, current)])
        steps.append(step)
        value = step.result
    return steps


def of_experts(reshard: dist.ReshardOp) -> bool:
    """Whether tokens travel to experts, or back, or their weights do."""
    readers = [use.operation for use in reshard.result.uses]
    sends = isinstance(reshard.operand.owner, stg.SendsTokens | stg.SendWeightsOp)
    return sends or any(isinstance(r, stg.CollectsTokens | stg.ReturnWeightsOp) for r in readers)


def tensor(value: SSAValue) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


def same(left: TensorType, right: TensorType) -> bool:
    return left.dims == right.dims and set(left.partial) == set(right.partial)


def next_step(
    value: SSAValue, current: TensorType, target: TensorType, *, at_once: bool
) -> dist.Movement | None:
    """The cheapest step towards the target that is possible now."""
    summed = [a for a in current.partial if a not in target.partial]
    for name in current.names:
        axes = leading(current, target, name, [a for a in target.split_axes if free(a, current)])
        if axes:
            return dist.SliceOp(value, name, axes)
    scattered = {name: leading(current, target, name, summed) for name in current.names}
    if any(scattered.values()):
        return along(dist.ReduceScatterOp, value, scattered, at_once=at_once)
    reduced = [a for a in summed if a not in target.split_axes]
    if reduced:
        return dist.AllReduceOp(value, in_mesh_order(reduced))
    for source in current.names:
        for name in current.names:
            axes = leading(current, target, name, surplus(current, target, source))
            if axes and current.dim(source).split[-len(axes) :] == axes:
                return dist.AllToAllOp(value, source, name, axes)
    gathered = {name: trailing_unwanted(current, target, name) for name in current.names}
    if any(gathered.values()):
        return along(dist.AllGatherOp, value, gathered, at_once=at_once)
    return None


def along(
    collective: type[dist.AllGatherOp] | type[dist.ReduceScatterOp],
    value: SSAValue,
    splits: Mapping[str, tuple[str, ...]],
    *,
    at_once: bool,
) -> dist.Movement:
    """The movement that the collective makes: that of the first dim that moves, or that of all dims at once."""
    (name, axes), *others = [each for each in splits.items() if each[1]]
    return collective(
        value, name, axes, PlacementAttr.of(dict(others)) if at_once and others else None
    )


def free(axis: str, current: TensorType) -> bool:
    return axis not in current.split_axes and axis not in current.partial


def leading(
    current: TensorType, target: TensorType, name: str, allowed: list[str]
) -> tuple[str, ...]:
    """The next axes that should split a dim, as far as they are all `allowed`."""
    have, want = current.dim(name).split, target.dim(name).split
    if want[: len(have)] != have:
        return ()
    axes: list[str] = []
    for axis in want[len(have) :]:
        if axis not in allowed:
            break
        axes.append(axis)
    return tuple(axes)


def surplus(current: TensorType, target: TensorType, name: str) -> list[str]:
    """Axes that split a dim now and not in the end."""
    return [a for a in current.dim(name).split if a not in target.dim(name).split]


def trailing_unwanted(current: TensorType, target: TensorType, name: str) -> tuple[str, ...]:
    """The most minor axes of a dim that must go, all that follow the part that stays."""
    have, want = current.dim(name).split, target.dim(name).split
    common = 0
    while common < min(len(have), len(want)) and have[common] == want[common]:
        common += 1
    tail = have[common:]
    # Gathering a major axis alone would leave the elements in another order.
    return () if any(a in want for a in tail) else tail


def in_mesh_order(axes: list[str]) -> list[str]:
    return sorted(axes)


def cannot_reshard(reshard: dist.ReshardOp, current: TensorType) -> Diagnostic:
    return Diagnostic(
        "E0307",
        f"a value split as {shown(current)} cannot become {shown(reshard.target)}: gathering the "
        "major axis of a dim alone would permute it",
        span_of(reshard.location),
        help=other_order(current, reshard.target),
    )


def other_order(current: TensorType, target: TensorType) -> str:
    """What to write: axes that split a dim all along go before those that come or go."""
    for name in current.names:
        splits = (current.dim(name).split, target.dim(name).split)
        few, many = sorted((said(split) for split in splits), key=len)
        if many[: len(few)] != few and {*few} <= {*many}:
            axes = ", ".join((*few, *(a for a in many if a not in few)))
            return f"split `{name}` over `{axes}`, in this order, wherever the plan splits it over these axes"
    return "write the axes of that dim in the other order in the plan's rules"


def said(split: tuple[str, ...]) -> tuple[str, ...]:
    """The axes as a plan has them: no microbatches."""
    return tuple(axis for axis in split if axis != TIME_AXIS)


def shown(tensor: TensorType) -> str:
    """The dims as a plan splits them."""
    dims = [Dim(d.name, said(d.split)) for d in tensor.dims]
    return f"[{', '.join(map(str, dims))}]"


def verify_no_reshard(module: ModuleOp) -> None:
    """Check the promise: every change of placement is a collective or a slice."""
    for op in module.walk():
        assert not isinstance(op, dist.ReshardOp), op
