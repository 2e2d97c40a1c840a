"""Ops that a model declares itself, with the costs that it states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    var_operand_def,
    var_result_def,
)

from stagec import symbolic
from stagec.dialects.attributes import SizeAttr
from stagec.dialects.interfaces import Bytes
from stagec.dialects.stg.base import (
    PLACEMENT,
    Indices,
    TensorOp,
    local_results,
    operand_splits,
    tensor_type,
)
from stagec.dialects.stg.interface import (
    BackwardPass,
    Cotangents,
    Requests,
)
from stagec.dialects.stg.recurrent import SEQUENCES, ResumedOp, num_resumed, state_traffic
from stagec.dialects.types import TensorType, tensor_of
from stagec.symbolic import ONE, ZERO, Size


def local_share(op: UserOp | UserGradOp | ResumedUserOp) -> Size:
    """The part of a user's op that one device does: what splits its operands or results splits its work."""
    splits: dict[str, tuple[str, ...]] = {}
    for value in (*op.operands, *op.results):
        splits |= tensor_of(value.type).splits
    ways = symbolic.product(symbolic.symbol(a) for axes in splits.values() for a in axes)
    return ONE / ways


def indices_of_user(op: UserOp | ResumedUserOp, base: Indices, over: StringAttr | None) -> Indices:
    """Dims that only operands have are whole on a device, and so is what it goes along."""
    results = {n for names in base.results for n in names}
    blocked = {n for names in base.operands for n in names if n not in results}
    blocked |= {over.data} if over is not None else set()
    return Indices(base.operands, base.results, blocked=frozenset(blocked))


def verify_results(op: UserOp | ResumedUserOp) -> None:
    op.verify_operands()
    if PLACEMENT in op.properties:
        return
    # How a dim that no operand has is split is the results' own choice: a device makes its share.
    splits = operand_splits(op)
    for result in op.outputs:
        for dim in tensor_type(result).dims:
            splits.setdefault(dim.name, dim.split)
    for result, local in zip(op.outputs, local_results(op, splits), strict=True):
        if result.type != local:
            raise op.mistake(
                f"the result is <{tensor_type(result).body}>, "
                f"but its operands make it <{local.body}>"
            )


def written_kernels(number: Size) -> SizeAttr | None:
    """One goes without saying."""
    return None if number == ONE else SizeAttr(number)


def read_kernels(said: SizeAttr | None) -> Size:
    return ONE if said is None else said.data


@irdl_op_definition
class UserOp(TensorOp):
    """`op name(...) -> ... { flops = ..., bytes = ..., kernels = ... }` in a model, called.

    Costs are written for global sizes; each device has its share, and all of the kernels. Dims that it shares with its
    results may be split; a dim that only operands have is blocked.

    Shapes as the text declares them, `x[B, S, D]`. FLOPs: those stated, the share of one device.
    """

    name = "stg.user"

    op = prop_def(StringAttr)
    stated_flops = prop_def(SizeAttr, prop_name="flops")
    stated_bytes = prop_def(SizeAttr, prop_name="bytes")
    backward_flops = prop_def(SizeAttr)
    backward_bytes = prop_def(SizeAttr)
    kernels = opt_prop_def(SizeAttr)
    backward_kernels = opt_prop_def(SizeAttr)
    over = opt_prop_def(StringAttr)
    """The dim of tokens that it goes along, each of which sees the ones before."""
    arguments = var_operand_def(TensorType)
    outputs = var_result_def(TensorType)

    assembly_format = (
        "$op `(` $arguments `)` (`over` $over^)? `flops` $flops `bytes` $bytes "
        "`backward_flops` $backward_flops `backward_bytes` $backward_bytes "
        "(`kernels` $kernels^)? (`backward_kernels` $backward_kernels^)? attr-dict "
        "`:` functional-type(operands, results)"
    )

    def __init__(
        self,
        op: str,
        arguments: Sequence[SSAValue],
        result_types: Sequence[TensorType],
        flops: Size,
        bytes: Size,
        backward_flops: Size,
        backward_bytes: Size,
        kernels: Size = ONE,
        backward_kernels: Size = ONE,
        over: str = "",
    ) -> None:
        super().__init__(
            [list(arguments)],
            [list(result_types)],
            over=over or None,
            op=op,
            flops=flops,
            bytes=bytes,
            backward_flops=backward_flops,
            backward_bytes=backward_bytes,
            kernels=written_kernels(kernels),
            backward_kernels=written_kernels(backward_kernels),
        )

    def indices(self) -> Indices:
        return indices_of_user(self, super().indices(), self.over)

    def verify_(self) -> None:
        verify_results(self)

    @property
    def node_name(self) -> str:
        """Its name in the model."""
        return self.op.data

    def num_kernels(self) -> Size:
        return read_kernels(self.kernels)

    def flops(self) -> Size:
        return self.stated_flops.data * local_share(self)

    def moved_bytes(self) -> Bytes:
        return Bytes(self.stated_bytes.data * local_share(self), ZERO)

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        wanted = [x for x in self.arguments if gradients.wants(x)]
        known = [dy for dy in dys if dy is not None]
        if not wanted:
            return
        if len(known) > 1:
            # Linear in all of them together, so that they would have to be partial over the same axes.
            known = [gradients.reduced(dy, (), wanted[0]) for dy in known]
        arguments = [*known, *self.arguments]
        gradients.emit_all(
            wanted,
            lambda: UserGradOp(
                self.op.data,
                arguments,
                [tensor_type(x) for x in wanted],
                self.backward_flops.data,
                self.backward_bytes.data,
                read_kernels(self.backward_kernels),
            ),
            wanted[0],
        )


