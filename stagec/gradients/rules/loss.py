"""The gradient of cross-entropy."""

from stagec.dialects import stg
from stagec.gradients.gradients import Cotangents, Gradients, gradient_of
from stagec.gradients.rules.elementwise import only


@gradient_of.register
def _(op: stg.CrossEntropyOp, dys: Cotangents, gradients: Gradients) -> None:
    gradients.emit(
        op.logits,
        lambda: stg.CrossEntropyGradOp(
            only(dys),
            gradients.use(op.logits),
            gradients.use(op.targets),
            gradients.use(op.lse),
        ),
    )
