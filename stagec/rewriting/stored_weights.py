"""Gathers of parameters that are stored split: of one tensor, of a unit, of each layer of a stack, and after an update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, UnitAttr, i64
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from stagec.dialects import dist, stg
from stagec.dialects.dist.storage import whole_of
from stagec.dialects.op import around, block_of, first_op
from stagec.dialects.types import Layers, StackType, tensor_of
from stagec.dialects.use_def import followed, from_body, from_stack, one_by_one, through
from stagec.rewriting import inherit, output_of, set_operand, set_type

NAME = "shard-parameters"


Gather = Callable[[Sequence[SSAValue]], list[dist.UnshardOp]]


def unshard(
    values: Sequence[SSAValue], dtype: str, phase: str, joined: bool = False
) -> list[dist.UnshardOp]:
    """One gather for all shards over the same axes in one dtype: `dtype`, but for weights that have their own.

    `joined`: frozen weights travel with trained ones, whatever their dtypes, as in FSDP2; trained ones of several would be units of their own.
    """
    by_axes: dict[tuple[str, ...], dict[str, list[SSAValue]]] = {}
    for value in values:
        alike = by_axes.setdefault(dist.stored_over(value), {})
        alike.setdefault(own_dtype(value) or dtype, []).append(value)
    groups: list[tuple[tuple[str, ...], dict[str, list[SSAValue]]]] = []
    for axes, alike in by_axes.items():
        trained = [each for each, members in alike.items() if not all(map(is_frozen, members))]
        apart = not joined or len(trained) > 1
        groups += [(axes, {each: alike[each]}) for each in alike] if apart else [(axes, alike)]
    made = []
    for axes, alike in groups:
        members = [value for value in values if any(value in each for each in alike.values())]
        of_each = [own_dtype(value) or dtype for value in members]
        op = dist.UnshardOp(members, axes, of_each)
        stg.marks(op)["phase"] = StringAttr(phase)
        made.append(op)
    return made


def weight_of(value: SSAValue) -> stg.WeightOp | None:
    """The weight that a value is, or is a part of."""
    same = one_by_one(dist.TakeShardOp, dist.KeepShardOp, dist.UnshardOp, stg.OptimizerStepOp)
    weight = followed(value, from_stack, from_body, same, through(dist.TakeApartOp)).owner
    return weight if isinstance(weight, stg.WeightOp) else None


def own_dtype(value: SSAValue) -> str | None:
    """The dtype in which a weight, or a part of it, travels that has its own."""
    weight = weight_of(value)
    if weight is None or weight.own is None:
        return None
    return weight.gathered.data if weight.gathered is not None else tensor_of(value.type).dtype


def is_frozen(value: SSAValue) -> bool:
    weight = weight_of(value)
    return weight is not None and weight.frozen is not None


def storage_axes(weight: SSAValue, axes: Sequence[str]) -> tuple[str, ...]:
    """The axes that a weight's storage is split over: not those that split its computation already (experts)."""
    own = tensor_of(weight.type).split_axes
    return tuple(a for a in axes if a not in own)


def repeat_over(
    stacks: Sequence[SSAValue], make: Gather, phase: str, depth: int = 1
) -> stg.RepeatOp:
    """A repeat that applies an op to a slice of each stack; around it are `depth - 1` others. Weights of one inner layer are sliced together."""
    body = Block()
    slices = [stg.slice_arg(body, stack) for stack in stacks]
    so_far = of_stacks(stacks, body)
    nested = [s for s in slices if isinstance(s.type, StackType)]
    plain = [s for s in slices if s not in nested]
    results: dict[SSAValue, SSAValue] = {}
    inner: dict[object, list[SSAValue]] = {}
    for each in nested:
        inner.setdefault(layers_around(each, depth) or each, []).append(each)
    for members in inner.values():
        repeat = repeat_over(members, make, phase, depth + 1)
        body.add_op(repeat)
        results |= dict(zip(members, repeat.results, strict=True))
    if plain:
        for op in make(plain):
            body.add_op(op)
            results |= dict(zip(op.values, op.outputs, strict=True))
    body.add_op(stg.YieldOp([results[s] for s in slices]))
    repeat = stg.RepeatOp.over(stacks, so_far.detach_region(0))
    so_far.erase()
    stg.marks(repeat)["phase"] = StringAttr(phase)
    for op in body.ops:
        inherit(op, repeat, NAME)
    return repeat


