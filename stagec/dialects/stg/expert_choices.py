"""Which experts a token goes to, in the forms in which that travels: as a row for all experts, and as a weight beside each copy.

    %m = stg.spread_choice %i to "X.all"                 // [B, S, A] -> [B, S, X.all]: whether a token goes to each expert
    %w = stg.spread_choice %i weights %g to "X.all"      // the weight of each expert, zero of others
    %c = stg.send_weights %g by %i to "X" "N"            // [B, S, A] -> [X, N]: the weight of each copy of a token
    %y = stg.weight_copies %h by %c                      // [X, N, F] -> [X, N, F]: each copy times its weight

`stg.dispatch` and `stg.combine` take numbers of experts and their weights [B, S, A], or rows for all experts [B, S, X.all]. A change of placement
brings weights of copies to the experts, as one of `stg.dispatch` brings the copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue
from xdsl.irdl import operand_def, opt_operand_def, prop_def, result_def

from stagec.dialects.attributes import Dim
from stagec.dialects.interfaces import NO_FLOPS
from stagec.dialects.op import op_definition
from stagec.dialects.stg.base import Indices, InferredOp, LikeOp, LocalStatisticsOp, tensor_type
from stagec.dialects.stg.interface import BackwardPass, Cotangents, only
from stagec.dialects.stg.routing import expect_chosen, terms_of
from stagec.dialects.types import TensorType
from stagec.dialects.work import Work


class ChoiceOp(LocalStatisticsOp, InferredOp):
    """Shared by ops that bring a number for each expert of a token into another order. Nothing is computed."""

    FLOPS: ClassVar[tuple[int, str]] = NO_FLOPS

    def indices(self) -> Indices:
        """Splits are the operands': what is chosen from is whole, and no sum is made."""
        base = super().indices()
        everything = frozenset(n for names in (*base.operands, *base.results) for n in names)
        return Indices(base.operands, base.results, everything, everything)

    def expect_weights(self, weights: SSAValue, experts: SSAValue) -> None:
        """One weight for each expert of a token."""
        given, chosen = tensor_type(weights), tensor_type(experts)
        if given.dims != chosen.dims:
            raise self.mistake(f"weights <{given.body}> are not those of experts <{chosen.body}>")

    def expect_rows(self, rows: SSAValue, experts: SSAValue) -> None:
        """A row for each token, of all experts."""
        wide, chosen = tensor_type(rows), tensor_type(experts)
        if len(wide.dims) != len(chosen.dims) or wide.dims[:-1] != chosen.dims[:-1]:
            raise self.mistake(f"<{wide.body}> is not a row for each token of <{chosen.body}>")
        if wide.dims[-1].split or wide.names[-1] in chosen.names:
            raise self.mistake(f"each row of <{wide.body}> is of all experts")

    def expect_copies(self, copies: SSAValue, experts: SSAValue) -> None:
        """One number for each copy of a token, split as the tokens are; experts as those of whom a device takes them."""
        bins, chosen = tensor_type(copies), tensor_type(experts)
        axes = {a for d in chosen.dims[:-1] for a in d.split}
        if len(bins.dims) != 2 or set(bins.dims[1].split) != axes or axes & {*bins.dims[0].split}:
            raise self.mistake(
                f"<{bins.body}> is not a number for each copy of the tokens of <{chosen.body}>"
            )


