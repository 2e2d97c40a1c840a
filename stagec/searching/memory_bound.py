"""A lower bound on what a rank holds at its peak, from what is known before anything is said of when buffers live.

There at any time are parameters, what the optimizer keeps of them, and sums of gradients over microbatches in buffers that stay. What layers hold for a while
is counted just before each backward pass of some ranks (`in_flight`). What they have saved are the stacks that a layer's backward pass slices, each value
once however often it is seen in another shape; if the backward pass is split, its second half reads some of these, and what the first half made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from xdsl.ir import Block, Operation, SSAValue

from stagec.analysis.buffers import loops, roots, stored_rows
from stagec.arrays import Floats, Ints
from stagec.dialects import dist, stg
from stagec.dialects.interfaces import num_bytes
from stagec.dialects.memory import CONTIGUOUS, Kind
from stagec.dialects.types import StackType, TensorType, bytes_of, tensor_of
from stagec.dialects.use_def import followed, viewed
from stagec.plans.clauses import Plan
from stagec.rewriting.saved_values import BlockPair, levels_of
from stagec.searching.coarse_times import Turns, own_turns
from stagec.searching.in_flight import SUMS, in_flight, is_looped
from stagec.searching.texts import PRODUCTS
from stagec.sweeping.structures import Structure
from stagec.symbolic import ONE, ZERO, Size, ceildiv, product, symbol, total
from stagec.symbolic.columns import Columns

OPTIMIZER = (Kind.MASTER, Kind.OPTIMIZER, Kind.CACHE)
WITHOUT_PIPELINE = np.array([[[1, 0, 1, 0], [0, 0, 0, 0]]])
"""What `in_flight` is then, of all layers together: one microbatch, and sums of gradients if there are several."""
NOTHING = np.zeros_like(WITHOUT_PIPELINE)
"""Where it is not known what ranks hold for a while."""


ALL, INPUTS, UNKNOWN = "all", "inputs", "unknown"
WHAT_IS_SAVED = {"none": ALL, "selective": INPUTS, "full": INPUTS}
"""By what is computed again."""


@dataclass(frozen=True)
class Storage:
    """How plans that do the same store what they have, and what they save for their backward passes."""

    level: int
    """Of ZeRO."""
    replicas: int = 1
    saves: str = ALL
    """What layers save: all that their backward passes read, of that what comes into them, or nobody knows what."""


STORED = 3
"""The first of `StageForms`: what ZeRO splits."""
DATA_AXES = ("dp", *PRODUCTS["dp"], "cp")
"""The axes over which plans of a search split that."""


class StageForms(NamedTuple):
    """What a rank holds that has one stage: bytes."""

    parameters: Size
    optimizer: Size
    """And caches."""
    sums: Size
    """Of gradients, in buffers that stay."""
    layers: Size
    """How many, of those of which something is known."""
    saved: Size = ZERO
    """By one layer, as the other three: see `in_flight`."""
    late: Size = ZERO
    begun: Size = ZERO
    gathered: Size = ZERO
    saved_beside: Size = ZERO
    """By what is beside the layers, at an end of the pipeline: logits above all."""
    late_beside: Size = ZERO
    inputs: Size = ZERO
    """Of what one layer saved, what came into it."""


def held(
    structure: Structure, sizes: Columns, turns: Sequence[Turns], storages: Sequence[Storage]
) -> list[Floats]:
    """Bytes that a rank of each plan holds at its peak, at least: as it is, and, where nothing is split, as if it were stored in each of these ways."""
    bound = Bound(structure, sizes, turns or own_turns(structure, sizes))
    own = Storage(structure.plan.zero_level)
    return [bound.held(own, is_split=False), *map(bound.held, storages)]


@dataclass(frozen=True)
class AlikeRanks:
    """Ranks at the same place of pipelines that run in the same way, in some plans."""

    rows: Ints
    stage: int
    """Of the structure, which has one for each rank."""
    ends: int
    """How many layers more a stage at an end of the pipeline has."""
    virtual: int
    """Stages of a rank."""
    moments: Ints
    """`in_flight`'s."""


