"""A tensor as a stack of chunks along one dim, which a repeat takes one after the other.

    %xs = stg.chunk %x dim "S" : !stg.tensor<[B, S, D], bf16> -> !stg.stack<"loss.chunk" x !stg.tensor<[B, S/loss.chunk, D], bf16>>
    %y = stg.join_chunks %ys dim "S" : !stg.stack<"loss.chunk" x !stg.tensor<[B, S/loss.chunk], fp32>> -> !stg.tensor<[B, S], fp32>

A chunk is of what a device has: `loss.chunk` and `tp.piece` split a dim in time, like microbatches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import (
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from stagec import symbolic
from stagec.dialects.attributes import NamesAttr
from stagec.dialects.interfaces import TaskInterface, views
from stagec.dialects.types import CHUNK_AXIS, PIECE_AXIS, StackType, TensorType

MAKES_GRADIENTS = "makes_gradients"
"""Mark of a repeat of the forward pass that computes gradients too: recomputation leaves it alone."""


def chunked(tensor: TensorType, dim: str, axis: str = CHUNK_AXIS) -> TensorType:
    """The type of one chunk; a tensor without the dim is the same in each."""
    return tensor.split_in_time(dim, axis)


def stack_of_chunks(tensor: TensorType, dim: str, axis: str = CHUNK_AXIS) -> StackType:
    return StackType.of(symbolic.symbol(axis), chunked(tensor, dim, axis))


def verify_chunks(whole: object, stack: object, dim: str, name: str) -> None:
    if not isinstance(whole, TensorType) or dim not in whole.names:
        raise VerifyException(f"{name}: {whole} has no dim `{dim}`")
    known = [stack_of_chunks(whole, dim, axis) for axis in (CHUNK_AXIS, PIECE_AXIS)]
    if stack not in known:
        raise VerifyException(f"{name}: the chunks of {whole} are {known[0]}, not {stack}")


@irdl_op_definition
class ChunkOp(TaskInterface):
    """Chunks of a tensor, as views. `within` axes that will split the dim, a chunk has a part of each of their ranks' parts.

    [B, S, D] -> n times [B, S/n, D]. A view: no FLOPs, no bytes.
    """

    name = "stg.chunk"

    whole = operand_def(TensorType)
    dim = prop_def(StringAttr)
    within = opt_prop_def(NamesAttr)
    chunks = result_def(StackType)

    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = (
        "$whole `dim` $dim (`within` $within^)? attr-dict `:` type($whole) `->` type($chunks)"
    )

    def __init__(
        self, whole: SSAValue, dim: str, axis: str = CHUNK_AXIS, within: Sequence[str] = ()
    ) -> None:
        assert isinstance(whole.type, TensorType)
        super().__init__(
            [whole], [stack_of_chunks(whole.type, dim, axis)], dim=dim, within=within or None
        )

    def verify_(self) -> None:
        verify_chunks(self.whole.type, self.chunks.type, self.dim.data, self.name)

    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        return views(self)


@irdl_op_definition
class JoinChunksOp(TaskInterface):
    """The tensor whose chunks were made one after the other, each in its place. Inverse of `stg.chunk`, `within` the axes that split the dim before.

    n times [B, S/n, D] -> [B, S, D].
    """

    name = "stg.join_chunks"

    chunks = operand_def(StackType)
    dim = prop_def(StringAttr)
    within = opt_prop_def(NamesAttr)
    whole = result_def(TensorType)

    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = (
        "$chunks `dim` $dim (`within` $within^)? attr-dict `:` type($chunks) `->` type($whole)"
    )

    def __init__(
        self, chunks: SSAValue, dim: str, whole: TensorType, within: Sequence[str] = ()
    ) -> None:
        super().__init__([chunks], [whole], dim=dim, within=within or None)

    def verify_(self) -> None:
        verify_chunks(self.whole.type, self.chunks.type, self.dim.data, self.name)

    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        return views(self)
