"""Store parameters, or what belongs to them, split over data-parallel ranks (ZeRO).

Before `shard-parameters{level=3 axes="dp" gather="bf16" storage="fp32"}`:

    stg.program "M" (%x : !stg.tensor<[B, D], bf16>, %dy : !stg.tensor<[B, F], bf16>) {
      %w = stg.weight "w" : !stg.tensor<[D, F], bf16>
      stg.accumulate over "mb" {
        %y = stg.contract %x, %w over [D] : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D, F], bf16>) -> !stg.tensor<[B, F], bf16>
        %dx = stg.contract %dy, %w over [F] {phase = "bwd"} : (!stg.tensor<[B, F], bf16>, !stg.tensor<[D, F], bf16>) -> !stg.tensor<[B, D], bf16>
        stg.yield
      }
      stg.output
    }

After:

    stg.program "M" (%x : !stg.tensor<[B, D], bf16>, %dy : !stg.tensor<[B, F], bf16>) {
      %w = stg.weight "w" : !dist.shard<!stg.tensor<[D, F], fp32> over [dp]>
      stg.accumulate over "mb" {
        %g = dist.unshard (%w) over [dp] in "bf16" {lag = 1 : i64, phase = "fwd", made_by = "shard-parameters"}
          : (!dist.shard<!stg.tensor<[D, F], fp32> over [dp]>) -> !stg.tensor<[D, F], bf16>
        %y = stg.contract %x, %g over [D] : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D, F], bf16>) -> !stg.tensor<[B, F], bf16>
        %dx = stg.contract %dy, %g over [F] {phase = "bwd"} : (!stg.tensor<[B, F], bf16>, !stg.tensor<[D, F], bf16>) -> !stg.tensor<[B, D], bf16>
        stg.yield
      }
      stg.output
    }

Level 3 (FSDP2, Zhao et al. 2023): a unit's parameters are gathered before its forward pass, and again before its backward pass
unless `reshard` is false: then layers stack what they gathered. `reshard_over` some of the axes, a rank keeps its part of what was gathered, split over
these alone, and gathers it again from them (an integer for FSDP2's `reshard_after_forward`, ZeRO++'s `zero_hpz_partition_size`).
A unit is gathered whole, with what its backward pass does not read (biases).
A layer is a unit, the rest is the root unit, gathered once per microbatch; or `units` names modules, one of which may be in another.
Where all is `one_unit`, that is the root (`FSDPState._lazy_init`), which is freed after the forward pass where `reshard_root` or `reshard_over` asks for it.
A unit outside of the layers that comes last in the forward pass is kept for the backward pass, which begins with it (torchtitan);
one that no gradient reads, an embedding, is gathered again like the others.
What waits for a backward pass is kept from step to step where there is none, as in serving: such units are stored whole (FSDP2's
`FSDPParamGroup.reshard` leaves them, and `unshard` finds them gathered). The rest is gathered before each use.
`prefetch` units are gathered ahead of the backward pass, and forward a gather may begin that many units early (`lag`).
Parameters of `persist` elements or fewer belong to no unit: they stay whole. When their shards have been updated each is gathered by itself, frozen ones too
(DeepSpeed's `stage3_param_persistence_threshold`: `mark_persistent_parameters` in `runtime/zero/parameter_offload.py`, `_post_step` in `stage3.py`, and
`_allgather_params_coalesced` in `partition_parameters.py`, which gathers parameter by parameter).

The stages of a pipeline (`once_per_step`) keep what they gathered until they have done all their passes: the root unit and the last one always, the others
unless `reshard` is true. Then a forward pass frees them and a backward pass does not, so a pass gathers them only if a forward pass came before it
(`unit` says which; `backward_maybe_with_nosync` in `torch/distributed/pipelining/stage.py`). One stage of a rank gathers a unit where it first needs it
(`at_first_use`), several are gathered whole beforehand; of more than three each where the schedule has its turn (`evicted`).

Levels 1 and 2 (Megatron-LM's distributed optimizer): the optimizer updates the rank's shard, and the parameters are gathered
after it, as one flat buffer (DeepSpeed's `all_gather_into_tensor_dp_groups`) or in buckets. That gradients are reduce-scattered is `reduce-gradients`.
`in_forward` they are gathered when the next step begins, each layer or in buckets, and each gather fills the parameters that are there
(Megatron-LM's `--overlap-param-gather`). With one stage per rank each begins when the one before it is due (`lag`): `finish_param_sync` in
`megatron/core/distributed/param_and_grad_buffer.py` sends off the next bucket. Of several stages all are sent off first (`--align-param-gather`, its default).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, UnitAttr, i64
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue, Use
from xdsl.passes import ModulePass

from stagec.analysis.placement import source_of
from stagec.analysis.sizes import size_values
from stagec.analysis.units import (
    ROOT,
    first_use,
    gradient_makers,
    is_within,
    unit_of,
)
from stagec.dialects import dist, stg
from stagec.dialects.dist.storage import shard_of
from stagec.dialects.op import ancestor_in, around
from stagec.dialects.types import StackType, first_as_text, tensor_of
from stagec.pipeline_schedule import read_sizes
from stagec.rewriting import programs, set_operand, set_type
from stagec.rewriting.saved_values import BlockPair, levels_of
from stagec.rewriting.stored_weights import (
    NAME,
    gather_persistent,
    gather_updated,
    insert,
    layers_that_read,
    repeat_over,
    storage_axes,
    stored_rows,
    unshard,
)
from stagec.symbolic import conditions

FORWARD, BACKWARD, RECOMPUTED = "fwd", "bwd", "recompute"

Readers = Mapping[stg.WeightOp, Sequence[Use]]
"""The uses of each weight in the loop over microbatches."""


@dataclass(frozen=True)
class ShardParameters(ModulePass):
    name = NAME

    level: int
    """1: optimizer state; 2: gradients too; 3: parameters too."""
    axes: tuple[str, ...]
    """The axes that storage is split over."""
    gather: str = "fp32"
    """Dtype in which parameters travel and are used."""
    storage: str = "fp32"
    """Dtype in which a rank stores its shard (level 3)."""
    units: tuple[str, ...] = ()
    """Modules whose parameters are a unit, all others one more; none: a layer is one, the rest another."""
    one_unit: bool = False
    """Everything is one unit."""
    reshard: bool = True
    """Free gathered parameters after the forward pass, and gather them again."""
    reshard_root: bool = False
    """So of the unit of all that no other has, where layers have some of it, or of the only one (`reshard_after_forward=True` of FSDP2's root)."""
    reshard_over: tuple[str, ...] = ()
    """Where it is freed, keep the rank's part over these axes, and gather that again."""
    once_per_step: bool = False
    """Gather what is not freed before the first microbatch and keep it, as the stages of pipelines do; gather the rest where it was freed."""
    at_first_use: bool = False
    """Issue what is gathered once per step where the first forward pass begins to use it. Else all is gathered before the microbatches."""
    evicted: bool = False
    """Several stages of a rank take turns: each is gathered whole where the schedule of the pipeline says."""
    flat: bool = False
    """Split each parameter as one row of elements, not by its rows."""
    prefetch: int = 1
    """Units gathered ahead."""
    persist: int = 0
    """Level 3: parameters of so many elements or fewer stay whole from step to step."""
    in_buckets: bool = False
    """After an update parameters are gathered as their gradients were reduced, for buckets to join them (`bucket-gradients`)."""
    in_forward: bool = False
    """Levels 1 and 2: parameters are gathered as a step begins, for its forward pass, and not after the update of the step before."""

    @property
    def frees(self) -> bool:
        """Whether units beside the root are freed after the forward pass; the root, where it is the only one."""
        asks = self.reshard_root or bool(self.reshard_over) or not self.one_unit
        return self.reshard and asks

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        sizes = size_values(op) if self.level == 3 and self.persist else {}
        for program in programs(op):
            if self.level == 3:
                Sharder(self, program, sizes).run()
                if self.once_per_step and (self.frees or self.evicted):
                    # Which passes of a stage gather follows from their order.
                    read_sizes(op)
            else:
                gather_updated(
                    program,
                    self.axes,
                    self.gather,
                    self.flat,
                    in_buckets=self.in_buckets,
                    in_forward=self.in_forward,
                    at_first_use=self.at_first_use,
                )


@dataclass(frozen=True)
class LayerStart:
    """Where the backward pass of a layer first needs a unit."""

    first: Operation
    phase: str
    """In which it is gathered: as something is made again, or not."""
    number: Attribute | None
    """Of the mark where the unit's own backward pass begins, if that is later."""


@dataclass
class Sharder:
    options: ShardParameters
    program: stg.ProgramOp
    sizes: Mapping[str, int]
    """Numbers, for what the number of a parameter's elements decides."""
    notes: dict[str, Attribute] = field(default_factory=dict)
    """What is to be said of each gather."""
    freed: list[dist.UnshardOp] = field(default_factory=list)
    """The gathers of units that are freed, and gathered again not in each pass."""
    is_freed: bool = False
    """Whether what is gathered now is one."""
    layer_starts: dict[tuple[Block, str], LayerStart] = field(default_factory=dict)
    """Of the units of layers, in the bodies of their backward passes."""
    num_hooks: int = 0

    def run(self) -> None:
        self.gather_all()
        number_units(self.freed)

    def gather_all(self) -> None:
        block = self.program.body.block
        loop = next(op for op in block.ops if isinstance(op, stg.AccumulateOp))
        self.loop = loop
        weights = [op for op in block.ops if isinstance(op, stg.WeightOp) and not has_rows(op)]
        if self.options.persist:
            weights = self.persist(weights)
        readers: Readers = {
            w: [use for use in w.weight.uses if self.computes(use.operation)] for w in weights
        }
        if all(phase_in_loop(op) == FORWARD for op in loop.body.block.ops):
            weights = [w for w in weights if not self.waits_for_backward(w, weights, readers)]
        for weight in weights:
            self.store(weight)
        if self.options.once_per_step:
            weights = self.gather_per_step(weights, readers)
            self.notes, self.is_freed = {}, True
        if self.options.one_unit:
            if weights:
                self.gather_for(weights, readers, self.options.frees, at_start=True)
            return
        self.gather_alone(weights, readers)
        paths: dict[SSAValue, str] = {
            w.weight: w.path.data for w in weights if not is_of_root(w, self.options.units)
        }
        if self.options.reshard:
            self.complete_units(paths)
        kept: dict[SSAValue, SSAValue] = {}
        for op in list(loop.body.block.ops):
            if isinstance(op, stg.RepeatOp):
                self.gather_in_layers(op, paths, kept)

    def persist(self, weights: Sequence[stg.WeightOp]) -> list[stg.WeightOp]:
        """Let small parameters stay whole; the others."""
        small = [weight for weight in weights if self.is_small(weight)]
        for weight in small:
            weight.persistent = UnitAttr()
        gather_persistent(self.program, small, self.options.axes, self.options.flat)
        return [weight for weight in weights if weight not in small]

    def is_small(self, weight: stg.WeightOp) -> bool:
        """Whether a parameter has few elements, and is stored as it is read: whole copies of others are not what a step updates."""
        tensor, persist = tensor_of(weight.weight.type), self.options.persist
        is_read = weight.own is not None or tensor.dtype == self.options.storage
        is_split = bool(storage_axes(weight.weight, self.options.axes))
        number = tensor.num_elements
        return is_read and is_split and conditions.compare(number, "<=", persist, self.sizes)

    def computes(self, op: Operation) -> bool:
        """Whether an op is part of the microbatch loop, not of the step around it."""
        return self.loop in around(op)

    def waits_for_backward(
        self, weight: stg.WeightOp, weights: Sequence[stg.WeightOp], readers: Readers
    ) -> bool:
        """Whether what a forward pass gathered of it is kept for the backward pass."""
        if not self.options.frees:
            return True
        groups = self.units_alone(weights)
        if self.options.one_unit or not any(weight in members for members in groups.values()):
            return False
        return not self.goes_again(unit_of(weight.path.data, self.options.units), groups, readers)

    def store(self, weight: stg.WeightOp) -> None:
        set_type(
            weight.weight,
            shard_of(
                weight.weight.type,
                storage_axes(weight.weight, self.options.axes),
                None if weight.own is not None else self.options.storage,
                stored_rows(weight, self.options.flat),
            ),
        )

    # Gathering

    def gather_per_step(
        self, weights: Sequence[stg.WeightOp], readers: Readers
    ) -> list[stg.WeightOp]:
        """Gather units that are not freed once per step; what else is to be gathered where it was freed.

        Without `at_first_use` all units are there when the first microbatch begins, also those that are freed later.
        """
        groups: dict[str, list[stg.WeightOp]] = {}
        for weight in weights:
            groups.setdefault(self.unit_of_weight(weight), []).append(weight)
        # The root unit, then the others in the order of the forward pass.
        first = {
            key: -1 if key == ROOT else min(first_use(w.weight) for w in members)
            for key, members in groups.items()
        }
        alone = self.units_alone(weights)
        freed: list[stg.WeightOp] = []
        for key in sorted(groups, key=lambda key: first[key]):
            members = groups[key]
            is_freed = self.options.frees and (
                self.options.one_unit or key not in alone or self.goes_again(key, alone, readers)
            )
            if is_freed:
                freed += members
            if self.options.at_first_use:
                place = stg.WITH_PASS if key == ROOT else stg.WITH_UNIT
                self.notes = {stg.ISSUED: StringAttr(place)}
                self.mark_uses(members)
            else:
                self.is_freed = is_freed or self.options.evicted
                self.notes = {stg.EVICTED: UnitAttr()} if self.options.evicted else {}
            if not is_freed:
                self.use_gathered(members, readers, self.gather_before_loop(key, members))
            elif not self.options.at_first_use:
                self.gather_before_loop(key, members)
        return [weight for weight in weights if weight in freed]

    def mark_uses(self, members: Sequence[stg.WeightOp]) -> None:
        """Let a layer be issued in two where a unit in it begins: the unit is gathered there (`FSDPState._pre_forward`)."""
        unit = unit_of(members[0].path.data, self.options.units)
        layers = layers_that_read(members[0].weight)
        if layers is None or unit == ROOT:
            return
        ops = list(layers.body.ops)
        inside = [op for op in ops if is_within(stg.scope_of(op), unit)]
        if inside and inside[0] is not ops[0]:
            stg.marks(inside[0]).setdefault(stg.BEGINS_UNIT, IntegerAttr(self.num_hooks, i64))
            self.num_hooks += 1

    def unit_of_weight(self, weight: stg.WeightOp) -> str:
        """A unit, with the layers that each have one."""
        if self.options.one_unit or is_of_root(weight, self.options.units):
            return ROOT
        unit, stored = unit_of(weight.path.data, self.options.units), weight.weight.type
        if not isinstance(stored, StackType):
            return unit
        return f"{unit}[{stored.count}{first_as_text(stored.first)}]"

    def gather_before_loop(
        self, unit: str, members: Sequence[stg.WeightOp]
    ) -> dict[SSAValue, SSAValue]:
        """Gather a unit once per step; those of layers layer by layer."""
        values = [weight.weight for weight in members]
        if unit == ROOT or not is_stacked(members[0]):
            return self.gather(values, FORWARD, self.loop)
        repeat = self.over_layers(values)
        insert(repeat, self.loop)
        return dict(zip(values, repeat.results, strict=True))

    def over_layers(self, stacks: Sequence[SSAValue]) -> stg.RepeatOp:
        return repeat_over(stacks, lambda values: self.unshard(values, FORWARD), FORWARD)

    def use_gathered(self, members, readers, gathered: dict[SSAValue, SSAValue]) -> None:
        for weight in members:
            if weight.weight in gathered:
                for use in readers[weight]:
                    set_operand(use.operation, use.index, gathered[weight.weight])

    def gather_alone(self, weights: Sequence[stg.WeightOp], readers: Readers) -> None:
        """Units of weights outside of the layers."""
        groups = self.units_alone(weights)
        for key, members in groups.items():
            again = self.options.reshard and self.goes_again(key, groups, readers)
            self.gather_for(members, readers, again, at_start=key == ROOT)

    def units_alone(self, weights: Sequence[stg.WeightOp]) -> dict[str, list[stg.WeightOp]]:
        """The weights outside of the layers, by unit; what layers have beside named units is of the root."""
        groups: dict[str, list[stg.WeightOp]] = {}
        for weight in weights:
            unit = unit_of(weight.path.data, self.options.units)
            if is_of_root(weight, self.options.units) or not is_stacked(weight):
                groups.setdefault(unit, []).append(weight)
        return groups

    def goes_again(
        self, unit: str, groups: Mapping[str, Sequence[stg.WeightOp]], readers: Readers
    ) -> bool:
        """Whether a unit beside the layers is freed after its forward pass: not one that begins last, behind the layers, nor the root, unless it is asked for
        and layers have some of it (`FSDPState._lazy_init`: what a root gathered is not freed, unless `reshard_after_forward` asks for it)."""
        if unit == ROOT:
            return self.options.reshard_root and any(map(is_stacked, groups[unit]))
        begins = {key: self.first_position(groups[key], readers) for key in groups if key != ROOT}
        last = max(begins, key=lambda key: begins[key])
        return unit != last or begins[last] < self.last_layers(readers)

    def last_layers(self, readers: Readers) -> int:
        """Where the last layers of the forward pass with units of their own stand."""
        layers = [w for w in readers if is_stacked(w) and not is_of_root(w, self.options.units)]
        return max((self.first_position([weight], readers) for weight in layers), default=-2)

    def first_position(self, members: Sequence[stg.WeightOp], readers: Readers) -> int:
        uses = [use.operation for w in members for use in readers[w]]
        return min((self.position(op) for op in uses if phase_in_loop(op) == FORWARD), default=-1)

    def position(self, op: Operation) -> int:
        """Where an op is in the loop's block, or the repeat around it."""
        return index_in(self.loop.body.block, op)

    def gather_for(
        self, members: Sequence[stg.WeightOp], readers, again: bool, at_start: bool
    ) -> None:
        """Gather a unit before its first forward reader, and again before its first backward one."""
        block = self.loop.body.block
        phases = (FORWARD, BACKWARD) if again else (FORWARD,)
        kept: dict[SSAValue, SSAValue] = {}
        for phase in phases:
            chosen = [
                (w, use)
                for w in members
                for use in readers[w]
                if not again or phase_in_loop(use.operation) == phase
            ]
            needing = [use.operation for _, use in chosen]
            if phase == BACKWARD and not needing:
                # No gradient of an embedding reads its table, and FSDP2 gathers it all the same.
                needing = gradient_makers(self.loop, self.program, [w.weight for w in members])
                if not needing and self.is_next_in_backward(members, readers):
                    needing = [operation_at(block, len(block.ops) - 1)]
            if not needing:
                continue
            values = [kept.get(w.weight, w.weight) for w in members]
            before = min(map(self.position, needing))
            if at_start:
                before = 0 if phase == FORWARD else self.first_backward(block, readers)
            gathered = self.gather(values, phase, operation_at(block, before))
            for weight, use in chosen:
                set_operand(
                    use.operation, use.index, gathered[kept.get(weight.weight, weight.weight)]
                )
            if again and phase == FORWARD and self.options.reshard_over:
                last = operation_at(block, max(map(self.position, needing)))
                kept = self.keep_parts(gathered, last)

    def is_next_in_backward(self, members: Sequence[stg.WeightOp], readers: Readers) -> bool:
        """Whether the unit behind one that has no backward pass has one: it gathers this one ahead, whether anybody reads it or not
        (`FSDPParamGroup._backward_prefetch`)."""
        own = self.first_position(members, readers)
        others = [w for w in readers if w not in members and self.is_of_unit(w)]
        begins = {w: self.first_position([w], readers) for w in others}
        behind = min((begin for begin in begins.values() if begin > own), default=None)
        uses = [use for w, begin in begins.items() if begin == behind for use in readers[w]]
        return any(phase_in_loop(use.operation) == BACKWARD for use in uses)

    def is_of_unit(self, weight: stg.WeightOp) -> bool:
        """Whether it is of a unit besides the root: one of layers, or of a named module."""
        if is_stacked(weight):
            return not is_of_root(weight, self.options.units)
        return unit_of(weight.path.data, self.options.units) != ROOT

    def first_backward(self, block: Block, readers: Readers) -> int:
        """Where the root's backward pass begins, that of the loss behind it: at the first reader of any weight (`FSDPState._pre_backward`, a hook on what the
        root's forward pass returns)."""
        uses = [use.operation for each in readers.values() for use in each]
        found = [self.position(op) for op in uses if phase_in_loop(op) == BACKWARD]
        return min(found, default=first_of_phase(block, BACKWARD))

    def complete_units(self, paths: Mapping[SSAValue, str]) -> None:
        """Let the backward pass of layers slice all parameters of each unit that it goes through: a unit is gathered whole, by a hook of its module
        (`FSDPState._pre_backward`).

        No gradient reads a bias or a shift, or a weight of which forward saved a copy in another dtype (`torch.autocast`).
        """
        known = dict(paths)
        for level in reversed(levels_of(self.program)):
            if level.outer is None:
                continue
            repeat = level.repeat
            units: dict[str, list[BlockArgument]] = {}
            for stack, argument in zip(repeat.stacks, repeat.slice_args, strict=True):
                if stack in known:
                    known[argument] = known[stack]
                    if not isinstance(argument.type, StackType):
                        unit = unit_of(known[stack], self.options.units)
                        units.setdefault(unit, []).append(argument)
            for unit, members in units.items():
                if self.has_backward(unit, members, level):
                    for member in members:
                        level.use(member)

    def has_backward(self, unit: str, members: Sequence[SSAValue], level: BlockPair) -> bool:
        """Whether the backward pass of a layer is, in part, that of a unit."""
        return (
            unit == ROOT
            or any(level.seen(member) is not None for member in members)
            or any(is_within(stg.scope_of(op), unit) for op in level.backward.walk())
        )

    def gather_in_layers(
        self, repeat: stg.RepeatOp, paths: dict[SSAValue, str], kept: dict[SSAValue, SSAValue]
    ) -> None:
        """Gather a layer's units where they begin, in each direction; or keep them as they were gathered first.

        `kept` has the stacks of what was gathered and kept, by the stacks of shards.
        """
        phase = phase_in_loop(repeat)
        if phase == BACKWARD:
            units = {
                unit_of(paths[stack], self.options.units)
                for stack in repeat.stacks
                if stack in paths
            }
            self.mark_begins(repeat.body.block, units)
            for unit in sorted(units):
                mark_end(repeat.body.block, unit)
        for position, stack in enumerate(repeat.stacks):
            if stack in kept:
                set_operand(repeat, repeat.num_carried + position, kept[stack])
                if self.options.reshard:
                    paths[kept[stack]] = paths[stack]
        body = repeat.body.block
        groups: dict[str, list[BlockArgument]] = {}
        inner_paths: dict[SSAValue, str] = {}
        stack_of: dict[SSAValue, SSAValue] = {}
        for stack, argument in zip(repeat.stacks, repeat.slice_args, strict=True):
            if stack in paths:
                assert isinstance(stack.type, StackType)
                set_type(argument, stack.type.element)
                inner_paths[argument], stack_of[argument] = paths[stack], stack
                if not isinstance(stack.type.element, StackType):
                    unit = unit_of(paths[stack], self.options.units)
                    groups.setdefault(unit, []).append(argument)
        inside: dict[SSAValue, SSAValue] = {}
        for inner in list(body.ops):
            if isinstance(inner, stg.RepeatOp):
                self.gather_in_layers(inner, inner_paths, inside)
        for unit, members in reversed(groups.items()):
            uses: dict[SSAValue, list[Use]] = {m: list(m.uses) for m in members}
            gathered = self.gather_layer(body, unit, members, phase)
            for member, output in gathered.items():
                for use in uses[member]:
                    set_operand(use.operation, use.index, output)
            if not self.options.reshard:
                inside |= gathered
            elif self.options.reshard_over and phase == FORWARD:
                reads = [index_in(body, use.operation) for each in uses.values() for use in each]
                inside |= self.keep_parts(gathered, operation_at(body, max(reads)))
        if inside:
            kept |= keep_gathered(repeat, {stack_of[a]: whole for a, whole in inside.items()})

    def mark_begins(self, body: Block, units: Collection[str]) -> None:
        """Where a unit is made again as part of more (a checkpoint around a block of which experts are a unit), before its own backward pass begins, mark that.

        FSDP2's hook runs there (`FSDPState._pre_backward`), and gathers the unit before this one; this one is gathered as it is made again, unless a hook
        ran before (`_pre_forward`). The hook of the unit whose gradient asks for what the checkpoint holds runs before anything is made again.
        """
        ops = list(body.ops)
        starts = {unit: backward_of(ops, unit) for unit in units}
        in_order = sorted(starts, key=lambda unit: starts[unit].begins)
        for place, unit in enumerate(in_order):
            start = starts[unit]
            hook = place - self.options.prefetch
            is_ahead = hook < 0 or starts[in_order[hook]].begins <= start.reached
            number = None
            if start.reached < start.begins:
                marks = stg.marks(ops[start.begins])
                number = marks.setdefault(stg.BEGINS_UNIT, IntegerAttr(self.num_hooks, i64))
                self.num_hooks += 1
            phase = BACKWARD if is_ahead or number is None else RECOMPUTED
            self.layer_starts[body, unit] = LayerStart(ops[start.reached], phase, number)

    def keep_parts(
        self, gathered: Mapping[SSAValue, SSAValue], behind: Operation
    ) -> dict[SSAValue, SSAValue]:
        """What a rank keeps of a unit that was gathered, behind its last reader, by the shards that it was gathered from."""
        kept: dict[SSAValue, SSAValue] = {}
        following = behind.next_op
        assert following is not None
        for op in dict.fromkeys(whole.owner for whole in gathered.values()):
            assert isinstance(op, dist.UnshardOp)
            axes = [a for a in op.axes.data if a in self.options.reshard_over]
            keep = dist.KeepShardOp(op.outputs, op.values, axes)
            insert(keep, following, behind)
            kept |= dict(zip(op.values, keep.outputs, strict=True))
        return kept

    def gather_layer(
        self, body: Block, unit: str, members: Sequence[SSAValue], phase: str
    ) -> dict[SSAValue, SSAValue]:
        """Gather a unit of a layer where it is needed first."""
        before, start = self.begins(body, unit, members), self.layer_starts.get((body, unit))
        if start is None:
            return self.gather(members, phase, before)
        if start.number is not None:
            self.notes = {**self.notes, stg.HOOK: start.number}
        before = min(start.first, before, key=body.get_operation_index)
        gathered = self.gather(members, start.phase, before)
        self.notes = {key: note for key, note in self.notes.items() if key != stg.HOOK}
        return gathered

    def begins(self, body: Block, unit: str, members: Sequence[SSAValue]) -> Operation:
        """The first op of a unit in a body: where a call of its module begins, forward or backward."""
        first = body.first_op
        assert first is not None
        if unit == ROOT:
            return first
        reads = {index_in(body, use.operation) for member in members for use in member.uses}
        for position, op in enumerate(body.ops):
            if position in reads or is_within(stg.scope_of(op), unit):
                return op
        return first

    def gather(
        self, values: Sequence[SSAValue], phase: str, before: Operation
    ) -> dict[SSAValue, SSAValue]:
        """Gather a unit: one buffer for all that is stored over the same axes."""
        gathered: dict[SSAValue, SSAValue] = {}
        for op in self.unshard(values, phase):
            insert(op, before)
            gathered |= dict(zip(op.values, op.outputs, strict=True))
        return gathered

    def unshard(self, values: Sequence[SSAValue], phase: str) -> list[dist.UnshardOp]:
        made = unshard(values, self.options.gather, phase, joined=not self.options.flat)
        for op in made:
            ahead = IntegerAttr(self.options.prefetch, i64)
            stg.marks(op)["lag" if phase == FORWARD else "prefetch"] = ahead
            stg.marks(op).update(self.notes)
        self.freed += made if self.is_freed else []
        return made


def number_units(gathers: Sequence[dist.UnshardOp]) -> None:
    """Say of each gather which unit it is of: those of the same weights are of one."""
    numbers: dict[frozenset[SSAValue], int] = {}
    for op in gathers:
        number = numbers.setdefault(frozenset(map(source_of, op.values)), len(numbers))
        stg.marks(op)[stg.UNIT] = IntegerAttr(number, i64)


def is_stacked(weight: stg.WeightOp) -> bool:
    """Whether each layer has one of its own."""
    return isinstance(weight.weight.type, StackType)


def is_of_root(weight: stg.WeightOp, units: Sequence[str]) -> bool:
    """Whether it belongs to the rest, where units are named. Where none is, a layer is one."""
    return bool(units) and unit_of(weight.path.data, units) == ROOT


@dataclass(frozen=True)
class BackwardOf:
    """Positions in the body of a layer's backward pass, of a unit."""

    reached: int
    """Where something of it comes first: what is made again, or its gradients."""
    begins: int
    """Where its own backward pass begins: with its first gradient, or with what is made again for that, right in front of it."""


def backward_of(ops: Sequence[Operation], unit: str) -> BackwardOf:
    inside = [i for i, op in enumerate(ops) if is_within(stg.scope_of(op), unit)]
    gradients = [i for i in inside if stg.phase_of(ops[i]) != RECOMPUTED]
    if unit == ROOT or not gradients:
        return BackwardOf(0, 0)
    begins = gradients[0]
    while begins and stg.phase_of(ops[begins - 1]) == RECOMPUTED:
        begins -= 1
    return BackwardOf(min(inside[0], begins), begins)


def mark_end(body: Block, unit: str) -> None:
    """Let what follows a unit's backward pass be issued apart: its reduction goes in between."""
    ops = list(body.ops)
    inside = [i for i, op in enumerate(ops) if is_within(stg.scope_of(op), unit)]
    if unit != ROOT and inside and not isinstance(following := ops[inside[-1] + 1], stg.YieldOp):
        stg.marks(following)[stg.FOLLOWS_UNIT] = UnitAttr()


def keep_gathered(
    repeat: stg.RepeatOp, gathered: Mapping[SSAValue, SSAValue]
) -> dict[SSAValue, SSAValue]:
    """Let a repeat stack what it gathers, by the stack of shards."""
    grown = stg.grown(repeat, list(gathered.values()))
    return dict(zip(gathered, grown.results[-len(gathered) :], strict=True))


def has_rows(weight: stg.WeightOp) -> bool:
    """Whether it is a table whose rows are updated where they are: its ranks are not those of FSDP."""
    return any(isinstance(use.operation, stg.UpdateRowsOp) for use in weight.weight.uses)


def operation_at(block: Block, position: int) -> Operation:
    return list(block.ops)[position]


def phase_in_loop(op: Operation) -> str:
    return FORWARD if stg.phase_of(op) == "fwd" else BACKWARD


def first_of_phase(block: Block, phase: str) -> int:
    for position, op in enumerate(block.ops):
        if phase_in_loop(op) == phase:
            return position
    return 0


def index_in(block: Block, op: Operation) -> int:
    return block.get_operation_index(ancestor_in(block, op))
