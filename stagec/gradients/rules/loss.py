"""Gradients of cross-entropy."""

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


@gradient_of.register
def _(op: stg.LogSoftmaxLossOp, dys: Cotangents, gradients: Gradients) -> None:
    if not gradients.wants(op.logits):
        return
    dloss, log_probs = only(dys), gradients.use(op.log_probs)
    target = stg.TargetGradOp(dloss, log_probs, gradients.use(op.targets))
    dtargets = gradients.insert(target, op.logits).results[0]
    gradients.emit(op.logits, lambda: stg.LogSoftmaxLossGradOp(dtargets, log_probs, dloss))
