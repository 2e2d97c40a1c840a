"""Routers whose ranks share the experts to choose from, not the tokens that choose: W0306."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from stagec.analysis.placement import own_splits, rules_of
from stagec.analysis.sharding_errors import as_written
from stagec.analysis.sizes import size_values
from stagec.diagnostics import Diagnostic, Span, quoted, span_of
from stagec.dialects import dist, stg
from stagec.dialects.types import tensor_of


def split_routers(module: ModuleOp) -> list[Diagnostic]:
    """A warning for each rule of experts that takes an axis from a later rule of tokens, where tokens choose their experts.

    For a module before `propagate-shardings`. Experts are weights, and have no dim of tokens: in the other order they are split all the same.
    """
    rules, sizes = rules_of(module), size_values(module)
    of_dims = [
        (op, dim) for op in module.body.ops if isinstance(op, dist.RuleOp) for dim in op.dims.data
    ]
    found: dict[Span | None, Diagnostic] = {}
    for choice in module.walk():
        if not isinstance(choice, stg.TopkOp):
            continue
        experts, dims = choice.over.data, tensor_of(choice.scores.type).names
        taken = own_splits(choice.scores, rules).get(experts, ())
        first = next((n for n, (_, dim) in enumerate(of_dims) if dim == experts), len(of_dims))
        for op, dim in of_dims[first + 1 :]:
            lost = [a for a in op.axes.data if a in taken and sizes.get(a, 1) > 1]
            if dim not in dims or dim == experts or not lost:
                continue
            rule, over = of_dims[first][0], list(as_written(lost, sizes))
            message = f"where tokens choose among `{experts}`, {quoted(over)} splits that, and not `{dim}`"
            label = "it comes first"
            note = "ranks gather each other's tokens for the router, and sum what it made of them in the backward pass"
            help_ = f"write the rule of `{experts}` behind that of `{dim}`"
            span = span_of(rule.location)
            found.setdefault(
                span, Diagnostic("W0306", message, span, label=label, notes=(note,), help=help_)
            )
    return list(found.values())
