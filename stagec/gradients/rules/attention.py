"""Gradients of rotary embedding and fused attention."""

from stagec.dialects import stg
from stagec.gradients.gradients import Cotangents, Gradients, gradient_of
from stagec.gradients.rules.elementwise import only


@gradient_of.register
def _(op: stg.RopeOp, dys: Cotangents, gradients: Gradients) -> None:
    gradients.emit(op.x, lambda: stg.RopeOp(only(dys), inverse=op.inverse is None))


@gradient_of.register
def _(op: stg.AttentionOp, dys: Cotangents, gradients: Gradients) -> None:
    operands = (op.q, op.k, op.v)
    if not any(gradients.wants(x) for x in operands):
        return
    saved = {x: gradients.use(x) for x in (*operands, op.result, op.lse)}
    made = gradients.insert(stg.AttentionGradOp(only(dys), op, saved), op.q)
    for operand, cotangent in zip(operands, made.results, strict=True):
        if gradients.wants(operand):
            gradients.contribute(operand, cotangent)
