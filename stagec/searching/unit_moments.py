"""What a rank without a pipeline holds at some moments of its backward pass, beside what it stores: where a unit of parameters is gathered and reduced.

A *unit* is what FSDP gathers together (`stagec.analysis.units`). Under ZeRO 3 `shard-parameters` gathers a unit of a layer as one buffer, also with what no
gradient reads, before the first op of the layer's backward pass that belongs to it. `reduce-gradients` reduces what the unit's backward pass made at its
end, from a copy (`plan-memory`: `copied`). Then all layers that are still to go back hold what they saved. Of the layer at hand nothing is counted, as it may
have been freed; but if it saved its inputs alone, it has made all again that its backward pass reads before that begins.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from xdsl.ir import Block, Operation, OpResult, SSAValue

from stagec.analysis.buffers import WeightUpdate, roots, updates
from stagec.analysis.units import ROOT, first_use, unit_of
from stagec.dialects import sched, stg
from stagec.dialects.memory import Kind
from stagec.dialects.types import StackType, bytes_of, tensor_of
from stagec.plans.clauses import Plan
from stagec.rewriting.saved_values import BlockPair, levels_of
from stagec.searching.saved_bytes import (
    bytes_beside,
    bytes_but_attention,
    bytes_of_inputs,
    bytes_saved,
)
from stagec.symbolic import ONE, ZERO, Size, total


class UnitMoment(NamedTuple):
    """What is held at one moment of a backward pass, in bytes."""

    saved: Size
    """What all layers saved that have their backward passes later."""
    inputs: Size
    """The part of that which is inputs of these layers."""
    but_attention: Size
    """The part of that which is saved at least if the core of attention is made again."""
    remade: Size = ZERO
    """What the layer at hand holds when it has made again all that it did not save: what it would have saved."""
    shared: Size = ZERO
    """Under ZeRO 3, what is whole of parameters and gradients that data-parallel ranks share out: parameters that are gathered, gradients as they were made,
    and the copy of them that is reduced. Other gradients are added up at once."""


def moments_of(program: stg.ProgramOp, plan: Plan, units: Sequence[str]) -> list[UnitMoment]:
    """The moments of a program without a pipeline. `units` are the modules that the plan would gather at once under ZeRO 3, if it does not name them itself."""
    levels = [each for each in levels_of(program) if each.outer is not None]
    is_nested = any(each.outer is not None and each.outer.outer is not None for each in levels)
    if plan.offload.activations or is_nested or not levels:
        return []
    named = units if plan.units is None else plan.units
    of_layers, of_root, others = weights_by_unit(program, levels, named, is_unit_known(plan))
    trained = updates(program)
    found = [at_the_start(levels, of_root, trained, plan)]
    for level in levels:
        later = [each for each in levels if index_of(each.mirrored) > index_of(level.mirrored)]
        # All of the layers but the one at hand.
        rest, one = level.repeat.count.data - ONE, saved_by_one(level)
        pairs = [each + rest * of_one for each, of_one in zip(saved_by(later), one, strict=True)]
        saved = pairs[0], pairs[1], pairs[2]
        root = kept_of_root(of_root, trained, index_of(level.repeat), plan)
        every = [each for each in of_layers[level].values() if any(w in trained for w in each)]
        first = gathered_bytes(every[0], plan) if len(every) == 1 else ZERO
        found.append(UnitMoment(*saved, one[0], root + first))
        for weights in every:
            gathered = gathered_bytes(weights, plan)
            found.append(UnitMoment(*saved, shared=root + gathered))
            for made, copied in reduced_bytes(weights, trained, level.backward, plan):
                found.append(UnitMoment(*saved, shared=root + made + copied))
    for weights in others.values():
        found += beside_layers(weights, levels, of_root, trained, plan)
    # The root unit is reduced when all has gone back.
    for made, copied in reduced_bytes(of_root, trained, block_of_all(levels), plan):
        found.append(UnitMoment(ZERO, ZERO, ZERO, shared=made + copied))
    return found


def at_the_start(
    levels: Sequence[BlockPair],
    of_root: Sequence[stg.WeightOp],
    trained: Mapping[stg.WeightOp, WeightUpdate],
    plan: Plan,
) -> UnitMoment:
    """The moment at which the backward pass begins: all layers hold what they saved, and the root unit is gathered."""
    beside = bytes_beside(levels)[0]
    every, inputs, kept = saved_by(levels)
    saved = every + beside, inputs + beside, kept + beside
    return UnitMoment(*saved, shared=kept_of_root(of_root, trained, sys.maxsize, plan))


def beside_layers(
    weights: Sequence[stg.WeightOp],
    levels: Sequence[BlockPair],
    of_root: Sequence[stg.WeightOp],
    trained: Mapping[stg.WeightOp, WeightUpdate],
    plan: Plan,
) -> list[UnitMoment]:
    """The moments at the end of the backward pass of a unit beside the layers: it is gathered until its gradients are made, and then these are copied."""
    block = block_of_all(levels)
    learning = [each for each in weights if each in trained and each.own is None]
    makers = [op for each in learning for op in makers_in(block, trained[each].gradient)]
    if not makers:
        return []
    end = max(map(block.get_operation_index, makers))
    later = [each for each in levels if index_of(each.mirrored) > end]
    saved = saved_by(later)
    root = kept_of_root(of_root, trained, min(first_read(each.weight) for each in learning), plan)
    gathered = gathered_bytes(weights, plan)
    return [
        UnitMoment(*saved, shared=root + made + each)
        for made, copied in reduced_bytes(weights, trained, block, plan)
        for each in (gathered, copied)
    ]


Saved = tuple[Size, Size, Size]
"""The first fields of `UnitMoment`."""


def saved_by(levels: Sequence[BlockPair]) -> Saved:
    """The bytes that some layers saved, and the parts of that which `UnitMoment` tells apart."""
    counted = [(each.repeat.count.data, saved_by_one(each)) for each in levels]
    found = [total(count * one[n] for count, one in counted) for n in range(3)]
    return found[0], found[1], found[2]


def saved_by_one(level: BlockPair) -> Saved:
    """The same of one layer."""
    return bytes_saved(level), bytes_of_inputs(level), bytes_but_attention(level)


def block_of_all(levels: Sequence[BlockPair]) -> Block:
    """The block that has the layers, with all that is computed of a microbatch beside them."""
    block = levels[0].mirrored.parent_block()
    assert block is not None
    return block


def index_of(op: stg.RepeatOp) -> int:
    """Where layers stand among what is computed of a microbatch."""
    block = op.parent_block()
    assert block is not None
    return block.get_operation_index(op)


def is_unit_known(plan: Plan) -> bool:
    """Whether it is known what a unit is, and when it is gathered."""
    return plan.units != () and not plan.offload.parameters


def weights_by_unit(
    program: stg.ProgramOp, levels: Sequence[BlockPair], units: Sequence[str], is_known: bool
) -> tuple[
    Mapping[BlockPair, Mapping[str, list[stg.WeightOp]]],
    list[stg.WeightOp],
    Mapping[str, list[stg.WeightOp]],
]:
    """The weights of each unit of a layer, by the layers that slice them; those of the root unit that are no layer's; and those of other units beside the
    layers. If it is not known what a unit is, there are none.
    """
    of_layers: dict[BlockPair, dict[str, list[stg.WeightOp]]]
    of_layers = defaultdict(lambda: defaultdict(list))
    of_root: list[stg.WeightOp] = []
    others: dict[str, list[stg.WeightOp]] = defaultdict(list)
    for op in program.body.block.ops if is_known else ():
        if not isinstance(op, stg.WeightOp):
            continue
        unit = unit_of(op.path.data, units)
        readers = [level for level in levels if op.weight in level.repeat.stacks]
        if not isinstance(op.weight.type, StackType):
            (of_root if unit == ROOT else others[unit]).append(op)
        elif len(readers) == 1 and not (units and unit == ROOT):
            of_layers[readers[0]][unit].append(op)
    return of_layers, of_root, others


def kept_of_root(
    weights: Sequence[stg.WeightOp],
    trained: Mapping[stg.WeightOp, WeightUpdate],
    position: int,
    plan: Plan,
) -> Size:
    """The bytes of the root unit that are gathered when something goes back of which the forward pass stands at this position.

    They are one buffer where they are split over the same axes, which is there until the gradients of all of them are made: if a weight is read before the
    position, until later.
    """
    groups = by_axes(each for each in weights if each in trained and each.own is None)
    kept = [each for each in groups if any(first_read(w.weight) < position for w in each)]
    return total(gathered_bytes(each, plan) for each in kept)


def first_read(weight: SSAValue) -> int:
    """Where the forward pass first computes with a weight, or with what was gathered of it."""
    found = [
        first_read(use.operation.results[use.index])
        for use in weight.uses
        if sched.effects_of(use.operation).makes == Kind.GATHERED
    ]
    return min(found, default=first_use(weight))


def gathered_bytes(weights: Sequence[stg.WeightOp], plan: Plan) -> Size:
    """The bytes of one layer's weights as they are gathered. Those that have a dtype of their own may be narrower, and are left out."""
    plain = [tensor_of(each.weight.type) for each in weights if each.own is None]
    return total(bytes_of(each.num_elements, plan.precision.gather) for each in plain)


