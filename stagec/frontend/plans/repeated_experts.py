"""Experts whose work is done on several devices: W0303."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from stagec.analysis.placement import PlacementRule, op_splits, rules_of
from stagec.analysis.sizes import size_values
from stagec.diagnostics import Diagnostic, quoted, span_of
from stagec.dialects import stg


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
