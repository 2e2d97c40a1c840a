"""Experts that tokens reach in steps: a copy for each node, then one for each device there, then one for each expert.

    %c, %n = stg.dispatch %x by %i to "X.outer" "T.outer"       // [B, S, D] -> [X.outer, T.outer, D]: one copy for each node
    %f, %m = stg.fan_out %c to "X.inner" "T.inner"              // -> [X.inner, T.inner, D]: one for each device
    %r, %k = stg.fan_out %f to "X" "T"                          // -> [X, T, D]: one for each expert
    %s = stg.fan_in %y weights %g to "X.inner" "T.inner"        // [X, T, D] -> [X.inner, T.inner, D]

Parts of the experts (nodes, devices) come in the order of the experts. Which experts a token goes to, and the weights of what they
make of it, travel with the token, as gradients of weights do on the way back (DeepEP: `topk_idx` and `topk_weights` of a dispatch).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr, UnitAttr
from xdsl.irdl import (
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
)

from stagec.dialects import sched
from stagec.dialects.attributes import Dim
from stagec.dialects.interfaces import elements
from stagec.dialects.op import op_definition
from stagec.dialects.stg.base import Indices, InferredOp, LocalStatisticsOp, tensor_type
from stagec.dialects.stg.interface import BackwardPass, Cotangents, only
from stagec.dialects.stg.routing import CollectsTokens, SendsTokens
from stagec.dialects.types import TensorType
from stagec.symbolic import ZERO, Size


class ForwardedOp(LocalStatisticsOp, InferredOp):
    """Shared by ops between copies for parts of the experts [P, U, D] and for parts of those parts [Q, V, D].

    All is local: a device's copies go to parts of its own parts.
    """

    def indices(self) -> Indices:
        """Copies of a part are not split further, nor joined: splits are the operand's."""
        base = super().indices()
        everything = frozenset(n for names in (*base.operands, *base.results) for n in names)
        return Indices(base.operands, base.results, everything, everything)

    def local_types(self) -> Sequence[TensorType]:
        """Copies for other parts are split as those that they are made of, which no index says: so `made` does."""
        return [tensor_type(v) for v in self.results]

    def verify_copies(self, source: TensorType, target: TensorType) -> None:
        self.verify_operands()
        if len(source.dims) != 3 or len(target.dims) != 3 or source.dims[-1] != target.dims[-1]:
            raise self.mistake(f"copies <{source.body}> do not become <{target.body}>")
        if [d.split for d in source.dims] != [d.split for d in target.dims]:
            raise self.mistake(
                f"<{source.body}> and <{target.body}> are not split alike: copies do not travel"
            )


class ForwardingOp(ForwardedOp):
    """Shared by ops from copies to copies.

    `forwards`: between two exchanges, what comes over one kind of links goes on
    over another, which the kernel that communicates does itself (DeepEP, `csrc/kernels/internode.cu`: warps that forward), beside computation.
    """

    forwards = opt_prop_def(UnitAttr)

    def stream(self) -> str:
        if self.forwards is None:
            return super().stream()
        return sched.comm_stream(tensor_type(self.operands[0]).dims[0].split)


def copies_of(source: TensorType, over: str, tokens: str) -> TensorType:
    """Copies for other parts of the experts, split as those that they are made of."""
    parts, copies, width = source.dims
    dims = [Dim(over, parts.split), Dim(tokens, copies.split), width]
    return TensorType.of(dims, source.dtype, source.partial)


@op_definition
class FanOutOp(ForwardingOp, SendsTokens):
    """Copy each copy of a token to those parts of its part that have experts of its own; `counts` are how many each part gets.

    `dropless`: sizes depend on the data, so that devices exchange counts before copies. With `weights` a copy is scaled by
    its weight, as in `stg.dispatch`: then the parts are experts. Transpose of `stg.fan_in`.

    `x` [X.outer, N.outer, D] -> `copies` [X.inner, N.inner, D], for instance. FLOPs: 1 for each element of `copies` if they are weighted.
    """

    name = "stg.fan_out"
    NUM_STATISTICS: ClassVar[int] = 1
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)

    x = operand_def(TensorType)
    weights = opt_operand_def(TensorType)
    over = prop_def(StringAttr)
    tokens = prop_def(StringAttr)
    dropless = opt_prop_def(UnitAttr)
    copies = result_def(TensorType)
    counts = result_def(TensorType)

    assembly_format = (
        "$x (`weights` $weights^)? `to` $over $tokens (`dropless` $dropless^)? (`forwards` $forwards^)? attr-dict "
        "`:` functional-type(operands, results)"
    )

    def made(self) -> Sequence[TensorType]:
        copies = copies_of(tensor_type(self.x), self.over.data, self.tokens.data)
        return [copies, counts_of(copies)]

    def verify_(self) -> None:
        copies, counts = tensor_type(self.copies), tensor_type(self.counts)
        self.verify_copies(tensor_type(self.x), copies)
        if copies != copies_of(tensor_type(self.x), self.over.data, self.tokens.data):
            raise self.mistake(
                f"<{copies.body}> are not copies for `{self.over.data}` of "
                f"<{tensor_type(self.x).body}>"
            )
        if counts != counts_of(copies):
            raise self.mistake(f"counts are <{counts_of(copies).body}>")

    def flops(self) -> Size:
        return elements(self.copies) if self.weights is not None else ZERO

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        parts, copies, _ = tensor_type(self.x).names
        how = {"over": parts, "tokens": copies, "forwards": self.forwards}
        gradients.emit(self.x, lambda: FanInOp(only(dys), **how))


