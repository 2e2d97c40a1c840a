"""A lower bound on the memory that a rank holds at its peak, in bytes, from what is known before it is decided when buffers are alive.

At any time a rank holds parameters, the state of the optimizer, and sums of gradients over microbatches in buffers that stay. What its layers hold for a
while is counted just before each backward pass of some ranks (`in_flight`). A layer has saved the values that its backward pass reads, each counted once
even if it is read in several shapes. If the backward pass is split in two, its second half reads some of these values, and others that the first half made.
Without a pipeline some moments of the backward pass are looked at, too (`unit_moments`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from stagec.analysis.buffers import loops, roots, stored_by
from stagec.arrays import Bools, Floats, Ints
from stagec.dialects import stg
from stagec.dialects.interfaces import num_bytes
from stagec.dialects.memory import Kind
from stagec.dialects.types import StackType, bytes_of, tensor_of
from stagec.plans.clauses import Plan
from stagec.rewriting.saved_values import BlockPair, levels_of
from stagec.searching.coarse_times import Turns, own_turns
from stagec.searching.in_flight import END, SUMS, in_flight, is_looped
from stagec.searching.saved_bytes import (
    bytes_beside,
    bytes_but_attention,
    bytes_of_inputs,
    bytes_read_late,
    bytes_saved,
)
from stagec.searching.texts import PRODUCTS
from stagec.searching.unit_moments import UnitMoment, moments_of, saved_by
from stagec.sweeping.structures import Structure
from stagec.symbolic import ONE, ZERO, Size, ceildiv, product, symbol, total
from stagec.symbolic.columns import Columns

OPTIMIZER = (Kind.MASTER, Kind.OPTIMIZER, Kind.CACHE)
WITHOUT_PIPELINE = np.array([[[1, 0, 1, 0]]])
"""What stands for `in_flight` without a pipeline, where all layers count as one: one microbatch is saved, and there are sums of gradients if there are
several."""
NOTHING = np.zeros_like(WITHOUT_PIPELINE)
"""What stands for `in_flight` where it is not known what ranks hold for a while."""


ALL, BUT_ATTENTION, INPUTS, UNKNOWN = "all", "all but attention", "inputs", "unknown"
"""What layers save for their backward passes: all that these read; all but the core of attention; their inputs alone, so that a layer makes all else again
before its gradients; or something that is not known."""
WHAT_IS_SAVED = {"none": ALL, "selective": BUT_ATTENTION, "full": INPUTS}
"""What layers save at least, by what a plan recomputes."""


@dataclass(frozen=True)
class Storage:
    """How a plan stores its state, and what it saves for backward passes. Plans that differ in these alone compute the same."""

    level: int
    """The level of ZeRO."""
    replicas: int = 1
    """How many groups of ranks hold all that ZeRO splits (hybrid sharding)."""
    saves: str = ALL
    """What layers save: `ALL`, `BUT_ATTENTION`, `INPUTS` or `UNKNOWN`."""


STORED = 3
"""How many of the first `StageForms` are state that ZeRO splits."""
DATA_AXES = ("dp", *PRODUCTS["dp"], "cp")
"""The axes over which the plans of a search split this state."""


class StageForms(NamedTuple):
    """What a rank with one stage holds, in bytes: first the whole stage's state, then what each layer holds for a while (see `in_flight`).

    Without a pipeline, and in one that cuts several repeats, all layers of a stage count as one.
    """

    parameters: Size
    optimizer: Size
    """State of the optimizer, master weights and caches."""
    sums: Size
    """Sums of gradients, in buffers that stay from step to step."""
    layers: Size
    """How many layers the stage has of which it is known what they hold."""
    saved: Size = ZERO
    """What one layer saved of a microbatch."""
    late: Size = ZERO
    """What the gradients of one layer's weights read of a microbatch."""
    begun: Size = ZERO
    """Sums of one layer's gradients that begin with the first microbatch."""
    gathered: Size = ZERO
    """Parameters of one layer that are gathered once for all microbatches."""
    saved_beside: Size = ZERO
    """What is saved beside the layers at an end of the pipeline, above all logits."""
    late_beside: Size = ZERO
    """What the gradients of weights read beside the layers at an end of the pipeline."""
    inputs: Size = ZERO
    """The part of `saved` that is the inputs of the layer."""
    but_attention: Size = ZERO
    """The part of `saved` that is saved at least if the core of attention is made again."""


