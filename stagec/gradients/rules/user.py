"""The gradient of an op that the model declares: one op, with the backward costs it states."""

from xdsl.ir import SSAValue

from stagec.dialects import dist, stg
from stagec.gradients.gradients import Cotangents, Gradients, gradient_of


@gradient_of.register
def _(op: stg.UserOp, dys: Cotangents, gradients: Gradients) -> None:
    wanted = [x for x in op.arguments if gradients.wants(x)]
    known = [dy for dy in dys if dy is not None]
    if not wanted:
        return
    if len(known) > 1:
        # Linear in all of them together, so that they would have to be partial over the same axes.
        known = [reduced(dy, wanted[0], gradients) for dy in known]
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


def reduced(dy: SSAValue, operand: SSAValue, gradients: Gradients) -> SSAValue:
    """A cotangent that is partial over nothing."""
    whole = stg.tensor_type(dy).with_partial(())
    if dy.type == whole:
        return dy
    return gradients.insert(dist.ReshardOp(dy, whole), operand).results[0]
