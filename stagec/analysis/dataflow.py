"""Which node makes a value: SSA followed through views, loops and stacks.

A *path* says which iteration of each enclosing repeat is meant, outermost first, counted in the order in which
they run. Element e of a stack belongs to iteration e, or to the e-th from the end of a repeat in reverse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cache
from itertools import product
from typing import NamedTuple, TypeGuard

from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue

from stagec.dialects import dist, sched, stg
from stagec.dialects.attributes import SizeAttr
from stagec.dialects.op import around
from stagec.dialects.types import StackType
from stagec.symbolic import Size

Path = tuple[int, ...]


class OpInstance(NamedTuple):
    """An op in one iteration: a node's, or what stands for a node of another stage of the rank (`OF_OTHER_STAGES`)."""

    op: Operation
    path: Path


OF_OTHER_STAGES = (sched.TakenOp, dist.FoundBeforeOp)
"""What stands for a node of another stage of the rank."""


def is_node(op: Operation) -> TypeGuard[sched.NodeOp]:
    """Whether an op becomes a node of the trace."""
    return is_kind_of_node(type(op))


@cache
def is_kind_of_node(kind: type[Operation]) -> bool:
    """Remembered: this is asked for every op at every place."""
    return issubclass(kind, sched.NodeOp)


def is_join(op: Operation) -> bool:
    """Whether an op views the chunks of a tensor, a stack, as the whole."""
    return (
        isinstance(op, sched.ViewOp)
        and isinstance(op.operand.type, StackType)
        and not isinstance(op.result.type, StackType)
    )


def behind_views(value: SSAValue) -> Operation | Block:
    """What makes the value that a value is a view of."""
    owner = value.owner
    while type(owner) is sched.ViewOp:
        owner = owner.operand.owner
    return owner


def depth_of(block: Block | None) -> int:
    """Repeats around a block."""
    holder = block.parent_op() if block is not None else None
    if holder is None:
        return 0
    return sum(type(each) is stg.RepeatOp for each in (holder, *around(holder)))


@dataclass(frozen=True, slots=True)
class Loop:
    """What a repeat hands in and out, as plain sequences: xDSL works them out anew each time they are asked for."""

    carried: Sequence[SSAValue]
    stacks: Sequence[SSAValue]
    yielded: Sequence[SSAValue]
    count: int
    is_reverse: bool

    def mirrored(self, position: int) -> int:
        """Element of an iteration, and iteration of an element."""
        return self.count - 1 - position if self.is_reverse else position

    def stack(self, argument: BlockArgument) -> SSAValue:
        """What an argument of the body is an element of."""
        return self.stacks[argument.index - len(self.carried)]


class Comes(Enum):
    """How one comes from a value to what it is made of."""

    FROM_NOWHERE = auto()
    """It is made here, or is an input."""
    FROM_ANOTHER = auto()
    """It is another value: a view of it, what a region hands out."""
    FROM_BEFORE = auto()
    """A repeat carries it: what goes in first, and then what the iteration before hands out."""
    FROM_LAST = auto()
    """What the last iteration of a repeat hands out."""
    FROM_STACK = auto()
    """An argument of a repeat: an element of a stack."""
    FROM_EACH = auto()
    """A stack of what each iteration of a repeat hands out."""


@dataclass(frozen=True, slots=True)
class FlowStep:
    """One step from a value to what it is made of. Worked out once for each value: values are asked for at many paths."""

    comes: Comes
    depth: int
    """Repeats around the value."""
    value: SSAValue | None = None
    """What it comes from; of a carried value, in the first iteration."""
    yielded: SSAValue | None = None
    """Of a carried value: what it comes from in all other iterations."""
    loop: Loop | None = None