def counts_of(copies: TensorType) -> TensorType:
    """A number for each part."""
    return TensorType.of([copies.dims[0]], "i64")


@op_definition
class FanInOp(ForwardingOp, CollectsTokens):
    """Add up, for each copy of a token, what its copies in parts of its part became; weighted if there are `weights`.

    Transpose of `stg.fan_out`.

    `copies` [X.inner, N.inner, D] -> [X.outer, N.outer, D], for instance.
    FLOPs: an addition for each element of `copies`, and a multiplication if they are weighted.
    """

    name = "stg.fan_in"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)

    copies = operand_def(TensorType)
    weights = opt_operand_def(TensorType)
    over = prop_def(StringAttr)
    tokens = prop_def(StringAttr)
    result = result_def(TensorType)

    assembly_format = (
        "$copies (`weights` $weights^)? `to` $over $tokens (`forwards` $forwards^)? attr-dict "
        "`:` functional-type(operands, results)"
    )

    def made(self) -> Sequence[TensorType]:
        return [copies_of(tensor_type(self.copies), self.over.data, self.tokens.data)]

    def verify_(self) -> None:
        copies, result = tensor_type(self.copies), tensor_type(self.result)
        self.verify_copies(copies, result)
        if result != copies_of(copies, self.over.data, self.tokens.data):
            raise self.mistake(
                f"<{result.body}> are not sums for `{self.over.data}` of <{copies.body}>"
            )

    def flops(self) -> Size:
        return elements(self.copies) * (2 if self.weights is not None else 1)

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        dy, weights = only(dys), self.weights
        parts, copies, _ = tensor_type(self.copies).names
        how = {"over": parts, "tokens": copies, "forwards": self.forwards}
        gradients.emit(self.copies, lambda: FanOutOp(dy, weights, **how))
        if weights is not None:
            gradients.emit(weights, lambda: FanInWeightGradOp(dy, self.copies, weights))


@op_definition
class FanInWeightGradOp(ForwardedOp):
    """The gradient for the weights of a `stg.fan_in`: of each copy, the product of its sum's gradient with what it became.

    It goes back to the tokens with the gradients of the copies.

    `dy` and `copies` as in `stg.fan_in`, [X.outer, N.outer, D] and [X.inner, N.inner, D]. FLOPs: 2 for each element of `copies`.
    """

    name = "stg.fan_in_weight_grad"
    FLOPS: ClassVar[tuple[int, str]] = (2, "copies")
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)

    dy = operand_def(TensorType)
    copies = operand_def(TensorType)
    weights = operand_def(TensorType)
    dweights = result_def(TensorType)

    assembly_format = (
        "$dy `,` $copies `for` $weights attr-dict `:` functional-type(operands, results)"
    )

    def made(self) -> Sequence[TensorType]:
        return [tensor_type(self.weights).with_partial(products_over(tensor_type(self.dy)))]

    def verify_(self) -> None:
        dy, dweights = tensor_type(self.dy), tensor_type(self.dweights)
        self.verify_copies(dy, tensor_type(self.copies))
        weights = tensor_type(self.weights).with_partial(dweights.partial)
        if dweights != weights or set(dweights.partial) != set(products_over(dy)):
            raise self.mistake(
                f"<{dweights.body}> is not a gradient of <{weights.body}>, "
                f"partial over [{', '.join(products_over(dy))}]"
            )


def products_over(dy: TensorType) -> Sequence[str]:
    """The axes over which products of elements are partial."""
    return sorted({*dy.partial, *dy.dims[-1].split})