def layers_around(value: SSAValue, depth: int) -> stg.RepeatOp | None:
    """The repeat of the forward pass that slices a weight and stands in so many others; `value` is the weight, or a part of it."""
    weight = weight_of(value)
    sliced = weight.weight if weight is not None else value
    for _ in range(depth):
        layers = layers_that_read(sliced)
        if layers is None:
            return None
        sliced = layers.slice_args[layers.stacks.index(sliced)]
    return layers_that_read(sliced)


def layers_that_read(weight: SSAValue) -> stg.RepeatOp | None:
    """The repeat of the forward pass that slices a stack of weights."""
    for use in weight.uses:
        layers = use.operation
        is_in_program = layers.parent is not None
        if isinstance(layers, stg.RepeatOp) and is_in_program and stg.phase_of(layers) == "fwd":
            return layers
    return None


def of_stacks(stacks: Sequence[SSAValue], body: Block) -> stg.RepeatOp:
    """A repeat of nothing yet: what its slices are of is known from the start, whose weights may have a dtype of their own."""
    return stg.RepeatOp.over(stacks, body)


def stored_rows(weight: stg.WeightOp, flat: bool) -> int:
    """How many dims are rows, which storage is split by; all of them if a parameter is split as one row of elements."""
    return max(1, len(tensor_of(weight.weight.type).dims)) if flat else weight.num_rows


def insert(op: Operation, before: Operation, origin: Operation | None = None) -> None:
    for each in op.walk():
        inherit(each, origin or before, NAME)
        stg.marks(each).pop("scope", None)
    Rewriter.insert_op(op, InsertPoint.before(before))


def gather_updated(
    program: stg.ProgramOp,
    axes: Sequence[str],
    dtype: str,
    flat: bool,
    *,
    in_buckets: bool = False,
    in_forward: bool = False,
    at_first_use: bool = False,
) -> None:
    """Update the rank's shards, and gather whole parameters from them: behind the update, as one buffer of all that is split over the same axes, or
    `in_forward`, before the microbatches of the next step, layer by layer; either way perhaps `in_buckets`.

    DeepSpeed gathers its flat buffer at once (`all_gather_into_tensor_dp_groups` in `runtime/utils.py`), and so does Megatron-LM without buckets; else
    it gathers parameters as their gradients were reduced.
    """
    block = program.body.block
    step = first_op(block, stg.OptimizerStepOp)
    if step is None:
        return
    loops = (op for op in block.ops if isinstance(op, stg.AccumulateOp))
    loop = next(loops) if in_forward else None
    phase = "optim" if loop is None else "fwd"
    readers = [
        [use for use in w.uses if loop and loop.is_ancestor(use.operation)] for w in step.weights
    ]
    shards = [take_shard(w, axes, flat, phase, loop or step, step) for w in step.weights]
    updated = updated_from(step, shards)
    before = loop or updated.next_op or output_of(program)

    def gather(values: Sequence[SSAValue]) -> list[dist.UnshardOp]:
        made = unshard(values, dtype, phase)
        for op in made if loop else ():
            # They fill the parameters themselves, whatever they travelled in.
            for shard, whole in zip(op.values, op.outputs, strict=True):
                set_type(whole, whole_of(shard.type, tensor_of(shard.type).dtype))
            stg.marks(op)["lag"] = IntegerAttr(1, i64)
            if at_first_use:
                stg.marks(op)[stg.ISSUED] = StringAttr(stg.WITH_UNIT)
        return made

    def insert_gather(op: Operation) -> None:
        insert(op, before, updated)
        for each in op.walk():
            stg.marks(each)["phase"] = StringAttr(phase)

    if in_buckets:
        groups = as_reduced(shards, updated.gradients)
        whole = insert_gathers(groups, gather, insert_gather)
    else:
        whole = {}
        for members in by_layers(shards) if loop else [shards]:
            made: list[stg.RepeatOp] = []
            if loop and is_stacked(members[0]):
                made.append(repeat_over(members, gather, phase))
            for op in made or gather(members):
                insert_gather(op)
                whole |= dict(zip(op.operands, op.results, strict=True))
    for shard, uses in zip(shards, readers, strict=True):
        for use in uses:
            set_operand(use.operation, use.index, whole[shard])


