"""The gradient of an op that the model declares: one op, with the backward costs it states."""

from stagec.dialects import stg
from stagec.gradients.gradients import Cotangents, Gradients, gradient_of


@gradient_of.register
def _(op: stg.UserOp, dys: Cotangents, gradients: Gradients) -> None:
    wanted = [x for x in op.arguments if gradients.wants(x)]
    known = [dy for dy in dys if dy is not None]
    if not wanted:
        return
    arguments = [*known, *(gradients.use(x) for x in op.arguments)]
    made = gradients.insert(
        stg.UserGradOp(
            op.op.data,
            arguments,
            [stg.tensor_type(x) for x in wanted],
            op.backward_flops.data,
            op.backward_bytes.data,
        ),
        wanted[0],
    )
    for operand, cotangent in zip(wanted, made.results, strict=True):
        gradients.contribute(operand, cotangent)
