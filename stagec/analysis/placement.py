"""Which mesh axes split which dims: a plan's rules, applied to values and to ops.

Rules are tried in order; within a rule its dims, then its axes, as written. An axis splits at most one
dim of a value, and one index of an op. These are questions about IR; `propagate-shardings` acts on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, BlockArgument, OpResult, SSAValue

from stagec.analysis.contexts import Contexts
from stagec.dialects import dist, stg
from stagec.dialects.types import tensor_of
from stagec.dialects.use_def import followed, from_stack, through

Splits = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class PlacementRule:
    """`shard DIMS over AXES`."""

    dims: tuple[str, ...]
    axes: tuple[str, ...]
    copies: tuple[str, ...] = ()
    """Axes along which ranks have the same of these dims: of what has one of them, they split nothing else."""


def rules_of(module: ModuleOp) -> list[PlacementRule]:
    return [
        PlacementRule(op.dims.data, op.axes.data, op.copies.data if op.copies is not None else ())
        for op in module.body.ops
        if isinstance(op, dist.RuleOp)
    ]


def copies_of(dim: str, rules: Sequence[PlacementRule]) -> tuple[str, ...]:
    """The axes along which ranks have the same of a dim."""
    return tuple(axis for rule in rules if dim in rule.dims for axis in rule.copies)


def split_dims(names: Iterable[str], rules: Sequence[PlacementRule]) -> Splits:
    """How the rules split a value of these dims."""
    names = list(names)
    splits: dict[str, list[str]] = {}
    used: set[str] = set()
    for rule in rules:
        for dim in rule.dims:
            if dim not in names:
                continue
            for axis in rule.axes:
                if axis not in used:
                    used.add(axis)
                    splits.setdefault(dim, []).append(axis)
            used.update(rule.copies)
    return {dim: tuple(axes) for dim, axes in splits.items()}


def own_splits(value: SSAValue, rules: Sequence[PlacementRule]) -> Splits:
    """How a value is spread between the ops: by the rules, or as a `stg.place` says."""
    splits = split_dims(tensor_of(value.type).names, rules)
    for place in placings(value):
        kept = {d: a for d, a in splits.items() if d not in place.dims.data}
        splits = {d: tuple(x for x in axes if x not in place.axes.data) for d, axes in kept.items()}
        if place.dims.data and place.axes.data:
            splits[place.dims.data[0]] = place.axes.data
    return {d: a for d, a in splits.items() if a}


def contexts_of_nothing(module: ModuleOp, batch: str) -> list[dist.ContextOp]:
    """The contexts along whose axes no attention has its sequence split, nor has a cache, nor an input but over its `batch`: their ranks have no parts
    of one sequence. For a module before `propagate-shardings`.
    """
    rules = rules_of(module)
    along: set[str] = set()
    for op in module.walk():
        sequences: list[tuple[SSAValue, str]] = []
        if isinstance(op, stg.FusedAttention):
            keys = op.operands[op.KEY_OPERANDS[0]]
            sequences = [(op.operands[0], op.query_dim), (keys, op.key_dim)]
        elif isinstance(op, stg.AppendOp) and op.own is not None:
            sequences = [(op.result, op.into.data)]
        elif isinstance(op, stg.ProgramOp):
            sequences = [
                (v, n) for v in op.body.block.args for n in tensor_of(v.type).names if n != batch
            ]
        along |= {a for value, name in sequences for a in own_splits(value, rules).get(name, ())}
    return [op for op in Contexts.of(module).ops if along.isdisjoint(op.axes.data)]


def placings(value: SSAValue) -> list[stg.PlaceOp]:
    """The overrides that a value is the result of, in order.

    A slice of an overridden stack is overridden too, and so is what a repeat carries if what goes in and what
    each iteration hands on are, alike.
    """
    stack = from_stack(value)
    if stack is not None:
        return placings(stack)
    chains = [placing_chain(v) for v in carried_values(value)]
    # Two of the same in a row are as one.
    alike = {tuple(k for k, _ in groupby((p.dims, p.axes) for p in chain)) for chain in chains}
    return chains[0] if len(alike) == 1 else []


def wanted_splits(value: SSAValue, rules: Sequence[PlacementRule]) -> Splits | None:
    """How an override spreads an op's result that nothing else reads."""
    uses = list(value.uses)
    if len(uses) != 1 or not isinstance(uses[0].operation, stg.PlaceOp):
        return None
    if not isinstance(value, OpResult) or not isinstance(value.op, stg.TensorOp):
        return None
    is_made = not isinstance(value.op, stg.PlaceOp)
    return own_splits(uses[0].operation.result, rules) if is_made else None