@dataclass(frozen=True)
class Bound:
    structure: Structure
    sizes: Columns
    turns: Sequence[Turns]
    _known: dict[tuple[int, str, bool], Floats] = field(default_factory=dict)

    def held(self, storage: Storage, *, is_split: bool = True) -> Floats:
        """If they were stored so; `is_split`: what ZeRO splits is whole as they are, and would be in as many parts as can be."""
        found = np.zeros(self.sizes.count)
        level, of_pipeline = storage.level, self.structure.plan.pipeline is not None
        are_sums_split = level >= 2 and not self.structure.plan.zero_level
        # What is reduced for each microbatch may be no sum of its own where its result is split.
        of_each = self.structure.plan.gradients.reduce == "microbatch"
        are_sums_unknown = is_split and level > 0 and of_each
        for ranks in self.ranks:
            whole = self.numbers[ranks.stage][:STORED, ranks.rows]
            parts = self.parts[ranks.stage][:, ranks.rows] * storage.replicas if is_split else whole
            parameters, optimizer, sums = np.where(
                np.array([level == 3, level > 0, are_sums_split])[:, None], parts, whole
            )
            held = self.layers_hold(ranks, storage.saves, level == 3) + parameters + optimizer
            held += 0 if are_sums_unknown or (level == 3 and of_pipeline) else sums
            found[ranks.rows] = np.maximum(found[ranks.rows], held)
        return found

    def layers_hold(self, ranks: AlikeRanks, saves: str, is_split: bool) -> Floats:
        """`of_layers`, once for all storages of which it is the same."""
        key = (id(ranks), saves, is_split)
        if key not in self._known:
            self._known[key] = self.of_layers(ranks, saves, is_split)
        return self._known[key]

    def of_layers(self, ranks: AlikeRanks, saves: str, is_split: bool) -> Floats:
        """What layers hold for a while, at the moment when that is most. What is beside them is computed once."""
        layers, *of_layer, saved, late, inputs = self.numbers[ranks.stage][STORED:, ranks.rows]
        is_all, is_known = saves == ALL, saves != UNKNOWN
        if not is_all:
            of_layer[0] = inputs
        kept = np.array([is_known, is_all, is_split, is_split])[:, None]
        of_one, others = np.stack(of_layer) * kept, (layers - ranks.ends) / ranks.virtual
        at_end = of_one * (others + ranks.ends)
        at_end[:SUMS] += np.stack([saved * is_known, late * is_all])
        weights = np.concatenate([at_end, of_one * others])
        return (ranks.moments.reshape(-1, 8) @ weights).max(axis=0)

    @cached_property
    def numbers(self) -> dict[int, Floats]:
        """Of each stage what `StageForms` says, in each plan: `[form, plan]`."""
        found = {stage: self.evaluated(forms) for stage, forms in self.forms.items()}
        for stage, forms in self.forms.items():
            found[stage][StageForms._fields.index("gathered")] = self.of_split(forms.gathered)
        return found

    def of_split(self, size: Size) -> Floats:
        """Of what would be gathered, what data-parallel ranks share out: experts that each of these has of its own are gathered by none."""
        found = np.zeros(self.sizes.count)
        for term, ways in shared_terms(size, self.data_axes):
            found += self.evaluated([term])[0] * (self.sizes.number(ways) > 1)
        return found

    @cached_property
    def parts(self) -> dict[int, Floats]:
        """Of what is stored, the part of a rank if all its data-parallel ranks share it out: `[form, plan]`."""
        return {
            stage: self.evaluated([split_over(size, self.data_axes) for size in forms[:STORED]])
            for stage, forms in self.forms.items()
        }

    @cached_property
    def data_axes(self) -> list[str]:
        return [axis for axis in self.structure.names.mesh if axis in DATA_AXES]

    def evaluated(self, sizes: Iterable[Size]) -> Floats:
        return np.stack([self.sizes.number(ceildiv(size, 1)).astype(float) for size in sizes])

    @cached_property
    def ranks(self) -> list[AlikeRanks]:
        """Those that are looked at."""
        names, pipeline = self.structure.names, self.structure.plan.pipeline
        every = np.arange(self.sizes.count)
        if names.stages is None or pipeline is None:
            return [AlikeRanks(every, 0, 0, 1, WITHOUT_PIPELINE)]
        if names.virtual_stages != 1 or not all(is_looped(each.schedule) for each in self.turns):
            return [AlikeRanks(every, 0, 0, 1, NOTHING)]
        groups: dict[tuple[Turns, int, int], list[int]] = defaultdict(list)
        ranks = self.sizes.names[names.stages.axis.data].tolist()
        microbatches = self.sizes.number(names.num_microbatches).tolist()
        for row, key in enumerate(zip(self.turns, ranks, microbatches, strict=True)):
            groups[key].append(row)
        last = len(names.stages.stages.data) - 1
        found: list[AlikeRanks] = []
        for (turns, number, of_step), rows in groups.items():
            for rank, moments in in_flight(turns, number, of_step).items():
                stage = 0 if rank == 0 else last if rank == number - 1 else 1
                ends = pipeline.first if rank == 0 else pipeline.last if stage == last else 0
                own = np.array(rows)
                found.append(AlikeRanks(own, stage, ends, turns.virtual_stages, moments))
        return found

    @cached_property
    def forms(self) -> dict[int, StageForms]:
        """By stage of the structure."""
        names, plan = self.structure.names, self.structure.plan
        stages = names.stages.stages.data if names.stages is not None else ()
        kinds = [each.kind for each in stages] or [""]
        known = {kind: forms_of(program, plan) for kind, program in self.structure.programs.items()}
        found: dict[int, StageForms] = {}
        for stage in {0, min(1, len(kinds) - 1), len(kinds) - 1}:
            own = StageForms(*(names.write(size, stage) for size in known[kinds[stage]]))
            if stages and not own.layers.names:
                # Of parts of layers, or of several repeats, nobody knows how many.
                own = StageForms(*own[:STORED], ZERO)
            found[stage] = own
        return found