@op_definition
class SpreadChoiceOp(ChoiceOp):
    """A row for all experts: whether a token goes to each, or with `weights` the weight of each, zero of others.

    `experts` [B, S, A] -> [B, S, X.all]: bool, or the dtype of `weights`. FLOPs: none.
    """

    name = "stg.spread_choice"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (1,)

    experts = operand_def(TensorType)
    weights = opt_operand_def(TensorType)
    over = prop_def(StringAttr)
    rows = result_def(TensorType)

    assembly_format = (
        "$experts (`weights` $weights^)? `to` $over attr-dict "
        "`:` functional-type(operands, results)"
    )

    def made(self) -> Sequence[TensorType]:
        values = tensor_type(self.experts).with_dtype("bool")
        values = values if self.weights is None else tensor_type(self.weights)
        return [TensorType.of([*values.names[:-1], self.over.data], values.dtype)]

    def verify_(self) -> None:
        self.verify_operands()
        expect_chosen(self, tensor_type(self.experts))
        self.expect_rows(self.rows, self.experts)
        rows = tensor_type(self.rows)
        values = tensor_type(self.experts).with_dtype("bool")
        if self.weights is not None:
            self.expect_weights(self.weights, self.experts)
            values = tensor_type(self.weights)
        made = (self.over.data, values.dtype, values.partial)
        if (rows.names[-1], rows.dtype, rows.partial) != made:
            raise self.mistake(
                f"<{rows.body}> is no row of <{values.body}> over `{self.over.data}`"
            )

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        if self.weights is not None:
            gradients.emit(self.weights, lambda: TakeChoiceOp(only(dys), self.experts))


@op_definition
class TakeChoiceOp(ChoiceOp):
    """Takes the entries of the chosen experts out of a row with an entry for every expert. It is the transpose of a weighted `stg.spread_choice`.

    `rows` [B, S, X.all], `experts` [B, S, A] -> [B, S, A]. FLOPs: none.
    """

    name = "stg.take_choice"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)

    rows = operand_def(TensorType)
    experts = operand_def(TensorType)
    weights = result_def(TensorType)

    assembly_format = "$rows `by` $experts attr-dict `:` functional-type(operands, results)"

    def made(self) -> Sequence[TensorType]:
        return [tensor_type(self.experts).with_dtype(tensor_type(self.rows).dtype)]

    def verify_(self) -> None:
        self.verify_operands()
        expect_chosen(self, tensor_type(self.experts))
        self.expect_rows(self.rows, self.experts)
        self.expect_weights(self.weights, self.experts)
        rows, taken = tensor_type(self.rows), tensor_type(self.weights)
        if (taken.dtype, taken.partial) != (rows.dtype, rows.partial):
            raise self.mistake(f"<{taken.body}> is not taken from <{rows.body}>")


@op_definition
class SendWeightsOp(ChoiceOp):
    """The weight of each copy that a `stg.dispatch` makes of a token, in the order of the copies. Transpose of `stg.return_weights`.

    `weights` and `experts` [B, S, A] -> [X, N]. FLOPs: none.
    """

    name = "stg.send_weights"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)

    weights = operand_def(TensorType)
    experts = operand_def(TensorType)
    over = prop_def(StringAttr)
    tokens = prop_def(StringAttr)
    copies = result_def(TensorType)

    assembly_format = (
        "$weights `by` $experts `to` $over $tokens attr-dict `:` functional-type(operands, results)"
    )

    def __init__(self, weights: SSAValue, experts: SSAValue, dims: Sequence[Dim]) -> None:
        """`dims`: of experts and of their tokens, as they are split."""
        made = TensorType.of(dims, tensor_type(weights).dtype)
        super().__init__(weights, experts, *made.names, like=made)

    def local_types(self) -> Sequence[TensorType]:
        """Whose copies are where is no index: they are split as was said."""
        return [tensor_type(self.copies).with_partial(tensor_type(self.weights).partial)]

    def verify_(self) -> None:
        self.verify_operands()
        expect_chosen(self, tensor_type(self.experts))
        self.expect_weights(self.weights, self.experts)
        self.expect_copies(self.copies, self.experts)
        given, copies = tensor_type(self.weights), tensor_type(self.copies)
        if (copies.dtype, copies.partial) != (given.dtype, given.partial):
            raise self.mistake(f"<{copies.body}> are not the weights <{given.body}>")
        if copies.names != (self.over.data, self.tokens.data):
            raise self.mistake(
                f"<{copies.body}> is not over `{self.over.data}` and `{self.tokens.data}`"
            )

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        gradients.emit(self.weights, lambda: ReturnWeightsOp(only(dys), self.experts))


