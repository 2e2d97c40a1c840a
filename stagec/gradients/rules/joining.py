"""Gradients of joined and cut dims: each is the other's."""

from stagec.dialects import dist, stg
from stagec.gradients.gradients import Cotangents, Gradients, gradient_of
from stagec.gradients.rules.elementwise import only, pass_through


@gradient_of.register
def _(op: stg.ConcatOp, dys: Cotangents, gradients: Gradients) -> None:
    wanted = [part for part in op.parts if gradients.wants(part)]
    if not wanted:
        return
    cut = gradients.insert(stg.SplitOp(only(dys), op.to.data, op.over.data), wanted[0])
    for part, cotangent in zip(op.parts, cut.results, strict=True):
        pass_through(part, cotangent, gradients)


@gradient_of.register
def _(op: stg.SplitOp, dys: Cotangents, gradients: Gradients) -> None:
    if not gradients.wants(op.x):
        return
    # Terms of sums join as one if all are terms over the same axes.
    partials = [set(stg.tensor_type(dy).partial) for dy in dys if dy is not None]
    common = sorted(set.intersection(*partials))
    parts = []
    for part, dy in zip(op.parts, dys, strict=True):
        wanted = stg.tensor_type(part).with_partial(common)
        if dy is None:
            dy = gradients.insert(stg.ZerosOp(wanted), op.x).results[0]
        elif set(stg.tensor_type(dy).partial) != set(common):
            target = stg.tensor_type(dy).with_partial(common)
            dy = gradients.insert(dist.ReshardOp(dy, target), op.x).results[0]
        parts.append(dy)
    gradients.emit(op.x, lambda: stg.ConcatOp(parts, op.to.data, op.over.data))
