"""Names of values in a plan: `Block.Attention.q`, or as much of its end as says which."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from stagec.frontend.checker.steps import (
    CallStep,
    CheckedBody,
    NameStep,
    RepeatStep,
    Step,
    WeightStep,
)


@dataclass(frozen=True)
class Scope:
    """Where a module was called: the names of the calls, and the modules that they are of."""

    model: str
    instances: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()

    def enter(self, call: CallStep) -> Scope:
        return Scope(self.model, (*self.instances, call.instance), (*self.modules, call.module))

    @property
    def text(self) -> str:
        return ".".join(self.instances)

    def path(self, name: str) -> str:
        """`Block.Attention.wq`."""
        return ".".join((*self.instances, name))

    def matches(self, pattern: Sequence[str], name: str) -> bool:
        """Whether a plan's path means the value `name` here.

        It may leave out what is before, begin with the model, and names a module for all its calls:
        `Attention.q` is the `q` of `Attention` and of `Attention_2`.
        """
        instances = (self.model, *self.instances)
        modules = (self.model, *self.modules)
        *outer, last = pattern
        if last != name or len(outer) > len(instances):
            return False
        if not outer:
            return not self.instances
        tail = zip(outer, instances[-len(outer) :], modules[-len(outer) :], strict=True)
        return all(word in (instance, module) for word, instance, module in tail)

    def means(self, pattern: Sequence[str], name: str) -> bool:
        """Like `matches`, but a bare name is any value that is called so."""
        return pattern[-1] == name if len(pattern) == 1 else self.matches(pattern, name)

    def is_in(self, pattern: Sequence[str]) -> bool:
        """Whether a plan's path means a module that this is, or is called in."""
        calls = list(zip(self.instances, self.modules, strict=True))
        return any(
            all(
                word in call
                for word, call in zip(pattern, calls[end - len(pattern) :], strict=False)
            )
            for end in range(len(pattern), len(calls) + 1)
        )


def weights_of(
    body: CheckedBody, bodies: Mapping[str, CheckedBody], scope: Scope
) -> Iterator[tuple[Scope, WeightStep]]:
    """Every weight of a program, with its scope, calls written out."""
    for step in body.walk():
        if isinstance(step, WeightStep):
            yield scope, step
        elif isinstance(step, CallStep):
            yield from weights_of(bodies[step.module], bodies, scope.enter(step))


def is_named(pattern: Sequence[str], scope: Scope, weight: str) -> bool:
    """Whether a plan's path means a weight, by its own name or that of a module around it."""
    return scope.means(pattern, weight) or scope.is_in(pattern)


def named_values(
    body: CheckedBody, bodies: Mapping[str, CheckedBody], scope: Scope
) -> Iterator[tuple[Scope, NameStep]]:
    """Every named value of a program, with its scope, calls written out."""
    for parameter in body.parameters:
        yield scope, parameter
    yield from _in_steps(body.steps, bodies, scope)


def _in_steps(
    steps: Sequence[Step], bodies: Mapping[str, CheckedBody], scope: Scope
) -> Iterator[tuple[Scope, NameStep]]:
    for step in steps:
        if isinstance(step, NameStep):
            yield scope, step
        elif isinstance(step, RepeatStep):
            yield from _in_steps(step.steps, bodies, scope)
        elif isinstance(step, CallStep):
            yield from named_values(bodies[step.module], bodies, scope.enter(step))
