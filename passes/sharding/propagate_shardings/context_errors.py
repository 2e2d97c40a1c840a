"""Attention whose sequence is split in a way that no context covers, or that its context cannot carry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stagec.analysis.contexts import Contexts, is_masked
from stagec.analysis.placement import PlacementRule, Splits, is_input, own_splits
from stagec.analysis.sharding_errors import ShardingErrors
from stagec.diagnostics import Span, quoted, refused, span_of
from stagec.dialects import dist, stg
from stagec.dialects.attributes import Dim
from stagec.dialects.types import tensor_of
from stagec.symbolic import conditions


def check_attention(
    op: stg.AttentionOp,
    splits: Splits,
    rules: Sequence[PlacementRule],
    contexts: Contexts,
    errors: ShardingErrors,
) -> None:
    """Check the placement of attention against the plan's contexts, before its dims are checked one by one."""
    check_keys(op, splits, rules, contexts, errors)
    check_heads(op, splits, contexts, errors)
    check_window(op, splits, errors)
    check_ring(op, splits, contexts, errors)
    check_chunks(op, splits, contexts, errors)


def check_keys(
    op: stg.AttentionOp,
    splits: Splits,
    rules: Sequence[PlacementRule],
    contexts: Contexts,
    errors: ShardingErrors,
) -> None:
    """E0309: an axis splits the sequence of the keys, and no context says how attention sees that."""
    queries = op.indices().operands[0][-3]
    elsewhere = {a for index, axes in splits.items() if index != queries for a in axes}
    for name, value in (("keys", op.k), ("values", op.v)):
        if is_input(value):
            continue
        dim = tensor_of(value.type).names[-3]
        stored = own_splits(value, rules).get(dim, ())
        known = {*contexts.axes(), *elsewhere}
        unknown = [a for a in stored if a not in known and conditions.is_split(a, errors.sizes)]
        if not unknown:
            continue
        rule = errors.rule_of(Dim(dim, tuple(unknown)))
        errors.findings.say(
            "E0309",
            f"attention needs the whole sequence of its keys, but {quoted(unknown)} "
            f"split{'s' if len(unknown) == 1 else ''} `{dim}`",
            span_of(op.location),
            label=f"the {name} `{value.name_hint}`" if value.name_hint else f"the {name}",
            secondary=places(rule, f"splits `{dim}`"),
            help=f"say how attention sees it: `context {unknown[0]} {{ method = ring }}`",
        )
        return


def check_heads(
    op: stg.AttentionOp, splits: Splits, contexts: Contexts, errors: ShardingErrors
) -> None:
    """E0301: under `ulysses` an axis splits heads that it does not divide."""
    axes = splits.get(op.indices().operands[0][-2], ())
    moved = [a for a in axes if a in contexts.axes("ulysses")]
    if not moved:
        return
    (context, *_) = contexts.along(moved)
    numbers = [
        conditions.unread(errors.sizes).get(tensor_of(v.type).names[-2]) for v in (op.q, op.k)
    ]
    for value in (op.q, op.k):
        dim = Dim(tensor_of(value.type).names[-2], axes)
        is_seen = (dim.name, axes) in errors.seen
        if dim.name not in errors.sizes or is_seen or errors.divides(dim):
            continue
        size, ways = errors.sizes[dim.name], number_of_ways(axes, errors)
        errors.seen.add((dim.name, axes))
        advice = [other_axis_size(moved[-1], size, axes, errors), "write `method = all_gather`"]
        if value is op.k and numbers[0] is not None and numbers[0] % ways == 0:
            query_heads = tensor_of(op.q.type).names[-2]
            repeat = f"repeat_heads(k, heads = {dim.name}, to = {query_heads})"
            advice.append(f"repeat the heads of keys and values: `{repeat}`")
        errors.findings.say(
            "E0301",
            f"{sized(axes, errors)} {'together do' if len(axes) > 1 else 'does'} not divide "
            f"`{dim.name} = {size}`",
            span_of(context.location),
            label=f"splits the heads of `{value.name_hint}`" if value.name_hint else "",
            secondary=places(op, "within this attention"),
            notes=["under `ulysses` an axis splits heads instead of the sequence"],
            help=[text for text in advice if text],
        )


