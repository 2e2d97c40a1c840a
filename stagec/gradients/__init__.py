"""The gradient of each op. `build-backward` walks a program in reverse and asks `gradient_of`.

A rule is registered for an op class, by us or by a third party:

    @gradient_of.register
    def _(op: MyOp, dys, gradients):
        gradients.emit(op.x, lambda: MyGradOp(dys[0], gradients.use(op.x)))

`dys` has the cotangent of each result (or None), `gradients.use` gives a forward value as the backward pass
sees it (and so decides what is saved), `gradients.emit` adds an op that makes the cotangent of an operand.
"""

from stagec.gradients.gradients import Gradients, gradient_of
from stagec.gradients.rules import (
    attention,
    contraction,
    elementwise,
    joining,
    loss,
    normalization,
    routing,
    sequences,
    user,
)

__all__ = [
    "Gradients",
    "attention",
    "contraction",
    "elementwise",
    "gradient_of",
    "joining",
    "loss",
    "normalization",
    "routing",
    "sequences",
    "user",
]