def gather_persistent(
    program: stg.ProgramOp, weights: Sequence[stg.WeightOp], axes: Sequence[str], flat: bool
) -> None:
    """Update the rank's shards of parameters that stay whole, and gather each from them, one by one in the order of the layers; frozen ones too."""
    step = first_op(program.body.block, stg.OptimizerStepOp)
    if step is None or not weights:
        return
    values: list[SSAValue] = [weight.weight for weight in weights]
    shards = {value: take_shard(value, axes, flat, "optim", step, step) for value in values}
    updated = updated_from(step, [shards.get(value, value) for value in step.weights])
    before = updated.next_op or output_of(program)

    def gather(values: Sequence[SSAValue]) -> list[dist.UnshardOp]:
        return [op for v in values for op in unshard([v], tensor_of(v.type).dtype, "optim")]

    for members in by_layers([shards[value] for value in values]):
        of_layers = is_stacked(members[0])
        made = [repeat_over(members, gather, "optim")] if of_layers else gather(members)
        for op in made:
            insert(op, before, updated)


def take_shard(
    weight: SSAValue,
    axes: Sequence[str],
    flat: bool,
    phase: str,
    before: Operation,
    origin: Operation,
) -> SSAValue:
    """The rank's part of a parameter that is stored whole."""
    assert isinstance(weight.owner, stg.WeightOp)
    own, rows = storage_axes(weight, axes), stored_rows(weight.owner, flat)
    take = dist.TakeShardOp([weight], own, tensor_of(weight.type).dtype, [rows])
    stg.marks(take)["phase"] = StringAttr(phase)
    insert(take, before, origin)
    return take.outputs[0]


def updated_from(step: stg.OptimizerStepOp, weights: Sequence[SSAValue]) -> stg.OptimizerStepOp:
    """The same step of other weights."""
    updated = step.of(weights, step.gradients)
    stg.marks(updated).take(stg.marks(step))
    updated.location = step.location
    Rewriter.replace_op(step, updated)
    return updated


def by_layers(shards: Sequence[SSAValue]) -> list[list[SSAValue]]:
    """What layers have one of each, by their number; any other shard alone."""
    found: dict[object, list[SSAValue]] = {}
    for shard in shards:
        found.setdefault(layers_of(shard) or shard, []).append(shard)
    return list(found.values())


Group = Sequence[SSAValue]


def as_reduced(
    shards: Sequence[SSAValue], gradients: Sequence[SSAValue]
) -> list[tuple[Group, bool]]:
    """Shards by the ops that reduced their gradients, in the order of these; what nothing reduced at the end. And whether each was reduced part by part."""
    found: dict[Operation | SSAValue, list[SSAValue]] = {}
    places: dict[Operation | SSAValue, list[int]] = {}
    apart: set[Operation | SSAValue] = set()
    for shard, gradient in zip(shards, gradients, strict=True):
        reduced = reduction_behind(gradient)
        key = reduced if reduced is not None else shard
        found.setdefault(key, []).append(shard)
        places[key] = place_of(reduced) if reduced is not None else []
        if reduced is not None and is_of_parts(reduced.parent_op()):
            apart.add(key)
    order = sorted(found, key=lambda key: (not places[key], places[key]))
    return [(found[key], key in apart) for key in order]


