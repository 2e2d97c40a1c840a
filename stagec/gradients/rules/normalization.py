"""Gradients of norms and softmax."""

from stagec.dialects import stg
from stagec.gradients.gradients import Cotangents, Gradients, gradient_of
from stagec.gradients.rules.elementwise import only, pass_through


@gradient_of.register
def _(op: stg.RmsNormOp, dys: Cotangents, gradients: Gradients) -> None:
    dy, weight, over = only(dys), op.weight, op.over.data
    gradients.emit(
        op.x,
        lambda: stg.RmsNormGradOp(
            dy,
            gradients.use(op.x),
            gradients.use(op.rstd),
            gradients.use(weight) if weight is not None else None,
            over,
        ),
    )
    if weight is not None:
        gradients.emit(
            weight,
            lambda: stg.RmsNormWeightGradOp(
                dy, gradients.use(op.x), gradients.use(op.rstd), stg.tensor_type(weight)
            ),
        )


@gradient_of.register
def _(op: stg.LayerNormOp, dys: Cotangents, gradients: Gradients) -> None:
    dy, weight, bias, over = only(dys), op.weight, op.bias, op.over.data
    gradients.emit(
        op.x,
        lambda: stg.LayerNormGradOp(
            dy,
            gradients.use(op.x),
            gradients.use(op.mean),
            gradients.use(op.rstd),
            gradients.use(weight) if weight is not None else None,
            over,
        ),
    )
    if weight is not None:
        gradients.emit(
            weight,
            lambda: stg.LayerNormWeightGradOp(
                dy,
                gradients.use(op.x),
                gradients.use(op.mean),
                gradients.use(op.rstd),
                stg.tensor_type(weight),
            ),
        )
    if bias is not None:
        pass_through(bias, dy, gradients)


@gradient_of.register
def _(op: stg.SoftmaxOp, dys: Cotangents, gradients: Gradients) -> None:
    gradients.emit(
        op.x, lambda: stg.SoftmaxGradOp(only(dys), gradients.use(op.result), op.over.data)
    )
