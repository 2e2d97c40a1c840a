"""Runs the program of a module on arrays, on all devices of its mesh in step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.utils.test_value import create_ssa_value

from stagec.analysis.sizes import mesh_of, size_values
from stagec.dialects import dist, stg
from stagec.dialects.types import TIME_AXES, ShardType, StackType, TensorType
from stagec.rewriting import programs, set_type
from stagec.symbolic import parse
from tests.unit.numeric.machine import Array, Machine
from tests.unit.numeric.meaning import Meaning

Value = Any
"""An array, or for a stack a list of the values of its elements."""


@dataclass
class Outcome:
    """Global arrays: what the program outputs, and the gradient of each weight by its path."""

    outputs: list[Array] = field(default_factory=list)
    gradients: dict[str, Value] = field(default_factory=dict)


def run(module: ModuleOp, weights: Mapping[str, Value], inputs: Sequence[Array]) -> Outcome:
    """Run a module's one program. Weights in stacks are arrays with the stacks' axes in front."""
    (program,) = programs(module)
    machine = Machine(mesh_of(module) or {"alone": 1}, size_values(module))
    runner = Runner(machine, weights, inputs)
    runner.inputs_of(program)
    runner.block(program.body.block, ())
    return runner.outcome


def without(tensor: TensorType, indices: Sequence[str], split: Iterable[str]) -> TensorType:
    """A type with the dims of some indices whole, but for the microbatch."""
    splits = {}
    for dim, index in zip(tensor.dims, indices, strict=True):
        in_time = tuple(a for a in dim.split if a in TIME_AXES)
        splits[dim.name] = in_time if index in split else dim.split
    return tensor.with_splits(splits)


def stack_axis(chunks: SSAValue) -> str:
    assert isinstance(chunks.type, StackType)
    (axis,) = chunks.type.count.names
    return axis


def total(left: Value, right: Value) -> Value:
    if isinstance(left, list):
        return [total(a, b) for a, b in zip(left, right, strict=True)]
    return left + right


class Runner:
    def __init__(
        self, machine: Machine, weights: Mapping[str, Value], inputs: Sequence[Array]
    ) -> None:
        self.machine, self.weights, self.inputs = machine, weights, inputs
        self.values: dict[SSAValue, Value] = {}
        self.paths: dict[SSAValue, str] = {}
        self.outcome = Outcome()

    def inputs_of(self, program: stg.ProgramOp) -> None:
        """Inputs arrive whole, of the microbatch that runs."""
        self.program = program
        for argument, array in zip(program.body.block.args, self.inputs, strict=True):
            self.values[argument] = self.machine.spread(array, stg.tensor_type(argument))

    def block(self, block: Block, path: tuple[int, ...]) -> list[Value]:
        """Run the ops of a block; what its terminator yields."""
        for op in block.ops:
            if isinstance(op, stg.YieldOp):
                return [self.values[v] for v in op.values]
            for result, value in zip(op.results, self.results(op, path), strict=True):
                self.check_shape(result, value)
                self.values[result] = value
        return []

    def check_shape(self, result: SSAValue, value: Value) -> None:
        """A value has the local shape that its type says."""
        if isinstance(result.type, TensorType):
            wanted = (*self.machine.shape, *self.machine.local_shape(result.type))
            assert value.shape == wanted, (result, value.shape, wanted)

    def results(self, op: Operation, path: tuple[int, ...]) -> Iterable[Value]:
        if isinstance(op, stg.TensorOp):
            return self.computed(op, path)
        if isinstance(op, dist.Movement):
            return [self.moved(op)]
        if isinstance(op, dist.StorageOp):
            return [
                self.stored(op, self.values[value], value.type, output.type)
                for value, output in zip(op.values, op.outputs, strict=True)
            ]
        method = getattr(self, op.name.replace(".", "_"))
        return method(op, path) if isinstance(op, stg.RepeatOp) else method(op)

    def computed(self, op: stg.TensorOp, path: tuple[int, ...]) -> Sequence[Array]:
        """What an op computes. Until `decompose-statistics` it takes statistics over split dims by itself."""
        statistics = op.indices().statistics
        split = statistics & stg.operand_splits(op).keys() if statistics else statistics
        if not split:
            return Meaning(self.machine, self.values, path).compute(op)
        indices, operands = op.indices(), []
        values: dict[SSAValue, Array] = {}
        for operand, names in zip(op.operands, indices.operands, strict=True):
            source = stg.tensor_type(operand)
            target = without(source, names, split)
            operands.append(create_ssa_value(target))
            values[operands[-1]] = self.machine.resharded(self.values[operand], source, target)
        alone = op.clone(dict(zip(op.operands, operands, strict=True)))
        results = []
        for old, new, names in zip(op.results, alone.results, indices.results, strict=True):
            set_type(new, without(stg.tensor_type(old), names, split))
        made = Meaning(self.machine, values, path).compute(alone)
        for old, new, value in zip(op.results, alone.results, made, strict=True):
            before, after = stg.tensor_type(new), stg.tensor_type(old)
            results.append(self.machine.sliced(value, before.dims, after.dims))
        return results

    # Structure

    def stg_weight(self, op: stg.WeightOp) -> list[Value]:
        self.paths[op.weight] = op.path.data
        return [self.placed(np.asarray(self.weights[op.path.data]), op.weight.type)]

    def stg_cache(self, op: stg.CacheOp) -> list[Value]:
        """What requests keep is given beside the weights."""
        return [self.placed(np.asarray(self.weights[op.path.data]), op.cache.type)]

    def placed(self, array: Array, value_type: object) -> Value:
        if isinstance(value_type, StackType):
            return [self.placed(element, value_type.element) for element in array]
        if isinstance(value_type, ShardType):
            return self.machine.stored(self.machine.spread(array, value_type.tensor), value_type)
        assert isinstance(value_type, TensorType)
        return self.machine.spread(array, value_type)

    def stg_constant(self, op: stg.ConstantOp) -> list[Value]:
        number = parse_number(op.value.data, self.machine.sizes)
        return [self.machine.everywhere(np.array(number))]

    def stg_zeros(self, op: stg.ZerosOp) -> list[Value]:
        shape = self.machine.local_shape(stg.tensor_type(op.zeros))
        return [np.zeros((*self.machine.shape, *shape))]

    def stg_repeat(self, op: stg.RepeatOp, path: tuple[int, ...]) -> list[Value]:
        count = op.count.data.integer(self.machine.sizes)
        carried = [self.values[v] for v in op.carried]
        stacks = [self.values[v] for v in op.stacks]
        made: list[list[Value]] = [[None] * count for _ in op.stack_results]
        for iteration in range(count) if op.reverse is None else reversed(range(count)):
            self.values.update(zip(op.carry_args, carried, strict=True))
            self.values.update(
                (argument, stack[iteration])
                for argument, stack in zip(op.slice_args, stacks, strict=True)
            )
            yielded = self.block(op.body.block, (*path, iteration))
            carried = yielded[: len(carried)]
            for stack, value in zip(made, yielded[len(carried) :], strict=True):
                stack[iteration] = value
        return [*carried, *made]

    def stg_accumulate(self, op: stg.AccumulateOp) -> list[Value]:
        sums: list[Value] | None = None
        step = self.machine
        for microbatch in range(step.sizes[op.axis.data]):
            self.machine = step.at(microbatch)
            self.inputs_of(self.program)
            terms = self.block(op.body.block, ())
            sums = (
                terms if sums is None else [total(a, b) for a, b in zip(sums, terms, strict=True)]
            )
        self.machine = step
        assert sums is not None
        return sums

    def stg_output(self, op: stg.OutputOp) -> list[Value]:
        self.outcome.outputs = [self.whole(v, v.type) for v in op.values]
        self.gradients(op.weights, op.gradients)
        return []

    def stg_gradient_statistic(self, op: stg.GradientStatisticOp) -> list[Value]:
        """The step reads what it scales: here gradients are told from it as they are."""
        return [np.zeros(self.machine.shape)]

    def stg_optimizer_step(self, op: stg.OptimizerStepOp) -> list[Value]:
        self.gradients(list(map(stored, op.weights)), list(map(stored, op.gradients)))
        return [self.values[value] for value in op.kept]

    def stg_update_rows(self, op: stg.UpdateRowsOp) -> list[Value]:
        """The gradient that the table would have, of all microbatches."""
        path, table = self.paths[op.table], stg.tensor_type(op.table)
        for ids, dy in zip(op.ids, op.dys, strict=True):
            known, back = stg.tensor_type(ids).names, stg.tensor_type(dy).names
            over = next((n for n in known if n not in back), None)
            to = next((n for n in back if n not in (*known, *table.names)), None)
            if over is None:
                grad = stg.EmbeddingGradOp(ids, dy, like=table)
            else:
                grad = stg.EmbeddingBagGradOp(ids, dy, over, to, like=table)
            (made,) = Meaning(self.machine, self.values, ()).compute(grad)
            whole = self.assembled(made, table)
            self.outcome.gradients[path] = self.outcome.gradients.get(path, 0) + whole
        return []

    def stg_chunk(self, op: stg.ChunkOp) -> list[Value]:
        whole, axis, ways = self.values[op.whole], self.axis_of(op), self.ways_within(op)
        count = self.machine.sizes[stack_axis(op.chunks)]
        parts = whole.reshape(*whole.shape[:axis], ways, count, -1, *whole.shape[axis + 1 :])
        chunks = np.moveaxis(parts, axis + 1, 0)
        return [[c.reshape(*whole.shape[:axis], -1, *whole.shape[axis + 1 :]) for c in chunks]]

    def stg_join_chunks(self, op: stg.JoinChunksOp) -> list[Value]:
        chunks, axis, ways = self.values[op.chunks], self.axis_of(op), self.ways_within(op)
        before, after = chunks[0].shape[:axis], chunks[0].shape[axis + 1 :]
        parts = [c.reshape(*before, ways, 1, -1, *after) for c in chunks]
        return [np.concatenate(parts, axis + 1).reshape(*before, -1, *after)]

    def axis_of(self, op: stg.ChunkOp | stg.JoinChunksOp) -> int:
        return self.machine.depth + stg.tensor_type(op.whole).names.index(op.dim.data)

    def ways_within(self, op: stg.ChunkOp | stg.JoinChunksOp) -> int:
        """Ranks of whose parts a chunk has a part each."""
        axes = op.within.data if op.within is not None else ()
        return prod(self.machine.sizes[axis] for axis in axes)

    def dist_state(self, op: dist.StateOp) -> list[Value]:
        empty = np.zeros_like(np.asarray(self.weights[op.path.data]))
        return [self.placed(empty, op.state.type)]

    def dist_store(self, op: dist.StoreOp) -> list[Value]:
        return [self.values[value] for value in op.values]

    def dist_load(self, op: dist.LoadOp) -> list[Value]:
        return [self.values[value] for value in op.values]

    def dist_sum_on_host(self, op: dist.SumOnHostOp) -> list[Value]:
        return [self.values[value] for value in op.values]

    def gradients(self, weights: Sequence[SSAValue], gradients: Sequence[SSAValue]) -> None:
        for weight, gradient in zip(weights, gradients, strict=True):
            path = self.paths[source(weight)]
            self.outcome.gradients[path] = self.whole(gradient, gradient.type)

    def whole(self, value: SSAValue, value_type: object) -> Array:
        return self.assembled(self.values[value], value_type)

    def assembled(self, value: Value, value_type: object) -> Array:
        if isinstance(value_type, StackType):
            return np.array([self.assembled(element, value_type.element) for element in value])
        if isinstance(value_type, ShardType):
            return self.machine.whole(self.machine.unstored(value, value_type), value_type.tensor)
        assert isinstance(value_type, TensorType)
        return self.machine.whole(value, value_type)

    # What moves

    def moved(self, op: dist.Movement) -> Array:
        value, machine = self.values[op.operand], self.machine
        source, target = op.source, op.target
        match op:
            case dist.ReshardOp():
                return machine.resharded(value, source, target)
            case dist.AllGatherOp():
                for each in op.steps:
                    value = machine.gathered(value, source.names.index(each.name), each.split)
                return value
            case dist.AllReduceOp():
                reduce = machine.summed if op.kind.data == "sum" else machine.largest
                return reduce(value, op.axes.data)
            case dist.ReduceScatterOp():
                summed = machine.summed(value, op.axes.data)
                for each in op.steps:
                    summed = machine.part(summed, source.names.index(each.name), each.split)
                return summed
            case dist.AllToAllOp():
                whole = machine.gathered(value, source.names.index(op.gather.data), op.axes.data)
                return machine.part(whole, source.names.index(op.scatter.data), op.axes.data)
            case dist.SliceOp():
                return machine.part(value, source.names.index(op.dim.data), op.axes.data)
        raise AssertionError(op.name)

    def stored(self, op: dist.StorageOp, value: Value, source: object, target: object) -> Value:
        """What a storage op makes of one value, element by element of a stack."""
        if isinstance(source, StackType) and isinstance(target, StackType):
            return [self.stored(op, v, source.element, target.element) for v in value]
        axes = op.axes.data
        match op:
            case dist.UnshardOp():
                assert isinstance(source, ShardType)
                return self.machine.unstored(value, source)
            case dist.ReduceShardOp():
                assert isinstance(target, ShardType)
                return self.machine.stored(self.machine.summed(value, axes), target)
            case dist.TakeShardOp() | dist.KeepShardOp():
                assert isinstance(target, ShardType)
                return self.machine.stored(value, target)
            case dist.AllReduceShardOp() | dist.AllReduceGradientOp():
                return self.machine.summed(value, axes)
        raise AssertionError(op.name)


def source(weight: SSAValue) -> SSAValue:
    """The weight behind its shard."""
    owner = weight.owner
    if isinstance(owner, dist.TakeShardOp):
        return owner.values[list(owner.outputs).index(weight)]
    return weight


def stored(value: SSAValue) -> SSAValue:
    """The whole stack behind what an update in a repeat reads, also where it comes from the host."""
    owner = value.owner
    if isinstance(owner, dist.LoadOp):
        return stored(owner.values[list(owner.outputs).index(value)])
    repeat = owner.parent_op() if isinstance(owner, Block) else None
    if isinstance(repeat, stg.RepeatOp):
        return stored(repeat.stacks[list(repeat.slice_args).index(value)])
    return value


def parse_number(text: str, sizes: Mapping[str, int]) -> float:
    """Decimal text, a size, or the root of one: `sqrt(D/H)`."""
    root = re.fullmatch(r"(r?)sqrt\((.*)\)", text)
    if root:
        return parse_number(root[2], sizes) ** (-0.5 if root[1] else 0.5)
    try:
        return float(text)
    except ValueError:
        return float(parse(text).evaluate(sizes))


__all__ = ["Outcome", "run"]
