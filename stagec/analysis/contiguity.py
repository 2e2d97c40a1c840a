"""Which elementwise ops of `sched` an eager framework computes element by element, because of how their operands lie in memory.

PyTorch's kernels load vectors where all operands are contiguous and nothing is converted; else a thread turns to one element after the other
(`gpu_kernel_impl` in `ATen/native/cuda/CUDALoops.cuh`). Of fp32 that becomes bf16 or fp16 vectors are loaded since PyTorch 2.6 (`bfloat16_copy_kernel_cuda`
in `ATen/native/cuda/Copy.cu`, pull request 137053).
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations

from xdsl.ir import SSAValue

from stagec import symbolic
from stagec.dialects import sched, stg
from stagec.dialects.interfaces import elements
from stagec.dialects.types import Dim, TensorType, bytes_per_element, tensor_of
from stagec.dialects.use_def import followed, from_body, from_stack
from stagec.dialects.work import Work
from stagec.symbolic import ZERO, Size


def apart(op: sched.ComputeOp) -> Size:
    """How many elements an eager framework's kernel computes one by one: all of the result, or none.

    An op that reads dims which its result lacks joins its operands, and is no kernel of this kind.
    """
    made = tensor_of(op.outputs[0].type)
    operands = [(value, tensor_of(value.type)) for value in op.inputs if not is_number(value)]
    if any(set(tensor.names) - set(made.names) for _, tensor in operands):
        return ZERO
    work = sched.work_of(op)
    if any(is_converted(work, tensor, made) for _, tensor in operands):
        return elements(op.outputs[0])
    found = [is_rearranged(tensor.dims, made.dims) for _, tensor in operands]
    return elements(op.outputs[0]) * largest(*found, *(is_apart(value) for value, _ in operands))


def is_converted(work: Work, operand: TensorType, made: TensorType) -> bool:
    """A mask is read as it is."""
    if "bool" in (operand.dtype, made.dtype) or operand.dtype == made.dtype:
        return False
    return work != Work.CAST or bytes_per_element(operand.dtype) < bytes_per_element(made.dtype)


def is_number(value: SSAValue) -> bool:
    """A number that is known to the host is an argument of a kernel."""
    return isinstance(followed(value, from_stack, from_body).owner, stg.ConstantOp)


def is_apart(value: SSAValue) -> Size:
    """1 if the memory of a value is not contiguous in the order of its dims; else 0."""
    steps: list[Size] = []
    while True:
        value = followed(value, from_stack, from_body)
        view = value.owner
        if not isinstance(view, sched.ViewOp):
            return largest(*steps)
        steps.append(is_rearranged(*(tensor_of(v.type).dims for v in (view.operand, view.result))))
        value = view.operand


@lru_cache(maxsize=1 << 12)
def is_rearranged(before: tuple[Dim, ...], after: tuple[Dim, ...]) -> Size:
    """1 if a view of contiguous memory is not: it repeats elements, has dims in another order, or is a part of a dim within another one; else 0.

    A dim of size one may be anywhere.
    """
    names, others = [each.name for each in before], [each.name for each in after]
    if names == others:
        return ZERO
    if set(names) <= set(others):
        repeated = [more_than_one(dim) for dim in after if dim.name not in names]
        turned = [
            more_than_one(left) * more_than_one(right)
            for left, right in combinations(before, 2)
            if others.index(left.name) > others.index(right.name)
        ]
        return largest(*repeated, *turned)
    if len(names) != len(others):
        return ZERO
    outer = [symbolic.product(dim.size for dim in before[:at]) for at in range(len(before))]
    return largest(
        *(
            at_most_one(around - 1) * at_most_one(dim.size - part.size)
            for around, dim, part in zip(outer, before, after, strict=True)
            if dim.name != part.name
        )
    )


def more_than_one(dim: Dim) -> Size:
    return at_most_one(dim.size - 1)


def at_most_one(number: Size) -> Size:
    return symbolic.call("min", number, 1)


def largest(*found: Size) -> Size:
    return symbolic.call("max", ZERO, *found)
