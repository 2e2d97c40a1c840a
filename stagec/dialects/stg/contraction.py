"""Contractions (`@`), embeddings, and the repetition of key and value heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue
from xdsl.irdl import operand_def, opt_prop_def, prop_def, result_def

from stagec import symbolic
from stagec.dialects.attributes import NamesAttr
from stagec.dialects.interfaces import NO_FLOPS, Bytes, num_bytes
from stagec.dialects.marks import flag_mark
from stagec.dialects.memory import Effects, Repetition
from stagec.dialects.op import op_definition
from stagec.dialects.stg.base import (
    SHARED,
    Indices,
    InferredOp,
    TensorOp,
    tensor_type,
    union_names,
    wider,
)
from stagec.dialects.stg.interface import BackwardPass, Call, CallError, Cotangents, Signature, only
from stagec.dialects.stg.quantization import QuantizeOp
from stagec.dialects.types import QUANTIZED, TensorType
from stagec.dialects.work import Work
from stagec.symbolic import ONE, Size


def contract_to(
    dy: SSAValue, other: SSAValue, operand: SSAValue, dtype: str | None = None
) -> ContractOp:
    """dy @ other, over what the operand lacks: the gradient of a product has the same indices. It is in the operand's dtype, or another."""
    wanted = tensor_type(operand)
    names = {*tensor_type(dy).names, *tensor_type(other).names}
    over = [n for n in tensor_type(dy).names if n in names - set(wanted.names)]
    return ContractOp(dy, other, over, wanted.names, dtype or wanted.dtype)


def unquantized(operand: SSAValue) -> SSAValue:
    """What an operand was quantized from: its gradient is that of the operand."""
    return operand.owner.x if isinstance(operand.owner, QuantizeOp) else operand


WIDE_WEIGHT_GRADIENT = "wide_weight_gradient"
"""The name of the mark."""


@op_definition
class ContractOp(InferredOp):
    """Multiply along shared dims and sum over `over`; einsum with names.

    Over a dim that axes split, the result is partial over those axes. 2 FLOPs per multiply-add.
    Its gradients are contractions over the same indices: `dx = dy @ w`, `dw = x @ dy`.

    [B, S, D] and [D, F] over D -> [B, S, F], for instance. FLOPs: 2 for each element of the product of all dims (a multiplication and an addition).
    """

    name = "stg.contract"
    SOURCE: ClassVar[str] = "2 FLOPs per multiply-add, over all dims of both operands"
    WORK: ClassVar[Work] = Work.PRODUCT
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0, 1)

    left = operand_def(TensorType)
    right = operand_def(TensorType)
    over = prop_def(NamesAttr)
    result = result_def(TensorType)
    wide_weight_gradient = flag_mark(WIDE_WEIGHT_GRADIENT)
    """The gradient of the weight is a product of what was quantized (Transformer Engine's `fp8_wgrad = False`)."""

    def __init__(
        self,
        left: SSAValue,
        right: SSAValue,
        over: Sequence[str],
        order: Sequence[str] | None = None,
        dtype: str | None = None,
    ) -> None:
        a, b = tensor_type(left), tensor_type(right)
        if order is None:
            order = [n for n in union_names(a, b) if n not in over]
        made = TensorType.of(order, dtype or wider(a.dtype, b.dtype))
        super().__init__(left, right, over, like=made)

    def effects(self) -> Effects:
        # `matmul` in ATen makes one dim of all along which products stand side by side: a copy of an expanded tensor, unless the others are of one element.
        left, right = tensor_type(self.left), tensor_type(self.right)
        others = {*right.names} - {*self.over.data}
        batch = tuple((d.name, d.size) for d in left.dims if d.name in others)
        return Effects(reads_dense=True, batch=batch)

    def verify_(self) -> None:
        a, b = tensor_type(self.left), tensor_type(self.right)
        names = {*a.names, *b.names}
        for name in self.over.data:
            if name not in a.names or name not in b.names:
                raise self.mistake(f"not both operands have `{name}`")
        if names - set(self.over.data) != set(tensor_type(self.result).names):
            raise self.mistake("the result has the dims that are not contracted")
        if a.partial and b.partial:
            raise self.mistake("at most one operand is partial")
        super().verify_()

    def flops(self) -> Size:
        dims = {d.name: d for d in (*tensor_type(self.left).dims, *tensor_type(self.right).dims)}
        return 2 * symbolic.product(d.size for d in dims.values())

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        dy = only(dys)
        if tensor_type(self.left).dtype in QUANTIZED and tensor_type(self.right).dtype in QUANTIZED:
            self.quantized_gradient(dy, gradients)
            return
        gradients.emit(self.left, lambda: contract_to(dy, self.right, self.left))
        gradients.emit(self.right, lambda: contract_to(dy, self.left, self.right))

    def quantized_gradient(self, dy: SSAValue, gradients: BackwardPass) -> None:
        """The gradients of a product of activations, on the left, by a weight. Both are products of quantized operands too, unless `wide_weight_gradient` has
        that of the weight made of what was quantized.

        A weight is quantized again rather than kept for each microbatch.
        """
        dtype = tensor_type(dy).dtype
        inputs = gradients.reduced(dy, (), self.left)
        wants_inputs = gradients.wants(self.left)
        is_wide = self.wide_weight_gradient is not None
        made_for = self.left if wants_inputs else self.right
        small = inputs
        if wants_inputs or not is_wide:
            form = tensor_type(self.left).dtype
            others = tensor_type(self.right if wants_inputs else self.left).names
            over = {*others} - {*tensor_type(made_for).names}
            made_small = QuantizeOp(inputs, form, over, self.products_apart())
            small = gradients.insert(made_small, made_for).results[0]
        if wants_inputs:
            weight = self.quantized_again(self.right, gradients)
            made = gradients.insert(contract_to(small, weight, self.left, dtype), self.left)
            gradients.contribute(unquantized(self.left), made.results[0])
        if gradients.wants(self.right):
            read = self.left
            if is_wide and isinstance(read.owner, QuantizeOp):
                read, small = read.owner.x, inputs
            made = gradients.insert(contract_to(small, read, self.right, dtype), self.right)
            gradients.contribute(unquantized(self.right), made.results[0])

    def quantized_again(self, weight: SSAValue, gradients: BackwardPass) -> SSAValue:
        if not isinstance(weight.owner, QuantizeOp):
            return weight
        wide, form = weight.owner.x, tensor_type(weight).dtype
        over = {*tensor_type(weight).names} - {*tensor_type(self.left).names}
        made = QuantizeOp(wide, form, over, self.products_apart())
        return gradients.insert(made, self.left).results[0]

    def products_apart(self) -> set[str]:
        """The dims that both operands and the result have: they count products."""
        left, right = tensor_type(self.left).names, tensor_type(self.right).names
        return {*left} & {*right} - {*self.over.data}


