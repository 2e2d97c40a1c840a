"""Splits of what lies on several devices, whose parts lie otherwise: W0305."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import ModuleOp

from stagec.analysis.placement import own_splits, rules_of
from stagec.analysis.sharding_errors import as_written
from stagec.analysis.sizes import size_values
from stagec.diagnostics import Diagnostic, quoted, span_of
from stagec.dialects import stg
from stagec.dialects.types import tensor_of


def moved_parts(module: ModuleOp) -> list[Diagnostic]:
    """A warning for each split of a dim along which devices have parts, but not of all that it makes, or the other way round, where devices have parts of the
    whole along another dim (sequence parallelism): what each has changes hands first.

    For a module before `propagate-shardings`. Where all are split over the same axes a device has its share of each, as Megatron-LM stores fused weights.
    """
    rules, sizes = rules_of(module), size_values(module)
    found: dict[object, Diagnostic] = {}
    for op in module.walk():
        if not isinstance(op, stg.SplitOp):
            continue
        axes: dict[str, tuple[str, ...]] = {}
        for value, dim in op.joint:
            split = own_splits(value, rules).get(dim, ())
            axes[dim] = tuple(axis for axis in split if sizes.get(axis, 1) > 1)
        whole = op.over.data
        others = [dim for dim in axes if axes[dim] != axes[whole]]
        if not axes[whole]:
            elsewhere = [a for split in own_splits(op.x, rules).values() for a in split]
            of_parts = next((axes[dim] for dim in others if {*axes[dim]} & {*elsewhere}), ())
            if of_parts:
                found.setdefault(span_of(op.location), forgotten(op, axes, of_parts, sizes))
            continue
        if not others:
            continue
        span, over = span_of(op.location), as_written(axes[whole], sizes)
        parts = quoted([str(d) for d in others], "and")
        label = f"[{', '.join(tensor_of(op.x.type).names)}]"
        help_ = f"split all of them over the same axes: `shard {', '.join(axes)} over {', '.join(over)}`"
        if any(axes[dim] for dim in others):
            help_ = "write products of their own, whose weights are split as what they make"
        message = f"`{whole}` is split over {quoted(over)}, and {parts}, which it becomes, {'is' if len(others) == 1 else 'are'} not so"
        note = "devices send each other what they have of it before it is taken apart, and in the backward pass again"
        found.setdefault(
            span, Diagnostic("W0305", message, span, label=label, notes=(note,), help=help_)
        )
    return list(found.values())


def forgotten(
    op: stg.SplitOp,
    axes: Mapping[str, Sequence[str]],
    of_parts: Sequence[str],
    sizes: Mapping[str, int],
) -> Diagnostic:
    """Of a dim that no rule splits, though rules split what it becomes."""
    over, whole = as_written(of_parts, sizes), op.over.data
    parts = [dim for dim in axes if axes[dim]]
    are = "is" if len(parts) == 1 else "are"
    return Diagnostic(
        "W0305",
        f"{quoted(parts, 'and')} {are} split over {quoted(over)}, and `{whole}`, which becomes that, is not",
        span_of(op.location),
        label=f"[{', '.join(tensor_of(op.x.type).names)}]",
        notes=(
            "each device makes all of it for its part of another dim, and devices exchange it as it is taken apart, and in the backward pass again",
        ),
        help=f"name it too, before that dim: `shard {', '.join(axes)} over {', '.join(over)}`",
    )
