"""Ops that a model declares itself, with the costs that it states."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import Any, ClassVar

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue
from xdsl.irdl import (
    operand_def,
    opt_prop_def,
    prop_def,
    var_operand_def,
    var_result_def,
)

from stagec import symbolic
from stagec.dialects.attributes import NumbersAttr, SizeAttr
from stagec.dialects.interfaces import Bytes
from stagec.dialects.op import op_definition
from stagec.dialects.stg.base import Indices, InferredOp, tensor_type
from stagec.dialects.stg.interface import BackwardPass, Cotangents, Requests
from stagec.dialects.stg.recurrent import SEQUENCES, ResumedOp, num_resumed, state_traffic
from stagec.dialects.types import TensorType, tensor_of
from stagec.symbolic import ONE, ZERO, Size


def indices_of_user(op: UserOp | ResumedUserOp, base: Indices, over: StringAttr | None) -> Indices:
    """Dims that only operands have are whole on a device, and so is what it goes along."""
    results = {n for names in base.results for n in names}
    blocked = {n for names in base.operands for n in names if n not in results}
    blocked |= {over.data} if over is not None else set()
    return Indices(base.operands, base.results, blocked=frozenset(blocked))


class StatedOp(InferredOp, ABC):
    """What costs what a model states. Costs are written for global sizes; each device has its share, and all of the kernels."""

    op = prop_def(StringAttr)
    stated_flops = prop_def(SizeAttr, prop_name="flops")
    stated_bytes = prop_def(SizeAttr, prop_name="bytes")
    kernels = opt_prop_def(SizeAttr)
    scalars = opt_prop_def(SizeAttr)

    def __init__(self, *given: Any, like: Sequence[TensorType], **said: Any) -> None:
        # One kernel that loads vectors goes without saying.
        plain = {"kernels": ONE, "scalars": ZERO}
        stated = {n: v for n, v in said.items() if v != plain.get(n.removeprefix("backward_"))}
        super().__init__(*given, like=like, **stated)

    @property
    def node_name(self) -> str:
        """Its name in the model."""
        return self.op.data

    def num_kernels(self) -> Size:
        return ONE if self.kernels is None else self.kernels.data

    def num_scalars(self) -> Size:
        return ZERO if self.scalars is None else self.scalars.data * self.local_share()

    def local_share(self) -> Size:
        """The part of it that one device does: what splits operands or results splits the work."""
        splits: dict[str, tuple[str, ...]] = {}
        for value in (*self.operands, *self.results):
            splits |= tensor_of(value.type).splits
        return ONE / symbolic.product(symbolic.symbol(a) for axes in splits.values() for a in axes)

    def flops(self) -> Size:
        return self.stated_flops.data * self.local_share()

    def moved_bytes(self) -> Bytes:
        return Bytes(self.stated_bytes.data * self.local_share(), ZERO)


@op_definition
class UserOp(StatedOp):
    """`op name(...) -> ... { flops = ..., bytes = ..., kernels = ... }` in a model, called.

    Costs are written for global sizes; each device has its share, and all of the kernels. Dims that it shares with its
    results may be split; a dim that only operands have is blocked.

    Shapes as the text declares them, `x[B, S, D]`. FLOPs: those stated, the share of one device.
    """

    name = "stg.user"

    backward_flops = prop_def(SizeAttr)
    backward_bytes = prop_def(SizeAttr)
    backward_kernels = opt_prop_def(SizeAttr)
    backward_scalars = opt_prop_def(SizeAttr)
    backward_reads = opt_prop_def(NumbersAttr)
    """The arguments that its gradient reads, by number, where these are not all."""
    over = opt_prop_def(StringAttr)
    """The dim of tokens that it goes along, each of which sees the ones before."""
    arguments = var_operand_def(TensorType)
    outputs = var_result_def(TensorType)

    assembly_format = (
        "$op `(` $arguments `)` (`over` $over^)? `flops` $flops `bytes` $bytes "
        "`backward_flops` $backward_flops `backward_bytes` $backward_bytes "
        "(`kernels` $kernels^)? (`backward_kernels` $backward_kernels^)? "
        "(`scalars` $scalars^)? (`backward_scalars` $backward_scalars^)? "
        "(`backward_reads` $backward_reads^)? attr-dict "
        "`:` functional-type(operands, results)"
    )

    def indices(self) -> Indices:
        return indices_of_user(self, super().indices(), self.over)

    def verify_(self) -> None:
        if any(not 0 <= number < len(self.arguments) for number in self.read_backward()):
            raise self.mistake(f"a gradient reads some of {len(self.arguments)} arguments")
        super().verify_()

    def read_backward(self) -> Sequence[int]:
        """The arguments that its gradient reads, by number."""
        if self.backward_reads is None:
            return range(len(self.arguments))
        return self.backward_reads.data

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        wanted = [x for x in self.arguments if gradients.wants(x)]
        known = [dy for dy in dys if dy is not None]
        if not wanted:
            return
        if len(known) > 1:
            # Linear in all of them together, so that they would have to be partial over the same axes.
            known = [gradients.reduced(dy, (), wanted[0]) for dy in known]
        arguments = [*known, *(self.arguments[number] for number in self.read_backward())]
        gradients.emit_all(
            wanted,
            lambda: UserGradOp(
                arguments,
                op=self.op,
                flops=self.backward_flops,
                bytes=self.backward_bytes,
                kernels=self.backward_kernels,
                scalars=self.backward_scalars,
                like=[tensor_type(x) for x in wanted],
            ),
            wanted[0],
        )


@op_definition
class ResumedUserOp(StatedOp, ResumedOp):
    """A user's op that goes on from a state of each request, its last operand, where something is served.

    FLOPs and bytes are those stated of each sequence by itself, one behind the other, and bytes of the states besides.

    Shapes as the text declares them, `x[B, S, D]`, and `state` [B, sequences, D, N]. FLOPs: those stated, the share of one device.
    """

    name = "stg.resumed_user"

    over = prop_def(StringAttr)
    arguments = var_operand_def(TensorType)
    state = operand_def(TensorType)
    outputs = var_result_def(TensorType)

    assembly_format = (
        "$op `(` $arguments `)` `from` $state `over` $over `flops` $flops `bytes` $bytes (`kernels` $kernels^)? "
        "(`scalars` $scalars^)? `resumed` $resumed attr-dict `:` functional-type(operands, results)"
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
        scalars: Size,
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
            arguments,
            state,
            like=result_types,
            op=op,
            over=over,
            flops=of_row(flops),
            bytes=of_row(bytes),
            kernels=kernels,
            scalars=of_row(scalars),
            resumed=num_resumed(requests),
        )

    def indices(self) -> Indices:
        return indices_of_user(self, super().indices(), self.over)

    def moved_bytes(self) -> Bytes:
        kept = state_traffic(self.state, self.resumed.data)
        return Bytes(super().moved_bytes().read + kept.read, kept.written)

    def verify_(self) -> None:
        state = tensor_type(self.state)
        if state.names[1:2] != (SEQUENCES,):
            raise self.mistake(f"<{state.body}> is not a state of sequences")
        super().verify_()


@op_definition
class UserGradOp(StatedOp):
    """The gradient of a user's op: reads the gradients of its results, and its operands or those that the op names.

    Gradients [B, S, D] like the operands. FLOPs and bytes as those of the call.
    """

    name = "stg.user_grad"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)

    arguments = var_operand_def(TensorType)
    gradients = var_result_def(TensorType)

    assembly_format = (
        "$op `(` $arguments `)` `flops` $flops `bytes` $bytes (`kernels` $kernels^)? (`scalars` $scalars^)? attr-dict "
        "`:` functional-type(operands, results)"
    )

    @property
    def node_name(self) -> str:
        return f"{self.op.data}_grad"