@irdl_op_definition
class ResumedUserOp(ResumedOp):
    """A user's op that goes on from a state of each request, its last operand, where something is served.

    FLOPs and bytes are those stated of each sequence by itself, one behind the other, and bytes of the states besides.

    Shapes as the text declares them, `x[B, S, D]`, and `state` [B, sequences, D, N]. FLOPs: those stated, the share of one device.
    """

    name = "stg.resumed_user"

    op = prop_def(StringAttr)
    over = prop_def(StringAttr)
    stated_flops = prop_def(SizeAttr, prop_name="flops")
    stated_bytes = prop_def(SizeAttr, prop_name="bytes")
    kernels = opt_prop_def(SizeAttr)
    arguments = var_operand_def(TensorType)
    state = operand_def(TensorType)
    outputs = var_result_def(TensorType)

    assembly_format = (
        "$op `(` $arguments `)` `from` $state `over` $over `flops` $flops `bytes` $bytes (`kernels` $kernels^)? "
        "`resumed` $resumed attr-dict `:` functional-type(operands, results)"
    )

    def __init__(
        self,
        op: str,
        arguments: Sequence[SSAValue],
        state: SSAValue,
        result_types: Sequence[TensorType],
        flops: Size,
        bytes: Size,
        kernels: Size,
        over: str,
        requests: Requests,
    ) -> None:
        """Costs are those stated: what names the dim of rows in them is of each sequence."""
        batch = tensor_type(state).names[0]

        def of_row(stated: Size) -> Size:
            once = stated.substitute({batch: ZERO})

            def of_one(new: Size, _: Size) -> Size:
                return stated.substitute({batch: ONE, over: new}) - once.substitute({over: new})

            return once + symbolic.symbol(batch) * requests.in_a_row(of_one)

        super().__init__(
            [list(arguments), state],
            [list(result_types)],
            op=op,
            over=over,
            flops=of_row(flops),
            bytes=of_row(bytes),
            kernels=written_kernels(kernels),
            resumed=num_resumed(requests),
        )

    def indices(self) -> Indices:
        base = super().indices()
        return indices_of_user(self, base, self.over)

    def verify_(self) -> None:
        state = tensor_type(self.state)
        if state.names[1:2] != (SEQUENCES,):
            raise self.mistake(f"<{state.body}> is not a state of sequences")
        verify_results(self)

    @property
    def node_name(self) -> str:
        """Its name in the model."""
        return self.op.data

    def num_kernels(self) -> Size:
        return read_kernels(self.kernels)

    def flops(self) -> Size:
        return self.stated_flops.data * local_share(self)

    def moved_bytes(self) -> Bytes:
        kept = state_traffic(self.state, self.resumed.data)
        return Bytes(self.stated_bytes.data * local_share(self) + kept.read, kept.written)


@irdl_op_definition
class UserGradOp(TensorOp):
    """The gradient of a user's op: reads its operands and the gradients of its results.

    Gradients [B, S, D] like the operands. FLOPs and bytes as those of the call.
    """

    name = "stg.user_grad"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)

    op = prop_def(StringAttr)
    stated_flops = prop_def(SizeAttr, prop_name="flops")
    stated_bytes = prop_def(SizeAttr, prop_name="bytes")
    kernels = opt_prop_def(SizeAttr)
    arguments = var_operand_def(TensorType)
    gradients = var_result_def(TensorType)

    assembly_format = (
        "$op `(` $arguments `)` `flops` $flops `bytes` $bytes (`kernels` $kernels^)? attr-dict "
        "`:` functional-type(operands, results)"
    )

    def __init__(
        self,
        op: str,
        arguments: Sequence[SSAValue],
        result_types: Sequence[TensorType],
        flops: Size,
        bytes: Size,
        kernels: Size = ONE,
    ) -> None:
        splits = {d.name: d.split for x in arguments for d in tensor_type(x).dims}
        carried = tensor_type(arguments[0]).partial
        made = []
        for kept in result_types:
            summed = [a for n, axes in splits.items() if n not in kept.names for a in axes]
            made.append(kept.with_partial(sorted({*carried, *summed})))
        super().__init__(
            [list(arguments)],
            [made],
            op=op,
            flops=flops,
            bytes=bytes,
            kernels=written_kernels(kernels),
        )

    @property
    def node_name(self) -> str:
        return f"{self.op.data}_grad"

    def num_kernels(self) -> Size:
        return read_kernels(self.kernels)

    def flops(self) -> Size:
        return self.stated_flops.data * local_share(self)

    def moved_bytes(self) -> Bytes:
        return Bytes(self.stated_bytes.data * local_share(self), ZERO)
