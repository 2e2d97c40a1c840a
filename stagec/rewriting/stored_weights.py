"""Gathers of parameters that are stored split: of one tensor, of a unit, of each layer of a stack, and after an update."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import Rewriter

from stagec.dialects import dist, stg
from stagec.dialects.types import ShardType, StackType, ValueType, tensor_of
from stagec.rewriting import inherit
from stagec.symbolic import Size

NAME = "shard-parameters"


Gather = Callable[[Sequence[SSAValue]], list[dist.UnshardOp]]


def unshard(values: Sequence[SSAValue], dtype: str, phase: str) -> list[dist.UnshardOp]:
    """One gather for all shards over the same axes."""
    by_axes: dict[tuple[str, ...], list[SSAValue]] = {}
    for value in values:
        by_axes.setdefault(stored_over(value), []).append(value)
    made = []
    for axes, members in by_axes.items():
        op = dist.UnshardOp(members, axes, dtype)
        stg.marks(op)["phase"] = StringAttr(phase)
        made.append(op)
    return made


def stored_over(value: SSAValue) -> tuple[str, ...]:
    """The axes of a shard, or of a stack's."""
    leaf = value.type.leaf if isinstance(value.type, StackType) else value.type
    assert isinstance(leaf, ShardType), value
    return leaf.axes


def storage_axes(weight: SSAValue, axes: Sequence[str]) -> tuple[str, ...]:
    """The axes that a weight's storage is split over: not those that split its computation already (experts)."""
    own = tensor_of(weight.type).split_axes
    return tuple(a for a in axes if a not in own)


def repeat_over(count: Size, stacks: Sequence[SSAValue], make: Gather, phase: str) -> stg.RepeatOp:
    """A repeat that applies an op to a slice of each stack."""
    body = Block()
    slices = []
    for stack in stacks:
        assert isinstance(stack.type, StackType)
        slices.append(body.insert_arg(stack.type.element, len(body.args)))
    nested = [s for s in slices if isinstance(s.type, StackType)]
    plain = [s for s in slices if s not in nested]
    results: dict[SSAValue, SSAValue] = {}
    for inner in nested:
        repeat = repeat_over(inner.type.count, [inner], make, phase)
        body.add_op(repeat)
        results[inner] = repeat.results[0]
    if plain:
        for op in make(plain):
            body.add_op(op)
            results |= dict(zip(op.values, op.outputs, strict=True))
    yielded = [results[s] for s in slices]
    body.add_op(stg.YieldOp(yielded))
    types = []
    for value in yielded:
        assert isinstance(value.type, ValueType)
        types.append(StackType.of(count, value.type))
    repeat = stg.RepeatOp(count, [], stacks, Region(body), types)
    stg.marks(repeat)["phase"] = StringAttr(phase)
    for op in body.ops:
        inherit(op, repeat, NAME)
    return repeat


def stored_rows(weight: stg.WeightOp, flat: bool) -> int:
    """How many dims are rows, which storage is split by; all of them if a parameter is split as one row of elements."""
    return max(1, len(tensor_of(weight.weight.type).dims)) if flat else weight.num_rows


def insert(op: Operation, before: Operation, origin: Operation | None = None) -> None:
    for each in op.walk():
        inherit(each, origin or before, NAME)
        stg.marks(each).pop("scope", None)
    block = before.parent_block()
    assert block is not None
    block.insert_op_before(op, before)


def gather_after_step(program: stg.ProgramOp, axes: Sequence[str], dtype: str, flat: bool) -> None:
    """Update the rank's shards, then gather whole parameters from them."""
    block = program.body.block
    step = next((op for op in block.ops if isinstance(op, stg.OptimizerStepOp)), None)
    if step is None:
        return
    shards: list[SSAValue] = []
    for weight in step.weights:
        assert isinstance(weight.owner, stg.WeightOp)
        own, rows = storage_axes(weight, axes), stored_rows(weight.owner, flat)
        take = dist.TakeShardOp([weight], own, tensor_of(weight.type).dtype, [rows])
        stg.marks(take)["phase"] = StringAttr("optim")
        insert(take, step)
        shards.append(take.outputs[0])
    updated = step.of(shards, step.gradients)
    stg.marks(updated).take(stg.marks(step))
    updated.location = step.location
    Rewriter.replace_op(step, updated)
    after = updated.next_op
    assert after is not None

    def gather(values: Sequence[SSAValue]) -> list[dist.UnshardOp]:
        return unshard(values, dtype, "optim")

    by_count: dict[Size, list[SSAValue]] = {}
    for shard in shards:
        if isinstance(shard.type, StackType):
            by_count.setdefault(shard.type.count, []).append(shard)
        else:
            for op in gather([shard]):
                insert(op, after, updated)
    for count, stacks in by_count.items():
        insert(repeat_over(count, stacks, gather, "optim"), after, updated)
