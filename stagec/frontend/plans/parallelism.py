"""How ranks share layers, sequences and state: `pipeline`, `context`, `zero`, and the gradients that are reduced."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stagec import symbolic
from stagec.diagnostics import Mistake, Span, quoted
from stagec.dialects.types import DTYPE_BITS
from stagec.frontend import syntax
from stagec.frontend.plans.plan_reader import PlanReader
from stagec.plans import clauses as resolved, presets
from stagec.symbolic import conditions


def as_overlapped(
    pipeline: resolved.Pipeline | None, overlap: resolved.Overlap
) -> resolved.Pipeline | None:
    """What Megatron-LM makes of interleaved 1F1B with `--overlap-moe-expert-parallel-comm`: another schedule."""
    if pipeline is None or pipeline.schedule != "interleaved_1f1b" or not overlap.ep:
        return pipeline
    return replace(pipeline, schedule="overlapped_1f1b")


def read_pipeline(reader: PlanReader, microbatch: int | None) -> resolved.Pipeline | None:
    """`microbatch` is that of the clause of that name: the pipeline's own goes before it. Without both a microbatch that trains is one sequence."""
    clause = reader.merged.get(syntax.Pipeline)
    if clause is None:
        return None
    counts = tuple(name.text for name in clause.counts)
    if clause.axis is None:
        if counts != ("none",):
            help_ = f"write `pipeline {counts[0]} over pp`"
            if counts[0] in reader.axis_names:
                help_ = f"what `repeat` counts goes before it: `pipeline L over {counts[0]}`"
            reader.error("E0401", "a pipeline runs over an axis", clause, help_)
        elif clause.settings is not None:
            message = "the settings of `pipeline none` change nothing"
            reader.error("W0304", message, clause.settings, "leave them out")
        return None
    axes = reader.real_axes([clause.axis], "`pipeline`")
    settings = reader.settings.read(clause.settings, resolved.Pipeline, "`pipeline`")
    if len(axes) != 1:
        if axes:
            help_ = f"name one of {quoted(axes)}"
            reader.error("E0401", "a pipeline runs over a single axis", clause.axis, help_)
        return None
    stages_alone(reader, axes[0], clause)
    settings.setdefault("microbatch", microbatch or 1)
    return resolved.Pipeline(counts=counts, axis=axes[0], span=clause.span, **settings)


def stages_alone(reader: PlanReader, axis: str, pipeline: syntax.Pipeline) -> None:
    """E0401 for each clause that splits something over the axis of the stages, whose ranks hold different layers."""
    merged = reader.merged
    zero = merged.get(syntax.Zero)
    overrides = (clause for _, clause in merged.overrides.values())
    clauses = [
        *((clause.axes, "a rule splits a dim") for clause in merged.rules),
        *((clause.axes, "an override splits a value") for clause in overrides),
        *((c.axes, "`zero` splits weights") for c in [zero] if c is not None and c.axes),
        *(((c.axis,), "`context` spreads a sequence") for c in merged.all(syntax.Context)),
    ]
    for axes, what in clauses:
        for name in axes or ():
            if axis in reader.table.products.get(name.text, (name.text,)):
                through = "" if name.text == axis else f", which has `{axis}` in it"
                reader.findings.say(
                    "E0401",
                    f"{what} over `{name}`{through}, and the pipeline runs along `{axis}`",
                    name.span,
                    secondary=[(pipeline.span, "gives each rank along it other layers")],
                    mistake=Mistake("split along a pipeline", axis),
                    help="use an axis of its own for the pipeline",
                )


def read_contexts(reader: PlanReader) -> Iterable[resolved.Context]:
    for clause in reader.merged.all(syntax.Context):
        axes = reader.real_axes([clause.axis], "`context`")
        read = reader.settings.read(clause.settings, resolved.Context, "`context`")
        is_partial, given = read.get("method") == "partial", read["given"]
        for name in ("rotate", "balance") if is_partial else ("combine", "interleave"):
            if name in given:
                message = f"`{name}` is of no context with `method = {read.get('method', 'ring')}`"
                reader.findings.say("E0402", message, given[name], help="leave it out")
        if is_partial and reader.merged.get(syntax.Serve) is None:
            message = "`method = partial` is of positions in caches, and this plan has none"
            help_ = "say what the plan serves, or choose another method"
            reader.findings.say("E0402", message, given["method"], help=help_)
        if axes:
            yield resolved.Context(axis=clause.axis.text, span=clause.span, **read)


def read_zero(reader: PlanReader) -> resolved.Zero | None:
    clause = reader.merged.get(syntax.Zero)
    if clause is None:
        return None
    level = clause.level
    text = level.text if isinstance(level, syntax.Number) else None
    if isinstance(level, syntax.Reference) and level.name.text == "none":
        return None
    if text not in ("1", "2", "3"):
        help_ = "1 splits the optimizer's state, 2 gradients too, 3 the weights as well, and `zero none` nothing"
        reader.error("E0401", "the level of `zero` is 1, 2, 3 or `none`", level, help_)
        return None
    if clause.axes is None:
        help_ = f"write `zero {text} over dp`"
        reader.error("E0401", "`zero` splits over an axis", clause, help_)
        return None
    axes = tuple(reader.real_axes(clause.axes, "`zero`"))
    settings = reader.settings.read(clause.settings, resolved.Zero, "`zero`")
    if not axes:
        return None
    preset = presets.KNOWN.get(settings.get("like", ""))
    if preset is not None:
        settings = {**preset.zero, **settings}
        check_preset(reader, preset, int(text), settings["given"]["like"])
    if "experts" in settings and (preset is None or preset.buffers is None):
        message = (
            "`experts` says what is a parameter in the buffers of Megatron-LM, and there are none"
        )
        help_ = "write `like = megatron` too, or leave `experts` out"
        span = settings["given"]["experts"]
        reader.findings.say("E0402", message, span, help=help_)
    if "reshard_over" in settings:
        settings["reshard_over"] = kept_axes(reader, axes, settings)
    return resolved.Zero(level=int(text), axes=axes, span=clause.span, **settings)


