"""What the forward pass saves for the backward pass, and how a pass changes it.

A *level* is a block of the forward pass with the block in which its gradients are made: the body of a repeat with
that of the repeat in reverse that mirrors it, and at the top the loop over microbatches, one block that holds both. In
a repeat a saved value is yielded as a stack, which the mirrored repeat slices; at the top it is simply read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from stagec.dialects import stg
from stagec.dialects.op import first_op


@dataclass(eq=False)
class BlockPair:
    """A block of the forward pass and the one in which its gradients are made."""

    forward: Block
    backward: Block
    outer: BlockPair | None = None
    """The level around this one; none at the top, where both blocks are the same."""

    @property
    def repeat(self) -> stg.RepeatOp:
        return repeat_of(self.forward)

    @property
    def mirrored(self) -> stg.RepeatOp:
        return repeat_of(self.backward)

    def forward_ops(self) -> list[Operation]:
        return [op for op in self.forward.ops if stg.phase_of(op) == "fwd"]

    def backward_ops(self) -> list[Operation]:
        """The ops that may read what was saved."""
        if self.outer is not None:
            return list(self.backward.ops)
        return [op for op in self.backward.ops if stg.phase_of(op) != "fwd"]

    def saved(self) -> dict[SSAValue, SSAValue]:
        """What the backward block reads as slices: the argument, and the forward value behind it."""
        if self.outer is None:
            return {}
        repeat, num_carried = self.repeat, self.repeat.num_carried
        stacked = dict(zip(repeat.results, repeat.yield_op.values, strict=True))
        views = {self.outer.seen(r): stacked[r] for r in repeat.results[num_carried:]}
        mirrored = self.mirrored
        return {
            argument: views[stack]
            for argument, stack in zip(mirrored.slice_args, mirrored.stacks, strict=True)
            if stack in views
        }

    def reads_of(
        self, values: Collection[SSAValue]
    ) -> list[tuple[Operation, Operation, int, SSAValue]]:
        """Where the backward block reads some values of the forward pass: its op, that or an op in it that reads, the operand's position, and the value."""
        saved = self.saved() if self.outer is not None else {v: v for v in values}
        views = {view: value for view, value in saved.items() if value in values}
        return [
            (reader, op, index, views[op.operands[index]])
            for reader in self.backward_ops()
            for op, index in reads_of(reader, views)
        ]

    def seen(self, value: SSAValue) -> SSAValue | None:
        """A forward value as the backward block sees it now, if it does."""
        if self.outer is None:
            return value
        if not self.defines(value):
            return self.outer.seen(value)
        stack = self.stack_of(value)
        view = self.outer.seen(stack) if stack is not None else None
        return self.slice_of(view) if view is not None else None

    def use(self, value: SSAValue) -> SSAValue:
        """A forward value as the backward block sees it; it is saved if it was not."""
        if self.outer is None:
            return value
        if not self.defines(value):
            return self.outer.use(value)
        view = self.outer.use(self.stack_of(value) or self.save(value))
        return self.slice_of(view) or self.add_slice(view)

    def defines(self, value: SSAValue) -> bool:
        owner = value.owner
        return (owner if isinstance(owner, Block) else owner.parent_block()) is self.forward

    def stack_of(self, value: SSAValue) -> SSAValue | None:
        """The stack that has a value of each iteration, around the repeat."""
        repeat = self.repeat
        num_carried = repeat.num_carried
        if isinstance(value, BlockArgument) and value.index >= num_carried:
            return repeat.operands[value.index]
        for yielded, result in zip(repeat.yield_op.values, repeat.results, strict=True):
            if yielded is value and result.index >= num_carried:
                return result
        return None

    def save(self, value: SSAValue) -> SSAValue:
        """Let the repeat yield a value of its body as one more stack."""
        return stg.grown(self.repeat, [value]).results[-1]

    def slice_of(self, stack: SSAValue) -> SSAValue | None:
        mirrored = self.mirrored
        pairs = zip(mirrored.stacks, mirrored.slice_args, strict=True)
        return next((argument for sliced, argument in pairs if sliced is stack), None)

    def add_slice(self, stack: SSAValue) -> SSAValue:
        mirrored = self.mirrored
        argument = stg.slice_arg(self.backward, stack)
        rebuilt(mirrored, [*mirrored.stacks, stack], range(len(mirrored.results)))
        return argument

    # Saving less

    def drop_slices(self) -> None:
        """Take out the slices that the backward block does not read."""
        without_unread_slices(self.mirrored)

    def drop_stacks(self) -> None:
        """Take out the stacks that nothing reads."""
        repeat = self.repeat
        num_carried = repeat.num_carried
        kept = [r.index for r in repeat.results if r.index < num_carried or r.uses]
        if len(kept) < len(repeat.results):
            values = repeat.yield_op.values
            repeat.yield_op.operands = [values[i] for i in kept]
            rebuilt(repeat, repeat.stacks, kept)


