"""Gradients of routing: the way back of a dispatch is a combine, that of a fan-out a fan-in, and the other way round."""

from stagec.dialects import stg
from stagec.gradients.gradients import Cotangents, Gradients, gradient_of
from stagec.gradients.rules.elementwise import only


@gradient_of.register
def _(op: stg.TopkOp, dys: Cotangents, gradients: Gradients) -> None:
    if dys[0] is None:
        return
    dweights = dys[0]
    gradients.emit(
        op.scores,
        lambda: stg.TopkGradOp(
            dweights,
            gradients.use(op.weights),
            gradients.use(op.experts),
            stg.tensor_type(op.scores),
        ),
    )


@gradient_of.register
def _(op: stg.DispatchOp, dys: Cotangents, gradients: Gradients) -> None:
    gradients.emit(op.x, lambda: stg.CombineOp(only(dys), gradients.use(op.experts)))


@gradient_of.register
def _(op: stg.CombineOp, dys: Cotangents, gradients: Gradients) -> None:
    dy, routed = only(dys), stg.tensor_type(op.routed)
    weights = op.weights
    gradients.emit(
        op.routed,
        lambda: stg.DispatchOp(
            dy,
            gradients.use(op.experts),
            routed.names[0],
            routed.names[1],
            weights=gradients.use(weights) if weights is not None else None,
            routed_type=routed,
        ),
    )
    if weights is not None:
        gradients.emit(
            weights,
            lambda: stg.CombineWeightGradOp(
                dy,
                gradients.use(op.routed),
                gradients.use(op.experts),
                stg.tensor_type(weights).dtype,
            ),
        )


@gradient_of.register
def _(op: stg.FanOutOp, dys: Cotangents, gradients: Gradients) -> None:
    parts, copies, _ = stg.tensor_type(op.x).names
    gradients.emit(op.x, lambda: stg.FanInOp(only(dys), parts, copies))


@gradient_of.register
def _(op: stg.FanInOp, dys: Cotangents, gradients: Gradients) -> None:
    dy, weights = only(dys), op.weights
    parts, copies, _ = stg.tensor_type(op.copies).names
    gradients.emit(
        op.copies,
        lambda: stg.FanOutOp(
            dy, parts, copies, weights=gradients.use(weights) if weights is not None else None
        ),
    )
    if weights is not None:
        gradients.emit(
            weights,
            lambda: stg.FanInWeightGradOp(dy, gradients.use(op.copies), gradients.use(weights)),
        )
