"""Ops of `dist` on the pieces of a tensor that arrive one after the other.

    %p = dist.piece %x dim "S" over [tp] : !stg.tensor<[S/tp, D], bf16> -> !stg.tensor<[S/tp.piece, D], bf16>

A piece is as large as a shard, but every device computes with all of them in turn: `tp.piece` splits a dim in time, and is as large as `tp`.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from stagec.dialects.attributes import NamesAttr
from stagec.dialects.types import TensorType, tensor_of


def piece_axis(axis: str) -> str:
    """The name of the axis that splits in time what `axis` splits over devices."""
    return f"{axis}.piece"


def verify_dim(tensor: TensorType, dim: str, axes: Sequence[str]) -> None:
    if dim not in tensor.names:
        raise VerifyException(f"<{tensor.body}> has no dim `{dim}`")
    if not axes:
        raise VerifyException("there is no axis to cut over")


def piece_type(shard: TensorType, dim: str, axes: Sequence[str]) -> TensorType:
    """The type of a device's own shard of `dim`, as one of the pieces that go round."""
    verify_dim(shard, dim, axes)
    split = shard.dim(dim).split
    if split[-len(axes) :] != tuple(axes):
        raise VerifyException(f"`{shard.dim(dim)}` is not split over [{', '.join(axes)}] last")
    pieces = [piece_axis(a) for a in axes]
    return shard.with_splits({**shard.splits, dim: (*split[: -len(axes)], *pieces)})


def joined_type(piece: TensorType, dim: str, axes: Sequence[str]) -> TensorType:
    """The type of all pieces together."""
    verify_dim(piece, dim, axes)
    pieces = [piece_axis(a) for a in axes]
    if piece.dim(dim).split[-len(axes) :] != tuple(pieces):
        raise VerifyException(f"`{piece.dim(dim)}` is no piece over [{', '.join(axes)}]")
    split = tuple(a for a in piece.dim(dim).split if a not in pieces)
    return piece.with_splits({**piece.splits, dim: split})


@irdl_op_definition
class PieceOp(IRDLOperation):
    """The device's own shard, as the first of the pieces. A view."""

    name = "dist.piece"

    shard = operand_def(TensorType)
    dim = prop_def(StringAttr)
    axes = prop_def(NamesAttr)
    piece = result_def(TensorType)

    traits = traits_def(Pure())
    assembly_format = "$shard `dim` $dim `over` $axes attr-dict `:` type($shard) `->` type($piece)"

    def __init__(self, shard: SSAValue, dim: str, axes: Sequence[str]) -> None:
        super().__init__(
            operands=[shard],
            result_types=[piece_type(tensor_of(shard.type), dim, axes)],
            properties={"dim": StringAttr(dim), "axes": NamesAttr(tuple(axes))},
        )

    def verify_(self) -> None:
        expected = piece_type(tensor_of(self.shard.type), self.dim.data, self.axes.data)
        if self.piece.type != expected:
            raise VerifyException(f"dist.piece: {self.shard.type} becomes {expected}")


@irdl_op_definition
class JoinPiecesOp(IRDLOperation):
    """All pieces of `dim`, which were written next to each other. A view; `pieces` are tensors and stacks of them.

    What it joins equals the `dist.all_gather` of the shards.
    """

    name = "dist.join_pieces"

    pieces = var_operand_def()
    dim = prop_def(StringAttr)
    axes = prop_def(NamesAttr)
    whole = result_def(TensorType)

    traits = traits_def(Pure())
    assembly_format = (
        "`(` $pieces `)` `dim` $dim `over` $axes attr-dict `:` functional-type($pieces, $whole)"
    )

    def __init__(self, pieces: Sequence[SSAValue], dim: str, axes: Sequence[str]) -> None:
        super().__init__(
            operands=[list(pieces)],
            result_types=[joined_type(tensor_of(pieces[0].type), dim, axes)],
            properties={"dim": StringAttr(dim), "axes": NamesAttr(tuple(axes))},
        )

    def verify_(self) -> None:
        types = [tensor_of(piece.type) for piece in self.pieces]
        if len(set(types)) != 1:
            raise VerifyException("dist.join_pieces: pieces are one or more, all of one type")
        expected = joined_type(types[0], self.dim.data, self.axes.data)
        if self.whole.type != expected:
            raise VerifyException(f"dist.join_pieces: the pieces make {expected}")


PIECE_OPS = (PieceOp, JoinPiecesOp)