def repeat_of(block: Block) -> stg.RepeatOp:
    repeat = block.parent_op()
    assert isinstance(repeat, stg.RepeatOp)
    return repeat


def rebuilt(op: stg.RepeatOp, stacks: Sequence[SSAValue], kept: Sequence[int]) -> stg.RepeatOp:
    """Replace a repeat by one of the same body that slices `stacks` and has the `kept` results."""
    body = op.detach_region(op.body)
    reverse = op.reverse is not None
    new = stg.RepeatOp(op.count.data, op.carried, stacks, body, reverse=reverse, first=op.first)
    stg.marks(new).take(stg.marks(op))
    new.location = op.location
    Rewriter.insert_op(new, InsertPoint.before(op))
    for position, result in zip(kept, new.results, strict=True):
        op.results[position].replace_all_uses_with(result)
    op.detach()
    op.erase()
    return new


def without_unread_slices(repeat: stg.RepeatOp) -> None:
    """Take out the slices that the body does not read."""
    pairs = list(zip(repeat.stacks, repeat.slice_args, strict=True))
    unread = [argument for _, argument in pairs if not argument.uses]
    if unread:
        for argument in unread:
            repeat.body.block.erase_arg(argument)
        stacks = [stack for stack, argument in pairs if argument not in unread]
        rebuilt(repeat, stacks, range(len(repeat.results)))


def levels_of(program: stg.ProgramOp) -> list[BlockPair]:
    """The levels of a program, inner ones before those around them."""
    block = program.body.block
    loop = first_op(block, stg.AccumulateOp)
    top = loop.body.block if loop is not None else block
    found: list[BlockPair] = []
    collect(BlockPair(top, top), found)
    return found


def collect(level: BlockPair, found: list[BlockPair]) -> None:
    for op in level.forward_ops():
        if isinstance(op, stg.RepeatOp) and (mirrored := mirror_of(op, level)) is not None:
            collect(BlockPair(op.body.block, mirrored.body.block, level), found)
    found.append(level)


def mirror_of(repeat: stg.RepeatOp, level: BlockPair) -> stg.RepeatOp | None:
    """The repeat that makes the gradients of this one's body: the one that slices what it saves.

    The steps of an op that was taken apart (ring attention) are no level: they are done together.
    """
    if stg.STEPS in repeat.properties:
        return None
    for result in repeat.stack_results:
        view = level.seen(result)
        for use in view.uses if view is not None else ():
            reader = use.operation
            if (
                isinstance(reader, stg.RepeatOp)
                and reader.parent_block() is level.backward
                and stg.phase_of(reader) != "fwd"
                and use.index >= reader.num_carried
            ):
                return reader
    return None


def remove_unread(levels: Sequence[BlockPair]) -> None:
    """Save no more than the backward pass reads. `levels` as `levels_of` gives them."""
    repeated = [level for level in levels if level.outer is not None]
    for level in repeated:
        level.drop_slices()
    for level in reversed(repeated):
        level.drop_stacks()


def reads_of(op: Operation, values: Mapping[SSAValue, object]) -> Iterator[tuple[Operation, int]]:
    """Where an op, or one in its regions, reads one of these values: the op and the operand's position."""
    for reader in op.walk():
        for index, operand in enumerate(reader.operands):
            if operand in values:
                yield reader, index


def inputs_of(op: Operation) -> list[SSAValue]:
    """What an op reads from outside: its operands, and what its regions capture."""
    inner = {r for each in op.walk() if each is not op for r in each.results}
    inner |= {a for each in op.walk() for region in each.regions for a in region.block.args}
    found = [x for each in op.walk() for x in each.operands if x not in inner]
    return list(dict.fromkeys(found))