@op_definition
class EmbeddingOp(InferredOp):
    """Rows of `table` [V, D...] by number. Over a split `V` each device finds its own rows or adds
    zero: the result is partial.

    No FLOPs: rows are copied.
    """

    name = "stg.embedding"
    FLOPS: ClassVar[tuple[int, str]] = NO_FLOPS
    SIGNATURES: ClassVar[tuple[Signature, ...]] = (
        Signature.of("embedding(ids, table)", "rows of a table by number"),
    )

    ids = operand_def(TensorType)
    table = operand_def(TensorType)
    has_gradient = flag_mark("has_gradient")
    """Rows have a gradient, whether or not the table is trained."""
    result = result_def(TensorType)

    def __init__(self, ids: SSAValue, table: SSAValue, dtype: str | None = None) -> None:
        a, b = tensor_type(ids), tensor_type(table)
        made = TensorType.of([*a.names, *b.names[1:]], dtype or b.dtype)
        super().__init__(ids, table, like=made)

    @classmethod
    def check_call(cls, call: Call) -> None:
        ids, table = call.types
        call.need_ids(0)
        call.need_float(1)
        if len(table.names) < 2:
            raise CallError(
                "a table has rows, and a dim along each row",
                operand=1,
                help="declare it as `[V, D]`",
            )
        for name in table.names:
            if name in ids.names and name != table.names[0]:
                raise CallError(f"`{name}` is a dim of the numbers and of the rows", operand=1)

    def moved_bytes(self) -> Bytes:
        # A row per number, not the table.
        return Bytes(num_bytes(self.ids) + num_bytes(self.result), num_bytes(self.result))

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        table = tensor_type(self.table)
        gradients.emit(self.table, lambda: EmbeddingGradOp(self.ids, only(dys), like=table))


@op_definition
class EmbeddingGradOp(InferredOp):
    """The gradient of a table: rows of `dy` added up by number. Over split ids it is partial.

    `ids` [B, S], `dy` [B, S, D] -> [V, D]. FLOPs: an addition for each element of `dy`.
    """

    name = "stg.embedding_grad"
    FLOPS: ClassVar[tuple[int, str]] = (1, "dy")
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (1,)

    ids = operand_def(TensorType)
    dy = operand_def(TensorType)
    dtable = result_def(TensorType)

    def verify_(self) -> None:
        # Which rows a device keeps is its own choice: the table's first dim is in no operand.
        if not {*tensor_type(self.dtable).names[1:]} <= {*tensor_type(self.dy).names}:
            raise self.mistake("the table's rows are those of dy")
        super().verify_()

    def moved_bytes(self) -> Bytes:
        return Bytes(num_bytes(self.ids) + num_bytes(self.dy), num_bytes(self.dtable))


