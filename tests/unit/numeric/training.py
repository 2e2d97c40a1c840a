"""A model's loss and gradients: on one device, and spread as a plan says, after each pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from stagec.analysis.sizes import size_values
from stagec.dialects import stg
from stagec.dialects.types import StackType, TensorType, tensor_of
from stagec.driver import Stops, compile_program
from stagec.frontend import check, parse_text
from stagec.frontend.checker import CheckedModel
from stagec.frontend.lowering import lower, plan_of_model
from stagec.pipelines import default_pipeline
from stagec.plugins import registry
from stagec.rewriting import programs
from tests.unit.numeric.interpreter import Outcome, run
from tests.unit.numeric.machine import Array

NOT_LOCAL = ("lower", "propagate-shardings")
"""After these, operands do not yet agree with their ops."""

ONE_DEVICE = "plan one_device { optimizer sgd }"


@dataclass(frozen=True)
class Model:
    """A model's text, without plans; `ids` below which all its whole numbers are; files of plug-ins whose ops it calls."""

    text: str
    ids: int = 4
    weights_from: tuple[float, float] = (0.5, 1.5)
    """Around one unless said otherwise, so that no square root or logarithm is of a negative number."""
    load: tuple[str, ...] = ()

    def module(self, after: str) -> ModuleOp:
        return compile_program(self.checked(ONE_DEVICE), stops=Stops(after=after)).module

    def checked(self, plan: str) -> CheckedModel:
        functions = registry(self.load).functions
        return check(parse_text(f"{self.text}\n{plan}"), functions=functions)

    @cached_property
    def on_one_device(self) -> ModuleOp:
        return self.module("build-backward")

    @cached_property
    def weights(self) -> dict[str, Array]:
        """Random numbers."""
        generator = np.random.default_rng(1)
        values = size_values(self.on_one_device)
        (program,) = programs(self.on_one_device)
        made = {}
        for op in program.body.block.ops:
            if isinstance(op, stg.WeightOp):
                shape = shape_of(op.weight.type, values)
                made[op.path.data] = generator.uniform(*self.weights_from, shape)
        return made

    @cached_property
    def inputs(self) -> list[Array]:
        generator = np.random.default_rng(2)
        values = size_values(self.on_one_device)
        (program,) = programs(self.on_one_device)
        made: list[Array] = []
        for argument in program.body.block.args:
            shape = shape_of(argument.type, values)
            if tensor_of(argument.type).dtype.startswith("i"):
                made.append(generator.integers(0, self.ids, shape))
            else:
                made.append(generator.uniform(0.5, 1.5, shape))
        return made

    @cached_property
    def reference(self) -> Outcome:
        return run(self.on_one_device, self.weights, self.inputs)

    def loss(self, weights: dict[str, Array]) -> float:
        return float(run(self.on_one_device, weights, self.inputs).outputs[0])

    def differences(self) -> Iterator[tuple[str, float, float]]:
        """For one element of each weight: its gradient, and the central difference of the loss."""
        generator = np.random.default_rng(3)
        step = 1e-5
        for path, gradient in self.reference.gradients.items():
            place = tuple(generator.integers(0, n) for n in gradient.shape)
            losses = []
            for sign in (1, -1):
                moved = {name: array.copy() for name, array in self.weights.items()}
                moved[path][place] += sign * step
                losses.append(self.loss(moved))
            yield path, float(gradient[place]), (losses[0] - losses[1]) / (2 * step)

    def spread(self, plan: str) -> CheckedModel:
        return self.checked(f"plan spread {{\n{plan}\n}}")

    def outcomes(self, plan: str) -> dict[str, Outcome]:
        """What the program computes after each pass, spread as the plan says."""
        found: dict[str, Outcome] = {}

        def interpret(name: str, module: ModuleOp) -> None:
            if name not in NOT_LOCAL:
                found[name] = run(module, self.weights, self.inputs)

        checked = self.spread(plan)
        stops = Stops(after=passes_of(checked)[-1], on_pass=interpret)
        compile_program(checked, stops=stops)
        return found

    def check(self, plan: str, *, after_each: bool = False) -> None:
        """The passes leave a program of the same loss and the same gradients: all of them together, or `after_each` of them too.

        If they do not, it says after which one first.
        """
        if not after_each:
            checked = self.spread(plan)
            last = passes_of(checked)[-1]
            compiled = compile_program(checked, stops=Stops(after=last, verify=False))
            try:
                self.check_outcome(run(compiled.module, self.weights, self.inputs), last)
            except AssertionError:
                self.check(plan, after_each=True)
                raise
            return
        outcomes = self.outcomes(plan)
        assert {"localize-shapes", "build-backward", "insert-collectives"} <= outcomes.keys()
        for name, outcome in outcomes.items():
            self.check_outcome(outcome, name)

    def check_outcome(self, outcome: Outcome, name: str) -> None:
        for loss in outcome.outputs:
            np.testing.assert_allclose(
                loss, self.reference.outputs[0], rtol=1e-7, atol=1e-9, err_msg=name
            )
        if name not in ("peel-layers", "localize-shapes", "quantize-products"):
            self.check_gradients(outcome, name)

    def check_gradients(self, outcome: Outcome, name: str) -> None:
        assert outcome.gradients.keys() == self.reference.gradients.keys()
        for path, gradient in self.reference.gradients.items():
            np.testing.assert_allclose(
                outcome.gradients[path],
                gradient,
                rtol=1e-6,
                atol=1e-9,
                err_msg=f"gradient of `{path}` after {name}",
            )


def passes_of(checked: CheckedModel) -> list[str]:
    """The passes after which a program can be computed: those behind them leave costs."""
    stated = plan_of_model(checked, lower(checked))
    return [each.name for each in default_pipeline(checked.plan, stated)]


def shape_of(value_type: object, sizes: dict[str, int]) -> Sequence[int]:
    """The global shape, the counts of stacks in front."""
    if isinstance(value_type, StackType):
        return [value_type.count.integer(sizes), *shape_of(value_type.element, sizes)]
    assert isinstance(value_type, TensorType)
    return [sizes[n] for n in value_type.names]


@lru_cache
def model(text: str, ids: int = 4) -> Model:
    """One model per text, so that its reference is computed once."""
    return Model(text, ids)
