"""A merged plan to a `Plan`: axes, rules and settings checked, names resolved.

What a plan says of values and modules is checked where those are known (`checker/sharding.py`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stagec import symbolic
from stagec.devices import file
from stagec.diagnostics import (
    CompileError,
    Diagnostics,
    Mistake,
    Span,
    did_you_mean,
    quoted,
    suggestion,
)
from stagec.dialects.dist import MOST_AXES, MOST_RANKS
from stagec.dialects.stg import NUM_STATES, PRECONDITIONED
from stagec.dialects.types import DTYPE_BITS
from stagec.frontend import syntax
from stagec.frontend.numbers import as_read, whole
from stagec.frontend.plans.lengths import DocumentsReader
from stagec.frontend.plans.merge import Merged
from stagec.frontend.plans.settings import SettingsReader
from stagec.frontend.sizes import SizeTable
from stagec.plans import clauses as resolved, presets
from stagec.symbolic import conditions

STAYS_ON_DEVICE = {
    "adafactor": (
        "the sums that `adafactor` keeps are small, and stay on the device",
        "keeps no moments",
    ),
    "muon": (
        "the momenta of `muon` are gathered for all layers at once, and stay on the device",
        "reads whole matrices",
    ),
    **dict.fromkeys(
        PRECONDITIONED,
        (
            "products with the factors of matrices need them on the device",
            "keeps factors of matrices",
        ),
    ),
}
"""Optimizers whose state is not offloaded, and why."""

OF_OPTIMIZERS = {
    "momentum": (("sgd",), "momentum is a setting of `sgd`"),
    "steps": (("muon",), "iterations are a setting of `muon`"),
    "block": (PRECONDITIONED, "`shampoo` and `soap` cut matrices into blocks"),
    "frequency": (
        PRECONDITIONED,
        "`shampoo` and `soap` compute roots, or eigenvectors, every so many steps",
    ),
    "graft": (("shampoo",), "a step of `shampoo` may have the length of Adam's"),
    "copies": (
        ("sgd", "adagrad", "adam", "adamw", "lion"),
        "it is of optimizers whose step is one kernel: others read gradients elsewhere",
    ),
}
"""Settings of single optimizers: whose, and what to say of others."""


def resolve_plan(merged: Merged, table: SizeTable, findings: Diagnostics) -> resolved.Plan:
    """Every clause as plain values; mistakes are findings and leave the default."""
    return _PlanResolver(merged, table, findings).resolve()


def places_of(title: str, names: Iterable[syntax.Path]) -> dict[str, Span]:
    """Where each name of a list stands."""
    return {f"{title}.{name}": name.span for name in names}


def as_overlapped(
    pipeline: resolved.Pipeline | None, overlap: resolved.Overlap
) -> resolved.Pipeline | None:
    """What Megatron-LM makes of interleaved 1F1B with `--overlap-moe-expert-parallel-comm`: another schedule."""
    if pipeline is None or pipeline.schedule != "interleaved_1f1b" or not overlap.ep:
        return pipeline
    return replace(pipeline, schedule="overlapped_1f1b")


class _PlanResolver:
    def __init__(self, merged: Merged, table: SizeTable, findings: Diagnostics) -> None:
        self.merged, self.table, self.findings = merged, table, findings
        self.settings = SettingsReader(table.values, findings)
        mesh = merged.get(syntax.Mesh)
        self.axes = [a.name for a in mesh.axes] if mesh else []
        self.axis_names = [name.text for name in self.axes]
        self.without_mesh: list[syntax.Name] = []
        """The axes that a plan names which has none."""

    def error(
        self,
        code: str,
        message: str,
        node: syntax.SyntaxNode,
        help_: str = "",
        mistake: Mistake | None = None,
    ) -> None:
        self.findings.say(code, message, node.span, help=help_, mistake=mistake)

    def resolve(self) -> resolved.Plan:
        merged = self.merged
        microbatch = merged.get(syntax.Microbatch)
        num_sequences = self.microbatch(microbatch)
        unit, freeze = merged.get(syntax.Unit), merged.get(syntax.Freeze)
        optimizer = self.optimizer()
        zero, precision = self.zero(), self.precision()
        overlap = self.only_settings(syntax.Overlap, resolved.Overlap)
        pipeline = as_overlapped(self.pipeline(num_sequences), overlap)
        if optimizer.bits == 8:
            precision = self.of_eight_bits(precision, optimizer)
        use, contexts = merged.get(syntax.Use), tuple(self.contexts())
        plan = resolved.Plan(
            name=merged.plan.name.text if merged.plan else "",
            span=merged.plan.name.span if merged.plan else None,
            axes=self.mesh(),
            products=dict(self.table.products),
            rules=tuple(self.rules()),
            overrides=tuple(self.overrides()),
            pipeline=pipeline,
            microbatch=num_sequences,
            microbatch_span=microbatch.span if microbatch else None,
            zero=zero,
            units=self.units(unit),
            units_span=unit.span if unit else None,
            frozen=self.frozen(freeze),
            frozen_span=freeze.span if freeze else None,
            given={
                **places_of("unit", unit.modules if unit else ()),
                **places_of("freeze", freeze.weights if freeze else ()),
            },
            replaced=self.replaced(use),
            replaced_span=use.span if use else None,
            recompute=self.recompute(),
            precision=precision,
            optimizer=optimizer,
            collectives=self.collectives(),
            contexts=contexts,
            gradients=self.gradients(zero, pipeline, precision),
            overlap=overlap,
            offload=self.offload(),
            process=self.process(),
            loss_chunks=self.loss_chunks(),
            device=self.device(),
            links=tuple(self.links()),
            load=self.load(),
            documents=self.documents(contexts),
            passes=tuple(self.passes()),
        )
        self.tell_mesh()
        return replace(plan, formulas=self.settings.formulas)

    # ---- the mesh ----

    def tell_mesh(self) -> None:
        """E0302 for all axes of a plan without a mesh."""
        names = list(dict.fromkeys(name.text for name in self.without_mesh))
        message = f"the mesh has no {'axis' if len(names) == 1 else 'axes'} {quoted(names)}"
        help_ = f"add `mesh {', '.join(f'{name} = 8' for name in names)}`"
        for name in self.without_mesh:
            self.error("E0302", message, name, help_, mistake=Mistake("no mesh"))

    def mesh(self) -> tuple[resolved.Axis, ...]:
        spans = {name.text: name.span for name in self.axes}
        copied = self.table.copied
        spans |= {part: spans[axis] for axis, parts in copied.items() for part in parts}
        real = [
            part
            for n in self.axis_names
            if n not in self.table.products or n in copied
            for part in copied.get(n, (n,))
        ]
        if len(real) > MOST_AXES:
            message = f"the mesh has {len(real)} axes, more than {MOST_AXES}"
            help_ = "make one axis of those that split the same dims"
            self.findings.say("E0306", message, spans[real[MOST_AXES]], help=help_)
            return tuple(resolved.Axis(n, 1, spans[n]) for n in real[:MOST_AXES])
        axes = {n: resolved.Axis(n, self.table.values.get(n) or 1, spans[n]) for n in real}
        ranks = 1
        for axis in axes.values():
            ranks *= axis.size
        mesh = self.merged.get(syntax.Mesh)
        number = symbolic.product(map(symbolic.symbol, axes))
        reason = f"more than {MOST_RANKS:,} ranks"
        fits = conditions.note("<=", number, MOST_RANKS, holds=ranks <= MOST_RANKS, reason=reason)
        if not fits and mesh:
            message = f"the mesh has {ranks} ranks, more than {MOST_RANKS}"
            self.error(
                "E0306",
                message,
                mesh,
                "the product of its sizes is the number of ranks: choose smaller ones",
            )
        return tuple(axes[name] for name in self.rank_order(list(axes)))

    def rank_order(self, axes: list[str]) -> list[str]:
        clause = self.merged.get(syntax.RankOrder)
        if clause is None:
            return axes
        order = self.real_axes(clause.axes, "`rank_order`")
        missing = [a for a in axes if a not in order]
        if missing:
            help_ = f"it names every axis once, the slowest first: add {quoted(missing)}"
            self.error("E0306", f"`rank_order` leaves out {quoted(missing)}", clause, help_)
        return [*order, *missing]

    def real_axes(self, names: Iterable[syntax.Name], where: str) -> list[str]:
        """Axes of the mesh; products are taken apart. Unknown and repeated ones are findings."""
        found: dict[str, syntax.Name] = {}
        for name in names:
            text = name.text
            if text not in self.axis_names:
                is_dim = text in self.table.dim_names
                help_ = did_you_mean(text, self.axis_names)
                if is_dim:
                    help_ = f"`{text}` is a dim; axes stand in `mesh`"
                elif not help_ and self.axis_names:
                    help_ = f"the mesh has {quoted(self.axis_names)}"
                elif not self.axis_names:
                    self.without_mesh.append(name)
                    continue
                message = f"the mesh has no axis `{text}`"
                self.error("E0302", message, name, help_, mistake=Mistake("no axis", text))
                continue
            for part in self.table.products.get(text, (text,)):
                if part in found:
                    self.findings.say(
                        "E0303",
                        f"axis `{part}` stands twice in {where}",
                        name.span,
                        secondary=[(found[part].span, "first here")],
                        help="leave one of them out",
                    )
                found.setdefault(part, name)
        return list(found)

    # ---- rules ----

    def apart(self, names: Iterable[syntax.Name]) -> list[str]:
        """Axes as the mesh names them, products among them taken apart."""
        copied = self.table.copied
        parts = {
            name: [name] if name in copied else list(self.table.products.get(name, (name,)))
            for name in (n.text for n in names)
        }
        return [part for found in parts.values() for part in found]

    def rules(self) -> Iterable[resolved.Rule]:
        for clause in self.merged.rules:
            if [a.text for a in clause.axes] == ["none"]:
                help_ = "leave the rule out; `none` is for one value: `shard Block.h over none`"
                self.error("E0303", "a rule over no axis says nothing", clause, help_)
                continue
            spans: dict[str, Span] = {}
            for target in clause.targets:
                name = target.path.names[0]
                if name.text not in self.table.dim_names:
                    self.unknown_dim(name)
                elif name.text in spans:
                    message = f"dim `{name}` stands twice in one rule"
                    first = [(spans[name.text], "first here")]
                    help_ = "leave one of them out"
                    self.findings.say("E0303", message, name.span, secondary=first, help=help_)
                else:
                    spans[name.text] = name.span
            axes = self.real_axes(clause.axes, "one rule")
            uneven = self.rule_settings(clause)
            if spans and axes:
                yield from self.rules_of_dims(clause.span, spans, axes, uneven)

    def rules_of_dims(
        self, span: Span, dims: Mapping[str, Span], axes: Sequence[str], uneven: str | None
    ) -> Iterable[resolved.Rule]:
        """A rule as it is; one of a dim with copies by itself, as rules are tried dim by dim."""
        if not any(name in self.table.shared for name in dims):
            yield resolved.Rule(tuple(dims), tuple(axes), span, dims, uneven=uneven)
            return
        for name, place in dims.items():
            axis = self.table.shared.get(name)
            split, *copies = axes if axis is None else self.table.copied[axis]
            own, kept = (axes, ()) if axis is None else ((split,), copies)
            yield resolved.Rule((name,), tuple(own), span, {name: place}, tuple(kept), uneven)

    def rule_settings(self, clause: syntax.Shard) -> str | None:
        """What a rule does where its axes do not divide a dim: `SizeTable` has the sizes that follow. How its parts differ, if they may."""
        read = self.settings.read(clause.settings, resolved.Shard, "`shard`")
        done = {
            "pad": "a dim is padded",
            "replicate": "its parts are replicated",
            "uneven": "its parts are uneven",
        }
        said = [name for name in done if read.get(name)]
        if len(said) > 1:
            message = ", or ".join(done[name] for name in said)
            help_ = f"leave {quoted(said, 'or')} out"
            self.error("E0402", message, clause, help_)
        if read.get("replicate") and len(self.apart(clause.axes)) > 1:
            message = "parts of a dim are replicated along one axis"
            help_ = "write a rule of its own for the axis whose ranks share parts"
            self.error("E0303", message, clause, help_)
        for target in clause.targets:
            name = target.path.names[0]
            if "pad" in read["given"] and name.text in self.table.served:
                message = f"`serve` says the size of `{name}`, and it is not padded"
                help_ = "serve as many as the axes divide, or leave `pad` out"
                self.error("E0303", message, name, help_)
        uneven = read.get("uneven")
        contexts = [clause.axis for clause in self.merged.all(syntax.Context)]
        shared = set(self.apart(contexts)) & set(self.apart(clause.axes))
        if uneven is not None and shared:
            message = f"contexts along {quoted(sorted(shared))} exchange parts of one size"
            help_ = "pad the sequence instead: `{ pad = 1 }`"
            self.error("E0303", message, clause, help_)
        return uneven

    def unknown_dim(self, name: syntax.Name) -> None:
        help_ = did_you_mean(name.text, self.table.dim_names)
        if not help_ and name.text in self.axis_names:
            help_ = "a rule reads `shard DIMS over AXES`"
        elif not help_:
            help_ = f"for one value, name its dims: `shard Block.{name}[S] over tp`"
        self.error(
            "E0304", f"there is no dim `{name}`", name, help_, mistake=Mistake("no dim", name.text)
        )

    def overrides(self) -> Iterable[resolved.Override]:
        for target, clause in self.merged.overrides.values():
            is_none = [a.text for a in clause.axes] == ["none"]
            axes = [] if is_none else self.real_axes(clause.axes, "one override")
            for dim in target.dims or ():
                if dim.text not in self.table.dim_names:
                    help_ = suggestion(dim.text, self.table.dim_names)
                    message = f"there is no dim `{dim}`"
                    self.error("E0304", message, dim, help_, mistake=Mistake("no dim", dim.text))
            for entry in clause.settings.entries if clause.settings is not None else ():
                message = f"`{entry.name}` is a setting of rules for dims, not of one value"
                help_ = f"write it where `{target.path}`'s dims have their rules"
                self.error("E0402", message, entry, help_)
            dims = None if target.dims is None else tuple(dim.text for dim in target.dims)
            if not is_none and (dims is None or len(dims) != 1):
                message = "an override over axes names one dim of its value"
                help_ = f"name the one that is split: `{target.path}[S]`"
                self.error("E0303", message, target, help_)
                continue
            path = tuple(name.text for name in target.path.names)
            yield resolved.Override(path, tuple(axes), target.span, dims)

    # ---- clauses with settings ----

    def only_settings(self, kind: type, target: type):
        clause = self.merged.get(kind)
        if clause is None:
            return target()
        title = f"`{kind.__name__.lower()}`"
        return target(span=clause.span, **self.settings.read(clause.settings, target, title))

    def collectives(self) -> resolved.Collectives:
        found = self.only_settings(syntax.Collectives, resolved.Collectives)
        if found.keep_in and found.keep == "gathered":
            message = "`keep_in` says where shards are kept, and none are"
            help_ = "write `keep = shard` too"
            span = found.given.get("keep_in")
            self.findings.say("E0402", message, span, help=help_)
        if found.like is not None and found.exchange == "hierarchical":
            message = "what travels beside tokens in a hierarchical exchange, Megatron-LM leaves to DeepEP's kernels"
            help_ = "leave `like` out, or `exchange = hierarchical`"
            self.findings.say("E0402", message, found.given.get("like"), help=help_)
        return found

    def pipeline(self, microbatch: int | None) -> resolved.Pipeline | None:
        """`microbatch` is that of the clause of that name: the pipeline's own goes before it."""
        clause = self.merged.get(syntax.Pipeline)
        if clause is None:
            return None
        counts = tuple(name.text for name in clause.counts)
        if clause.axis is None:
            if counts != ("none",):
                help_ = f"write `pipeline {counts[0]} over pp`"
                if counts[0] in self.axis_names:
                    help_ = f"what `repeat` counts goes before it: `pipeline L over {counts[0]}`"
                self.error("E0401", "a pipeline runs over an axis", clause, help_)
            elif clause.settings is not None:
                message = "the settings of `pipeline none` change nothing"
                self.error("W0304", message, clause.settings, "leave them out")
            return None
        axes = self.real_axes([clause.axis], "`pipeline`")
        settings = self.settings.read(clause.settings, resolved.Pipeline, "`pipeline`")
        if len(axes) != 1:
            if axes:
                help_ = f"name one of {quoted(axes)}"
                self.error("E0401", "a pipeline runs over a single axis", clause.axis, help_)
            return None
        self.stages_alone(axes[0], clause)
        if microbatch is not None:
            settings.setdefault("microbatch", microbatch)
        return resolved.Pipeline(counts=counts, axis=axes[0], span=clause.span, **settings)

    def stages_alone(self, axis: str, pipeline: syntax.Pipeline) -> None:
        """E0401 for each clause that splits something over the axis of the stages, whose ranks hold different layers."""
        merged = self.merged
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
                if axis in self.table.products.get(name.text, (name.text,)):
                    through = "" if name.text == axis else f", which has `{axis}` in it"
                    self.findings.say(
                        "E0401",
                        f"{what} over `{name}`{through}, and the pipeline runs along `{axis}`",
                        name.span,
                        secondary=[(pipeline.span, "gives each rank along it other layers")],
                        mistake=Mistake("split along a pipeline", axis),
                        help="use an axis of its own for the pipeline",
                    )

    def microbatch(self, clause: syntax.Microbatch | None) -> int | None:
        if clause is None:
            return None
        found = whole(clause.size, self.table.values, self.findings, "a microbatch")
        return None if found is None else as_read(found)

    def loss_chunks(self) -> int:
        clause = self.merged.get(syntax.LossChunks)
        if clause is None:
            return 1
        found = whole(clause.count, self.table.values, self.findings, "the number of chunks")
        self.settings.note("loss_chunks", clause.count)
        return 1 if found is None else as_read(found)

    def units(self, clause: syntax.Unit | None) -> tuple[str, ...] | None:
        if clause is None:
            return None
        modules = tuple(map(str, clause.modules))
        return () if modules == ("none",) else modules

    def frozen(self, clause: syntax.Freeze | None) -> tuple[str, ...]:
        names = tuple(map(str, clause.weights)) if clause is not None else ()
        return () if names == ("none",) else names

    def replaced(self, clause: syntax.Use | None) -> dict[str, str]:
        """`use Absorbed for Attention`: which module's calls are of which other."""
        if clause is None:
            return {}
        if isinstance(clause.what, syntax.Reference):
            if clause.what.name.text != "none":
                help_ = "write `use Absorbed for Attention`, or `use none`"
                self.error(
                    "E0401", "`use` names a module, and the one it stands for", clause, help_
                )
            return {}
        found: dict[str, str] = {}
        for each in clause.what:
            if each.replaced.text in found:
                message, help_ = f"`{each.replaced}` is replaced twice", "leave one of them out"
                self.error("E0401", message, each, help_)
            found[each.replaced.text] = each.module.text
        return found

    def zero(self) -> resolved.Zero | None:
        clause = self.merged.get(syntax.Zero)
        if clause is None:
            return None
        level = clause.level
        text = level.text if isinstance(level, syntax.Number) else None
        if isinstance(level, syntax.Reference) and level.name.text == "none":
            return None
        if text not in ("1", "2", "3"):
            help_ = "1 splits the optimizer's state, 2 gradients too, 3 the weights as well, and `zero none` nothing"
            self.error("E0401", "the level of `zero` is 1, 2, 3 or `none`", level, help_)
            return None
        if clause.axes is None:
            help_ = f"write `zero {text} over dp`"
            self.error("E0401", "`zero` splits over an axis", clause, help_)
            return None
        axes = tuple(self.real_axes(clause.axes, "`zero`"))
        settings = self.settings.read(clause.settings, resolved.Zero, "`zero`")
        if not axes:
            return None
        preset = presets.KNOWN.get(settings.get("like", ""))
        if preset is not None:
            settings = {**preset.zero, **settings}
            self.check_preset(preset, int(text), settings["given"]["like"])
        if "experts" in settings and (preset is None or preset.buffers is None):
            message = "`experts` says what is a parameter in the buffers of Megatron-LM, and there are none"
            help_ = "write `like = megatron` too, or leave `experts` out"
            span = settings["given"]["experts"]
            self.findings.say("E0402", message, span, help=help_)
        if "reshard_over" in settings:
            settings["reshard_over"] = self.kept_axes(axes, settings)
        return resolved.Zero(level=int(text), axes=axes, span=clause.span, **settings)

    def kept_axes(self, axes: Sequence[str], settings: Mapping[str, Any]) -> tuple[str, ...]:
        """`reshard_over`: some axes of `zero`, where there is a backward pass of the same microbatch to gather what stays. Nothing stays where the others
        have one rank: each then has what it stores."""
        names, given = settings["reshard_over"], settings["given"]
        products = self.table.products
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
            clause = self.merged.get(kind)
            if names and not message and clause is not None and getattr(clause, "axis", True):
                message = f"`reshard_over` does not go with {title}"
                where = [(clause.span, "here")]
        if message:
            span = given["reshard_over"]
            self.findings.say("E0401", message, span, secondary=where, help=help_)
        ranks = math.prod(self.table.values.get(axis) or 1 for axis in others)
        number = symbolic.product(map(symbolic.symbol, others))
        is_whole = conditions.note("==", number, 1, holds=ranks == 1)
        return () if is_whole else tuple(axis for axis in axes if axis in kept)

    def check_preset(self, preset: presets.Preset, level: int, span: Span) -> None:
        """E0401 for a level of ZeRO that a framework has not, or not in a pipeline."""
        pipeline = self.merged.get(syntax.Pipeline)
        is_cut = pipeline is not None and pipeline.axis is not None
        levels = preset.pipelines if is_cut else preset.levels
        if level in levels:
            return
        which = " and ".join(f"`zero {each}`" for each in levels)
        self.findings.say(
            "E0401",
            f"{preset.title} has no `zero {level}`{' in a pipeline' if is_cut else ''}",
            span,
            secondary=[(pipeline.span, "the pipeline")] if is_cut and pipeline else [],
            help=f"it has {which}; without `like` each setting is the plan's own",
        )

    def gradients(
        self,
        zero: resolved.Zero | None,
        pipeline: resolved.Pipeline | None,
        precision: resolved.Precision,
    ) -> resolved.Gradients:
        """What the plan says, and for the rest what the framework does that `zero` is like."""
        found = self.only_settings(syntax.Gradients, resolved.Gradients)
        if zero is None:
            return found
        if zero.like == "deepspeed" and zero.level > 1 and found.reduce == "step":
            self.refused_reduction(found, zero)
        preset = presets.KNOWN.get(zero.like or "")
        if preset is None:
            return found
        overlap = found.overlap if "overlap" in found.given else zero.level in preset.overlap
        if zero.like == "fsdp2" and pipeline is not None and "overlap" not in found.given:
            overlap = False
        settings: dict[str, Any] = {"overlap": overlap, "average": found.average or preset.average}
        # Megatron-LM counts data-parallel ranks (`get_data_parallel_group`, `with_context_parallel = False`).
        sequence = {clause.axis.text for clause in self.merged.all(syntax.Context)}
        axes = [axis for axis in zero.axes if axis not in sequence]
        ranks = math.prod(self.table.values.get(axis) or 1 for axis in axes)
        elements = preset.bucket_elements(zero.level, overlap, ranks)
        if elements is not None and found.bucket_bytes is None:
            settings["bucket_bytes"] = elements * DTYPE_BITS[precision.reduce] // 8
        return replace(found, **settings)

    def refused_reduction(self, found: resolved.Gradients, zero: resolved.Zero) -> None:
        """E0401: `no_sync` is an error in DeepSpeed where gradients are split."""
        self.findings.say(
            "E0401",
            f"DeepSpeed reduces gradients after each microbatch under `zero {zero.level}`",
            found.given["reduce"],
            secondary=[(zero.given["like"], "keeps a part of each gradient")],
            help="leave `reduce` out, or `like`",
        )

    def offload(self) -> resolved.Offload:
        found = self.only_settings(syntax.Offload, resolved.Offload)
        if found.update == "host" and not found.optimizer:
            message = "the host updates what the optimizer keeps there, and it keeps nothing there"
            help_ = "write `optimizer = true` too"
            self.findings.say("E0402", message, found.given["update"], help=help_)
        found = self.on_nvme(found)
        zero = self.merged.get(syntax.Zero)
        level = zero.level.text if zero and isinstance(zero.level, syntax.Number) else None
        if zero is not None and found.parameters and level in ("1", "2"):
            self.findings.say(
                "E0401",
                f"parameters on the host do not go with `zero {level}`",
                found.given["parameters"],
                secondary=[(zero.span, "gathers all of them on the device after the update")],
                help="split them too, with `zero 3`, or offload `optimizer` alone",
            )
        return found

    def on_nvme(self, found: resolved.Offload) -> resolved.Offload:
        """What is on NVMe is offloaded, and the optimizer's state passes through no device."""
        known = resolved.Offload.__dataclass_fields__["nvme"].metadata["kind"].choices
        offloaded = tuple(word for word in known if getattr(found, word))
        wanted = offloaded if found.nvme == (resolved.ALL,) else found.nvme
        if found.nvme and not wanted:
            wanted = found.nvme
        for word in wanted:
            message, help_ = "", ""
            if word == resolved.ALL:
                message = "nothing is offloaded that could be on NVMe"
                help_ = "write `optimizer = true, update = host`, `parameters = true` or `activations = all` too"
            elif word not in offloaded:
                message = f"`{word}` of `nvme` are not offloaded"
                help_ = f"write `{word} = {'all' if word == 'activations' else 'true'}` too"
            elif word == "optimizer" and found.update != "host":
                message = "what the optimizer keeps is on NVMe only where the host updates"
                help_ = "write `optimizer = true, update = host` too"
            if message:
                self.findings.say("E0402", message, found.given["nvme"], help=help_)
                break
        return replace(found, nvme=wanted)

    def process(self) -> resolved.Process:
        found = self.only_settings(syntax.Process, resolved.Process)
        if not found.transposed_weights and not found.cached_weights:
            return found
        precision = self.precision()
        stored = precision.product_weights
        setting, copy, has_copies = (
            "cached_weights",
            "quantized",
            precision.is_quantized and not stored,
        )
        if not found.cached_weights:
            setting, copy = "transposed_weights", "transposed"
            has_copies = precision.is_quantized and bool(stored)
        zero = self.merged.get(syntax.Zero)
        level = zero.level.text if zero and isinstance(zero.level, syntax.Number) else None
        message, where = "no weight is stored in 8 bits, and kept a second time transposed", []
        help_ = "`precision { products = fp8, product_weights = fp8 }` stores them so"
        if found.cached_weights:
            message = "no product is of quantized weights, and there are no copies of them"
            help_ = "`precision { products = fp8 }` makes some"
            if precision.is_quantized:
                message = "weights are stored as products read them, and there are no copies"
                help_ = "leave `cached_weights` out, or `product_weights`"
        if has_copies:
            if level != "3" and not self.offload().parameters:
                return found
            message = f"weights that come and go leave no {copy} copy"
            help_ = f"leave `{setting}` out"
            clause = zero if zero is not None and level == "3" else self.merged.get(syntax.Offload)
            assert clause is not None
            where = [(clause.span, "they are stored elsewhere")]
        span = found.given[setting]
        self.findings.say("E0401", message, span, secondary=where, help=help_)
        return found

    def recompute(self) -> resolved.Recompute:
        clause = self.merged.get(syntax.Recompute)
        if clause is None:
            return resolved.Recompute()
        what = tuple(map(str, clause.what))
        alone = [w for w in what if w in ("none", "full", "whole")]
        if alone and len(what) > 1:
            message = f"`{alone[0]}` stands alone in `recompute`"
            self.error("E0401", message, clause, f"write `recompute {alone[0]}`")
        modules = tuple(map(str, clause.modules)) if clause.modules else None
        given = {**places_of("what", clause.what), **places_of("modules", clause.modules or ())}
        return resolved.Recompute(what=what, modules=modules, span=clause.span, given=given)

    def precision(self) -> resolved.Precision:
        clause = self.merged.get(syntax.Precision)
        settings = clause.settings if clause else None
        read = self.settings.read(settings, resolved.Precision, "`precision`")
        span = clause.span if clause else None
        values: dict[str, Any] = {**resolved.Precision.defaults(read), **read}
        if values["master"] == "none":
            values["master"] = None
        gather = values["gather"] = self.gathered(values, read)
        is_computed = self.shards_weights and gather == values["activations"]
        computed = gather if is_computed else values["weights"]
        found = resolved.Precision(span=span, **values, computed=computed)
        formats = resolved.PRODUCTS.get(found.products or "")
        if formats is not None and found.product_weights not in (None, formats[1]):
            message = f"`{found.products}` products read weights in `{formats[1]}`, not in `{found.product_weights}`"
            help_ = f"write `product_weights = {formats[1]}`, or leave it out"
            self.findings.say("E0403", message, found.given["product_weights"], help=help_)
        return found

    def gathered(self, values: Mapping[str, Any], read: Mapping[str, Any]) -> str:
        """The dtype that weights are gathered in. FSDP2's mixed precision gathers them in that of activations (`MixedPrecisionPolicy`)."""
        if not self.shards_weights or "gather" in read:
            return values["gather"]
        return min(values["weights"], values["activations"], key=resolved.FLOATS.index)

    @property
    def shards_weights(self) -> bool:
        """Whether this is `zero 3`."""
        zero = self.merged.get(syntax.Zero)
        return zero is not None and isinstance(zero.level, syntax.Number) and zero.level.text == "3"

    def optimizer(self) -> resolved.Optimizer:
        clause = self.merged.get(syntax.Optimizer)
        if clause is None:
            return resolved.Optimizer()
        name = clause.name.text
        if name not in resolved.OPTIMIZERS:
            help_ = did_you_mean(name, resolved.OPTIMIZERS)
            help_ = help_ or f"there are {quoted(resolved.OPTIMIZERS)}"
            self.error("E0403", f"there is no optimizer `{name}`", clause.name, help_)
            name = "adamw"
        others = {s for s, (owners, _) in OF_OPTIMIZERS.items() if name not in owners}
        read = self.settings.read(clause.settings, resolved.Optimizer, "`optimizer`", others)
        for setting, (owners, help_) in OF_OPTIMIZERS.items():
            if setting in read and name not in owners:
                message = f"`{name}` has no setting `{setting}`"
                self.findings.say("E0402", message, read["given"][setting], help=help_)
        found = resolved.Optimizer(name=name, span=clause.span, **read)
        if found.bits not in (8, 32):
            message = f"states of an optimizer have 8 or 32 bits, not {found.bits}"
            help_ = "`precision { optimizer = bf16 }` has other widths"
            self.findings.say("E0403", message, found.given["bits"], help=help_)
        if found.bits == 8 and not NUM_STATES[found.algorithm]:
            message = f"`{name}` has no states as large as weights to keep in 8 bits"
            self.findings.say("E0402", message, found.given["bits"], help="leave `bits` out")
        offload = self.merged.get(syntax.Offload)
        stays = STAYS_ON_DEVICE.get(name)
        if stays is not None and offload is not None and self.offload().optimizer:
            message, reason = stays
            where = [(clause.span, reason)]
            help_ = "leave `optimizer` out of `offload`"
            self.findings.say("E0401", message, offload.span, secondary=where, help=help_)
        if found.tables is not None and offload is not None and self.offload().parameters:
            message = "tables whose rows are updated in the backward pass are on the device"
            where = [(found.given["tables"], "updates rows")]
            help_ = "leave `parameters` out of `offload`"
            self.findings.say("E0401", message, offload.span, secondary=where, help=help_)
        return found

    def of_eight_bits(
        self, precision: resolved.Precision, optimizer: resolved.Optimizer
    ) -> resolved.Precision:
        """States in blocks of 256 elements that share a scale (arXiv:2110.02861); those of small tensors, and master weights, stay in fp32."""
        if "optimizer" in precision.given and precision.optimizer != "fp32":
            message = f"`bits = 8` keeps states in 8 bits, not in {precision.optimizer}"
            where = [(precision.given["optimizer"], "the optimizer's dtype")]
            span, help_ = optimizer.given["bits"], "leave one of them out"
            self.findings.say("E0401", message, span, secondary=where, help=help_)
        return replace(precision, optimizer="fp8_1x256")

    def contexts(self) -> Iterable[resolved.Context]:
        for clause in self.merged.all(syntax.Context):
            axes = self.real_axes([clause.axis], "`context`")
            read = self.settings.read(clause.settings, resolved.Context, "`context`")
            is_partial, given = read.get("method") == "partial", read["given"]
            for name in ("rotate", "balance") if is_partial else ("combine", "interleave"):
                if name in given:
                    message = (
                        f"`{name}` is of no context with `method = {read.get('method', 'ring')}`"
                    )
                    self.findings.say("E0402", message, given[name], help="leave it out")
            if is_partial and self.merged.get(syntax.Serve) is None:
                message = "`method = partial` is of positions in caches, and this plan has none"
                help_ = "say what the plan serves, or choose another method"
                self.findings.say("E0402", message, given["method"], help=help_)
            if axes:
                yield resolved.Context(axis=clause.axis.text, span=clause.span, **read)

    def device(self) -> resolved.Device:
        clause = self.merged.get(syntax.Device)
        if clause is None:
            return resolved.Device()
        own = self.merged.plan.clauses if self.merged.plan is not None else ()
        bare = next((c for c in own if isinstance(c, syntax.Device)), clause)
        if bare.preset is None and bare.settings is None:
            help_ = f"name one of {quoted(file.names())}, or write `{{ memory = 80GiB }}`"
            self.error("E0401", "`device` says nothing", bare, help_)
        read = self.settings.read(clause.settings, resolved.Device, "`device`")
        name = self.device_name(clause.preset) if clause.preset is not None else None
        return resolved.Device.of(name, span=clause.span, **read)

    def device_name(self, name: syntax.Name | syntax.Text) -> str | None:
        """A device that ships, or the path of a file that reads: it is beside the text."""
        if isinstance(name, syntax.Name):
            if name.text in (*file.names(), *file.ALIASES):
                return name.text
            self.error("E0403", f"there is no device `{name}`", name, file.no_device(name.text))
            return None
        path = os.path.join(os.path.dirname(name.span.file), name.text)
        try:
            file.load(path)
        except CompileError as error:
            for each in error.diagnostics:
                self.findings.add(file.placed(each, name.span, "the plan names it"))
            return None
        return path

    def links(self) -> Iterable[resolved.Link]:
        for clause in self.merged.all(syntax.Link):
            axes = self.real_axes([clause.axis], "`link`")
            read = self.settings.read(clause.settings, resolved.Link, "`link`")
            if axes and not (clause.settings and clause.settings.entries):
                help_ = f"write `link {clause.axis} {{ bytes_per_s = 450GB, latency_us = 2 }}`"
                self.error("E0401", "`link` says nothing", clause, help_)
            yield resolved.Link(axes=tuple(axes), span=clause.span, **read)

    def load(self) -> resolved.Load | None:
        clause = self.merged.get(syntax.Load)
        if clause is None or (
            clause.name and clause.name.text == "uniform" and not clause.settings
        ):
            return None
        read = self.settings.read(clause.settings, resolved.Load, "`load`")
        named = [entry.name.text for entry in clause.settings.entries] if clause.settings else []
        ways = [name for name in ("zipf", "shares", "file") if name in named]
        if clause.name is not None or len(ways) != 1:
            help_ = 'write `load uniform`, `load { zipf = 1.2, seed = 0 }`, `load { shares = [3, 1, 1, 1] }` or `load { file = "load.csv" }`'
            self.error("E0401", "a load is `zipf`, `shares` or `file`", clause, help_)
            return None
        if "seed" in read["given"] and ways != ["zipf"]:
            message = f"`seed` draws who is busy under `zipf`; `{ways[0]}` says it"
            self.findings.say("E0402", message, read["given"]["seed"], help="leave `seed` out")
        if ways[0] not in read["given"]:
            return None
        if ways == ["shares"] and not any(read["shares"]):
            message, help_ = "no expert has a share", "write one above 0, as in `[3, 1, 1, 1]`"
            self.findings.say("E0403", message, read["given"]["shares"], help=help_)
        return resolved.Load(span=clause.span, **read)

    def documents(self, contexts: Iterable[resolved.Context]) -> resolved.Documents | None:
        """What is packed into sequences; at least as much as one of them has."""
        clause = self.merged.get(syntax.Documents)
        by_documents = [
            each
            for each in contexts
            if each.balance == "documents" or (clause is not None and each.method == "ring")
        ]
        if clause is None or (clause.dim.text == "none" and clause.lengths is None):
            for each in by_documents:
                if each.balance == "documents":
                    message = "no documents are packed into a sequence"
                    help_ = 'write `documents S file "lengths.csv"` too'
                    self.findings.say("E0402", message, each.given["balance"], help=help_)
            return None
        if clause.lengths is None:
            help_ = f'write `documents {clause.dim} [1000, 3000, 96]` or `documents {clause.dim} file "lengths.csv"`'
            self.error("E0401", "`documents` says no lengths", clause, help_)
            return None
        if clause.dim.text not in self.table.dim_names:
            self.error(
                "E0304",
                f"there is no dim `{clause.dim}`",
                clause.dim,
                suggestion(clause.dim.text, self.table.dim_names),
            )
            return None
        for each in by_documents:
            if each.balance != "documents":
                message = "a ring needs as much of each document on each device"
                help_ = "write `balance = documents` in the context, or `method = all_gather`"
                where = [(clause.span, "documents are packed into a sequence")]
                self.findings.say(
                    "E0402",
                    message,
                    each.given.get("method", each.span),
                    secondary=where,
                    help=help_,
                )
        found = DocumentsReader(self.table.values, self.findings).read(clause.lengths)
        size = self.table.values.get(clause.dim.text)
        if found is None or size is None:
            return None
        if sum(found) < size:
            message = f"the documents have {sum(found):,} tokens together, and a sequence has `{clause.dim} = {size:,}`"
            self.error("E0401", message, clause.lengths, "list as many as fill a sequence")
        return resolved.Documents(dim=clause.dim.text, lengths=tuple(found), span=clause.span)

    def passes(self) -> Iterable[resolved.PassCall]:
        for clause in self.merged.all(syntax.Pass):
            arguments = self.settings.arguments(clause.settings)
            yield resolved.PassCall(name=clause.name.text, arguments=arguments, span=clause.span)
