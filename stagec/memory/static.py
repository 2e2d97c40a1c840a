"""Bytes that stay on a device from step to step: parameters, master weights, optimizer state, gradients.

As closed forms over the sizes of the model and the mesh, and as numbers. What ZeRO splits is padded as it is stored:
a shard has ceil(rows / ranks) rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.ir import BlockArgument, OpResult, SSAValue

from stagec.dialects import stg
from stagec.dialects.stages import is_first_layer
from stagec.dialects.types import TIME_AXIS, StackType, ValueType, bytes_of, tensor_of
from stagec.memory.gradients import gradient_buffers
from stagec.memory.kinds import Kind
from stagec.memory.sums import before_reductions
from stagec.memory.values import line_of
from stagec.memory.weights import updates
from stagec.plans.clauses import Plan
from stagec.symbolic import ONE, Size, symbol
from stagec.unrolling.rank import StageRun

STATIC: tuple[Kind, ...] = (
    Kind.PARAMETERS,
    Kind.MASTER,
    Kind.OPTIMIZER,
    Kind.GRADIENTS,
    Kind.CACHE,
)


@dataclass(frozen=True)
class StaticBytes:
    """By kind, of one virtual stage or of all of a rank."""

    num_bytes: Mapping[Kind, int]

    @property
    def total_bytes(self) -> int:
        return sum(self.num_bytes.values())


@dataclass(frozen=True)
class Stored:
    """One parameter: what a rank keeps of it."""

    path: str
    scope: str
    location: str
    kind: Kind
    num_bytes: int


@dataclass
class Weights:
    """What each program stores, worked out once for all stages that run it with the same number of layers."""

    plan: Plan
    _forms: dict[stg.ProgramOp, list[tuple[stg.WeightOp | stg.CacheOp, Kind, Size]]] = field(
        default_factory=dict
    )
    _stored: dict[object, list[tuple[Stored, bool]]] = field(default_factory=dict)

    def of(self, chunk: StageRun) -> list[tuple[Stored, bool]]:
        """Each parameter of a stage, and whether it is one that its stages may share."""
        program = chunk.program
        numbers = (each for each in chunk.values.items() if not is_first_layer(each[0]))
        key = (program, frozenset(numbers))
        if key not in self._stored:
            if program not in self._forms:
                self._forms[program] = list(weight_bytes(program, self.plan))
            self._stored[key] = [
                (
                    Stored(
                        weight.path.data,
                        stg.scope_of(weight),
                        line_of(weight),
                        kind,
                        size.integer(chunk.values),
                    ),
                    not isinstance(weight.results[0].type, StackType),
                )
                for weight, kind, size in self._forms[program]
            ]
        return self._stored[key]


def static_bytes(chunks: Sequence[StageRun], weights: Weights) -> tuple[StaticBytes, list[Stored]]:
    """Of a rank that has these stages. A weight that two of them share is stored once."""
    numbers: dict[Kind, int] = dict.fromkeys(STATIC, 0)
    found: list[Stored] = []
    seen: set[tuple[Kind, str]] = set()
    for chunk in chunks:
        for each, is_shared in weights.of(chunk):
            if is_shared and (each.kind, each.path) in seen:
                continue
            seen.add((each.kind, each.path))
            numbers[each.kind] += each.num_bytes
            found.append(each)
    return StaticBytes(numbers), found


def weight_bytes(
    program: stg.ProgramOp, plan: Plan
) -> Iterator[tuple[stg.WeightOp | stg.CacheOp, Kind, Size]]:
    """Each weight of a program, and the bytes of each kind that belong to it."""
    updated = updates(program)
    precision = plan.precision
    optimizer = plan.optimizer
    for op in program.body.block.ops:
        if isinstance(op, stg.CacheOp):
            yield op, Kind.CACHE, size_of(op.cache) * parts_in_time(op.cache)
        if not isinstance(op, stg.WeightOp):
            continue
        yield op, Kind.PARAMETERS, size_of(op.weight)
        if op not in updated:
            continue
        weight, gradient = updated[op]
        yield op, Kind.OPTIMIZER, stg.state_bytes(optimizer.algorithm, precision.optimizer, weight)
        if optimizer.average is not None:
            yield op, Kind.OPTIMIZER, bytes_of(elements_of(weight), optimizer.average)
        if precision.master is not None and not is_wide(weight, precision.master):
            yield op, Kind.MASTER, bytes_of(elements_of(weight), precision.master)
        whole = summed(gradient) if gradient_buffers(plan).are_kept else gradient
        yield op, Kind.GRADIENTS, size_of(whole)


def parts_in_time(cache: SSAValue) -> Size:
    """The microbatches that a cache is of: each has its own sequences, and all of them stay."""
    splits = tensor_of(cache.type).split_axes
    return symbol(TIME_AXIS) if TIME_AXIS in splits else ONE


def is_wide(weight: SSAValue, master: str) -> bool:
    """Whether what is stored is in the dtype of the master copy, and so is that copy."""
    assert isinstance(weight.type, ValueType)
    leaf = weight.type.leaf if isinstance(weight.type, StackType) else weight.type
    return leaf.num_bytes == bytes_of(leaf.num_elements, master)


def size_of(value: SSAValue) -> Size:
    assert isinstance(value.type, ValueType)
    return value.type.num_bytes


def elements_of(value: SSAValue) -> Size:
    assert isinstance(value.type, ValueType)
    return value.type.num_elements


def summed(gradient: SSAValue) -> SSAValue:
    """The sum over microbatches behind what the optimizer reads, before it is reduced over ranks."""
    value = before_reductions(gradient)
    while isinstance(value, OpResult) and isinstance(value.op, stg.RepeatOp):
        value = before_reductions(sliced(value.op, value.index))
    return value


def sliced(repeat: stg.RepeatOp, index: int) -> SSAValue:
    """The stack whose elements a repeat of reductions reduces; what the repeat makes itself, if it makes it."""
    value = before_reductions(repeat.yield_op.values[index])
    if isinstance(value, OpResult):
        return value
    assert isinstance(value, BlockArgument)
    return repeat.stacks[value.index - len(repeat.carried)]


__all__ = ["STATIC", "StaticBytes", "Stored", "Weights", "static_bytes"]