def held(
    structure: Structure,
    sizes: Columns,
    turns: Sequence[Turns],
    storages: Sequence[Storage],
    units: Sequence[str] = (),
) -> list[Floats]:
    """Lower bounds on the peak of a rank, in bytes, `[plan]` each: first for the plans as they are, then for each other way of `storages` to store their state.

    The latter hold for plans whose structure splits no state itself. `units` are the modules that plans of a search gather at once under ZeRO 3.
    """
    bound = Bound(structure, sizes, turns or own_turns(structure, sizes), units)
    own = Storage(structure.plan.zero_level)
    return [bound.held(own, is_split=False), *map(bound.held, storages)]


@dataclass(frozen=True)
class AlikeRanks:
    """The ranks at one place of the pipelines of some plans, which all run in the same way."""

    rows: Ints
    """The numbers of the plans."""
    stages: Sequence[int]
    """The stages of the structure that the ranks have."""
    moments: Ints
    """The moments of the rank that may be its peak, as `in_flight` gives them: of each of these stages, or of the parts of the only one."""
    ends: int = 0
    """How many layers more (or, if negative, fewer) the stage has than others because it is at an end of the pipeline."""
    virtual: int = 1
    """How many stages a rank of the plans has for each one of the structure."""

    @property
    def have_sums(self) -> Bools:
        """`[moment]`: whether all stages of the rank have sums of gradients then."""
        return self.moments[:, :, SUMS].sum(axis=1) == len(self.stages) * self.virtual

    @property
    def parts(self) -> Iterator[tuple[int, bool]]:
        """For each kind of stage that `moments` tells apart, the stage of the structure, and whether it has what is beside the layers."""
        of_each = self.moments.shape[1] // len(self.stages)
        return ((stage, part == END) for stage in self.stages for part in range(of_each))