def check_window(op: stg.AttentionOp, splits: Splits, errors: ShardingErrors) -> None:
    """E0309: a window, or chunks, in a ring.

    Which blocks they need differs from rank to rank; TransformerEngine refuses a window for its ring too.
    """
    ring = splits.get(op.indices().operands[1][-3], ())
    seen = op.window or op.chunk
    if seen is None or not any(conditions.is_split(axis, errors.sizes) for axis in ring):
        return
    errors.findings.say(
        "E0309",
        f"attention with a {'window' if op.window is not None else 'chunk'} needs its keys whole, but they go round {quoted(ring)}",
        span_of(op.location),
        label=f"looks back `{seen.data}` keys"
        if op.window is not None
        else f"chunks of `{seen.data}` keys",
        help="write `method = all_gather` or `method = ulysses` in the context",
    )


def check_ring(
    op: stg.AttentionOp, splits: Splits, contexts: Contexts, errors: ShardingErrors
) -> None:
    """E0309: sinks in a ring, each block of which would count them anew, or a bias, of which each block needs another part."""
    queries, keys, *_ = op.indices().operands
    ring = splits.get(keys[-3], ())
    if op.bias is not None:
        # Its keys have a name of their own, which rules may leave whole.
        ring = tuple(a for a in splits.get(queries[-3], ()) if a in contexts.axes("ring"))
    has = "sinks" if op.sinks is not None else "a bias" if op.bias is not None else ""
    if not has or not any(conditions.is_split(axis, errors.sizes) for axis in ring):
        return
    message = f"attention with {has} needs its keys whole, but they go round {quoted(ring)}"
    help_ = "write `method = all_gather` or `method = ulysses` in the context"
    raise refused("E0309", message, span_of(op.location), help=help_)


def check_chunks(
    op: stg.AttentionOp, splits: Splits, contexts: Contexts, errors: ShardingErrors
) -> None:
    """E0301: a head and a tail chunk for each rank do not come out even."""
    name, along = tensor_of(op.q.type).names[-3], splits.get(op.indices().operands[0][-3], ())
    concerned = contexts.along(along)
    if not concerned or not is_masked(op) or not contexts.balanced(along):
        return
    if name not in errors.sizes or not any(conditions.is_split(a, errors.sizes) for a in along):
        return
    chunk = Dim(name, along).size / 2
    reason = f"`{chunk}` is not a whole number"
    if not errors.divides(Dim(name, along)) or conditions.whole(chunk, errors.sizes, reason):
        return
    size, ways = errors.sizes[name], number_of_ways(along, errors)
    errors.findings.say(
        "E0301",
        f"2 chunks for each of {sized(along, errors)} do not divide `{name} = {size}`",
        span_of(concerned[0].location),
        label="a rank has a chunk from the head and one from the tail",
        help=f"choose `{name} = {-(-size // (2 * ways)) * 2 * ways}`, or write `balance = none`",
    )


def number_of_ways(axes: Iterable[str], errors: ShardingErrors) -> int:
    ways = 1
    for axis in axes:
        ways *= errors.sizes.get(axis, 1)
    return ways


def other_axis_size(axis: str, size: int, axes: Sequence[str], errors: ShardingErrors) -> str:
    """The largest smaller size of an axis with which `axes` would divide `size`."""
    others = number_of_ways([a for a in axes if a != axis], errors)
    fitting = [n for n in range(errors.sizes[axis], 1, -1) if size % (n * others) == 0]
    return f"choose `{axis} = {fitting[0]}`" if fitting else ""


def sized(axes: Iterable[str], errors: ShardingErrors) -> str:
    return quoted(f"{axis} = {errors.sizes.get(axis, 1)}" for axis in axes)


def places(op: stg.AttentionOp | dist.RuleOp | None, label: str) -> list[tuple[Span, str]]:
    """Where an op comes from, if that is known."""
    span = span_of(op.location) if op is not None else None
    return [(span, label)] if span is not None else []
