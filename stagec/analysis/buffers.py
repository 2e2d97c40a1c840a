"""Which values are whose memory: weights and the gradients that update them, sums over microbatches, what stays from step to step.

Of a program of tasks, followed through views, loops and collectives; ops say by their effects what they do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from stagec import symbolic
from stagec.analysis.dataflow import is_node
from stagec.dialects import dist, sched, stg
from stagec.dialects.interfaces import elements, num_bytes
from stagec.dialects.memory import BEYOND, OPERAND, WHOLE, Kind, Stored, StoredOp
from stagec.dialects.op import around
from stagec.dialects.types import TIME_AXIS, StackType, bytes_of, tensor_of
from stagec.dialects.use_def import followed, from_stack, one_by_one, viewed
from stagec.symbolic import ONE, Size, symbol


@dataclass(frozen=True)
class WeightUpdate:
    """What an update says of a weight."""

    part: SSAValue
    """The part of the weight that is updated."""
    gradient: SSAValue | None
    """As the backward pass and its reductions leave it, whatever an optimizer of matrices then makes of it. None: rows are updated from what flows back to
    them."""
    states: Size
    """Bytes of what a rank keeps of it, beside a master copy."""
    master: str | None
    """The dtype of that copy, if weights are narrower."""
    states_on_host: bool
    states_on_nvme: bool
    on_cpu: bool
    """The host computes it, of its own copy of the weight."""


def updates(program: stg.ProgramOp) -> dict[stg.WeightOp, WeightUpdate]:
    """The update of each weight that learns."""
    found: dict[stg.WeightOp, WeightUpdate] = {}
    for op in program.walk():
        effects = sched.effects_of(op)
        effect = effects.updates
        if effect is None:
            continue
        count = len(effect.states)
        gradients = [None] * count if effect.from_rows else op.operands[count : 2 * count]
        pairs = zip(op.operands[:count], gradients, effect.states, strict=True)
        for one, other, size in pairs:
            weight = of_all_layers(one)
            gradient = None if other is None else of_backward(of_all_layers(other))
            states = size * symbolic.product(r.count.data for r in repeats_around(op))
            owner = followed(weight, viewed).owner
            if isinstance(owner, stg.WeightOp):
                # Weights that were loaded are overwritten for the host, too: states are what is kept beside them. Moments and the master copy go
                # before a weight that travels, which may come from NVMe alone.
                weights = op.operands[:count]
                kept = [op.operands[each.operand] for each in effects.overwrites]
                kept = [value for value in kept if value not in weights]
                on_cpu = effects.makes == Kind.HOST
                first = kept[0].owner if kept else None
                on_nvme = isinstance(first, sched.HostCopyOp) and first.is_of_nvme
                found[owner] = WeightUpdate(
                    weight,
                    gradient,
                    states,
                    effect.master,
                    bool(kept) or on_cpu,
                    on_nvme,
                    on_cpu,
                )
    return found


def repeats_around(op: Operation) -> Iterator[stg.RepeatOp]:
    """The repeats that an op is in."""
    yield from (each for each in around(op) if isinstance(each, stg.RepeatOp))


def of_all_layers(value: SSAValue) -> SSAValue:
    """The stack behind what an update in a repeat reads, also where it is loaded from the host."""
    return followed(value, one_by_one(sched.HostCopyOp), from_stack)


def of_backward(subtracted: SSAValue) -> SSAValue:
    """The gradient behind what Muon, Shampoo and SOAP subtract of a weight: momenta of it, products of these, gathers and exchanges."""
    value = subtracted
    while isinstance(value, OpResult) and stg.phase_of(value.op) == "optim":
        op = value.op
        if isinstance(op, stg.RepeatOp):
            element = of_backward(op.yield_op.operands[value.index])
            assert isinstance(element, BlockArgument)
            value = op.operands[element.index]
        else:
            value = reduced_from(value) or op.operands[value.index]
    return value


# The loop over microbatches


def loops(program: stg.ProgramOp) -> list[stg.AccumulateOp]:
    """The loop over microbatches, if there is one."""
    return [op for op in program.body.block.ops if isinstance(op, stg.AccumulateOp)]


def ops_inside(program: stg.ProgramOp) -> set[Operation]:
    """The ops of the loop over microbatches."""
    return {inner for loop in loops(program) for inner in loop.walk()}


def summed_results(program: stg.ProgramOp) -> dict[SSAValue, str]:
    """The results of which the loop over microbatches adds up some instance, and the dtype of the sum."""
    return {
        root: tensor_of(total.type).dtype
        for loop in loops(program)
        for value, total in zip(loop.yield_op.values, loop.results, strict=True)
        for root in roots(value)
    }


# Backwards


def reduced_from(value: SSAValue) -> SSAValue | None:
    """What a collective, a copy into the buffer of one or to the host, or a view was made from."""
    if not isinstance(value, OpResult):
        return None
    op = value.op
    if isinstance(op, sched.CollectiveOp | sched.HostCopyOp):
        return op.values[value.index]
    if isinstance(op, sched.ComputeOp) and sched.effects_of(op).one_buffer:
        return op.inputs[value.index]
    return op.operand if isinstance(op, sched.ViewOp) else None


def roots(value: SSAValue, through_reductions: bool = False) -> Iterable[SSAValue]:
    """The results of nodes that a value may be, in any iteration, the same order each time; also those that its reductions read, if asked for."""
    found: dict[SSAValue, None] = {}
    seen: set[SSAValue] = set()
    ahead = [value]
    while ahead:
        value = ahead.pop()
        if value in seen:
            continue
        seen.add(value)
        if isinstance(value, OpResult) and is_node(value.op):
            found[value] = None
            source = reduced_from(value) if through_reductions else None
            ahead += [source] if source is not None else []
        elif through_reductions or not isinstance(value.owner, stg.AccumulateOp):
            ahead += [source for source, _ in steps_back(value)]
    return found


def steps_back(value: SSAValue) -> list[tuple[SSAValue, bool]]:
    """What a value is that a view, a repeat or a loop over microbatches hands on, and whether it is that in every iteration."""
    owner = value.owner
    if isinstance(value, BlockArgument):
        repeat = value.block.parent_op()
        if not isinstance(repeat, stg.RepeatOp):
            return []
        before = repeat.operands[value.index]
        if value.index >= repeat.num_carried:
            return [(before, True)]
        return [(before, False), (repeat.yield_op.operands[value.index], False)]
    assert isinstance(value, OpResult)
    if isinstance(owner, sched.ViewOp):
        return [(owner.operand, True)]
    if isinstance(owner, stg.AccumulateOp):
        return [(owner.yield_op.operands[value.index], False)]
    if not isinstance(owner, stg.RepeatOp):
        return []
    last = owner.yield_op.operands[value.index]
    if value.index >= owner.num_carried:
        return [(last, True)]
    return [(last, False), (owner.operands[value.index], False)]


def gradient_values(program: stg.ProgramOp) -> set[SSAValue]:
    """The results of nodes that are gradients of weights: what updates read, or other stages are given, back to what made it."""
    read = [each.gradient for each in updates(program).values() if each.gradient is not None]
    read += [op.gradient for op in program.walk() if isinstance(op, dist.GiveGradientOp)]
    return {root for value in read for root in roots(value, through_reductions=True)}


# What stays from step to step


def stored_by(program: stg.ProgramOp) -> Iterator[Stored]:
    """What one rank stores for each weight and cache of a program."""
    updated = updates(program)
    for op in program.body.block.ops:
        if isinstance(op, stg.CacheOp):
            size = num_bytes(op.cache) * parts_in_time(op.cache)
            yield Stored(op.path.data, Kind.CACHE, size)
        if not isinstance(op, stg.WeightOp):
            continue
        path = op.path.data
        come = copied_by(op.weight)
        away = (come is not None, come is not None and come.is_of_nvme)
        yield Stored(path, Kind.PARAMETERS, num_bytes(op.weight), *away)
        update = updated.get(op)
        if update is None:
            continue
        where = (update.states_on_host, update.states_on_nvme)
        yield Stored(path, Kind.OPTIMIZER, update.states, *where)
        if update.master is not None and not stg.is_wide(update.part, update.master):
            master = bytes_of(elements(update.part), update.master)
            yield Stored(path, Kind.MASTER, master, *where)
        elif update.on_cpu and come is None:
            yield Stored(path, Kind.MASTER, num_bytes(update.part), *where)


def gradient_rows(program: stg.ProgramOp) -> Iterator[Stored]:
    """The gradients that a rank adds up, as its buffers are planned: whole, unless a reduction puts a part into memory of its own."""
    for weight, update in updates(program).items():
        if update.gradient is not None:
            values = back_to_sum(update.gradient)
            kept = values[-1] if all(map(is_part_in_place, values)) else values[0]
            beyond = is_summed_beyond(values[-1])
            yield Stored(weight.path.data, Kind.GRADIENTS, num_bytes(kept), beyond)


def is_part_in_place(value: SSAValue) -> bool:
    """Whether a reduced part of a whole gradient is in the memory of that; also of what is no such part."""
    if not isinstance(value, OpResult):
        return True
    plan = sched.planned(value.op)
    if plan is None or plan.buffers[value.index].where == OPERAND:
        return True
    effects = sched.effects_of(value.op)
    return all(e.when != WHOLE or e.result != value.index for e in effects.overwrites)


def stored_of(program: stg.ProgramOp) -> tuple[Stored, ...]:
    """What the plan of memory says that a rank stores for a program."""
    module = program.parent_op()
    assert module is not None
    kind = stg.text(program, "kind")
    for op in module.regions[0].block.ops:
        if isinstance(op, StoredOp) and op.kind.data == kind:
            return op.rows.data
    return ()


@dataclass(frozen=True)
class KeptBy:
    """Whose a row of what is stored is."""

    op: Operation
    """A weight, a cache, or the program where it is the process' or of its buffers."""
    is_of_buffers: bool = False

    @property
    def is_of_stage(self) -> bool:
        """Whether each stage has its own, as of layers: else stages of a rank share it."""
        return self.is_of_buffers or any(
            isinstance(result.type, StackType) for result in self.op.results
        )