class HeadsOp(InferredOp):
    """Shared by ops that change the number of heads: dim `old` becomes `new`.

    One index at two granularities: an axis that splits one splits the other, but for `copies`, whose ranks have other heads of queries and the
    same of keys.
    """

    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)

    old = prop_def(StringAttr)
    new = prop_def(StringAttr)
    copies = opt_prop_def(NamesAttr)
    x = operand_def(TensorType)
    result = result_def(TensorType)

    assembly_format = (
        "$x $old `to` $new (`copies` $copies^)? attr-dict `:` functional-type(operands, results)"
    )

    def made(self) -> Sequence[TensorType]:
        return [tensor_type(self.x).with_names({self.old.data: self.new.data})]

    REPEATS: ClassVar[bool]
    """Whether heads of keys become those of queries, or the other way about."""

    @classmethod
    def split_as(cls, axes: Sequence[str], copies: Sequence[str]) -> tuple[str, ...]:
        """What splits the result's heads where these axes split the operand's."""
        return (*axes, *copies) if cls.REPEATS else tuple(a for a in axes if a not in copies)

    @property
    def copied(self) -> tuple[str, ...]:
        return () if self.copies is None else self.copies.data

    @property
    def renamed(self) -> tuple[str, ...]:
        """The dims of the result."""
        return tuple(self.new.data if n == self.old.data else n for n in tensor_type(self.x).names)

    @property
    def shared_heads(self) -> tuple[str, str]:
        """The index of the queries' heads, and of the keys' that follow it."""
        queries, keys = (self.new, self.old) if self.REPEATS else (self.old, self.new)
        return queries.data, SHARED + keys.data

    def indices(self) -> Indices:
        heads = self.renamed if self.REPEATS else tensor_type(self.x).names
        if self.copies is None:
            return Indices((heads,), (heads,))
        queries, shared = self.shared_heads
        keys = tuple(shared if n == queries else n for n in heads)
        pair = (keys, heads) if self.REPEATS else (heads, keys)
        return Indices(pair[:1], pair[1:], blocked=frozenset((shared,)))

    def splits_of_operands(self) -> dict[str, tuple[str, ...]]:
        splits = super().splits_of_operands()
        if self.copies is not None:
            of_operand, of_result = reversed(self.shared_heads)
            if not self.REPEATS:
                of_operand, of_result = self.shared_heads
            splits[of_result] = self.split_as(splits[of_operand], self.copied)
        return splits


@op_definition
class RepeatHeadsOp(HeadsOp):
    """Repeat each key or value head for the queries that share it: `old` becomes the larger `new`.

    [B, T, K, E] -> [B, T, H, E]. No FLOPs.
    """

    name = "stg.repeat_heads"
    FLOPS: ClassVar[tuple[int, str]] = NO_FLOPS
    REPEATS: ClassVar[bool] = True
    SIGNATURES: ClassVar[tuple[Signature, ...]] = (
        Signature.of(
            "repeat_heads(x, heads = dim, to = dim)",
            "each key or value head, repeated for the queries that share it",
        ),
    )

    @classmethod
    def check_call(cls, call: Call) -> None:
        call.need_float(0)
        heads, to = call.dim("heads"), call.dim("to")
        call.need_dim(0, heads, "heads")
        if to in call.types[0].names and to != heads:
            raise CallError(f"`{to}` is already a dim of the operand", option="to")

    @classmethod
    def from_call(cls, call: Call, operands: Sequence[SSAValue]) -> TensorOp:
        return RepeatHeadsOp(operands[0], call.dim("heads"), call.dim("to"))

    def effects(self) -> Effects:
        heads = tensor_type(self.x).dim(self.old.data).size if self.old != self.new else ONE
        return Effects(repeats=Repetition(heads, self.new.data))

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        old, new = self.old.data, self.new.data
        gradients.emit(self.x, lambda: SumHeadsOp(only(dys), new, old, self.copied))


@op_definition
class SumHeadsOp(HeadsOp):
    """The gradient of `stg.repeat_heads`: the sum over the queries' heads that shared one, of which ranks along `copies` have a term each.

    [B, T, H, E] -> [B, T, K, E]. FLOPs: an addition for each element of `x`.
    """

    name = "stg.sum_heads"
    REPEATS: ClassVar[bool] = False
    WORK: ClassVar[Work] = Work.REDUCTION
    FLOPS: ClassVar[tuple[int, str]] = (1, "x")

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        old, new = self.old.data, self.new.data
        gradients.emit(self.x, lambda: RepeatHeadsOp(only(dys), new, old, self.copied))
