"""What a gradient rule may do, and where rules are registered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import singledispatch

from xdsl.ir import Operation, SSAValue

from stagec.diagnostics import CompileError, Diagnostic, span_of
from stagec.dialects import stg

Cotangents = Sequence[SSAValue | None]


class Gradients(ABC):
    """The backward pass under construction, as a rule sees it."""

    @abstractmethod
    def use(self, value: SSAValue) -> SSAValue:
        """A forward value where the backward pass can read it."""

    @abstractmethod
    def wants(self, operand: SSAValue) -> bool:
        """Whether a weight is behind the operand, so that its cotangent matters."""

    @abstractmethod
    def insert(self, op: Operation, operand: SSAValue) -> Operation:
        """Add a helper op on the way to the cotangent of `operand`."""

    @abstractmethod
    def contribute(self, operand: SSAValue, cotangent: SSAValue) -> None:
        """Add a term to the cotangent of an operand."""

    def emit(self, operand: SSAValue, make: Callable[[], Operation]) -> None:
        """Make the cotangent of an operand, unless nobody wants it."""
        if self.wants(operand):
            op = self.insert(make(), operand)
            self.contribute(operand, op.results[0])

    def emit_broadcast(self, operand: SSAValue, make: Callable[[], Operation]) -> None:
        """Like `emit`, for an operand that was broadcast: sum over the dims that it lacks."""
        if not self.wants(operand):
            return
        cotangent = self.insert(make(), operand).results[0]
        self.contribute(operand, self.summed(cotangent, operand))

    def summed(self, cotangent: SSAValue, operand: SSAValue) -> SSAValue:
        """`cotangent` summed over the dims that `operand` lacks."""
        kept = stg.tensor_type(operand).names
        extra = [n for n in stg.tensor_type(cotangent).names if n not in kept]
        if extra:
            cotangent = self.insert(stg.ReduceOp("sum", cotangent, extra), operand).results[0]
        if stg.tensor_type(cotangent).names != kept:
            cotangent = self.insert(stg.TransposeOp(cotangent, kept), operand).results[0]
        return cotangent


@singledispatch
def gradient_of(op: Operation, dys: Cotangents, gradients: Gradients) -> None:
    """Contribute to the cotangents of an op's operands, from those of its results.

    Raises:
        CompileError: E0218, the op has no rule.
    """
    help = "register one with `stagec.gradients.gradient_of`"
    found = Diagnostic(
        "E0218", f"`{op.name}` has no gradient rule", span_of(op.location), help=help
    )
    raise CompileError([found])