def placing_chain(value: SSAValue) -> list[stg.PlaceOp]:
    chain: list[stg.PlaceOp] = []
    while isinstance(value, OpResult) and isinstance(value.op, stg.PlaceOp):
        chain.insert(0, value.op)
        value = value.op.x
    return chain


def unplaced(value: SSAValue) -> SSAValue:
    """The value that overrides are of."""
    return followed(value, through(stg.PlaceOp))


def carried_values(value: SSAValue) -> list[SSAValue]:
    """What a value that repeats carry can be: what goes in, and what iterations hand on. Else the value itself."""
    found: list[SSAValue] = []
    seen: set[SSAValue] = set()
    pending = [value]
    while pending:
        current = pending.pop(0)
        if current in seen:
            continue
        seen.add(current)
        carrier = carrier_of(current)
        if carrier is None:
            found.append(current)
        else:
            repeat, index = carrier
            pending += [repeat.operands[index], repeat.yield_op.operands[index]]
    return found


def carrier_of(value: SSAValue) -> tuple[stg.RepeatOp, int] | None:
    """The repeat that carries a value, inside of it or out of it, and as which of those that it carries."""
    if isinstance(value, OpResult):
        repeat, index = value.op, value.index
    else:
        assert isinstance(value, BlockArgument)
        repeat, index = value.block.parent_op(), value.index
    if isinstance(repeat, stg.RepeatOp) and index < repeat.num_carried:
        return repeat, index
    return None


def source_of(value: SSAValue) -> SSAValue:
    """The weight, input or result that a value is, behind slices and overrides."""
    return followed(value, through(stg.PlaceOp), from_stack)


def is_weight(value: SSAValue) -> bool:
    source = source_of(value)
    return isinstance(source, OpResult) and isinstance(source.op, stg.WeightOp | stg.CacheOp)


def is_input(value: SSAValue) -> bool:
    """Whether a data loader brings it: it then arrives as each reader needs it."""
    source = source_of(value)
    owner = source.owner
    return isinstance(owner, Block) and isinstance(owner.parent_op(), stg.ProgramOp)


def op_splits(
    op: stg.TensorOp, rules: Sequence[PlacementRule], contexts: Contexts | None = None
) -> Splits:
    """The placement of an op: axes for each index of its iteration space.

    Contexts say how attention is spread over the axes that split its sequence.
    """
    splits = splits_by_rules(op, rules)
    if isinstance(op, stg.CombineAttentionOp) and op.is_sum:
        return with_parts(splits, op.part_index, op.spread.data)
    if isinstance(op, stg.FusedAttention) and op.spread is not None:
        splits = with_parts(splits, op.key_index, op.spread.data)
    elif isinstance(op, stg.FusedAttention) and contexts is not None:
        splits = in_context(op, splits, rules, contexts)
    if isinstance(op, stg.ConcatOp | stg.SplitOp):
        return with_joint_dims(op, splits, rules)
    if isinstance(op, SharesHeads):
        return with_shared_heads(op, splits)
    if isinstance(op, stg.DispatchOp | stg.CombineOp):
        return with_routed_tokens(op, splits, rules)
    return splits


def with_parts(splits: Splits, index: str, axes: Sequence[str]) -> Splits:
    """Parts of keys are on the ranks along some axes, which split nothing else of the op: each part is for all heads of queries."""
    others = {i: tuple(a for a in own if a not in axes) for i, own in splits.items()}
    return {i: a for i, a in others.items() if a} | {index: tuple(axes)}


def with_routed_tokens(
    op: stg.DispatchOp | stg.CombineOp, splits: Splits, rules: Sequence[PlacementRule]
) -> Splits:
    """What splits the tokens splits the tokens of each expert: they are the same, in another order.

    Axes that split experts and no token find all tokens on each device: it takes those of its own experts, and makes a term of their sum. Along the
    first that splits tokens too, and those behind it, experts are whole here, and tokens travel to them.
    """
    index, parts = op.merged_index()
    own = tensor_of(op.routed.type).with_splits(own_splits(op.routed, rules))
    axes = stg.merged_axes(splits, parts, own)
    experts = own.dims[0]
    used = {axis for each in splits.values() for axis in each}
    local = {experts.name: tuple(takewhile(lambda axis: axis not in used, experts.split))}
    return {i: a for i, a in (splits | {index: axes} | local).items() if a}