def is_of_parts(op: Operation | None) -> bool:
    """Whether a repeat is over the parts of a tensor, not over layers."""
    return isinstance(op, stg.RepeatOp) and stg.STEPS in stg.marks(op)


def reduction_behind(gradient: SSAValue) -> dist.ReduceShardOp | None:
    """What summed a gradient over the ranks that its storage is split over."""
    op = followed(gradient, from_body, from_storage, through(dist.PutTogetherOp)).owner
    return op if isinstance(op, dist.ReduceShardOp) else None


def from_storage(value: SSAValue) -> SSAValue | None:
    """From what is stored in another way to what it was, up to a reduction."""
    is_reduced = isinstance(value.owner, dist.ReduceShardOp)
    return None if is_reduced else one_by_one(dist.StorageOp)(value)


def place_of(op: Operation) -> list[int]:
    """Where an op stands, outermost block first."""
    inside = [each for each in (op, *around(op)) if not isinstance(each, ModuleOp | stg.ProgramOp)]
    return [block_of(each).get_operation_index(each) for each in reversed(inside)]


def insert_gathers(
    groups: Sequence[tuple[Group, bool]], gather: Gather, insert_op: Callable[[Operation], None]
) -> dict[SSAValue, SSAValue]:
    """One gather for each group, or for each of its parts, the last layer first and the last part; what each shard becomes."""
    made: dict[SSAValue, SSAValue] = {}
    for layers, alike in groupby(groups, key=lambda group: layers_of(group[0][0])):
        members = list(alike)
        if layers is not None:
            made |= gathers_in_repeat(members, gather, insert_op)
            continue
        for group, is_apart in members:
            if is_apart:
                made |= gathers_of_parts(group, gather, insert_op)
                continue
            for op in gather(group):
                insert_op(op)
                made |= dict(zip(op.values, op.outputs, strict=True))
    return made


def gathers_of_parts(
    group: Group, gather: Gather, insert_op: Callable[[Operation], None]
) -> dict[SSAValue, SSAValue]:
    apart = [dist.TakeApartOp(shard) for shard in group]
    for op in apart:
        insert_op(op)
    stacks = [op.result for op in apart]
    parts = gathers_in_repeat([(stacks, False)], gather, insert_op, steps=True)
    made: dict[SSAValue, SSAValue] = {}
    for shard, stack in zip(group, stacks, strict=True):
        whole = tensor_of(shard.type).with_dtype(tensor_of(parts[stack].type).dtype)
        together = dist.PutTogetherOp(parts[stack], whole)
        insert_op(together)
        made[shard] = together.result
    return made


def gathers_in_repeat(
    groups: Sequence[tuple[Group, bool]],
    gather: Gather,
    insert_op: Callable[[Operation], None],
    *,
    steps: bool = False,
) -> dict[SSAValue, SSAValue]:
    """The same for each of a stack, the last first. `steps`: they are parts, no layers."""
    stacks = [stack for group, _ in groups for stack in group]
    body = Block()
    inner = {stack: stg.slice_arg(body, stack) for stack in stacks}
    so_far = of_stacks(stacks, body)
    slices = [([inner[s] for s in group], is_apart) for group, is_apart in groups]
    whole = insert_gathers(slices, gather, body.add_op)
    body.add_op(stg.YieldOp([whole[inner[stack]] for stack in stacks]))
    repeat = stg.RepeatOp.over(stacks, so_far.detach_region(0), reverse=True)
    so_far.erase()
    if steps:
        stg.marks(repeat)[stg.STEPS] = UnitAttr()
    insert_op(repeat)
    return dict(zip(stacks, repeat.results, strict=True))


def layers_of(value: SSAValue) -> Layers | None:
    """The layers that a stack is of."""
    return value.type.layers if isinstance(value.type, StackType) else None


def is_stacked(value: SSAValue) -> bool:
    return isinstance(value.type, StackType)
