"""Settings that change nothing: W0304. Those of which the program says so are found in `stagec/without_effect.py`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from math import prod
from typing import NamedTuple

from stagec.analysis.documents import PackedDocuments
from stagec.analysis.units import unit_of
from stagec.devices.model import TAKEN_UNITS
from stagec.diagnostics import Diagnostic, Span, quoted
from stagec.frontend import syntax
from stagec.frontend.padding import entries
from stagec.frontend.paths import Scope, is_named
from stagec.frontend.plans.merge import Merged
from stagec.frontend.printing import text_of
from stagec.frontend.replication import REPLICATE, is_replicating
from stagec.frontend.sizes import SizeTable
from stagec.plans.clauses import PRODUCTS, Clause, Offload, Plan, Serve
from stagec.schedules.catalogue import has_one_stage


class Need(NamedTuple):
    """What some settings of a clause are about."""

    clause: str
    """The field of the plan that holds the clause."""
    settings: tuple[str, ...]
    what: str
    """What a plan would have to say for the settings to change something."""
    is_said: Callable[[Plan], bool]
    of_plan: Callable[[Plan], str] = lambda _: ""
    """Likewise, of one plan, where that tells more."""


def _is_fused(plan: Plan) -> bool:
    """Whether Transformer Engine's kernels are priced one by one."""
    return plan.device.kernels == "fused" and plan.device.preset is not None


def _loads(offload: Offload) -> bool:
    loads_states = offload.update == "device" or "optimizer" in offload.nvme
    return bool(offload.activations or offload.parameters or (offload.optimizer and loads_states))


def _readers(plan: Plan) -> str:
    """The products that read weights in the format in which a plan stores them; none but those of frozen weights read some."""
    stored = plan.precision.product_weights
    if stored is None:
        return ""
    reading = [name for name, (_, weights) in PRODUCTS.items() if weights == stored]
    return f"`products = {reading[0]}`, or a `freeze`" if reading else "a `freeze`"


