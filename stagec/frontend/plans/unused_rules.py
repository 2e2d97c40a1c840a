"""Rules and overrides of a plan that split nothing, W0301, and contexts of no sequence, W0304."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, SSAValue

from stagec.analysis.placement import (
    PlacementRule,
    Splits,
    contexts_of_nothing,
    is_weight,
    op_splits,
    own_splits,
    rules_of,
)
from stagec.diagnostics import Diagnostic, Span, quoted, span_of
from stagec.dialects import dist, stg
from stagec.dialects.types import TensorType, tensor_of
from stagec.plans.clauses import Plan


def idle_overrides(module: ModuleOp) -> list[Diagnostic]:
    """A warning for each override that leaves its value, what makes it and what reads it as the rules have them: other dims go by these.

    For a module before `propagate-shardings`.
    """
    rules = rules_of(module)
    changes: dict[Span, bool] = {}
    kept: dict[Span, stg.PlaceOp] = {}
    for op in module.walk():
        span = span_of(op.location) if isinstance(op, stg.PlaceOp) else None
        if isinstance(op, stg.PlaceOp) and span is not None:
            changes[span] = changes.get(span, False) or _changes(op, rules)
            kept.setdefault(span, op)
    found: list[Diagnostic] = []
    for span, op in kept.items():
        if not changes[span]:
            tensor = tensor_of(op.result.type)
            splits = own_splits(op.result, rules)
            others = [name for name in splits if name not in op.dims.data]
            shown = tensor.with_splits(splits)
            note = f"the rules split the value as [{', '.join(map(str, shown.dims))}]"
            help_ = "leave it out"
            if others:
                help_ = f"dims that it does not name go by the rules: one with `[{others[0]}] over none` leaves `{others[0]}` whole"
            message = "the override places nothing"
            found.append(Diagnostic("W0301", message, span, notes=[note], help=help_))
    return found


def _changes(place: stg.PlaceOp, rules: list[PlacementRule]) -> bool:
    """Whether the override of a value changes how it is spread, or the ops beside it are."""
    made, readers = place.x.owner, [use.operation for use in place.result.uses]
    is_handed_on = any(isinstance(op, stg.RepeatOp | stg.YieldOp) for op in readers)
    # A weight that nothing else reads is as these readers need it.
    is_theirs = is_weight(place.x) and place.x.has_one_use() and not is_handed_on
    if not is_theirs and own_splits(place.result, rules) != own_splits(place.x, rules):
        return True
    # What layers hand on is as the rules have it, inputs and weights as their readers need them.
    beside = [op for op in readers if not isinstance(op, stg.RepeatOp | stg.YieldOp)]
    if not isinstance(made, Block | stg.WeightOp | stg.RepeatOp):
        beside.append(made)
    ops = [op for op in beside if isinstance(op, stg.TensorOp) and not isinstance(op, stg.PlaceOp)]
    if len(ops) < len(beside):
        return True
    before = [op_splits(op, rules) for op in ops]
    if is_weight(place.x) and any(
        placement.get(index, ()) != own_splits(place.result, rules).get(dim, ())
        for op, placement in zip(ops, before, strict=True)
        for dim, index in read_as(op, place.result)
    ):
        return True
    uses = list(place.result.uses)
    for use in uses:
        use.operation.operands[use.index] = place.x
    after = [op_splits(op, rules) for op in ops]
    for use in uses:
        use.operation.operands[use.index] = place.result
    return before != after


def read_as(op: stg.TensorOp, value: SSAValue) -> Iterator[tuple[str, str]]:
    """Each dim of a value, and what an op that reads it has for it."""
    for operand, names in zip(op.operands, op.indices().operands, strict=True):
        if operand is value:
            yield from zip(tensor_of(value.type).names, names, strict=True)


def unused_rules(module: ModuleOp, implied: Collection[str] = ()) -> list[Diagnostic]:
    """A warning for each dim that its rule splits in no op and in no value, and for each axis over which a rule splits nothing.

    No text names `implied` dims, so that they are left out.

    For a module before `propagate-shardings`. An earlier rule may have used the axes up: `shard S over tp`
    before `shard H over tp` switches tensor parallelism off.
    """
    rules = rules_of(module)
    if not rules:
        return []
    used: set[tuple[int, str]] = set()
    over: set[tuple[int, str]] = set()
    """Rules, and axes over which they split something."""
    dims: set[str] = set()
    taken: set[tuple[str, str]] = set()
    """Axes that split other dims where there is a dim."""
    for op in module.walk():
        if isinstance(op, stg.WeightOp) and not op.weight.uses:
            # A device keeps it for other iterations: those that see images, for instance.
            split = list(own_splits(op.weight, rules).items())
        elif isinstance(op, stg.TensorOp) and not isinstance(op, stg.PlaceOp):
            split = list(_split_dims(op, rules))
        else:
            split = []
        if split:
            here = {dim for dim, _ in split}
            for dim, axes in split:
                dims.add(dim)
                for axis in axes:
                    number = _rule_of(dim, axis, rules)
                    used.add((number, dim))
                    over.add((number, axis))
                taken |= {(each, axis) for each in here - {dim} for axis in axes}
    ops = [op for op in module.body.ops if isinstance(op, dist.RuleOp)]
    found: list[Diagnostic] = []
    for number, (rule, op) in enumerate(zip(rules, ops, strict=True)):
        for dim in rule.dims:
            if (number, dim) not in used and dim not in implied:
                note = f"no tensor has the dim `{dim}`"
                if dim in dims and not any((dim, axis) in taken for axis in rule.axes):
                    note = f"what reads or makes a tensor with `{dim}` needs it whole"
                elif dim in dims:
                    note = f"every op with `{dim}` splits another dim over {quoted(rule.axes)}"
                message = f"the rule never splits `{dim}`"
                found.append(Diagnostic("W0301", message, span_of(op.location), notes=[note]))
        if any((number, dim) in used for dim in rule.dims):
            for axis in rule.axes:
                if (number, axis) not in over:
                    message = f"the rule splits nothing over `{axis}`"
                    of = quoted(rule.dims, last="or")
                    note = f"every op with {of} splits another dim over `{axis}`"
                    if not any((dim, axis) in taken for dim in rule.dims):
                        note = (
                            f"what reads or makes a tensor with {of} needs it whole along `{axis}`"
                        )
                    found.append(Diagnostic("W0301", message, span_of(op.location), notes=[note]))
    return found


def idle_contexts(module: ModuleOp, batch: str, told: Collection[str] = ()) -> list[Diagnostic]:
    """A warning for each context that is about nothing. For a module before `propagate-shardings`.

    Of a context along axes that have been `told` to do nothing (W0302), the cause is known.
    """
    label, help_ = "no attention has a sequence that is split so", "split one, or leave it out"
    return [
        Diagnostic(
            "W0304", "`context` changes nothing here", span_of(op.location), label=label, help=help_
        )
        for op in contexts_of_nothing(module, batch)
        if not {*told}.issuperset(op.axes.data)
    ]


def idle_balances(module: ModuleOp, plan: Plan, own: Collection[Span]) -> list[Diagnostic]:
    """A warning for each `balance` of the plan's own along whose axes no attention has a mask: each query meets all keys, wherever both are."""
    if plan.documents is not None:
        return []
    rules = rules_of(module)
    ordered: set[str] = set()
    for op in module.walk():
        if isinstance(op, stg.FusedAttention):
            is_limited = isinstance(op, stg.AttentionOp) and op.reach != stg.Reach()
            if op.causal is not None or is_limited:
                ordered |= {*own_splits(op.operands[0], rules).get(op.query_dim, ())}
    return [
        Diagnostic(
            "W0304",
            "`balance` of `context` changes nothing here",
            span,
            label="no attention that is split so has a mask",
            help="leave it out",
        )
        for context in plan.contexts
        if (span := context.unusual.get("balance")) in own
        and span is not None
        and ordered.isdisjoint(plan.products.get(context.axis, (context.axis,)))
        and context.method in ("ring", "all_gather")
    ]


def _split_dims(
    op: stg.TensorOp, rules: list[PlacementRule]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each dim of an op and its results, with the axes that split it. What an op keeps for its backward pass, as the counts of a dispatch, is no work."""
    visible = op.results[: len(op.results) - op.NUM_STATISTICS]
    placement: Splits = op_splits(op, rules)
    indices = op.indices()
    values = [*zip(op.operands, indices.operands, strict=True)]
    values += zip(op.results, indices.results, strict=True)
    for value, names in values:
        kind: TensorType = tensor_of(value.type)
        own = own_splits(value, rules) if value in visible else {}
        for dim, index in zip(kind.names, names, strict=True):
            yield dim, (*placement.get(index, ()), *own.get(dim, ()))


def _rule_of(dim: str, axis: str, rules: list[PlacementRule]) -> int:
    """The first rule that splits the dim over the axis; -1 for an override."""
    numbers = [n for n, rule in enumerate(rules) if dim in rule.dims and axis in rule.axes]
    return numbers[0] if numbers else -1
