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
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure

from stagec import symbolic
from stagec.dialects.attributes import NamesAttr
from stagec.dialects.interfaces import TaskInterface, views
from stagec.dialects.op import op_definition
from stagec.dialects.types import CHUNK_AXIS, PIECE_AXIS, StackType, TensorType

MAKES_GRADIENTS = "makes_gradients"
"""Mark of a repeat of the forward pass that computes gradients too: recomputation leaves it alone."""


def chunked(tensor: TensorType, dim: str, axis: str = CHUNK_AXIS) -> TensorType:
    """The type of one chunk; a tensor without the dim is the same in each."""
    return tensor.split_in_time(dim, axis)


def stack_of_chunks(tensor: TensorType, dim: str, axis: str = CHUNK_AXIS) -> StackType:
    return StackType.of(symbolic.symbol(axis), chunked(tensor, dim, axis))


class BetweenChunks(TaskInterface):
    """Shared by ops between a tensor and the stack of its chunks, which are views."""

    dim = prop_def(StringAttr)
    within = opt_prop_def(NamesAttr)

    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)

    def verify_(self) -> None:
        ends = (self.operands[0].type, self.results[0].type)
        whole, stack = ends if isinstance(ends[0], TensorType) else reversed(ends)
        if not isinstance(whole, TensorType) or self.dim.data not in whole.names:
            raise self.mistake(f"{whole} has no dim `{self.dim.data}`")
        known = [stack_of_chunks(whole, self.dim.data, axis) for axis in (CHUNK_AXIS, PIECE_AXIS)]
        if stack not in known:
            raise self.mistake(f"the chunks of {whole} are {known[0]}, not {stack}")

    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        return views(self)


@op_definition
class ChunkOp(BetweenChunks):
    """Chunks of a tensor, as views. `within` axes that will split the dim, a chunk has a part of each of their ranks' parts.

    [B, S, D] -> n times [B, S/n, D]. A view: no FLOPs, no bytes.
    """

    name = "stg.chunk"

    whole = operand_def(TensorType)
    chunks = result_def(StackType)

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


@op_definition
class JoinChunksOp(BetweenChunks):
    """The tensor whose chunks were made one after the other, each in its place. Inverse of `stg.chunk`, `within` the axes that split the dim before.

    n times [B, S/n, D] -> [B, S, D].
    """

    name = "stg.join_chunks"

    chunks = operand_def(StackType)
    whole = result_def(TensorType)

    assembly_format = (
        "$chunks `dim` $dim (`within` $within^)? attr-dict `:` type($chunks) `->` type($whole)"
    )

    def __init__(
        self, chunks: SSAValue, dim: str, whole: TensorType, within: Sequence[str] = ()
    ) -> None:
        super().__init__([chunks], [whole], dim=dim, within=within or None)
