"""Gradients of contractions, embeddings and repeated heads."""

from xdsl.ir import SSAValue

from stagec.dialects import stg
from stagec.gradients.gradients import Cotangents, Gradients, gradient_of
from stagec.gradients.rules.elementwise import only


def contract_to(dy: SSAValue, other: SSAValue, operand: SSAValue) -> stg.ContractOp:
    """dy @ other, over what the operand lacks: the gradient of a product has the same indices."""
    wanted = stg.tensor_type(operand)
    names = {*stg.tensor_type(dy).names, *stg.tensor_type(other).names}
    over = [n for n in stg.tensor_type(dy).names if n in names - set(wanted.names)]
    return stg.ContractOp(dy, other, over, wanted.names, wanted.dtype)


@gradient_of.register
def _(op: stg.ContractOp, dys: Cotangents, gradients: Gradients) -> None:
    dy = only(dys)
    gradients.emit(op.left, lambda: contract_to(dy, gradients.use(op.right), op.left))
    gradients.emit(op.right, lambda: contract_to(dy, gradients.use(op.left), op.right))


@gradient_of.register
def _(op: stg.EmbeddingOp, dys: Cotangents, gradients: Gradients) -> None:
    table = stg.tensor_type(op.table)
    gradients.emit(op.table, lambda: stg.EmbeddingGradOp(gradients.use(op.ids), only(dys), table))


@gradient_of.register
def _(op: stg.EmbeddingBagOp, dys: Cotangents, gradients: Gradients) -> None:
    table = stg.tensor_type(op.table)
    gradients.emit(
        op.table, lambda: stg.EmbeddingBagGradOp(only(dys), op, gradients.use(op.ids), table)
    )


@gradient_of.register
def _(op: stg.RepeatHeadsOp, dys: Cotangents, gradients: Gradients) -> None:
    gradients.emit(op.x, lambda: stg.SumHeadsOp(only(dys), op.new.data, op.old.data))


@gradient_of.register
def _(op: stg.SumHeadsOp, dys: Cotangents, gradients: Gradients) -> None:
    gradients.emit(op.x, lambda: stg.RepeatHeadsOp(only(dys), op.new.data, op.old.data))