@dataclass
class Dataflow:
    """Answers for one program, with the numbers that its sizes have."""

    values: Mapping[str, int]
    _depths: dict[SSAValue, int] = field(default_factory=dict)
    _counts: dict[SizeAttr, int] = field(default_factory=dict)
    _loops: dict[stg.RepeatOp, Loop] = field(default_factory=dict)
    _steps: dict[SSAValue, FlowStep] = field(default_factory=dict)
    _element_steps: dict[SSAValue, FlowStep | None] = field(default_factory=dict)

    def loop(self, repeat: stg.RepeatOp) -> Loop:
        found = self._loops.get(repeat)
        if found is None:
            yielded = tuple(repeat.yield_op.values)
            carried, stacks = tuple(repeat.carried), tuple(repeat.stacks)
            is_reverse = repeat.reverse is not None
            found = Loop(carried, stacks, yielded, self.count(repeat), is_reverse)
            self._loops[repeat] = found
        return found

    def count(self, repeat: stg.RepeatOp) -> int:
        """How often a repeat runs."""
        if repeat.count not in self._counts:
            self._counts[repeat.count] = repeat.count.data.integer(self.values)
        return self._counts[repeat.count]

    def source(self, value: SSAValue, path: Path) -> OpInstance | None:
        """The node that makes `value` for a reader at `path`, or what stands for it; nothing for weights and inputs."""
        origin, path = self.origin(value, path)
        if isinstance(origin, OpResult) and (
            is_node(origin.op) or isinstance(origin.op, OF_OTHER_STAGES)
        ):
            return OpInstance(origin.op, path)
        return None

    def origin(
        self, value: SSAValue, path: Path, through_joins: bool = True
    ) -> tuple[SSAValue, Path]:
        """What `value` is for a reader at `path`: a node's result, a weight, a constant or an input, and its path.

        Of a tensor that was made chunk by chunk, the last chunk; or, if asked not to look `through_joins`, the view of them all.
        """
        steps = self._steps
        while True:
            step = steps.get(value) or self._step(value)
            path = path[: step.depth]
            comes = step.comes
            if comes is Comes.FROM_NOWHERE:
                return value, path
            if comes is Comes.FROM_ANOTHER:
                assert step.value is not None
                if not through_joins and isinstance(value, OpResult) and is_join(value.op):
                    return value, path
                value = step.value
            elif comes is Comes.FROM_BEFORE:
                assert step.value is not None and step.yielded is not None
                *outer, iteration = path
                if iteration == 0:
                    value, path = step.value, (*outer,)
                else:
                    value, path = step.yielded, (*outer, iteration - 1)
            elif comes is Comes.FROM_LAST:
                assert step.value is not None and step.loop is not None
                value, path = step.value, (*path, step.loop.count - 1)
            else:
                assert step.value is not None and step.loop is not None
                found = self._element(step.value, (step.loop.mirrored(path[-1]),), path[:-1])
                if found is None:
                    return value, path
                value, path = found

    def origins(self, value: SSAValue, path: Path) -> Iterator[tuple[SSAValue, Path]]:
        """Like `origin`, for each element of a stack."""
        counts: list[int] = []
        element = value.type
        while isinstance(element, StackType):
            counts.append(element.count.integer(self.values))
            element = element.element
        for elements in product(*(range(count) for count in counts)):
            found = self._element(value, elements, path)
            if found is not None:
                yield self.origin(*found)

    def _step(self, value: SSAValue) -> FlowStep:
        step = self._steps[value] = self._made_of(value, self._depth(value))
        return step

    def _made_of(self, value: SSAValue, depth: int) -> FlowStep:
        nowhere = FlowStep(Comes.FROM_NOWHERE, depth)
        if isinstance(value, BlockArgument):
            repeat, index = value.block.parent_op(), value.index
            if not isinstance(repeat, stg.RepeatOp):
                return nowhere
            loop = self.loop(repeat)
            if index < len(loop.carried):
                first, later = loop.carried[index], loop.yielded[index]
                return FlowStep(Comes.FROM_BEFORE, depth, first, later, loop)
            return FlowStep(Comes.FROM_STACK, depth, loop.stack(value), loop=loop)
        assert isinstance(value, OpResult)
        op, index = value.op, value.index
        if isinstance(op, sched.ViewOp):
            return FlowStep(Comes.FROM_ANOTHER, depth, op.operand)
        if isinstance(op, stg.AccumulateOp):
            return FlowStep(Comes.FROM_ANOTHER, depth, op.yield_op.operands[index])
        if isinstance(op, stg.RepeatOp):
            loop = self.loop(op)
            if loop.count > 0:
                return FlowStep(Comes.FROM_LAST, depth, loop.yielded[index], loop=loop)
            if index < len(loop.carried):
                return FlowStep(Comes.FROM_ANOTHER, depth, loop.carried[index])
        return nowhere

    def _element(self, stack: SSAValue, elements: Path, path: Path) -> tuple[SSAValue, Path] | None:
        """The value that is one element of a stack, or of a stack of stacks."""
        steps = self._element_steps
        while elements:
            step = steps[stack] if stack in steps else self._element_step(stack)
            if step is None:
                return None
            path = path[: step.depth]
            if step.comes is Comes.FROM_NOWHERE:
                return stack, path
            assert step.value is not None
            if step.loop is None:
                stack = step.value
            elif step.comes is Comes.FROM_STACK:
                elements = (step.loop.mirrored(path[-1]), *elements)
                stack, path = step.value, path[:-1]
            else:
                stack, path = step.value, (*path, step.loop.mirrored(elements[0]))
                elements = elements[1:]
        return stack, path

    def _element_step(self, stack: SSAValue) -> FlowStep | None:
        step = self._element_steps[stack] = self._element_of(stack, self._depth(stack))
        return step

    def _element_of(self, stack: SSAValue, depth: int) -> FlowStep | None:
        """One step from a stack to what makes its elements; nothing if that is not known."""
        if not isinstance(stack.type, StackType):
            return FlowStep(Comes.FROM_NOWHERE, depth)  # chunks of one tensor
        if isinstance(stack, BlockArgument):
            repeat = stack.block.parent_op()
            if not isinstance(repeat, stg.RepeatOp):
                return None
            loop = self.loop(repeat)
            return FlowStep(Comes.FROM_STACK, depth, loop.stack(stack), loop=loop)
        assert isinstance(stack, OpResult)
        op = stack.op
        if isinstance(op, sched.ViewOp):
            return FlowStep(Comes.FROM_ANOTHER, depth, op.operand)
        if isinstance(op, stg.AccumulateOp):
            return FlowStep(Comes.FROM_ANOTHER, depth, op.yield_op.values[stack.index])
        if isinstance(op, stg.RepeatOp):
            loop = self.loop(op)
            return FlowStep(Comes.FROM_EACH, depth, loop.yielded[stack.index], loop=loop)
        # A node that works on whole stacks makes every element.
        return FlowStep(Comes.FROM_NOWHERE, depth) if is_node(op) else None

    def weights(self, value: SSAValue, path: Path) -> Iterator[tuple[stg.WeightOp, int]]:
        """The weights that a reader at `path` finds in `value`, each with its layer; of a stack, each element."""
        value, path = self.origin(value, path)
        elements: Path = ()
        while not (isinstance(value, OpResult) and isinstance(value.op, stg.WeightOp)):
            owner = value.owner
            if isinstance(owner, sched.ViewOp):
                value = owner.operand
                continue
            repeat = owner.parent_op() if isinstance(owner, Block) else None
            if not isinstance(repeat, stg.RepeatOp) or not isinstance(value, BlockArgument):
                return
            loop = self.loop(repeat)
            if value.index < len(loop.carried):
                return
            path = path[: self._depth(value)]
            elements = (loop.mirrored(path[-1]), *elements)
            value, path = loop.stack(value), path[:-1]
        yield from ((value.op, layer) for layer in self.weight_layers(value.op, elements))

    def weight_layers(self, weight: stg.WeightOp, chosen: Path = ()) -> Iterator[int]:
        """The layers that have a weight; of a nested stack those of the elements that begin with `chosen`."""
        counts: list[tuple[int, int]] = []
        element = weight.weight.type
        while isinstance(element, StackType):
            first = self._first(element.count) + element.first
            counts.append((element.count.integer(self.values), first))
            element = element.element
        rest = [range(count) for count, _ in counts[len(chosen) :]]
        for elements in product(*((e,) for e in chosen), *rest):
            layer = -1
            for element_number, (count, first) in zip(elements, counts, strict=True):
                number = element_number + first
                layer = number if layer < 0 else layer * count + number
            yield layer

    def elements(self, instance: OpInstance) -> Path:
        """The elements of stacks that an instance is about, one for each repeat around it: the same forward and backward."""
        found: list[int] = []
        parent = instance.op.parent_op()
        for iteration in reversed(instance.path):
            while parent is not None and not isinstance(parent, stg.RepeatOp):
                parent = parent.parent_op()
            assert parent is not None
            found.append(self.loop(parent).mirrored(iteration))
            parent = parent.parent_op()
        return tuple(reversed(found))

    def layer(self, repeats: tuple[stg.RepeatOp, ...], path: Path) -> int:
        """The number of the layer at a path, counted through nested repeats; -1 outside of any."""
        layer = -1
        for repeat, iteration in zip(repeats, path, strict=True):
            if stg.STEPS in repeat.properties:
                continue
            element = self.loop(repeat).mirrored(iteration) + self.first_layer(repeat)
            layer = element if layer < 0 else layer * self.count(repeat) + element
        return layer

    def first_layer(self, repeat: stg.RepeatOp) -> int:
        """The number of its first layer on this stage, in the whole model."""
        return self._first(repeat.count.data) + repeat.first

    def _first(self, count: Size) -> int:
        """How many layers of a repeat with that count are on the stages before; 0 if it is not cut."""
        return self.values.get(dist.first_layer(str(count)), 0)

    def _depth(self, value: SSAValue) -> int:
        if value not in self._depths:
            owner = value.owner
            block = owner if isinstance(owner, Block) else owner.parent_block()
            self._depths[value] = depth_of(block)
        return self._depths[value]