def split_over(size: Size, axes: Sequence[str]) -> Size:
    """At least what a rank has of it, if ranks along these axes share out each term that they do not split yet: experts are split over `ep` as they are."""
    found = shared_terms(size, axes)
    return total(term / ways if term.terms[0][1] > 0 else term for term, ways in found)


def shared_terms(size: Size, axes: Sequence[str]) -> Iterator[tuple[Size, Size]]:
    """Its terms, and of each how many ranks along these axes may share it out: those that do not split it yet."""
    for monomial, coefficient in size.terms:
        term = Size({monomial: coefficient})
        yield term, product(symbol(axis) for axis in axes if axis not in term.names)


def forms_of(program: stg.ProgramOp, plan: Plan) -> StageForms:
    """In the compiler's own names of sizes."""
    rows = [row for row in stored_rows(program, CONTIGUOUS) if not row.on_host]
    stored = (
        total(row.num_bytes for row in rows if row.kind == Kind.PARAMETERS),
        total(row.num_bytes for row in rows if row.kind in OPTIMIZER),
        total(sums_that_stay(program)) if plan.zero_level < 3 else ZERO,
    )
    levels = [each for each in levels_of(program) if each.outer is not None]
    is_nested = any(each.outer is not None and each.outer.outer is not None for each in levels)
    if plan.offload.activations or is_nested:
        return StageForms(*stored, ZERO)
    if plan.pipeline is None:
        saved, inputs = (
            total(each.repeat.count.data * of_one(each) for each in levels)
            for of_one in (bytes_saved, bytes_of_inputs)
        )
        # Of layers of several kinds that are as many, sums are found together. Of others than ZeRO 3 they stay, or their shards do.
        kinds = {each.repeat.count.data: each for each in levels} if plan.zero_level == 3 else {}
        sums = (count * once_per_step(program, each, plan)[0] for count, each in kinds.items())
        beside = bytes_beside(levels)[0] if levels else ZERO
        return StageForms(*stored, ONE, saved, ZERO, total(sums), ZERO, beside, ZERO, inputs)
    if len(levels) != 1:
        return StageForms(*stored, ZERO)
    (level,) = levels
    late = bytes_read_late(level)
    begun, gathered = once_per_step(program, level, plan)
    layers = level.repeat.count.data, bytes_saved(level), late, begun, gathered
    return StageForms(*stored, *layers, *bytes_beside(levels), bytes_of_inputs(level))


def bytes_saved(level: BlockPair) -> Size:
    """Of one layer, for its backward pass."""
    return bytes_of_values(level, level.saved().values())


