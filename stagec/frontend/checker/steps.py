"""A checked body: its ops in order, each with what it reads and makes. Lowering instantiates these.

Expressions are flat here, names are resolved, and types are known; calls of modules are still calls,
so a body is checked once, however often it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from xdsl.ir import Operation, SSAValue

from stagec.diagnostics import Span
from stagec.dialects import stg
from stagec.dialects.types import TensorType
from stagec.symbolic import Size
from stagec.symbolic.quantity import Quantity


@dataclass(eq=False)
class Value:
    """A tensor that a body computes or is given. Compared by identity."""

    type: TensorType
    span: Span
    """Where it comes from: for the diagnostics of those who read it."""
    name: str = ""
    used: bool = False
    is_cache: bool = False
    """State of a request: read by the ops that are made for it alone."""
    is_state: bool = False
    """A cache of which each sequence has one, however long it is."""


@dataclass
class OpStep:
    """One op of the dialect."""

    operands: Sequence[Value]
    results: Sequence[Value]
    build: Callable[[Sequence[SSAValue]], Operation]
    span: Span


@dataclass
class ReadStep(OpStep):
    """A weight that a plan stores in another dtype than it computes in, as its readers take it. A lookup converts what it found instead."""


@dataclass
class WeightStep:
    """`weight wq[H, E | D]: fp32`. `num_rows` is the number of dims before the bar, if there is one; `is_own`: the text says a dtype."""

    name: str
    result: Value
    span: Span
    num_rows: int | None = None
    is_own: bool = False


@dataclass
class CacheStep:
    """`cache k[B, T, K, E]`."""

    name: str
    result: Value
    span: Span


@dataclass
class AppendStep:
    """`append(k, x @ wk)`: what a cache holds after it has taken in new positions.

    `new_dim` of what is appended and `position_dim` of the cache are one index, of new positions and of all. With a `window`
    no more than so many positions are kept.
    """

    cache: Value
    new: Value
    result: Value
    new_dim: str
    position_dim: str
    window: Quantity | None
    span: Span


@dataclass
class StateStep(OpStep):
    """`ssd_scan(x, dt, a, b, c, state = h)`: an op along `new_dim` that, where something is served, goes on from a state."""

    cache: Value
    new_dim: str
    resume: Callable[[Sequence[SSAValue], SSAValue, stg.Requests], Operation]


@dataclass
class PartsStep(OpStep):
    """`concat(image, text, over = [M, U], to = S)`, or `split(x, over = S, to = [M, U])`, which undoes it.

    Where something is served and `whole` counts its new positions, all parts but the last stand in front of a sequence.
    """

    parts: Sequence[str]
    whole: str
    joins: bool

    @property
    def in_front(self) -> Sequence[str]:
        return self.parts[:-1]


@dataclass
class OnceStep:
    """`once(k, source @ wk)`: computed when a sequence begins, and read from a cache after that."""

    cache: Value
    new: Value
    result: Value
    span: Span


@dataclass
class CallStep:
    """A call of a module. `instance` is its name in the paths of weights: `Attention_2`."""

    module: str
    instance: str
    operands: Sequence[Value]
    results: Sequence[Value]
    span: Span


@dataclass
class NameStep:
    """A value gets a name: the place for the plan's overrides of it."""

    value: Value
    result: Value
    span: Span

    @property
    def name(self) -> str:
        return self.result.name


@dataclass
class Carried:
    """A variable that a repeat changes."""

    before: Value
    inner: Value
    next: Value
    after: Value


@dataclass
class RepeatStep:
    """`repeat L { ... }`."""

    count: Size
    text: str
    carried: Sequence[Carried]
    steps: Sequence[Step]
    span: Span


Step = OpStep | WeightStep | CacheStep | AppendStep | OnceStep | CallStep | NameStep | RepeatStep


@dataclass
class CheckedBody:
    """A module's or the model's."""

    name: str
    span: Span
    parameters: Sequence[NameStep]
    """What the caller passes, named."""
    steps: list[Step] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)

    @property
    def batch_dim(self) -> str:
        """The dim of samples of a model: the leading one of the first input."""
        shapes = (parameter.value.type.names for parameter in self.parameters)
        return next((names[0] for names in shapes if names), "")

    def walk(self) -> Iterator[Step]:
        """Every step, those of repeats after their repeat."""
        waiting: list[Step] = list(reversed(self.steps))
        while waiting:
            step = waiting.pop()
            yield step
            if isinstance(step, RepeatStep):
                waiting += reversed(step.steps)

    def calls(self) -> Iterator[CallStep]:
        return (step for step in self.walk() if isinstance(step, CallStep))
