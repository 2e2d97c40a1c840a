"""The state-space scan of Mamba-2, forward and backward.

    %y = stg.ssd_scan %x, %dt, %a, %b, %c chunk "Q"

For each head a state [E, N] decays and takes in, step by step, and each step's result is read from it:

    state[s] = exp(dt[s] * a) * state[s-1] + dt[s] * x[s] (outer) b[s]        y[s] = state[s] @ c[s]

x and y are [..., S, H, E], dt [..., S, H], a [H]; b and c [..., S, N], or [..., S, G, N] for groups of heads: H and G are then one index at two
granularities. It is computed chunk by chunk (Dao and Gu, arXiv:2405.21060, section 6): products within a chunk of Q steps, and a
recurrence over the states between chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from stagec.dialects.attributes import SizeAttr
from stagec.dialects.stg.base import PLACEMENT, Indices, TensorOp, tensor_type
from stagec.dialects.types import TensorType
from stagec.symbolic import Size


def scan_indices(op: SsdScanOp | SsdScanGradOp) -> tuple[tuple[str, ...], ...]:
    """The index of each dim of x, dt, a, b and c: groups of heads are heads."""
    x, b = tensor_type(op.x).names, tensor_type(op.b).names
    heads, rows = x[-2], x[:-2]
    state = (*rows, heads, b[-1]) if len(b) == len(x) else (*rows, b[-1])
    return x, x[:-1], (heads,), state, state


def verify_scan(op: SsdScanOp | SsdScanGradOp) -> None:
    """Operands are of the shapes that the module names; the sequence is whole on each device."""
    x, dt, a, b, c = (tensor_type(v) for v in (op.x, op.dt, op.a, op.b, op.c))
    if len(x.dims) < 3:
        raise VerifyException(f"{op.name}: <{x.body}> does not end in sequence, heads, width")
    wanted = {"dt": (dt, x.names[:-1]), "a": (a, x.names[-2:-1]), "c": (c, b.names)}
    for name, (operand, names) in wanted.items():
        if operand.names != names:
            raise VerifyException(
                f"{op.name}: `{name}` is <{operand.body}>, not over [{', '.join(names)}]"
            )
    rows = b.names[: len(x.names) - 2]
    if rows != x.names[:-2] or len(b.names) - len(rows) not in (1, 2):
        raise VerifyException(
            f"{op.name}: `b` is <{b.body}>, not over [{', '.join(x.names[:-2])}], groups and state"
        )
    if PLACEMENT not in op.attributes and x.dims[-3].split:
        raise VerifyException(f"{op.name}: each device needs all of `{x.names[-3]}` in <{x.body}>")


@irdl_op_definition
class SsdScanOp(TensorOp):
    """Run the recurrence. Nothing but its operands is kept: the backward pass makes the states of chunks again.

    Linear in x. An axis that splits heads splits groups; without groups b and c are the same for all heads.
    """

    name = "stg.ssd_scan"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)
    LIKE: ClassVar[int | None] = 0

    x = operand_def(TensorType)
    dt = operand_def(TensorType)
    a = operand_def(TensorType)
    b = operand_def(TensorType)
    c = operand_def(TensorType)
    chunk = prop_def(SizeAttr)
    result = result_def(TensorType)

    assembly_format = (
        "$x `,` $dt `,` $a `,` $b `,` $c `chunk` $chunk attr-dict "
        "`:` functional-type(operands, results)"
    )

    def __init__(
        self, x: SSAValue, dt: SSAValue, a: SSAValue, b: SSAValue, c: SSAValue, chunk: Size
    ) -> None:
        source, state = tensor_type(x), tensor_type(b).dims[-1].split
        super().__init__(
            operands=[x, dt, a, b, c],
            properties={"chunk": SizeAttr(chunk)},
            result_types=[source.with_partial(sorted({*source.partial, *state}))],
        )

    def indices(self) -> Indices:
        x, *others = scan_indices(self)
        return Indices((x, *others), (x,), blocked=frozenset(x[-3:-2]))

    def verify_(self) -> None:
        verify_scan(self)
        super().verify_()


@irdl_op_definition
class SsdScanGradOp(TensorOp):
    """Gradients of the scan: states of chunks again, then a recurrence from the end, for all five operands."""

    name = "stg.ssd_scan_grad"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)

    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    dt = operand_def(TensorType)
    a = operand_def(TensorType)
    b = operand_def(TensorType)
    c = operand_def(TensorType)
    chunk = prop_def(SizeAttr)
    dx = result_def(TensorType)
    ddt = result_def(TensorType)
    da = result_def(TensorType)
    db = result_def(TensorType)
    dc = result_def(TensorType)

    assembly_format = (
        "$dy `,` $x `,` $dt `,` $a `,` $b `,` $c `chunk` $chunk attr-dict "
        "`:` functional-type(operands, results)"
    )

    def __init__(
        self, dy: SSAValue, op: SsdScanOp, saved: Mapping[SSAValue, SSAValue] | None = None
    ) -> None:
        """The gradient of `op`, whose operands the backward pass sees as `saved`."""
        operands = [op.x, op.dt, op.a, op.b, op.c]
        if saved is not None:
            operands = [saved[v] for v in operands]
        carried = tensor_type(dy).partial
        indices = scan_indices(op)
        splits: dict[str, tuple[str, ...]] = {}
        for operand, names in zip(operands, indices, strict=True):
            for dim, index in zip(tensor_type(operand).dims, names, strict=True):
                splits[index] = dim.split
        types = []
        for operand, names in zip(operands, indices, strict=True):
            summed = [a for index, axes in splits.items() if index not in names for a in axes]
            types.append(tensor_type(operand).with_partial(sorted({*carried, *summed})))
        super().__init__(
            operands=[dy, *operands],
            properties={"chunk": op.chunk},
            result_types=types,
        )

    def indices(self) -> Indices:
        operands = scan_indices(self)
        return Indices((operands[0], *operands), operands, blocked=frozenset(operands[0][-3:-2]))

    def verify_(self) -> None:
        verify_scan(self)
        dy, x = tensor_type(self.dy), tensor_type(self.x)
        if dy.names != x.names:
            raise VerifyException(f"{self.name}: dy is <{dy.body}>, x <{x.body}>")
        super().verify_()
