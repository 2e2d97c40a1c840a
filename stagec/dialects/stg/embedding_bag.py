"""Rows of tables added up by the number: what models of recommendation do with categories.

    %v = stg.embedding_bag %ids, %table over "J"              // [B, T, J] and [T, R, E] -> [B, T, E]: T tables
    %v = stg.embedding_bag %ids, %table over "N" to "T"       // [B, N] and [R, E] -> [B, T, E]: N numbers in T bags
    stg.update_rows "rowwise_adagrad" states "fp32" %table by "R" (%ids) from (%dv)

Dims that numbers and table share say which table a number is of; the table's first other dim counts its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr
from xdsl.irdl import (
    AttrSizedOperandSegments,
    ParsePropInAttrDict,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    var_operand_def,
)

from stagec import symbolic
from stagec.dialects.interfaces import Bytes, CostInterface, all_bytes, elements, num_bytes
from stagec.dialects.memory import Effects, Update
from stagec.dialects.op import DefaultBuilder, op_definition
from stagec.dialects.stg.base import PLACEMENT, Indices, InferredOp, tensor_type
from stagec.dialects.stg.interface import BackwardPass, Call, CallError, Cotangents, Signature, only
from stagec.dialects.types import (
    TensorType,
    ValueType,
    bytes_of,
    tensor_of,
    unscaled_bytes,
    verify_dtypes,
)
from stagec.dialects.work import Work
from stagec.symbolic import ZERO, Size


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


def looked_up(ids: TensorType, table: TensorType, rows: str | None = None) -> Size:
    """Elements of the rows that one device looks up: even over the devices that rows are split over."""
    rows = rows or row_dim(ids.names, table.names)
    ways = symbolic.product(
        symbolic.symbol(a) for d in table.dims if d.name == rows for a in d.split
    )
    return ids.num_elements * width_of(ids, table, rows) / ways


def width_of(ids: TensorType, table: TensorType, rows: str | None) -> Size:
    """Elements of a row on one device."""
    return symbolic.product(d.size for d in table.dims if d.name not in (rows, *ids.names))


@op_definition
class EmbeddingBagOp(InferredOp):
    """Rows of `table` by number, added up over `over`, or into the bags `to` that it is made of.

    Over split rows or numbers the result is partial: each device adds up the rows that it finds. How long each bag is does not matter
    to what it costs.

    `ids` [B, G], `table` [R, D] over G -> [B, D]. FLOPs: an addition for each element that is looked up.
    """

    name = "stg.embedding_bag"
    WORK: ClassVar[Work] = Work.BAG
    SIGNATURES: ClassVar[tuple[Signature, ...]] = (
        Signature.of(
            "embedding_bag(ids, table, over = dim, to? = dim)", "rows of tables by number, added up"
        ),
    )

    ids = operand_def(TensorType)
    table = operand_def(TensorType)
    over = prop_def(StringAttr)
    to = opt_prop_def(StringAttr)
    result = result_def(TensorType)

    def made(self) -> Sequence[TensorType]:
        ids, table = tensor_type(self.ids), tensor_type(self.table)
        to = self.to.data if self.to is not None else None
        return [TensorType.of(bag_names(ids.names, table.names, self.over.data, to), table.dtype)]

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
        like, how = tensor_type(self.table), (self.over, self.to)
        gradients.emit(self.table, lambda: EmbeddingBagGradOp(self.ids, only(dys), *how, like=like))


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


@op_definition
class EmbeddingBagGradOp(InferredOp):
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

    def indices(self) -> Indices:
        base = super().indices()
        return Indices(base.operands, base.results, blocked=bags(self))

    def verify_(self) -> None:
        # Which rows a device keeps is its own choice: they are a dim of no operand.
        check_bags(self, *(tensor_type(v) for v in (self.ids, self.dtable, self.dy)))
        super().verify_()

    def flops(self) -> Size:
        return looked_up(tensor_type(self.ids), tensor_type(self.dtable))


ROWWISE = ("rowwise_adagrad", "partial_rowwise_adam")
"""The optimizers that keep one second moment for a whole row."""
ROW_STATES = {"sgd": 0, "adagrad": 1, "adam": 2, "rowwise_adagrad": 0, "partial_rowwise_adam": 1}
"""State tensors as large as a table, by how its rows are updated: the names are those of FBGEMM's `EmbOptimType`."""
ROW_FLOPS = {"sgd": 2, "adagrad": 7, "adam": 12, "rowwise_adagrad": 4, "partial_rowwise_adam": 8}
"""Operations for each element of a row that is updated. What is done once for a row does not count."""