@dataclass(frozen=True)
class Bound:
    """Computes the lower bounds on memory of the plans of a structure."""

    structure: Structure
    sizes: Columns
    """The sizes of the plans, one row each."""
    turns: Sequence[Turns]
    """For each plan, how it runs its pipeline; empty without one."""
    units: Sequence[str] = ()
    """The modules whose parameters are gathered at once under ZeRO 3; none: those of a layer are."""
    _known: dict[tuple[int, str, bool], tuple[Floats, Floats]] = field(default_factory=dict)

    def held(self, storage: Storage, *, is_split: bool = True) -> Floats:
        """The bound in bytes, `[plan]`, if the plans stored their state in this way. `is_split`: their own state is whole, and would be split as ZeRO does."""
        found = np.zeros(self.sizes.count)
        level, of_pipeline = storage.level, self.structure.plan.pipeline is not None
        are_sums_split = level >= 2 and not self.structure.plan.zero_level
        # What is reduced for each microbatch may be no sum of its own where its result is split.
        of_each = self.structure.plan.gradients.reduce == "microbatch"
        are_sums_unknown = is_split and level > 0 and of_each
        for ranks in self.ranks:
            whole = sum_of(self.numbers[stage][:STORED, ranks.rows] for stage in ranks.stages)
            parts = whole
            if is_split:
                parts = sum_of(self.parts[stage][:, ranks.rows] for stage in ranks.stages)
                parts = parts * storage.replicas
            parameters, optimizer, sums = np.where(
                np.array([level == 3, level > 0, are_sums_split])[:, None], parts, whole
            )
            if are_sums_unknown or (level == 3 and of_pipeline):
                sums = np.zeros(len(ranks.rows))
            layers, with_sums = self.layers_hold(ranks, storage.saves, level == 3)
            if level < 2:
                layers = layers + sums
            else:
                # They begin with the first microbatch; of one microbatch alone there are none.
                layers = np.maximum(layers, with_sums + sums * self.are_several[ranks.rows])
            held = parameters + optimizer + layers
            found[ranks.rows] = np.maximum(found[ranks.rows], held)
        return found

    def layers_hold(self, ranks: AlikeRanks, saves: str, is_split: bool) -> tuple[Floats, Floats]:
        """The same as `of_layers`, computed once for all storages that agree in it."""
        key = (id(ranks), saves, is_split)
        if key not in self._known:
            self._known[key] = self.of_layers(ranks, saves, is_split)
        return self._known[key]

    def of_layers(self, ranks: AlikeRanks, saves: str, is_split: bool) -> tuple[Floats, Floats]:
        """The bytes that layers, and what is beside them, hold for a while, for the plans of `ranks`: at the moment when that is most, and at the moment when
        that is most of those at which all stages of a rank have gradients of earlier microbatches."""
        things = [self.of_stage(ranks, *part, saves, is_split) for part in ranks.parts]
        moments = ranks.moments.reshape(len(ranks.moments), -1)
        found = moments @ np.concatenate(things)
        at_most, with_sums = found.max(axis=0), found[ranks.have_sums].max(axis=0, initial=0.0)
        if self.structure.plan.pipeline is None:
            # Sums of gradients are there at each of these moments.
            at_most = np.maximum(at_most, self.in_backward(saves, is_split) + things[0][SUMS])
            with_sums = at_most
        return at_most, with_sums

    def of_stage(
        self, ranks: AlikeRanks, stage: int, is_end: bool, saves: str, is_split: bool
    ) -> Floats:
        """`[thing, plan]`: the bytes of each thing of `in_flight` that the layers of one stage hold, and where it `is_end`, what is beside them.

        What is beside the layers is never computed again.
        """
        forms = self.numbers[stage][STORED:, ranks.rows]
        layers, *of_layer, saved, late, inputs, but_attention = forms
        is_all, is_known = saves == ALL, saves != UNKNOWN
        if self.structure.plan.pipeline is None:
            of_layer[SUMS] = of_layer[SUMS] * self.are_several[ranks.rows]
        if not is_all:
            of_layer[0] = but_attention if saves == BUT_ATTENTION else inputs
        kept = np.array([is_known, is_all, is_split, is_split])[:, None]
        of_one, others = np.stack(of_layer) * kept, (layers - ranks.ends) / ranks.virtual
        if not is_end:
            return of_one * others
        found = of_one * (others + ranks.ends)
        found[:SUMS] += np.stack([saved * is_known, late * is_all])
        return found

    def in_backward(self, saves: str, is_split: bool) -> Floats:
        """The bytes that a rank without a pipeline holds for a while at the moments of `UnitMoment`, `[plan]`: the most of these."""
        found = np.zeros(self.sizes.count)
        for each in self.unit_moments:
            kept = {ALL: each.saved, BUT_ATTENTION: each.but_attention, INPUTS: each.inputs}
            held, remade = self.evaluated([kept.get(saves, ZERO), each.remade])
            held = held + (remade if saves == INPUTS else 0.0)
            held = held + (self.of_split(each.shared) if is_split else 0.0)
            found = np.maximum(found, held)
        return found

    @cached_property
    def are_several(self) -> Floats:
        """`[plan]`: 1 if a step has several microbatches, 0 if it has one."""
        return (self.sizes.number(self.structure.names.num_microbatches) > 1).astype(float)

    @cached_property
    def unit_moments(self) -> list[UnitMoment]:
        """The moments in the backward pass at which something is known of what is held, of a structure without a pipeline."""
        (program,) = self.structure.programs.values()
        return moments_of(program, self.structure.plan, self.units)

    @cached_property
    def numbers(self) -> dict[int, Floats]:
        """For each stage that is looked at, the values of its `StageForms`: `[form, plan]`."""
        found = {stage: self.evaluated(forms) for stage, forms in self.forms.items()}
        for stage, forms in self.forms.items():
            found[stage][StageForms._fields.index("gathered")] = self.of_split(forms.gathered)
        return found

    def of_split(self, size: Size) -> Floats:
        """Of what would be gathered, what data-parallel ranks share out: experts that each of these has of its own are gathered by none."""
        found = np.zeros(self.sizes.count)
        for ways, share in shared(size, self.data_axes):
            found += self.evaluated([share])[0] * (self.sizes.number(ways) > 1)
        return found

    @cached_property
    def parts(self) -> dict[int, Floats]:
        """Of what is stored, the part of a rank if all its data-parallel ranks share it out: `[form, plan]`."""
        return {
            stage: np.stack([self.part(size) for size in forms[:STORED]])
            for stage, forms in self.forms.items()
        }

    def part(self, size: Size) -> Floats:
        """At least what a rank has of it, if data-parallel ranks share out all that they do not split yet: experts are split over `ep` as they are."""
        found = np.zeros(self.sizes.count)
        for ways, share in shared(size, self.data_axes):
            whole = self.sizes.number(share).astype(float)
            found += whole / np.where(whole > 0, self.sizes.number(ways), 1)
        return found

    @cached_property
    def data_axes(self) -> list[str]:
        """The axes of the mesh over which ZeRO can split state."""
        return [axis for axis in self.structure.names.mesh if axis in DATA_AXES]

    def evaluated(self, sizes: Iterable[Size]) -> Floats:
        """`[size, plan]`: the values of sizes, rounded up."""
        return np.stack([self.sizes.number(ceildiv(size, 1)).astype(float) for size in sizes])

    @cached_property
    def ranks(self) -> list[AlikeRanks]:
        """The ranks that are looked at."""
        names, pipeline = self.structure.names, self.structure.plan.pipeline
        every = np.arange(self.sizes.count)
        if names.stages is None or pipeline is None:
            return [AlikeRanks(every, (0,), WITHOUT_PIPELINE)]
        if not all(is_looped(each.schedule) for each in self.turns):
            return [AlikeRanks(every, (0,), NOTHING)]
        groups: dict[tuple[Turns, int, int], list[int]] = defaultdict(list)
        ranks = self.sizes.names[names.stages.axis.data].tolist()
        microbatches = self.sizes.number(names.num_microbatches).tolist()
        for row, key in enumerate(zip(self.turns, ranks, microbatches, strict=True)):
            groups[key].append(row)
        last = len(names.stages.stages.data) - 1
        found: list[AlikeRanks] = []
        for (turns, number, of_step), rows in groups.items():
            own = np.array(rows)
            for rank, moments in in_flight(
                turns, number, of_step, self.structure.cuts_several
            ).items():
                if self.structure.cuts_several:
                    found.append(AlikeRanks(own, range(rank, last + 1, number), moments))
                    continue
                stage = 0 if rank == 0 else last if rank == number - 1 else 1
                ends = pipeline.first if rank == 0 else pipeline.last if stage == last else 0
                found.append(AlikeRanks(own, (stage,), moments, ends, turns.virtual_stages))
        return found

    @cached_property
    def forms(self) -> dict[int, StageForms]:
        """The forms of the stages that are looked at, by the number of the stage in the structure."""
        names, plan = self.structure.names, self.structure.plan
        stages = names.stages.stages.data if names.stages is not None else ()
        kinds = [each.kind for each in stages] or [""]
        programs = self.structure.programs.items()
        known = {kind: forms_of(each, plan, self.structure.cuts_several) for kind, each in programs}
        found: dict[int, StageForms] = {}
        for stage in sorted({stage for ranks in self.ranks for stage in ranks.stages}):
            own = StageForms(*(names.write(size, stage) for size in known[kinds[stage]]))
            if stages and not self.structure.cuts_several and not own.layers.names:
                # Of parts of layers nobody knows how many.
                own = StageForms(*own[:STORED], ZERO)
            found[stage] = own
        return found


