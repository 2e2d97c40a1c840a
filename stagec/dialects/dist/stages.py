"""Pipeline stages: what crosses their boundaries, and which stage is which part of the model.

    %h = dist.stage_recv "forward" 0 : !stg.tensor<[B/(mb*dp), S/tp, D], bf16>
    dist.stage_send "forward" 0 %y : !stg.tensor<[B/(mb*dp), S/tp, D], bf16>

A forward send goes to the stage after this one, a backward send to the one before. Which rank that is, and when, is the
schedule's business. `dist.stage_recv` of a stage equals the operand of the same number of its neighbour's `dist.stage_send`.

    dist.give_gradient "embed" %g : !stg.tensor<[V, D], fp32>
    %t = dist.take_gradient "embed" 0 %g : !stg.tensor<[V, D], fp32> -> !stg.tensor<[V, D], fp32>

Stages of one rank that share a weight add up its gradients without moving them.

    %b = dist.found_before "norm" : !stg.tensor<[], fp32, partial [pp, dp]>

What one of them finds of its gradients goes on from what the one before it found, so that ranks tell each other once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import IntegerAttr, StringAttr, i64
from xdsl.ir import Operation
from xdsl.irdl import (
    irdl_attr_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure

from stagec.dialects import sched
from stagec.dialects.interfaces import TaskInterface, elements, num_bytes
from stagec.dialects.marks import MarkedOp
from stagec.dialects.op import DefaultBuilder, first_op, op_definition
from stagec.dialects.sched.crossing import StageRecv, StageSend, verify_number
from stagec.dialects.text_forms import WrittenData, listed, numbers, record, text
from stagec.dialects.types import ValueType


@op_definition
class StageSendOp(StageSend, TaskInterface):
    """Hand a value to the neighbouring stage. Sends its bytes, once per microbatch."""

    name = "dist.stage_send"

    assembly_format = "$direction $number $value attr-dict `:` type($value)"

    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        return [sched.StageSendOp(self.value, *self.crossing)]


@op_definition
class StageRecvOp(StageRecv, TaskInterface):
    """A value that the neighbouring stage hands over."""

    name = "dist.stage_recv"

    assembly_format = "$direction $number attr-dict `:` type($value)"

    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        return [sched.StageRecvOp(*self.crossing, like=self.value_type)]


@op_definition
class GiveGradientOp(DefaultBuilder, MarkedOp):
    """Hand a stage's gradient of a tied weight to another stage of the same rank, which adds it to its own.

    Moves nothing: both are in the memory of the rank. The other end is a `dist.take_gradient`.
    """

    name = "dist.give_gradient"

    weight = prop_def(StringAttr)
    gradient = operand_def(ValueType)

    assembly_format = "$weight $gradient attr-dict `:` type($gradient)"

    def verify_(self) -> None:
        if not self.weight.data:
            raise self.mistake("the weight has no path")


@op_definition
class TakeGradientOp(DefaultBuilder, TaskInterface):
    """A stage's gradient of a tied weight plus that of another stage of the same rank, which gives it.

    `number` counts the stages that give. The sum is local: no bytes are sent.
    """

    name = "dist.take_gradient"

    weight = prop_def(StringAttr)
    number = prop_def(IntegerAttr.constr(i64))
    gradient = operand_def(ValueType)
    total = result_def(ValueType)

    traits = traits_def(Pure())
    assembly_format = "$weight $number $gradient attr-dict `:` type($gradient) `->` type($total)"

    def verify_(self) -> None:
        verify_number(self.name, self.number.value.data)
        if self.gradient.type != self.total.type:
            raise self.mistake(f"{self.gradient.type} does not add up to {self.total.type}")

    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        # Another stage's gradient is there; adding it reads both and writes one.
        taken = sched.TakenOp(self.weight, self.number, like=self.gradient.type)
        size = num_bytes(self.gradient)
        values = [self.gradient, taken.value]
        total = [self.total.type]
        return [
            taken,
            sched.ComputeOp(
                *("add", values, total, elements(self.gradient), 2 * size, size),
                work=sched.Work.ELEMENTWISE,
            ),
        ]


FOUND_OF_ALL = ("finite", "norm")
"""What is to be known of all gradients before any weight is updated."""


@op_definition
class FoundBeforeOp(DefaultBuilder, MarkedOp):
    """What the stage before this one on the same rank found of its gradients, such as the sum of their squares: what the reader of its own op of this `kind`
    makes. On the first stage of a rank it is nothing, and is not waited for. It is no node: the number is in the memory of the rank.
    """

    name = "dist.found_before"

    kind = prop_def(StringAttr)
    found = result_def(ValueType)

    assembly_format = "$kind attr-dict `:` type($found)"

    def verify_(self) -> None:
        if self.kind.data not in FOUND_OF_ALL:
            raise self.mistake(f"there is no `{self.kind.data}`")


@dataclass(frozen=True)
class Stage:
    """One virtual stage: which program it runs, with how many layers of each repeat that is cut."""

    kind: str
    layers: tuple[int, ...]


@irdl_attr_definition
class StagesAttr(WrittenData[tuple[Stage, ...]]):
    """Every virtual stage, first to last: `["first" 3, "middle" 4, "last" 3]`."""

    name = "dist.stage_list"
    FORM: ClassVar = listed(record(Stage, kind=text("a kind of stage"), layers=numbers()))


@op_definition
class StagesOp(DefaultBuilder):
    """How the model is cut: `dist.stages [...] over "pp"`. Programs are found by their `kind` attribute."""

    name = "dist.stages"

    stages = prop_def(StagesAttr)
    axis = prop_def(StringAttr)

    assembly_format = "$stages `over` $axis attr-dict"

    def verify_(self) -> None:
        stages = self.stages.data
        if not stages:
            raise self.mistake("there is no stage")
        for stage in stages:
            if len(stage.layers) != len(stages[0].layers):
                raise self.mistake(
                    f"`{stage.kind}` has layers of {len(stage.layers)} repeats, "
                    f"`{stages[0].kind}` of {len(stages[0].layers)}"
                )
            if min(stage.layers, default=0) < 0:
                raise self.mistake(f"`{stage.kind}` has {min(stage.layers)} layers")


def stages_of(module: Operation) -> StagesOp | None:
    """How a module is cut, if it is."""
    return first_op(module, StagesOp)


def stage_axis(module: Operation) -> str:
    """The axis of its stages; empty if it is not cut."""
    stages = stages_of(module)
    return stages.axis.data if stages is not None else ""


def stage_kinds(module: Operation) -> list[str]:
    """The kind of the program that each stage runs."""
    stages = stages_of(module)
    return [each.kind for each in stages.stages.data] if stages is not None else [""]


STAGE, FIRST = "stage.layers", ".first"


def local_count(index: int) -> str:
    """The name of the number of layers that a stage has of the repeat that is cut as `index`-th."""
    return f"{STAGE}{index}"


def is_local_count(name: str) -> bool:
    """Whether a name is that of a stage's number of layers."""
    return name.startswith(STAGE)


def local_counts(layers: Sequence[int]) -> dict[str, int]:
    """A stage's number of layers of each repeat, by name."""
    return {local_count(index): count for index, count in enumerate(layers)}


def first_layer(count: str) -> str:
    """The name of the number of a stage's first layer of a repeat with that count, counted from the first layer of that repeat on the first stage."""
    return f"{count}{FIRST}"


def is_first_layer(name: str) -> bool:
    """Whether a name is that of a stage's first layer."""
    return name.endswith(FIRST)