@op_definition
class UpdateRowsOp(DefaultBuilder, CostInterface):
    """Update the rows of a table that were looked up, from what flows back to their lookups.

    One fused kernel, as the backward pass of FBGEMM's batched tables is: it adds up, for each row, `dy` of the bags that it is in, and updates the row and what
    it keeps of it. There is no gradient of the table. Each number counts as a row of its own, up to all rows that there are.

    `by` names the dim that counts rows.

    `table` [R, D], `ids` [B, G] and `dy` [B, D] of each lookup. FLOPs: an addition for each element that was looked up, and those of `ROW_FLOPS` for
    each that is updated.
    """

    name = "stg.update_rows"

    algorithm = prop_def(StringAttr)
    states = prop_def(StringAttr)
    table = operand_def()
    rows = prop_def(StringAttr)
    ids = var_operand_def(TensorType)
    dys = var_operand_def(TensorType)

    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())
    assembly_format = (
        "$algorithm `states` $states $table `by` $rows `(` $ids `)` `from` `(` $dys `)` attr-dict "
        "`:` type($table) `(` type($ids) `)` `from` `(` type($dys) `)`"
    )

    def verify_(self) -> None:
        if self.algorithm.data not in ROW_STATES:
            raise self.mistake(f"rows are not updated by `{self.algorithm.data}`")
        verify_dtypes(self.name, self.states)
        table = tensor_of(self.table.type)
        if self.rows.data not in table.names:
            raise self.mistake(f"`{self.rows.data}` is not a dim of <{table.body}>")
        if len(self.ids) != len(self.dys) or not self.ids:
            raise self.mistake("one `dy` for the numbers of each lookup")
        for ids, dy in zip(self.ids, self.dys, strict=True):
            made = tensor_type(dy)
            width = [
                d for d in table.dims if d.name not in (self.rows.data, *tensor_type(ids).names)
            ]
            if any(d not in made.dims for d in width):
                raise self.mistake(f"rows of <{table.body}> are not those of dy <{made.body}>")

    def looked_up(self) -> Iterator[tuple[Size, Size, str]]:
        """For each lookup: its elements, its rows, and the dtype of what flows back."""
        table, rows = tensor_of(self.table.type), self.rows.data
        for ids, dy in zip(self.ids, self.dys, strict=True):
            numbers = tensor_type(ids)
            count = looked_up(numbers, table, rows)
            yield count, count / width_of(numbers, table, rows), tensor_type(dy).dtype

    def num_rows(self) -> Size:
        """The number of rows of the table that are on this device."""
        assert isinstance(self.table.type, ValueType)
        table = tensor_of(self.table.type)
        return elements(self.table) / width_of(tensor_type(self.ids[0]), table, self.rows.data)

    def updated(self) -> tuple[Size, Size]:
        """Rows that are updated at most, and their elements."""
        every = self.num_rows()
        number = symbolic.call("min", symbolic.total(n for _, n, _ in self.looked_up()), every)
        return number, number * (elements(self.table) / every)

    def kept(self, rows: Size, of_rows: Size) -> Size:
        """Bytes of what is kept of so many rows with so many elements."""
        by = self.algorithm.data
        kept = bytes_of(of_rows, self.states.data) * ROW_STATES[by]
        return kept + (bytes_of(rows, self.states.data) if by in ROWWISE else ZERO)

    def effects(self) -> Effects:
        states = self.kept(self.num_rows(), elements(self.table))
        return Effects(updates=Update((states,), from_rows=True))

    def flops(self) -> Size:
        added = symbolic.total(count for count, _, _ in self.looked_up())
        return added + ROW_FLOPS[self.algorithm.data] * self.updated()[1]

    def moved_bytes(self) -> Bytes:
        rows, of_rows = self.updated()
        read = symbolic.total(bytes_of(count, dtype) for count, _, dtype in self.looked_up())
        touched = bytes_of(of_rows, tensor_of(self.table.type).dtype) + self.kept(rows, of_rows)
        return Bytes(all_bytes(self.ids) + read + touched, touched)
