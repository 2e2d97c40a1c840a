"""Work that is done on several devices: W0303."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import prod

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from stagec.analysis.contexts import Contexts
from stagec.analysis.placement import PlacementRule, Splits, is_weight, op_splits, rules_of
from stagec.analysis.sizes import size_values
from stagec.diagnostics import Diagnostic, quoted, span_of
from stagec.dialects import stg


def repeated_work(module: ModuleOp) -> list[Diagnostic]:
    """A warning for each dispatch whose tokens several devices compute, and for each other axis of the rules along which a device spends more FLOPs on products
    that all others do too than on its share of those that they split.

    For a module before `propagate-shardings`.
    """
    experts = repeated_experts(module)
    if experts:
        return experts
    rules, contexts, sizes = rules_of(module), Contexts.of(module), size_values(module)
    placed = {
        op: op_splits(op, rules, contexts)
        for op in module.walk()
        if isinstance(op, stg.TensorOp) and not isinstance(op, stg.PlaceOp)
    }
    # Of an axis that splits nothing at all its rules say so (W0301).
    used = {axis for splits in placed.values() for axes in splits.values() for axis in axes}
    work = {op: splits for op, splits in placed.items() if op.WORK.on_matrix_units}
    costs = {op: cost_of(op, splits, sizes) for op, splits in work.items()}
    found: list[Diagnostic] = []
    for axis in dict.fromkeys(axis for rule in rules for axis in rule.axes):
        alike = [
            op for op, splits in work.items() if not any(axis in axes for axes in splits.values())
        ]
        repeated, size = sum(map(costs.__getitem__, alike)), sizes.get(axis, 1)
        shared = sum(costs.values()) - repeated
        if size == 1 or axis not in used or repeated <= shared:
            continue
        heaviest = max(alike, key=costs.__getitem__)
        ranks = f"the {size} ranks along `{axis.partition('.')[0]}`"
        dims = unsplit_dims(heaviest, work[heaviest], size, sizes)
        found.append(
            Diagnostic(
                "W0303",
                f"{ranks} all do {float(repeated / (repeated + shared)):.0%} of each one's products",
                span_of(heaviest.location),
                label="the most costly of what is not split over them",
                help=f"split it too: `shard {dims[0]} over {axis.partition('.')[0]}`"
                if dims
                else "",
            )
        )
    return found


def cost_of(op: stg.TensorOp, splits: Splits, sizes: Mapping[str, int]) -> Fraction:
    """The FLOPs of one device for all iterations."""
    flops, around = op.flops(), op.parent_op()
    while around is not None:
        flops = flops * around.count.data if isinstance(around, stg.RepeatOp) else flops
        around = around.parent_op()
    if flops.names - sizes.keys():
        return Fraction(0)
    return flops.evaluate(sizes) / prod(sizes.get(a, 1) for axes in splits.values() for a in axes)


def unsplit_dims(
    op: stg.TensorOp, splits: Splits, ways: int, sizes: Mapping[str, int]
) -> list[str]:
    """The dims that a product could be split along: those that make its result of a weight, before those that it sums over."""
    indices = op.indices()
    read = [own for v, own in zip(op.operands, indices.operands, strict=True) if is_weight(v)]
    weights = dict.fromkeys(index for own in read for index in own)
    free = [i for i in weights if i not in splits and sizes.get(i, 1) % ways == 0]
    made = {i for own in indices.results for i in own}
    return sorted(free, key=lambda index: index not in made)


def repeated_experts(module: ModuleOp) -> list[Diagnostic]:
    """A warning for each dispatch whose tokens come from several devices and of which each of these computes all.

    For a module before `propagate-shardings`. An axis that splits the tokens before the dispatch, but no dim of what is computed of them in their
    experts, gathers them: rules for the experts and for their tokens are what is missing.
    """
    rules = rules_of(module)
    found: list[Diagnostic] = []
    sizes = size_values(module)
    for op in module.walk():
        if not isinstance(op, stg.DispatchOp):
            continue
        working = working_axes(op, rules)
        missing = [axis for axis in token_axes(op, rules) if axis not in working]
        times = 1
        for axis in missing:
            times *= sizes.get(axis, 1)
        if times == 1:
            continue
        axes = quoted(missing)
        experts, tokens = op.over.data, op.tokens.data
        found.append(
            Diagnostic(
                "W0303",
                f"each device along {axes} computes the experts' tokens of all of them",
                span_of(op.location),
                label=f"{times} times the work that there is",
                help=f"spread the tokens with `shard {tokens} over {', '.join(missing)}`, or the experts with "
                f"`shard {experts} over` some of these axes, in a rule before that",
            )
        )
    return found


def token_axes(op: stg.DispatchOp, rules: Sequence[PlacementRule]) -> list[str]:
    """The axes that split tokens where their experts are chosen."""
    producer = op.experts.owner
    if not isinstance(producer, stg.TensorOp):
        return []
    return [axis for axes in op_splits(producer, rules).values() for axis in axes]


def working_axes(op: stg.DispatchOp, rules: Sequence[PlacementRule]) -> set[str]:
    """The axes that split some product in the experts, or, where they have none, whatever else they compute."""
    work = [each for each in readers(op.routed) if not isinstance(each, stg.CombineOp)]
    products = [each for each in work if isinstance(each, stg.ContractOp)]
    splits = (op_splits(each, rules) for each in products or work)
    return {axis for each in splits for axes in each.values() for axis in axes}


def readers(value: SSAValue) -> Iterator[stg.TensorOp]:
    """The ops that read a value, also by way of elementwise ops."""
    for use in value.uses:
        if isinstance(use.operation, stg.TensorOp):
            yield use.operation
            if not isinstance(use.operation, stg.ContractOp | stg.CombineOp):
                for result in use.operation.results:
                    yield from readers(result)