def kept_axes(
    reader: PlanReader, axes: Sequence[str], settings: Mapping[str, Any]
) -> tuple[str, ...]:
    """`reshard_over`: some axes of `zero`, where there is a backward pass of the same microbatch to gather what stays. Nothing stays where the others
    have one rank: each then has what it stores."""
    names, given = settings["reshard_over"], settings["given"]
    products = reader.table.products
    kept = [axis for name in names for axis in products.get(name, (name,))]
    others = [axis for axis in axes if axis not in kept]
    message, where = "", []
    help_ = "it is about what the backward pass of a microbatch gathers again"
    if stray := [axis for axis in kept if axis not in axes]:
        message = f"`zero` does not split over {quoted(stray)}"
        help_ = f"it splits over {quoted(axes)}"
    elif names and not others:
        message = "`reshard_over` has all axes of `zero`: nothing stays but what is stored"
        help_ = "leave it out, or name those of a node alone"
    elif names and not settings.get("reshard", True):
        message = "no part of what is not freed has to stay"
        where, help_ = [(given["reshard"], "nothing is freed")], "leave out one of the two"
    for kind, title in ((syntax.Pipeline, "a pipeline"), (syntax.Serve, "`serve`")):
        clause = reader.merged.get(kind)
        if names and not message and clause is not None and getattr(clause, "axis", True):
            message = f"`reshard_over` does not go with {title}"
            where = [(clause.span, "here")]
    if message:
        span = given["reshard_over"]
        reader.findings.say("E0401", message, span, secondary=where, help=help_)
    ranks = math.prod(reader.table.values.get(axis) or 1 for axis in others)
    number = symbolic.product(map(symbolic.symbol, others))
    is_whole = conditions.note("==", number, 1, holds=ranks == 1)
    return () if is_whole else tuple(axis for axis in axes if axis in kept)


def check_preset(reader: PlanReader, preset: presets.Preset, level: int, span: Span) -> None:
    """E0401 for a level of ZeRO that a framework has not, or not in a pipeline."""
    pipeline = reader.merged.get(syntax.Pipeline)
    is_cut = pipeline is not None and pipeline.axis is not None
    levels = preset.pipelines if is_cut else preset.levels
    if level in levels:
        return
    which = " and ".join(f"`zero {each}`" for each in levels)
    reader.findings.say(
        "E0401",
        f"{preset.title} has no `zero {level}`{' in a pipeline' if is_cut else ''}",
        span,
        secondary=[(pipeline.span, "the pipeline")] if is_cut and pipeline else [],
        help=f"it has {which}; without `like` each setting is the plan's own",
    )


def read_gradients(
    reader: PlanReader,
    zero: resolved.Zero | None,
    pipeline: resolved.Pipeline | None,
    precision: resolved.Precision,
) -> resolved.Gradients:
    """What the plan says, and for the rest what the framework does that `zero` is like."""
    found = reader.only_settings(syntax.Gradients, resolved.Gradients)
    if zero is None:
        return found
    if zero.like == "deepspeed" and zero.level > 1 and found.reduce == "step":
        refused_reduction(reader, found, zero)
    preset = presets.KNOWN.get(zero.like or "")
    if preset is None:
        return found
    overlap = found.overlap if "overlap" in found.given else zero.level in preset.overlap
    if zero.like == "fsdp2" and pipeline is not None and "overlap" not in found.given:
        overlap = False
    settings: dict[str, Any] = {"overlap": overlap, "average": found.average or preset.average}
    # Megatron-LM counts data-parallel ranks (`get_data_parallel_group`, `with_context_parallel = False`).
    sequence = {clause.axis.text for clause in reader.merged.all(syntax.Context)}
    axes = [axis for axis in zero.axes if axis not in sequence]
    ranks = math.prod(reader.table.values.get(axis) or 1 for axis in axes)
    elements = preset.bucket_elements(zero.level, overlap, ranks)
    if elements is not None and found.bucket_bytes is None:
        settings["bucket_bytes"] = elements * DTYPE_BITS[precision.reduce] // 8
    return replace(found, **settings)


def refused_reduction(reader: PlanReader, found: resolved.Gradients, zero: resolved.Zero) -> None:
    """E0401: `no_sync` is an error in DeepSpeed where gradients are split."""
    reader.findings.say(
        "E0401",
        f"DeepSpeed reduces gradients after each microbatch under `zero {zero.level}`",
        found.given["reduce"],
        secondary=[(zero.given["like"], "keeps a part of each gradient")],
        help="leave `reduce` out, or `like`",
    )