def owners(
    program: stg.ProgramOp, *, with_gradients: bool = True
) -> Iterator[tuple[Stored, KeptBy]]:
    """What a rank stores for a program, and whose it is; gradients have lifetimes of their own."""
    known, rows = owned(program), stored_of(program)
    if rows and with_gradients:
        rows += tuple(gradient_rows(program))
    for row in rows:
        if row.is_of_program:
            yield row, KeptBy(program, row.of_buffers)
        else:
            yield row, KeptBy(known[row.path])


def owned(program: stg.ProgramOp) -> dict[str, Operation]:
    """The weights and caches of a program, by path."""
    ops = program.body.block.ops
    return {op.path.data: op for op in ops if isinstance(op, stg.WeightOp | stg.CacheOp)}


def copied_by(weight: SSAValue) -> sched.HostCopyOp | None:
    """What brings a weight from the host, or reads it from NVMe, if it is there."""
    ahead = [weight]
    for value in ahead:
        for use in value.uses:
            reader = use.operation
            if isinstance(reader, sched.HostCopyOp) and reader.direction.data in ("load", "read"):
                return reader
            if isinstance(reader, stg.RepeatOp) and use.index >= reader.num_carried:
                ahead.append(reader.body.block.args[use.index])
            elif isinstance(reader, sched.ViewOp):
                ahead.append(reader.result)
    return None


