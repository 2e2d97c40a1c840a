"""Rules of a plan that split nothing: W0301."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import OpResult

from stagec.analysis.placement import Rule, Splits, op_splits, own_splits, rules_of
from stagec.diagnostics import Diagnostic, quoted, span_of
from stagec.dialects import dist, stg
from stagec.dialects.types import TensorType, tensor_of


def unused_rules(module: ModuleOp, implied: Collection[str] = ()) -> list[Diagnostic]:
    """A warning for each dim of a rule that the rule splits in no op and in no value, but for `implied` dims, which no text names.

    For a module before `propagate-shardings`. An earlier rule may have used the axes up: `shard S over tp`
    before `shard H over tp` switches tensor parallelism off.
    """
    rules = rules_of(module)
    if not rules:
        return []
    used: set[tuple[int, str]] = set()
    dims: set[str] = set()
    for op in module.walk():
        if isinstance(op, stg.TensorOp) and not isinstance(op, stg.PlaceOp):
            for dim, axes in _split_dims(op, rules):
                dims.add(dim)
                used |= {_rule_of(dim, axis, rules) for axis in axes}
    ops = [op for op in module.body.ops if isinstance(op, dist.RuleOp)]
    found: list[Diagnostic] = []
    for number, (rule, op) in enumerate(zip(rules, ops, strict=True)):
        for dim in rule.dims:
            if (number, dim) not in used and dim not in implied:
                note = f"no tensor has the dim `{dim}`"
                if dim in dims:
                    note = f"wherever there is `{dim}`, another dim has {quoted(rule.axes)}"
                message = f"the rule never splits `{dim}`"
                found.append(Diagnostic("W0301", message, span_of(op.location), notes=[note]))
    return found


def _split_dims(op: stg.TensorOp, rules: list[Rule]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each dim of an op and its results, with the axes that split it."""
    placement: Splits = op_splits(op, rules)
    indices = op.indices()
    values = [*zip(op.operands, indices.operands, strict=True)]
    values += zip(op.results, indices.results, strict=True)
    for value, names in values:
        kind: TensorType = tensor_of(value.type)
        own = own_splits(value, rules) if isinstance(value, OpResult) and value.op is op else {}
        for dim, index in zip(kind.names, names, strict=True):
            yield dim, (*placement.get(index, ()), *own.get(dim, ()))


def _rule_of(dim: str, axis: str, rules: list[Rule]) -> tuple[int, str]:
    """The first rule that splits the dim over the axis; -1 for an override."""
    numbers = [n for n, rule in enumerate(rules) if dim in rule.dims and axis in rule.axes]
    return (numbers[0] if numbers else -1, dim)