NEEDS = (
    Need(
        "zero",
        ("reshard", "reshard_over", "prefetch", "persist"),
        "`zero 3`",
        lambda p: p.zero_level == 3,
    ),
    Need(
        "zero",
        ("copies",),
        "`zero 3`",
        lambda p: p.zero_level == 3,
    ),
    Need(
        "precision", ("gather",), "`zero`, whose weights are gathered", lambda p: p.zero_level > 0
    ),
    Need(
        "precision",
        ("weight_gradients",),
        "`products`, as in `products = fp8`",
        lambda p: p.precision.is_quantized,
    ),
    Need(
        "precision",
        ("product_weights", "unquantized"),
        "`products`, as in `products = fp8`, or a `freeze`",
        lambda p: p.precision.is_quantized or bool(p.frozen),
        _readers,
    ),
    Need(
        "precision",
        ("product_gather",),
        "`product_weights` of quantized `products`, and `zero` 1 or 2, which gather them once a step",
        lambda p: (
            p.precision.is_quantized
            and p.precision.product_weights is not None
            and p.zero_level in (1, 2)
        ),
    ),
    Need(
        "precision",
        ("maxima",),
        "`products = fp8` under delayed `scaling`",
        lambda p: p.precision.products == "fp8" and p.precision.scaling == "delayed",
    ),
    Need("precision", ("saved",), "`saved_values`", lambda p: bool(p.precision.saved_values)),
    Need(
        "gradients",
        ("first_bucket_bytes",),
        "`bucket_bytes`",
        lambda p: p.gradients.bucket_bytes is not None,
    ),
    Need("gradients", ("inputs",), "a `freeze` of a table", lambda p: bool(p.frozen)),
    Need("gradients", ("late",), "`overlap = true`", lambda p: p.gradients.overlap),
    Need(
        "optimizer",
        ("loss_scale",),
        "`dynamic`: a scale that is fixed is divided by as weights are updated",
        lambda p: p.optimizer.loss_scale != "static",
    ),
    Need(
        "optimizer",
        ("copies",),
        "an optimizer whose state stays on the device",
        lambda p: not p.offload.optimizer,
    ),
    Need(
        "overlap",
        ("param_gather",),
        "`zero` 1 or 2: what it stores whole is gathered once a step",
        lambda p: p.zero_level in (1, 2),
    ),
    Need("overlap", ("p2p",), "a `pipeline`", lambda p: p.pipeline is not None),
    Need("overlap", ("pieces", "bulk"), "`tp = true`", lambda p: p.overlap.tp),
    Need(
        "device",
        (*TAKEN_UNITS, "tile_scheduler"),
        "a device that ships, or a file with `units`: others have no multiprocessors that computation could lose",
        lambda p: (model := p.device.model) is not None and model.units > 1,
    ),
    Need(
        "device",
        ("swizzle",),
        "`products` in `mxfp8` or `fp4`, and `kernels = fused` of a device that ships, or a file",
        lambda p: _is_fused(p) and p.precision.products in ("mxfp8", "fp4"),
    ),
    Need(
        "device",
        ("fused_activations",),
        "`products` in `fp8` or `mxfp8`, and `kernels = fused` of a device that ships, or a file",
        lambda p: _is_fused(p) and p.precision.products in ("fp8", "mxfp8"),
    ),
    Need(
        "device",
        ("norms",),
        "`products = fp8` under `scaling = current`, or `cudnn` and `mxfp8`, and `kernels = fused` of a device that ships, or a file",
        lambda p: (
            _is_fused(p)
            and (
                (p.precision.products == "fp8" and p.precision.scaling == "current")
                or (p.precision.products == "mxfp8" and p.device.norms == "cudnn")
            )
        ),
    ),
    Need(
        "device",
        ("captured",),
        "`graphs = false`: else graphs launch all kernels",
        lambda p: not p.device.graphs,
    ),
    Need("overlap", ("cp",), "a `context`", lambda p: bool(p.contexts)),
    Need(
        "offload",
        ("prefetch",),
        "something that is loaded from the host, or from NVMe: what the host updates is not, unless it is there",
        lambda p: _loads(p.offload),
    ),
)
"""What settings need to have an effect that depends on the plan alone."""
OF_SERVING = (
    Need("precision", ("cache",), "`serve`: only what is served has caches", lambda p: False),
    Need("device", ("all_reduce",), "`serve`: it is of engines that serve", lambda p: False),
    Need(
        "device",
        ("experts",),
        "`serve`, but for `grouped`: it is of engines that serve",
        lambda p: p.device.experts == "grouped",
    ),
)
WHAT_TRAINS = "a plan that trains: here is no backward pass"
STORED = (
    "gradients",
    "optimizer",
    "master",
    "reduce",
    "weight_gradients",
    "product_gather",
    "saved_values",
    "saved",
    "maxima",
)
UPDATED = ("activations", "optimizer", "update", "nvme")
OF_TRAINING = (
    Need("precision", STORED, WHAT_TRAINS, lambda p: False),
    Need("offload", UPDATED, WHAT_TRAINS, lambda p: False),
    Need("process", ("dummy_gradients", "cached_weights"), WHAT_TRAINS, lambda p: False),
    Need("overlap", ("param_gather",), WHAT_TRAINS, lambda p: False),
    Need("device", ("swizzle", "norms", "fused_activations"), WHAT_TRAINS, lambda p: False),
)


def idle_settings(
    plan: Plan, own: Collection[Span], *, serves: bool, trains: bool
) -> list[Diagnostic]:
    """A warning for each setting that changes nothing, of those that are not what holds without them.

    `own` are the places of the settings that the plan itself says: what it inherits may be about other plans.
    """
    needs = (*NEEDS, *(() if serves else OF_SERVING), *(() if trains else OF_TRAINING))
    found = (each for need in needs if not need.is_said(plan) for each in _idle(plan, need, own))
    return list({each.span: each for each in found}.values())  # of several needs the last


TRAINING = (syntax.Optimizer, syntax.Gradients, syntax.Recompute, syntax.LossChunks, syntax.Freeze)
"""Clauses that say nothing of what does not train."""


def is_of_training(clause: syntax.Clause, *, serves: bool) -> bool:
    """Whether a clause says nothing of what does not train; of what serves neither do documents, nor the stages of ZeRO that split updates."""
    if serves and isinstance(clause, syntax.Zero):
        return isinstance(clause.level, syntax.Number) and clause.level.text in ("1", "2")
    return isinstance(clause, (*TRAINING, syntax.Documents) if serves else TRAINING)


