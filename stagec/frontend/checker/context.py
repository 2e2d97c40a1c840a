"""What the checking of every body shares, and what one body has so far."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.ir import Block, Operation, SSAValue

from stagec.analysis.plug_in_ops import check_made
from stagec.diagnostics import Diagnostic, Diagnostics, Mistake, Span
from stagec.dialects import stg
from stagec.frontend.checker.definitions import Definitions
from stagec.frontend.checker.steps import OpStep, Step, Value
from stagec.frontend.checker.types import ModuleSignature, TypeReader
from stagec.frontend.checker.user_ops import Declared
from stagec.frontend.numbers import Sizes
from stagec.plans.clauses import Precision

Environment = dict[str, Value | None]
"""The values that names stand for. None: its definition is wrong, and has been reported."""


@dataclass
class CheckerContext:
    """Shared by all bodies."""

    definitions: Definitions
    signatures: dict[str, ModuleSignature]
    sizes: Sizes
    """The sizes of dims."""
    precision: Precision
    types: TypeReader
    findings: Diagnostics
    declared: Mapping[str, Declared | None] = field(default_factory=dict)
    """What each op that the user declares is; None if what is written is wrong."""
    plan_name: str = ""
    served: Container[str] = ()
    """The dims that `serve` gives their sizes."""


@dataclass
class BodyState:
    """The body that is being checked: names in force, steps so far."""

    context: CheckerContext
    name: str
    environment: Environment = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    instances: dict[str, str] = field(default_factory=dict)
    """The name of each call so far, and its module."""
    local_to_repeat: dict[str, Span] = field(default_factory=dict)
    """Names that exist only inside a repeat before this place."""
    undefined: list[tuple[str, Diagnostic]] = field(default_factory=list)
    """Names of values that are not there, with what is to be said of each by itself."""
    misnamed: list[Diagnostic] = field(default_factory=list)
    """Names that mean something else already. What they were to be called may be undefined."""

    @property
    def findings(self) -> Diagnostics:
        return self.context.findings

    def error(
        self,
        code: str,
        message: str,
        span: Span,
        help: str | Sequence[str] = "",
        *,
        label: str = "",
        secondary: Sequence[tuple[Span, str]] = (),
        notes: Sequence[str] = (),
        mistake: Mistake | None = None,
    ) -> None:
        self.findings.say(code, message, span, label, secondary, notes, help, mistake=mistake)

    def emit(
        self,
        operands: Sequence[Value],
        build: Callable[[Sequence[SSAValue]], Operation],
        span: Span,
    ) -> list[Value]:
        """Add an op; its results, but for statistics that it keeps for the backward pass. What types they have, it says."""
        made = build(Block(arg_types=[operand.type for operand in operands]).args)
        check_made(made, span)
        hidden = made.NUM_STATISTICS if isinstance(made, stg.TensorOp) else 0
        results = [
            Value(stg.tensor_type(result), span)
            for result in made.results[: len(made.results) - hidden]
        ]
        self.steps.append(OpStep(operands, results, build, span))
        return results

    def apply(
        self,
        operand: Value,
        build: Callable[[SSAValue], Operation],
        span: Span,
    ) -> Value:
        """Add an op on one value."""
        return self.emit([operand], lambda values: build(values[0]), span)[0]