def sum_of(each: Iterable[Floats]) -> Floats:
    """The sum of arrays that are alike."""
    return np.sum([*each], axis=0)


def shared(size: Size, axes: Sequence[str]) -> list[tuple[Size, Size]]:
    """Its terms, put together by the axes along which ranks may still share them out, as nothing splits them along these yet.

    Of each such sum: how many ranks share it, and the sum.
    """
    found: dict[Size, Size] = {}
    for monomial, coefficient in size.terms:
        term = Size({monomial: coefficient})
        ways = product(symbol(axis) for axis in axes if axis not in term.names)
        found[ways] = found.get(ways, ZERO) + term
    return list(found.items())


def forms_of(program: stg.ProgramOp, plan: Plan, of_several: bool) -> StageForms:
    """The forms of the stage that has this program, of a pipeline that cuts one repeat or `of_several`. Sizes are written in the compiler's own names."""
    rows = [row for row in stored_by(program) if not row.on_host]
    stored = (
        total(row.num_bytes for row in rows if row.kind == Kind.PARAMETERS),
        total(row.num_bytes for row in rows if row.kind in OPTIMIZER),
        total(sums_that_stay(program)) if plan.zero_level < 3 else ZERO,
    )
    levels = [each for each in levels_of(program) if each.outer is not None]
    is_nested = any(each.outer is not None and each.outer.outer is not None for each in levels)
    if plan.offload.activations or is_nested:
        return StageForms(*stored, ZERO)
    if plan.pipeline is None or of_several:
        saved, inputs, kept = saved_by(levels)
        # Of layers of several kinds that are as many, sums are found together.
        kinds = {each.repeat.count.data: each for each in levels}
        once = [
            [n * size for size in once_per_step(program, each, plan)] for n, each in kinds.items()
        ]
        sums, gathered = (total(each) for each in zip(*once, strict=True)) if once else (ZERO, ZERO)
        beside, late_beside = bytes_beside(levels) if levels else (ZERO, ZERO)
        if plan.pipeline is None:
            # Sums of others than ZeRO 3 stay, or their shards do.
            sums = sums if plan.zero_level == 3 else ZERO
            of_all = ONE, saved, ZERO, sums, ZERO, beside, ZERO
        else:
            late = total(each.repeat.count.data * bytes_read_late(each) for each in levels)
            of_all = ONE, saved, late, sums, gathered, beside, late_beside
        return StageForms(*stored, *of_all, inputs, kept)
    if len(levels) != 1:
        return StageForms(*stored, ZERO)
    (level,) = levels
    late = bytes_read_late(level)
    begun, gathered = once_per_step(program, level, plan)
    layers = level.repeat.count.data, bytes_saved(level), late, begun, gathered
    inputs = bytes_of_inputs(level), bytes_but_attention(level)
    return StageForms(*stored, *layers, *bytes_beside(levels), *inputs)


def once_per_step(program: stg.ProgramOp, level: BlockPair, plan: Plan) -> tuple[Size, Size]:
    """Two numbers of bytes of one layer: sums of gradients, which begin with the first microbatch, and parameters that are gathered for all microbatches."""
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
    """The bytes of each sum of gradients over microbatches whose dtype differs from that of its terms. Buffers of such sums stay from step to step."""
    found: list[Size] = []
    for loop in loops(program):
        for value, result in zip(loop.yield_op.values, loop.results, strict=True):
            terms = {tensor_of(root.type).dtype for root in roots(value)}
            if terms and tensor_of(result.type).dtype not in terms:
                found.append(num_bytes(result))
    return found