def idle_training(said: Merged, *, serves: bool) -> Iterator[Diagnostic]:
    """A warning for each of a plan's own clauses about training, where a loss is evaluated, or there is none."""
    for clause in said.clauses.values():
        if not is_of_training(clause, serves=serves):
            continue
        what = getattr(clause, "what", getattr(clause, "weights", ()))
        if [str(each) for each in what or ()] != ["none"]:
            message = f"`{title_of(clause)}` changes nothing here"
            yield Diagnostic("W0304", message, clause.span, help=f"it needs {WHAT_TRAINS}")


def title_of(clause: syntax.Clause) -> str:
    if isinstance(clause, syntax.Zero) and isinstance(clause.level, syntax.Number):
        return f"zero {clause.level.text}"
    return "loss_chunks" if isinstance(clause, syntax.LossChunks) else type(clause).__name__.lower()


def idle_shares(merged: Merged, table: SizeTable, own: Collection[Span]) -> Iterator[Diagnostic]:
    """A warning for each `replicate` and `uneven` where its axes divide all of its dims. `pad` says of what these are multiples, which is so then too."""
    for rule in merged.rules:
        axes = [part for axis in rule.axes for part in table.products.get(axis.text, (axis.text,))]
        dims = [target.path.names[0].text for target in rule.targets]
        sizes = [(name, table.values.get(name)) for name in (*axes, *dims)]
        for entry in entries(rule):
            name = entry.name.text
            if entry.span not in own or name not in (REPLICATE, UNEVEN):
                continue
            if name == REPLICATE and not (len(axes) == 1 and is_replicating(rule)):
                continue
            if name == UNEVEN and {*dims} & {*table.served, *table.averages}:
                continue
            if divide([size for _, size in sizes], len(axes)):
                message = f"`{name}` of `shard` changes nothing here"
                shown = [f"{each} = {size}" for each, size in sizes]
                verb = "divides" if len(axes) == 1 else "divide"
                label = f"{quoted(shown[: len(axes)])} {verb} {quoted(shown[len(axes) :])}"
                yield Diagnostic("W0304", message, entry.span, label=label, help="leave it out")


def idle_microbatch(plan: Plan, said: Merged) -> Iterator[Diagnostic]:
    """A warning for a plan's own `microbatch` where its pipeline, or that of a plan it extends, says another."""
    pipeline = plan.pipeline
    in_pipeline = None if pipeline is None else pipeline.given.get("microbatch")
    if pipeline is None or in_pipeline is None or plan.microbatch == pipeline.microbatch:
        return
    where = [(in_pipeline, "the pipeline's setting counts")]
    message = "`microbatch` changes nothing here"
    for each in said.all(syntax.Microbatch):
        help_ = f"write `microbatch = {text_of(each.size)}` in `pipeline`, or leave it out"
        yield Diagnostic("W0304", message, each.span, secondary=where, help=help_)


def idle_schedule(plan: Plan, serve: Serve | None, own: Collection[Span]) -> Iterator[Diagnostic]:
    """A warning for a plan's own schedule where it serves, in which schedules of one stage on each rank are alike."""
    pipeline = plan.pipeline
    said = None if pipeline is None else pipeline.given.get("schedule")
    if serve is None or pipeline is None or said is None or said not in own:
        return
    if has_one_stage(pipeline.schedule):
        message = "`schedule` of `pipeline` changes nothing here"
        label = "forward passes have one order where a rank has one stage"
        yield Diagnostic("W0304", message, said, label=label, help="leave it out")


def idle_unit(plan: Plan, said: Merged) -> Iterator[Diagnostic]:
    """A warning for a plan's own units where nothing is gathered by units."""
    for clause in said.all(syntax.Unit):
        if plan.units and plan.zero_level != 3:
            message = "`unit` changes nothing here"
            help_ = "it needs `zero 3`, whose weights are gathered by units"
            yield Diagnostic("W0304", message, clause.span, help=help_)


def idle_documents(plan: Plan, said: Merged, table: SizeTable) -> Iterator[Diagnostic]:
    """A warning for a plan's own documents of which each sequence has one, as it has without them; contexts may balance by them all the same."""
    documents = plan.documents
    size = None if documents is None else table.values.get(documents.dim)
    if documents is None or not size or any(c.balance == "documents" for c in plan.contexts):
        return
    packed = PackedDocuments.packed(documents.dim, documents.lengths, size)
    if all(len(parts) == 1 for parts in packed.sequences):
        for clause in said.all(syntax.Documents):
            message, label = "`documents` changes nothing here", "each sequence is one document"
            help_ = "leave it out, or pack shorter ones"
            yield Diagnostic("W0304", message, clause.span, label=label, help=help_)


