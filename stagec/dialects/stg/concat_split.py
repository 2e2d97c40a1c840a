"""Tensors side by side along one dim, and one dim cut into several.

    %k = stg.concat %n, %r over [N, R] to "E"     // [B, S, H, N] and [B, S, R] -> [B, S, H, E], with E = N + R
    %a, %b = stg.split %x over "E" to [N, R]      // [B, S, H, E] -> [B, S, H, N] and [B, S, H, R]

Each is the gradient of the other. A dim that is joined or cut is whole on each device, or split like all of its parts: then a device has its part of
each part side by side, as Megatron-LM stores fused weights (queries, keys and values of each group; a gate and what it gates).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue
from xdsl.irdl import (
    operand_def,
    prop_def,
    result_def,
    var_operand_def,
    var_result_def,
)

from stagec.diagnostics import quoted
from stagec.dialects.attributes import NamesAttr
from stagec.dialects.interfaces import NO_FLOPS
from stagec.dialects.op import op_definition
from stagec.dialects.stg.base import (
    PLACEMENT,
    Indices,
    InferredOp,
    TensorOp,
    tensor_type,
    union_names,
)
from stagec.dialects.stg.elementwise import pass_through
from stagec.dialects.stg.interface import BackwardPass, Call, CallError, Cotangents, Signature, only
from stagec.dialects.stg.sources import ZerosOp
from stagec.dialects.types import TensorType
from stagec.dialects.work import Work


def joined_dims(call: Call) -> tuple[str, ...]:
    """The dim of each operand that is joined: as `over` says, one for all or one each; else its last."""
    over = call.dims("over") or tuple(t.names[-1] for t in call.types)
    return over * len(call.types) if len(over) == 1 else over


def check_sum(call: Call, parts: Sequence[str], whole: str) -> None:
    """The parts add up to the whole."""
    lengths = [call.sizes[part] for part in parts]
    total = sum(size or 0 for size in lengths)
    if None not in (*lengths, call.sizes[whole]) and total != call.sizes[whole]:
        terms = " + ".join(f"{part} = {call.sizes[part]}" for part in parts)
        help_ = f"write `dim {whole} = {' + '.join(parts)}`"
        padded = [each for each in (whole, *parts) if f"{each}.unpadded" in call.sizes]
        left = [each for each in (whole, *parts) if each not in padded]
        if padded and left:
            help_ = f"let the rule that pads {quoted(padded)} name {quoted(left)} too"
        raise CallError(
            f"the parts `{terms}` make {total}, not `{whole} = {call.sizes[whole]}`",
            option="to",
            help=help_,
        )


@op_definition
class ConcatOp(InferredOp):
    """Operands side by side: their dims `over`, one of each, become `to`. A copy.

    An operand that lacks another dim of the others is repeated along it, as decoupled rotary keys are for all
    heads (DeepSeek-V2, arXiv:2405.04434, section 2.1.3).

    [B, S, D] and [B, T, D] over S and T to N -> [B, N, D], for instance. No FLOPs.
    """

    name = "stg.concat"
    WORK: ClassVar[Work] = Work.ELEMENTWISE
    FLOPS: ClassVar[tuple[int, str]] = NO_FLOPS
    SIGNATURES: ClassVar[tuple[Signature, ...]] = (
        Signature.of(
            "concat(a, b, ..., over? = parts, to = dim)",
            "operands side by side: a dim of each becomes one",
        ),
    )

    parts = var_operand_def(TensorType)
    over = prop_def(NamesAttr)
    to = prop_def(StringAttr)
    result = result_def(TensorType)

    def made(self) -> Sequence[TensorType]:
        types = [tensor_type(v) for v in self.parts]
        return [TensorType.of(joined_names(types, self.over.data, self.to.data), types[0].dtype)]

    @classmethod
    def check_call(cls, call: Call) -> None:
        types, to = call.types, call.dim("to")
        for position, operand in enumerate(types):
            if not operand.names:
                raise CallError("a number has no dim to join", operand=position)
            if operand.dtype != types[0].dtype:
                raise CallError(
                    f"this is {operand.dtype}, but the first operand {types[0].dtype}",
                    operand=position,
                    help=f"convert it with `cast(x, dtype = {types[0].dtype})`",
                )
        over = joined_dims(call)
        if len(over) != len(types):
            raise CallError(f"{len(over)} dims for {len(types)} operands", option="over")
        rests = [[n for n in t.names if n != dim] for t, dim in zip(types, over, strict=True)]
        widest = max(rests, key=len)
        for position, (dim, rest) in enumerate(zip(over, rests, strict=True)):
            call.need_dim(position, dim, "over")
            extra = [n for n in rest if n not in widest]
            if extra:
                raise CallError(
                    f"`{extra[0]}` is not a dim of all that is joined",
                    operand=position,
                    notes=[f"the dims besides those that are joined are [{', '.join(widest)}]"],
                )
        if to in widest:
            raise CallError(f"`{to}` is already a dim of the operands", option="to")
        check_sum(call, over, to)

    @classmethod
    def from_call(cls, call: Call, operands: Sequence[SSAValue]) -> TensorOp:
        return ConcatOp(operands, joined_dims(call), call.dim("to"))

    @property
    def linear_operands(self) -> tuple[int, ...]:
        """All at once: terms of sums over the same axes make terms of the sum."""
        partials = {frozenset(tensor_type(part).partial) for part in self.parts}
        return tuple(range(len(self.parts))) if len(partials) == 1 else ()

    def indices(self) -> Indices:
        base = super().indices()
        return Indices(
            base.operands, base.results, blocked=frozenset((*self.over.data, self.to.data))
        )

    def verify_(self) -> None:
        types = [tensor_type(v) for v in self.parts]
        if len(types) != len(self.over.data):
            raise self.mistake(f"{len(self.over.data)} dims are joined, of {len(types)} operands")
        for part, dim in zip(types, self.over.data, strict=True):
            if dim not in part.names:
                raise self.mistake(f"there is no dim `{dim}` in <{part.body}>")
        verify_alike(self, list(zip(types, self.over.data, strict=True)))
        super().verify_()

    @property
    def joint(self) -> tuple[tuple[SSAValue, str], ...]:
        """The whole and its parts, each with its dim that is joined."""
        parts = zip(self.parts, self.over.data, strict=True)
        return ((self.result, self.to.data), *parts)

    def splits_of_operands(self) -> dict[str, tuple[str, ...]]:
        splits = super().splits_of_operands()
        return splits | {self.to.data: splits[self.over.data[0]]}

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        wanted = [part for part in self.parts if gradients.wants(part)]
        if not wanted:
            return
        cut = gradients.insert(SplitOp(only(dys), self.to.data, self.over.data), wanted[0])
        for part, cotangent in zip(self.parts, cut.results, strict=True):
            pass_through(part, cotangent, gradients)


@op_definition
class SplitOp(InferredOp):
    """Cut a dim: the first elements of `over` are the first part, and so on. A view.

    [B, N, D] -> [B, S, D] and [B, T, D], for instance. No FLOPs, no bytes.
    """

    name = "stg.split"
    WORK: ClassVar[Work] = Work.ELEMENTWISE
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)
    IS_VIEW: ClassVar[bool] = True
    SIGNATURES: ClassVar[tuple[Signature, ...]] = (
        Signature.of("split(x, over = dim, to = parts)", "a dim cut into parts, a result for each"),
    )

    x = operand_def(TensorType)
    over = prop_def(StringAttr)
    to = prop_def(NamesAttr)
    parts = var_result_def(TensorType)

    def made(self) -> Sequence[TensorType]:
        return [tensor_type(self.x).with_names({self.over.data: name}) for name in self.to.data]

    @classmethod
    def check_call(cls, call: Call) -> None:
        over, to = call.dim("over"), call.dims("to")
        call.need_dim(0, over, "over")
        for name in to:
            if name in call.types[0].names and name != over:
                raise CallError(f"`{name}` is already a dim of the operand", option="to")
        check_sum(call, to, over)

    def indices(self) -> Indices:
        base = super().indices()
        return Indices(
            base.operands, base.results, blocked=frozenset((self.over.data, *self.to.data))
        )

    def verify_(self) -> None:
        source, over = tensor_type(self.x), self.over.data
        if over not in source.names:
            raise self.mistake(f"there is no dim `{over}` in <{source.body}>")
        if len(self.parts) != len(self.to.data):
            raise self.mistake(f"{len(self.to.data)} dims are cut, for {len(self.parts)} results")
        super().verify_()

    @property
    def joint(self) -> tuple[tuple[SSAValue, str], ...]:
        """The whole and its parts, each with its dim that is cut."""
        parts = zip(self.parts, self.to.data, strict=True)
        return ((self.x, self.over.data), *parts)

    def splits_of_operands(self) -> dict[str, tuple[str, ...]]:
        splits = super().splits_of_operands()
        return splits | dict.fromkeys(self.to.data, splits[self.over.data])

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        if not gradients.wants(self.x):
            return
        # Terms of sums join as one if all are terms over the same axes.
        partials = [set(tensor_type(dy).partial) for dy in dys if dy is not None]
        common = sorted(set.intersection(*partials))
        parts = []
        for part, dy in zip(self.parts, dys, strict=True):
            wanted = tensor_type(part).with_partial(common)
            if dy is None:
                dy = gradients.insert(ZerosOp(like=wanted), self.x).results[0]
            elif set(tensor_type(dy).partial) != set(common):
                dy = gradients.reduced(dy, common, self.x)
            parts.append(dy)
        gradients.emit(self.x, lambda: ConcatOp(parts, self.to.data, self.over.data))


def joined_names(types: Sequence[TensorType], over: Sequence[str], to: str) -> list[str]:
    """Dims of the result: those of the operand with most, and then of the others, but for the joined ones."""
    shared = [
        [to if n == dim else n for n in part.names] for part, dim in zip(types, over, strict=True)
    ]
    return union_names(
        *(TensorType.of(names, "i32") for names in sorted(shared, key=len, reverse=True))
    )


def verify_alike(op: TensorOp, parts: Sequence[tuple[TensorType, str]]) -> None:
    """What is joined is split alike."""
    axes = {part.dim(dim).split for part, dim in parts}
    if PLACEMENT not in op.properties and len(axes) > 1:
        (first, name), *others = parts
        other, dim = next((p, d) for p, d in others if p.dim(d).split != first.dim(name).split)
        raise op.mistake(
            f"`{name}` in <{first.body}> and `{dim}` in <{other.body}> are not split alike"
        )