def by_axes(weights: Iterable[stg.WeightOp]) -> list[list[stg.WeightOp]]:
    """Weights, put together by the axes that split them: those of a group are gathered, and reduced, as one buffer."""
    groups: dict[frozenset[str], list[stg.WeightOp]] = defaultdict(list)
    for each in weights:
        groups[frozenset(tensor_of(each.weight.type).split_axes)].append(each)
    return [*groups.values()]


def reduced_bytes(
    weights: Sequence[stg.WeightOp],
    trained: Mapping[stg.WeightOp, WeightUpdate],
    block: Block,
    plan: Plan,
) -> Iterator[tuple[Size, Size]]:
    """For those of these weights (of one layer) that are reduced together: the bytes of the gradients that a block makes of them, and of the copy that is
    reduced, if that is made before the backward pass goes on.
    """
    is_at_once = plan.gradients.overlap and not plan.gradients.late
    for group in by_axes(each for each in weights if each in trained and each.own is None):
        made: list[Size] = []
        copied: list[Size] = []
        for each in group:
            makers = makers_in(block, trained[each].gradient)
            dtypes = {tensor_of(op.results[0].type).dtype for op in makers}
            if len(dtypes) == 1:
                elements = tensor_of(each.weight.type).num_elements
                made.append(bytes_of(elements, dtypes.pop()))
                copied.append(bytes_of(elements, plan.precision.reduce))
        yield total(made), total(copied) if is_at_once else ZERO


def makers_in(block: Block, gradient: SSAValue | None) -> list[Operation]:
    """The ops of a block that make a gradient of a weight."""
    made = roots(gradient, through_reductions=True) if gradient is not None else ()
    every = [each.op for each in made if isinstance(each, OpResult)]
    return [op for op in every if op.parent is block and stg.phase_of(op) == "wgrad"]
