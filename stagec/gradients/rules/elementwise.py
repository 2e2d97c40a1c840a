"""Gradients of elementwise ops, views and reductions."""

from xdsl.ir import SSAValue

from stagec import symbolic
from stagec.dialects import stg
from stagec.gradients.gradients import Cotangents, Gradients, gradient_of

SAVED_RESULT = ("exp", "relu", "rsqrt", "sigmoid", "sqrt", "tanh")
"""Functions whose derivative is read off their result: y for exp, y (1 - y) for sigmoid, ..."""


def only(dys: Cotangents) -> SSAValue:
    dy = dys[0]
    assert dy is not None
    return dy


def pass_through(operand: SSAValue, dy: SSAValue, gradients: Gradients) -> None:
    """The cotangent of a term of a sum is that of the sum."""
    if gradients.wants(operand):
        gradients.contribute(operand, gradients.summed(dy, operand))


@gradient_of.register
def _(op: stg.AddOp, dys: Cotangents, gradients: Gradients) -> None:
    # The later term first: its maker is the next one on the way back.
    pass_through(op.right, only(dys), gradients)
    pass_through(op.left, only(dys), gradients)


@gradient_of.register
def _(op: stg.SubOp, dys: Cotangents, gradients: Gradients) -> None:
    pass_through(op.left, only(dys), gradients)
    gradients.emit_broadcast(op.right, lambda: stg.UnaryOp("neg", only(dys)))


@gradient_of.register
def _(op: stg.MulOp, dys: Cotangents, gradients: Gradients) -> None:
    gradients.emit_broadcast(op.left, lambda: stg.MulOp(only(dys), gradients.use(op.right)))
    gradients.emit_broadcast(op.right, lambda: stg.MulOp(only(dys), gradients.use(op.left)))


@gradient_of.register
def _(op: stg.DivOp, dys: Cotangents, gradients: Gradients) -> None:
    gradients.emit_broadcast(op.left, lambda: stg.DivOp(only(dys), gradients.use(op.right)))
    if gradients.wants(op.right):
        scaled = gradients.insert(stg.MulOp(only(dys), gradients.use(op.result)), op.right)
        divided = gradients.insert(stg.DivOp(scaled.results[0], gradients.use(op.right)), op.right)
        gradients.emit_broadcast(op.right, lambda: stg.UnaryOp("neg", divided.results[0]))


@gradient_of.register
def _(op: stg.UnaryOp, dys: Cotangents, gradients: Gradients) -> None:
    function = op.function.data
    if function == "neg":
        gradients.emit(op.x, lambda: stg.UnaryOp("neg", only(dys)))
        return
    saved = op.result if function in SAVED_RESULT else op.x
    gradients.emit(op.x, lambda: stg.UnaryGradOp(function, only(dys), gradients.use(saved)))


@gradient_of.register
def _(op: stg.CastOp, dys: Cotangents, gradients: Gradients) -> None:
    gradients.emit(op.x, lambda: stg.CastOp(only(dys), stg.tensor_type(op.x).dtype))


@gradient_of.register
def _(op: stg.RenameOp, dys: Cotangents, gradients: Gradients) -> None:
    gradients.emit(op.x, lambda: stg.RenameOp(only(dys), op.new.data, op.old.data))


@gradient_of.register
def _(op: stg.TransposeOp, dys: Cotangents, gradients: Gradients) -> None:
    gradients.emit(op.x, lambda: stg.TransposeOp(only(dys), stg.tensor_type(op.x).names))


@gradient_of.register
def _(op: stg.PlaceOp, dys: Cotangents, gradients: Gradients) -> None:
    pass_through(op.x, only(dys), gradients)


@gradient_of.register
def _(op: stg.ReduceOp, dys: Cotangents, gradients: Gradients) -> None:
    if op.kind.data == "max":
        gradients.emit(
            op.x,
            lambda: stg.MaxGradOp(only(dys), gradients.use(op.x), gradients.use(op.result)),
        )
    elif gradients.wants(op.x):
        source = stg.tensor_type(op.x)
        spread = gradients.insert(stg.BroadcastOp(only(dys), source.with_partial(())), op.x)
        if op.kind.data == "sum":
            gradients.contribute(op.x, spread.results[0])
            return
        number = str(symbolic.ONE / symbolic.product(map(symbolic.symbol, op.over.data)))
        share = gradients.insert(stg.ConstantOp(number, source.dtype), op.x)
        gradients.emit(op.x, lambda: stg.MulOp(spread.results[0], share.results[0]))


@gradient_of.register
def _(op: stg.BroadcastOp, dys: Cotangents, gradients: Gradients) -> None:
    pass_through(op.x, only(dys), gradients)


@gradient_of.register
def _(op: stg.DropoutOp, dys: Cotangents, gradients: Gradients) -> None:
    gradients.emit(op.x, lambda: stg.MulOp(only(dys), gradients.use(op.mask)))


@gradient_of.register
def _(op: stg.CausalMaskOp, dys: Cotangents, gradients: Gradients) -> None:
    query, key = op.query.data, op.key.data
    gradients.emit(op.scores, lambda: stg.CausalMaskOp(only(dys), query, key, zero=True))
