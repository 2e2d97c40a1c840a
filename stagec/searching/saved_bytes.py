"""How many bytes of values a layer, or what is beside the layers, saves for its backward pass, and keeps for gradients of weights that come late."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xdsl.ir import Block, Operation, SSAValue

from stagec.dialects import dist, sched, stg
from stagec.dialects.types import StackType, TensorType, tensor_of
from stagec.dialects.use_def import followed, viewed
from stagec.dialects.work import Work
from stagec.rewriting.saved_values import BlockPair
from stagec.symbolic import Size, total


def bytes_saved(level: BlockPair) -> Size:
    """The bytes that one layer saves for its backward pass."""
    return bytes_of_values(level, level.saved().values())


def bytes_of_inputs(level: BlockPair) -> Size:
    """The bytes of these that are inputs of the layer. Recomputation needs them, so they are always saved."""
    inputs = {*level.repeat.carry_args}
    values = level.saved().values()
    return bytes_of_values(level, [v for v in values if followed(v, viewed) in inputs])


def bytes_but_attention(level: BlockPair) -> Size:
    """The bytes of these that are saved at least if the core of attention is made again: inputs of the layer, and what is computed in other ops.

    What attention reads or makes of other ranks may be made again with it, and is not counted. Of a layer that multiplies activations with each other, which
    may be attention that is written out, only the inputs are.
    """
    if any(is_of_activations(op, level) for op in level.forward.walk()):
        return bytes_of_inputs(level)
    inputs = {*level.repeat.carry_args}
    values = (followed(value, viewed) for value in level.saved().values())
    kept = [v for v in values if v in inputs or is_computed_beside_attention(v.owner)]
    return bytes_of_values(level, kept)


def is_of_activations(op: Operation, level: BlockPair) -> bool:
    """Whether an op is a product without a weight."""
    if sched.work_of(op) != Work.PRODUCT:
        return False
    weights = {*level.repeat.slice_args}
    return not any(followed(each, viewed) in weights for each in op.operands)


def is_computed_beside_attention(op: Operation | Block) -> bool:
    """Whether an op computes something else than attention."""
    is_attention = isinstance(op, Operation) and (
        sched.work_of(op) in (Work.ATTENTION, Work.LATENT_ATTENTION) or bool(stg.part_of(op))
    )
    return isinstance(op, sched.ComputeOp) and not is_attention


def bytes_read_late(level: BlockPair) -> Size:
    """The bytes that the gradients of one layer's weights read: values that were saved, and values that the gradients of its inputs made."""
    saved = level.saved()
    late = [op for op in level.backward.walk() if stg.phase_of(op) == "wgrad"]
    found: dict[SSAValue, None] = {}
    for operand in (operand for op in late for operand in op.operands):
        value = followed(operand, viewed)
        if isinstance(value.owner, Operation):
            if stg.phase_of(value.owner) != "wgrad" and value.owner.parent is level.backward:
                found.setdefault(value)
        elif value in saved:
            found.setdefault(saved[value])
    return bytes_of_values(level, found)


def bytes_beside(levels: Sequence[BlockPair]) -> tuple[Size, Size]:
    """Two numbers of bytes, of what a stage computes beside its layers: those of its forward pass that the backward pass reads, and those that the gradients of
    weights read, which wait if the backward pass is split in two.
    """
    block = levels[0].repeat.parent_block()
    assert block is not None
    carried = {value for level in levels for value in level.repeat.carried}
    saved: dict[SSAValue, Size] = {}
    late: dict[SSAValue, Size] = {}
    for op in block.ops:
        phase = stg.phase_of(op)
        for operand in op.operands if phase != "fwd" and not isinstance(op, stg.RepeatOp) else ():
            value = followed(operand, viewed)
            made = value.owner
            if not isinstance(made, Operation) or made.parent is not block:
                continue
            if not isinstance(value.type, TensorType):
                continue
            if isinstance(made, stg.ConstantOp | dist.SliceOp) or stg.phase_of(made) == "wgrad":
                continue
            if stg.phase_of(made) == "fwd" and value not in carried:
                saved[value] = value.type.num_bytes
            if phase == "wgrad":
                late[value] = value.type.num_bytes
    return total(saved.values()), total(late.values())


def bytes_of_values(level: BlockPair, values: Iterable[SSAValue]) -> Size:
    """The bytes of the buffers of these values that are one layer's own, each buffer counted once."""
    found: dict[SSAValue, Size] = {}
    for value in values:
        if isinstance(value.type, StackType):
            continue
        value = followed(value, viewed)
        # What the layers slice, weights above all, is no layer's own.
        if isinstance(value.owner, Block) and value not in level.repeat.carry_args:
            continue
        found.setdefault(value, tensor_of(value.type).num_bytes)
    return total(found.values())