def parts_in_time(cache: SSAValue) -> Size:
    """The microbatches that a cache is of: each has its own sequences, and all of them stay."""
    splits = tensor_of(cache.type).split_axes
    return symbol(TIME_AXIS) if TIME_AXIS in splits else ONE


def back_to_sum(gradient: SSAValue) -> list[SSAValue]:
    """What the optimizer reads, and what that was made from: back through reductions, in repeats of their own where they have parts, to the sum over
    microbatches; to what a repeat makes itself, if it makes it."""
    found = [gradient]
    while (value := reduced_from(found[-1]) or of_repeat(found[-1])) is not None:
        found.append(value)
    return found


def of_repeat(value: SSAValue) -> SSAValue | None:
    """From what a repeat hands out to what its body does, and from there to the stack whose elements it takes."""
    if isinstance(value, OpResult):
        op = value.op
        return op.yield_op.operands[value.index] if isinstance(op, stg.RepeatOp) else None
    assert isinstance(value, BlockArgument)
    repeat = value.block.parent_op()
    return repeat.operands[value.index] if isinstance(repeat, stg.RepeatOp) else None


def is_summed_beyond(total: SSAValue) -> bool:
    """Whether a sum over microbatches is on the host: what these store, or fetch from there to add to."""
    if not isinstance(total, OpResult) or not isinstance(total.op, stg.AccumulateOp):
        return False
    terms = roots(total.op.yield_op.operands[total.index])
    beyond = {*BEYOND, Kind.FETCHED}
    return any(isinstance(t, OpResult) and sched.effects_of(t.op).makes in beyond for t in terms)