def with_joint_dims(
    op: stg.ConcatOp | stg.SplitOp, splits: Splits, rules: Sequence[PlacementRule]
) -> Splits:
    """Axes that split the whole and each of its parts split the op: a device has its part of each."""
    axes = {own_splits(value, rules).get(dim, ()) for value, dim in op.joint}
    if len(axes) > 1 or not all(axes):
        return splits
    (joint,) = axes
    others = {i: tuple(a for a in split if a not in joint) for i, split in splits.items()}
    return {i: a for i, a in others.items() if a} | {dim: joint for _, dim in op.joint}


SharesHeads = stg.AttentionOp | stg.RepeatHeadsOp
"""Ops of which several ranks may have the same heads of keys."""


def with_shared_heads(op: SharesHeads, splits: Splits) -> Splits:
    """Heads of keys are split as those of queries are, but over axes along which ranks have the same keys."""
    if op.copies is None:
        return splits
    heads, shared = op.shared_heads
    own = tuple(a for a in splits.get(heads, ()) if a not in op.copies.data)
    return splits | {shared: own} if own else splits


def in_context(
    op: stg.FusedAttention, splits: Splits, rules: Sequence[PlacementRule], contexts: Contexts
) -> Splits:
    """What contexts make of the placement of attention.

    Under `ulysses` an axis splits heads instead of queries, as the most minor one. In a `ring` an axis that splits the
    queries splits the keys too, the one case of an axis that splits two indices of an op. Otherwise keys are whole.
    """
    *_, queries, heads, _ = op.indices().operands[0]
    along = splits.get(queries, ())
    moved = tuple(a for a in along if a in contexts.axes("ulysses"))
    stay = tuple(a for a in along if a not in moved)
    stored = own_splits(op.operands[op.KEY_OPERANDS[0]], rules).get(op.key_dim, ())
    ring = tuple(a for a in stay if a in contexts.axes("ring") and a in stored)
    changed = {queries: stay, heads: (*splits.get(heads, ()), *moved), op.key_index: ring}
    return {index: axes for index, axes in (splits | changed).items() if axes}


def splits_by_rules(op: stg.TensorOp, rules: Sequence[PlacementRule]) -> Splits:
    """The placement that rules give an op.

    An axis may split an index only if some operand (not an input), weight or result is placed so. A value
    that the plan overrides decides for its own dims; a result that all readers want otherwise offers what both have.
    """
    indices = op.indices()
    names: dict[str, list[str]] = {}
    offers: dict[str, set[str]] = {}
    fixed: Splits = {}
    values = [*zip(op.operands, indices.operands, strict=True)]
    visible = len(op.results) - op.NUM_STATISTICS
    values += zip(op.results[:visible], indices.results[:visible], strict=True)
    for value, value_indices in values:
        splits = own_splits(value, rules)
        wanted = wanted_splits(value, rules)
        overridden = {dim for place in placings(value) for dim in place.dims.data}
        for dim, index in zip(tensor_of(value.type).names, value_indices, strict=True):
            if dim not in names.setdefault(index, []):
                names[index].append(dim)
            if dim in overridden:
                fixed[index] = splits.get(dim, ())
            elif not is_input(value):
                kept = wanted.get(dim, ()) if wanted is not None else splits.get(dim, ())
                offers.setdefault(index, set()).update(a for a in splits.get(dim, ()) if a in kept)
    for index in fixed:
        offers[index] = set()
    return assign(names, offers, fixed, indices.blocked, rules)


def assign(
    names: Mapping[str, Sequence[str]],
    offers: Mapping[str, set[str]],
    fixed: Mapping[str, tuple[str, ...]],
    blocked: frozenset[str],
    rules: Sequence[PlacementRule],
) -> Splits:
    """Give each offered axis to one index, in the rules' order."""
    splits: dict[str, list[str]] = {}
    used: set[str] = set()
    kept: dict[str, str] = {}
    for index, axes in fixed.items():
        if index not in blocked:
            splits[index] = [a for a in axes if a not in used]
            used.update(axes)
    for rule in rules:
        for dim in rule.dims:
            for index, dims in names.items():
                if dim not in dims or index in blocked:
                    continue
                for axis in rule.axes:
                    is_free = axis not in used and kept.get(axis, index) == index
                    if is_free and axis in offers.get(index, ()):
                        used.add(axis)
                        splits.setdefault(index, []).append(axis)
                for axis in rule.copies:
                    # Queries' heads may be split where those of keys have copies.
                    kept.setdefault(axis, index)
    return {index: tuple(axes) for index, axes in splits.items() if axes}


def needed_type(op: stg.TensorOp, position: int, splits: Splits) -> stg.TensorType:
    """The type that an op placed so needs an operand in. Never partial."""
    operand = tensor_of(op.operands[position].type)
    return stg.placed(operand.with_partial(()), op.indices().operands[position], splits)