@op_definition
class ReturnWeightsOp(ChoiceOp):
    """A number for each expert of a token, from those of its copies: a term of it where a device has copies of its own experts alone.

    Transpose of `stg.send_weights`.

    `copies` [X, N], `experts` [B, S, A] -> [B, S, A]. FLOPs: none.
    """

    name = "stg.return_weights"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)

    copies = operand_def(TensorType)
    experts = operand_def(TensorType)
    weights = result_def(TensorType)

    assembly_format = "$copies `by` $experts attr-dict `:` functional-type(operands, results)"

    def made(self) -> Sequence[TensorType]:
        return [tensor_type(self.experts).with_dtype(tensor_type(self.copies).dtype)]

    def local_types(self) -> Sequence[TensorType]:
        terms = terms_of(tensor_type(self.copies))
        return [each.with_partial(terms) for each in super().local_types()]

    def verify_(self) -> None:
        self.verify_operands()
        expect_chosen(self, tensor_type(self.experts))
        self.expect_copies(self.copies, self.experts)
        self.expect_weights(self.weights, self.experts)
        copies, made = tensor_type(self.copies), tensor_type(self.weights)
        if (made.dtype, set(made.partial)) != (copies.dtype, set(terms_of(copies))):
            raise self.mistake(f"<{made.body}> are not those of the copies <{copies.body}>")


class CopiesOp(InferredOp):
    """Shared by ops on copies of tokens and their weights."""

    def verify_copies(self, copies: SSAValue, weights: SSAValue) -> None:
        given, beside = tensor_type(copies), tensor_type(weights)
        if given.dims[:2] != beside.dims or len(given.dims) != 3:
            raise self.mistake(f"<{beside.body}> are not numbers of copies <{given.body}>")


@op_definition
class WeightCopiesOp(CopiesOp, LikeOp):
    """Each copy of a token times its weight, in the dtype of the copies.

    `copies` [X, N, F], `weights` [X, N] -> [X, N, F]. FLOPs: 1 for each element.
    """

    name = "stg.weight_copies"
    WORK: ClassVar[Work] = Work.ELEMENTWISE
    FLOPS: ClassVar[tuple[int, str]] = (1, "result")
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)

    copies = operand_def(TensorType)
    weights = operand_def(TensorType)
    result = result_def(TensorType)

    assembly_format = "$copies `by` $weights attr-dict `:` functional-type(operands, results)"

    def verify_(self) -> None:
        super().verify_()
        self.verify_copies(self.copies, self.weights)
        if tensor_type(self.result).dtype != tensor_type(self.copies).dtype:
            raise self.mistake("the result has the dtype of the copies")

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        dy = only(dys)
        gradients.emit(self.copies, lambda: WeightCopiesOp(dy, self.weights))
        like = tensor_type(self.weights)
        gradients.emit(self.weights, lambda: CopyWeightsGradOp(dy, self.copies, like=like))


@op_definition
class CopyWeightsGradOp(CopiesOp):
    """The gradient for the weights of a `stg.weight_copies`: of each copy, the product of `dy` with it.

    `dy` and `copies` [X, N, F] -> [X, N]. FLOPs: 2 for each element of `copies`.
    """

    name = "stg.copy_weights_grad"
    WORK: ClassVar[Work] = Work.REDUCTION
    FLOPS: ClassVar[tuple[int, str]] = (2, "copies")
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)

    dy = operand_def(TensorType)
    copies = operand_def(TensorType)
    dweights = result_def(TensorType)

    def verify_(self) -> None:
        super().verify_()
        self.verify_copies(self.copies, self.dweights)
        if tensor_type(self.dy).dims != tensor_type(self.copies).dims:
            raise self.mistake(
                f"<{tensor_type(self.dy).body}> is no gradient of copies "
                f"<{tensor_type(self.copies).body}>"
            )