def idle_zero(plan: Plan, said: Merged, leaves_a_dtype: bool) -> Iterator[Diagnostic]:
    """A warning for a plan's own `zero 3` that keeps what it gathers, where nothing is trained: all weights stay whole from one step to the next, as they are
    stored without it. The text `leaves_a_dtype` of a weight to the plan, or weights are gathered in those that it says.
    """
    is_as_stored = plan.precision.gather == plan.precision.weights or not leaves_a_dtype
    if plan.zero is not None and plan.zero.level == 3 and not plan.zero.reshard and is_as_stored:
        for clause in said.all(syntax.Zero):
            message, where = "`zero 3` changes nothing here", plan.zero.given.get("reshard")
            label = "what is gathered once is never freed, so that weights are whole on each rank"
            places = [(where, label)] if where is not None else []
            help_ = "leave it out, or free weights behind each pass: `reshard = true`"
            yield Diagnostic("W0304", message, clause.span, secondary=places, help=help_)


Weights = Sequence[tuple[Scope, str]]
"""Where each weight is, and what it is called there."""


def idle_names(said: Merged, weights: Weights) -> Iterator[Diagnostic]:
    """A warning for each name of a plan's own `freeze` and `unit` without which, and without those told before, they mean the same."""
    for clause in said.clauses.values():
        if isinstance(clause, syntax.Freeze):
            named, title, meant = clause.weights, "freeze", frozen_by
        elif isinstance(clause, syntax.Unit):
            named, title, meant = clause.modules, "unit", units_by
        else:
            continue
        left = tuple(map(str, named))
        for place in reversed(range(len(left))):
            others = left[:place] + left[place + 1 :]
            if left != ("none",) and meant(others, weights) == meant(left, weights):
                message = f"`{left[place]}` in `{title}` changes nothing here"
                yield Diagnostic("W0304", message, named[place].span, help="leave it out")
                left = others


def frozen_by(names: Sequence[str], weights: Weights) -> object:
    patterns = [name.split(".") for name in names]
    return [any(is_named(each, *weight) for each in patterns) for weight in weights]


def units_by(names: Sequence[str], weights: Weights) -> object:
    return [unit_of(scope.path(name), names) for scope, name in weights]


UNEVEN = "uneven"

OF_CONTEXTS = {"rotate": ("ring",), "balance": ("ring", "all_gather")}
"""The methods of a context that a setting is about; those of `partial` are errors elsewhere."""


def idle_of_contexts(plan: Plan, own: Collection[Span]) -> Iterator[Diagnostic]:
    """A warning for each setting of a context that its method has no use for."""
    for context in plan.contexts:
        for name, span in context.unusual.items():
            methods = OF_CONTEXTS.get(name, (context.method,))
            if context.method not in methods and span in own:
                message = f"`{name}` of `context` changes nothing here"
                wanted = quoted([f"method = {each}" for each in methods], "or")
                yield Diagnostic("W0304", message, span, help=f"it needs {wanted}")


def idle_split(serve: Serve | None, own: Collection[Span]) -> Iterator[Diagnostic]:
    """A warning for what microbatches have alike, where there is one."""
    if serve is None or serve.microbatches > 1:
        return
    span = serve.unusual.get("split")
    if span in own and span is not None:
        message = "`split` of `serve` changes nothing here"
        yield Diagnostic("W0304", message, span, help="it needs several `microbatches`")


def divide(sizes: Sequence[int | None], num_axes: int) -> bool:
    """Whether the product of the first sizes divides each of the others."""
    known = [size for size in sizes if size is not None]
    ways = prod(known[:num_axes])
    return len(known) == len(sizes) and not any(size % ways for size in known[num_axes:])


def _idle(plan: Plan, need: Need, own: Collection[Span]) -> Iterator[Diagnostic]:
    clause = getattr(plan, need.clause)
    if not isinstance(clause, Clause):
        return
    for name, span in clause.unusual.items():
        if name in need.settings and span in own:
            message = f"`{name}` of `{need.clause}` changes nothing here"
            yield Diagnostic(
                "W0304", message, span, help=f"it needs {need.of_plan(plan) or need.what}"
            )
