"""Rows of tables added up by the number: what models of recommendation do with categories.

    %v = stg.embedding_bag %ids, %table over "J"              // [B, T, J] and [T, R, E] -> [B, T, E]: T tables
    %v = stg.embedding_bag %ids, %table over "N" to "T"       // [B, N] and [R, E] -> [B, T, E]: N numbers in T bags

Dims that numbers and table share say which table a number is of; the table's first other dim counts its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, opt_prop_def, prop_def, result_def

from stagec import symbolic
from stagec.dialects.attributes import Dim
from stagec.dialects.interfaces import Bytes, num_bytes
from stagec.dialects.stg.base import PLACEMENT, Indices, TensorOp, tensor_type
from stagec.dialects.stg.interface import (
    BackwardPass,
    Call,
    CallError,
    Cotangents,
    Option,
    Signature,
    only,
)
from stagec.dialects.types import TensorType, unscaled_bytes
from stagec.symbolic import Size


def row_dim(ids: Sequence[str], table: Sequence[str]) -> str | None:
    """The dim of a table that counts its rows."""
    return next((name for name in table if name not in ids), None)


def bag_names(
    ids: Sequence[str], table: Sequence[str], over: str, to: str | None
) -> tuple[str, ...]:
    """Dims of what is looked up: those of the numbers, but for the bags, then those of a row."""
    rows = row_dim(ids, table)
    kept = [to if n == over else n for n in ids if n != over or to is not None]
    return (*(n for n in kept if n), *(n for n in table if n not in ids and n != rows))


def looked_up(ids: TensorType, table: TensorType) -> Size:
    """Elements of the rows that one device looks up: even over the devices that rows are split over."""
    rows, *width = [d for d in table.dims if d.name not in ids.names]
    ways = symbolic.product(map(symbolic.symbol, rows.split))
    return ids.num_elements * symbolic.product(d.size for d in width) / ways


@irdl_op_definition
class EmbeddingBagOp(TensorOp):
    """Rows of `table` by number, added up over `over`, or into the bags `to` that it is made of.

    Over split rows or numbers the result is partial: each device adds up the rows that it finds. How long each bag is does not matter
    to what it costs.

    `ids` [B, G], `table` [R, D] over G -> [B, D]. FLOPs: an addition for each element that is looked up.
    """

    name = "stg.embedding_bag"
    SIGNATURES: ClassVar[tuple[Signature, ...]] = (
        Signature(
            "embedding_bag",
            ("ids", "table"),
            "rows of tables by number, added up",
            (Option("over", "dim", required=True), Option("to", "dim")),
        ),
    )

    ids = operand_def(TensorType)
    table = operand_def(TensorType)
    over = prop_def(StringAttr)
    to = opt_prop_def(StringAttr)
    result = result_def(TensorType)

    def __init__(self, ids: SSAValue, table: SSAValue, over: str, to: str | None = None) -> None:
        numbers, rows = tensor_type(ids), tensor_type(table)
        splits = numbers.splits | rows.splits
        names = bag_names(numbers.names, rows.names, over, to)
        summed = [a for n, axes in splits.items() if n not in names for a in axes]
        super().__init__(
            [ids, table],
            [TensorType.of([Dim(n, splits.get(n, ())) for n in names], rows.dtype, sorted(summed))],
            over=over,
            to=to or None,
        )

    @classmethod
    def check_call(cls, call: Call) -> None:
        ids, table = call.types
        call.need_ids(0)
        call.need_float(1)
        over, to = call.dim("over"), call.optional_dim("to")
        call.need_dim(0, over, "over")
        if over in table.names:
            raise CallError(f"`{over}` is a dim of the table, too", option="over")
        rows = row_dim(ids.names, table.names)
        if rows is None or table.names[-1] in (rows, *ids.names):
            raise CallError(
                "a table has rows, and a dim along each row that the numbers have not",
                operand=1,
                help="declare it as `[R, D]`, or `[T, R, D]` for several tables",
            )
        if to is not None and to in (*ids.names, *table.names):
            raise CallError("the dim of the bags is a new one", option="to")

    @classmethod
    def from_call(cls, call: Call, operands: Sequence[SSAValue]) -> TensorOp:
        return EmbeddingBagOp(operands[0], operands[1], call.dim("over"), call.optional_dim("to"))

    def indices(self) -> Indices:
        base = super().indices()
        return Indices(base.operands, base.results, blocked=bags(self))

    def verify_(self) -> None:
        check_bags(self, tensor_type(self.ids), tensor_type(self.table), tensor_type(self.result))
        super().verify_()

    def flops(self) -> Size:
        return looked_up(tensor_type(self.ids), tensor_type(self.table))

    def moved_bytes(self) -> Bytes:
        table = tensor_type(self.table)
        rows = unscaled_bytes(looked_up(tensor_type(self.ids), table), table.dtype)
        return Bytes(num_bytes(self.ids) + rows, num_bytes(self.result))

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        table = tensor_type(self.table)
        gradients.emit(self.table, lambda: EmbeddingBagGradOp(only(dys), self, self.ids, table))


def bags(op: EmbeddingBagOp | EmbeddingBagGradOp) -> frozenset[str]:
    """Bags of several lengths are whole on each device: where one ends nothing says."""
    return frozenset((op.over.data, op.to.data)) if op.to is not None else frozenset()


def check_bags(
    op: EmbeddingBagOp | EmbeddingBagGradOp, ids: TensorType, table: TensorType, made: TensorType
) -> None:
    """Rows of `table` by `ids` are `made`, of bags that each device has whole."""
    over, to = op.over.data, op.to.data if op.to is not None else None
    if over not in ids.names or over in table.names:
        raise op.mistake(f"`{over}` is not a dim of the numbers <{ids.body}> alone")
    if row_dim(ids.names, table.names) is None:
        raise op.mistake(f"<{table.body}> has no rows to choose from")
    names = bag_names(ids.names, table.names, over, to)
    if made.names != names:
        raise op.mistake(
            f"rows by numbers <{ids.body}> are [{', '.join(names)}], not <{made.body}>"
        )
    if to is None or PLACEMENT in op.properties:
        return
    if ids.dim(over).split or made.dim(to).split:
        raise op.mistake(f"each device needs all of `{over}` and `{to}`")


@irdl_op_definition
class EmbeddingBagGradOp(TensorOp):
    """The gradient of a table: for each number, `dy` of its bag added to its row. Over split numbers it is partial.

    `ids` [B, G], `dy` [B, D] -> [R, D]. FLOPs: an addition for each element that is looked up.
    """

    name = "stg.embedding_bag_grad"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (1,)

    ids = operand_def(TensorType)
    dy = operand_def(TensorType)
    over = prop_def(StringAttr)
    to = opt_prop_def(StringAttr)
    dtable = result_def(TensorType)

    def __init__(self, dy: SSAValue, op: EmbeddingBagOp, ids: SSAValue, table: TensorType) -> None:
        summed = [a for d in tensor_type(ids).dims if d.name not in table.names for a in d.split]
        partial = sorted({*tensor_type(dy).partial, *summed})
        super().__init__([ids, dy], [table.with_partial(partial)], over=op.over, to=op.to)

    def indices(self) -> Indices:
        base = super().indices()
        return Indices(base.operands, base.results, blocked=bags(self))

    def verify_(self) -> None:
        self.verify_operands()
        ids, dy, table = (tensor_type(v) for v in (self.ids, self.dy, self.dtable))
        check_bags(self, ids, table, dy)
        # Which rows a device keeps is its own choice: they are a dim of no operand.
        given = {d.name: d for d in (*ids.dims, *dy.dims)}
        if any(given.get(d.name, d) != d for d in table.dims):
            raise self.mistake(f"rows <{table.body}> are not split as dy <{dy.body}>")
        summed = [a for d in ids.dims if d.name not in table.names for a in d.split]
        wanted = table.with_partial(sorted({*dy.partial, *summed}))
        if set(table.partial) != set(wanted.partial):
            raise self.mistake(
                f"the gradient is partial over [{', '.join(table.partial)}], "
                f"but should be over [{', '.join(wanted.partial)}]"
            )

    def flops(self) -> Size:
        return looked_up(tensor_type(self.ids), tensor_type(self.dtable))