def bytes_of_inputs(level: BlockPair) -> Size:
    """Of these, what comes into the layer: nothing of it can be computed again without."""
    inputs = {*level.repeat.carry_args}
    values = level.saved().values()
    return bytes_of_values(level, [v for v in values if followed(v, viewed) in inputs])


def bytes_read_late(level: BlockPair) -> Size:
    """What the gradients of one layer's weights read: what was saved, and what the gradients of its inputs made."""
    saved = level.saved()
    late = [op for op in level.backward.walk() if stg.phase_of(op) == "wgrad"]
    found: dict[SSAValue, None] = {}
    for operand in (operand for op in late for operand in op.operands):
        value = followed(operand, viewed)
        if isinstance(value.owner, Operation):
            if stg.phase_of(value.owner) != "wgrad" and value.owner.parent is level.backward:
                found.setdefault(value)
        elif value in saved:
            found.setdefault(saved[value])
    return bytes_of_values(level, found)


def bytes_beside(levels: Sequence[BlockPair]) -> tuple[Size, Size]:
    """What backward passes read of what a stage computes beside its layers: of its forward pass; and, if they are split, of all for weights' gradients."""
    block = levels[0].repeat.parent_block()
    assert block is not None
    carried = {value for level in levels for value in level.repeat.carried}
    saved: dict[SSAValue, Size] = {}
    late: dict[SSAValue, Size] = {}
    for op in block.ops:
        phase = stg.phase_of(op)
        for operand in op.operands if phase != "fwd" and not isinstance(op, stg.RepeatOp) else ():
            value = followed(operand, viewed)
            made = value.owner
            if not isinstance(made, Operation) or made.parent is not block:
                continue
            if not isinstance(value.type, TensorType):
                continue
            if isinstance(made, stg.ConstantOp | dist.SliceOp) or stg.phase_of(made) == "wgrad":
                continue
            if stg.phase_of(made) == "fwd" and value not in carried:
                saved[value] = value.type.num_bytes
            if phase == "wgrad":
                late[value] = value.type.num_bytes
    return total(saved.values()), total(late.values())


def bytes_of_values(level: BlockPair, values: Iterable[SSAValue]) -> Size:
    """Buffers of one layer's own, each counted once."""
    found: dict[SSAValue, Size] = {}
    for value in values:
        if isinstance(value.type, StackType):
            continue
        value = followed(value, viewed)
        # What the layers slice, weights above all, is no layer's own.
        if isinstance(value.owner, Block) and value not in level.repeat.carry_args:
            continue
        found.setdefault(value, tensor_of(value.type).num_bytes)
    return total(found.values())


def once_per_step(program: stg.ProgramOp, level: BlockPair, plan: Plan) -> tuple[Size, Size]:
    """Under ZeRO 3, of one layer: sums of gradients, which begin with the first microbatch, and parameters that are gathered for all of them."""
    count = level.repeat.count.data
    sums = [
        result.type
        for loop in loops(program)
        for result in loop.results
        if isinstance(result.type, StackType) and result.type.count == count
    ]
    stored = [
        tensor_of(op.weight.type)
        for op in program.body.block.ops
        if isinstance(op, stg.WeightOp)
        and isinstance(op.weight.type, StackType)
        and op.weight.type.count == count
    ]
    if plan.zero_level == 3:
        of_sums = total(each.leaf.num_bytes for each in sums)
    elif plan.gradients.reduce == "microbatch":
        of_sums = ZERO
    else:
        # They are whole up to the last microbatch, in the dtype in which they are reduced.
        reduced = plan.precision.reduce
        of_sums = total(bytes_of(each.leaf.num_elements, reduced) for each in sums)
    gathered = (bytes_of(each.num_elements, plan.precision.gather) for each in stored)
    return of_sums, total(gathered)


def sums_that_stay(program: stg.ProgramOp) -> list[Size]:
    """Of gradients over microbatches, where their dtype is not that of their terms: their buffers are there from step to step."""
    found: list[Size] = []
    for loop in loops(program):
        for value, result in zip(loop.yield_op.values, loop.results, strict=True):
            terms = {tensor_of(root.type).dtype for root in roots(value)}
            if terms and tensor_of(result.type).dtype not in terms:
                found.append(num_bytes(result))
    return found
