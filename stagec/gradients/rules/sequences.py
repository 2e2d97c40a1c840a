"""Gradients of convolutions and of the state-space scan."""

from stagec.dialects import stg
from stagec.gradients.gradients import Cotangents, Gradients, gradient_of
from stagec.gradients.rules.elementwise import only


@gradient_of.register
def _(op: stg.PatchEmbeddingOp, dys: Cotangents, gradients: Gradients) -> None:
    image, kernel = stg.tensor_type(op.image), stg.tensor_type(op.kernel)
    gradients.emit(
        op.image, lambda: stg.PatchImageGradOp(only(dys), gradients.use(op.kernel), image)
    )
    gradients.emit(
        op.kernel, lambda: stg.PatchKernelGradOp(only(dys), gradients.use(op.image), kernel)
    )


@gradient_of.register
def _(op: stg.CausalConvOp, dys: Cotangents, gradients: Gradients) -> None:
    over, kernel = op.over.data, stg.tensor_type(op.kernel)
    gradients.emit(
        op.x, lambda: stg.CausalConvOp(only(dys), gradients.use(op.kernel), over, reverse=True)
    )
    gradients.emit(
        op.kernel,
        lambda: stg.CausalConvKernelGradOp(only(dys), gradients.use(op.x), over, kernel),
    )


@gradient_of.register
def _(op: stg.SsdScanOp, dys: Cotangents, gradients: Gradients) -> None:
    operands = (op.x, op.dt, op.a, op.b, op.c)
    if not any(gradients.wants(v) for v in operands):
        return
    saved = {v: gradients.use(v) for v in operands}
    made = gradients.insert(stg.SsdScanGradOp(only(dys), op, saved), op.x)
    for operand, cotangent in zip(operands, made.results, strict=True):
        if gradients.wants(operand):
            gradients.contribute(operand, cotangent)
