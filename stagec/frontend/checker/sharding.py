"""A plan against its model: rules that split what is there, overrides of values that exist."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from stagec.analysis import placement
from stagec.analysis.recompute_choice import op_words
from stagec.analysis.sharding_errors import cannot_split, chunks_along, split_beside, splits
from stagec.diagnostics import (
    Diagnostic,
    Diagnostics,
    Span,
    closest,
    did_you_mean,
    quoted,
    suggestion,
)
from stagec.dialects.attributes import Dim
from stagec.frontend.checker.definitions import Definitions
from stagec.frontend.checker.graph import dims_of_dispatches
from stagec.frontend.checker.steps import (
    CheckedBody,
    NameStep,
    OpStep,
    RepeatStep,
    Value,
    WeightStep,
)
from stagec.frontend.checker.types import shown
from stagec.frontend.paths import Scope, is_named, named_values, weights_of
from stagec.frontend.sizes import SizeTable
from stagec.plans.clause_text import written
from stagec.plans.clauses import Clause, Override, Plan
from stagec.schedules.catalogue import names as schedule_names

REGIONS = ("none", "full", "whole")
"""What `recompute` knows besides ops and values."""


class Uneven(NamedTuple):
    """A dim of a value that its axes do not divide."""

    dim: Dim
    value: Value
    what: str
    """What the value is called."""


class PlanChecker:
    """Checks a resolved plan against the bodies of a model."""

    def __init__(
        self,
        plan: Plan,
        definitions: Definitions,
        bodies: Mapping[str, CheckedBody],
        table: SizeTable,
        findings: Diagnostics,
    ) -> None:
        self.plan, self.definitions, self.bodies = plan, definitions, bodies
        self.table, self.sizes, self.findings = table, table.known, findings
        self.model = bodies[definitions.models[0].name.text]

    def check(self) -> None:
        self.check_rules()
        self.check_overrides()
        self.check_pipeline()
        self.check_names()

    # ---- rules ----

    def check_rules(self) -> None:
        """E0301 for values that a rule splits unevenly.

        Weights and inputs are kept as their readers need them, not as the rules say. Of tokens that a router shares out devices have what it sends them.
        """
        if any(each.code == "E0306" for each in self.findings.errors):
            return  # of a mesh that cannot be
        rules = [placement.PlacementRule(r.dims, r.axes, r.copies) for r in self.plan.rules]
        reported: set[Dim] = set()
        uneven: list[Uneven] = []
        sent = set[str]() if self.table.served else dims_of_dispatches(self.definitions, "tokens")
        for value, what in self.values():
            for name, axes in placement.split_dims(value.type.names, rules).items():
                dim = Dim(name, axes)
                # Of experts with copies axes split both together.
                known = (self.table.refused, self.table.averages, self.table.redundant, sent)
                if any(dim.name in names for names in known):
                    continue
                if dim not in reported and not self.divides(dim):
                    reported.add(dim)
                    uneven.append(Uneven(dim, value, what))
        self.tell_uneven(uneven)

    def tell_uneven(self, uneven: Sequence[Uneven]) -> None:
        """E0301 for dims that their axes do not divide: once for all dims of the same axis."""
        by_axis: dict[str, list[Diagnostic]] = {}
        for each in uneven:
            found = self.uneven(each.dim, each.value, each.what)
            if found is not None:
                by_axis.setdefault(each.dim.split[-1], []).append(found)
        for first, *others in by_axis.values():
            if not others:
                self.findings.add(first)
                continue
            where = [*first.secondary]
            for each in others:
                where += [(each.span, each.message)] if each.span is not None else []
            helps = [f"{each.message}: {text}" for each in (first, *others) for text in each.helps]
            self.findings.add(replace(first, secondary=where, help=helps))

    def values(self) -> list[tuple[Value, str]]:
        """Every value that a body computes, and what to call it."""
        found: dict[Value, str] = {}
        for body in self.reachable():
            of = "" if body is self.model else f" of `{body.name}`"
            for step in body.walk():
                if isinstance(step, OpStep) and step.operands:
                    found |= {value: f"{shown(value.type)}{of}" for value in step.results}
                elif isinstance(step, NameStep) and step.value in found:
                    found[step.value] = f"`{step.name}`{of}"
        return list(found.items())

    def reachable(self) -> list[CheckedBody]:
        found = {self.model.name: self.model}
        waiting = [self.model]
        while waiting:
            for call in waiting.pop().calls():
                if call.module not in found:
                    found[call.module] = self.bodies[call.module]
                    waiting.append(self.bodies[call.module])
        return list(found.values())

    def ways(self, dim: Dim) -> int:
        """Into how many parts a dim is split. An axis of unknown size has been reported."""
        return prod(self.sizes.get(axis, 1) for axis in dim.split)

    def divides(self, dim: Dim) -> bool:
        if any(name not in self.sizes for name in (dim.name, *dim.split)):
            return self.sizes.get(dim.name, 0) % self.ways(dim) == 0
        return splits(dim, self.parts_of(dim), self.sizes)

    def parts_of(self, dim: Dim) -> str | None:
        """How the parts of a dim differ, if its rule lets them: that over the axes that split it."""
        found = (r for r in self.plan.rules if dim.name in r.dims and r.axes == dim.split)
        return next((r.uneven for r in found if r.uneven is not None), None)

    def may_differ(self, name: str) -> bool:
        """Whether parts of a dim need not be whole: of tokens that a router shares out, and of sequences that are served."""
        served = bool(self.table.served) and name == self.model.batch_dim
        return served or name in self.table.averages

    def uneven(self, dim: Dim, value: Value, what: str) -> Diagnostic | None:
        rule = next(r for r in self.plan.rules if dim.name in r.dims and dim.split[-1] in r.axes)
        wrong = [each.span for each in self.findings.errors if each.code == "E0402"]
        if any(span is not None and span in rule.span for span in wrong):
            return None  # what the rule was to do about it is told already
        differs, products = rule.uneven is not None, self.plan.products
        message, notes, help_ = cannot_split(
            *(dim, self.parts_of(dim), differs, self.sizes),
            is_batch=dim.name == self.model.batch_dim,
            beside=split_beside(
                dim.split[-1],
                [(r.dims, r.axes) for r in self.plan.rules if r.uneven is None],
                {name: size for name, size in self.sizes.items() if not self.may_differ(name)},
            ),
            formula=self.table.formula(dim.name),
            served=dim.name in self.table.served,
            chunks=chunks_along(
                dim.split,
                [
                    (products.get(c.axis, (c.axis,)), c.method, c.balance)
                    for c in self.plan.contexts
                ],
            ),
        )
        names = (*dim.split, dim.name)
        origins = [self.table.origins[name] for name in names if name in self.table.origins]
        return Diagnostic(
            "E0301",
            message,
            rule.dim_spans.get(dim.name, rule.span),
            f"splits {what}",
            secondary=[(value.span, shown(value.type))],
            notes=[*notes, *([f"from {quoted(origins)}"] if origins else [])],
            help=help_,
        )

    # ---- overrides ----

    def check_overrides(self) -> None:
        if not self.plan.overrides:
            return
        values = list(self.named())
        for override in self.plan.overrides:
            matched = [s for scope, s in values if scope.matches(override.path, s.name)]
            if not matched:
                known = [(*scope.instances, step.name) for scope, step in values]
                self.no_value(override, known)
            for step in matched:
                names = step.result.type.names
                # Of a name that is no dim E0304 tells.
                missing = [
                    d for d in override.dims or () if d not in names and d in self.table.dims
                ]
                if missing:
                    path = ".".join(override.path)
                    message = f"`{path}` has no dim `{missing[0]}`"
                    help_ = f"it has {quoted(names)}" if names else "leave the rule out"
                    where = [(step.span, f"it is {shown(step.result.type)}")]
                    self.add(message, override, help_, secondary=where)
                    break

    def named(self) -> Iterator[tuple[Scope, NameStep]]:
        return named_values(self.model, self.bodies, Scope(self.model.name))

    def add(
        self,
        message: str,
        at: Override,
        help: str = "",
        secondary: Sequence[tuple[Span, str]] = (),
    ) -> None:
        self.findings.say("E0305", message, at.span, help=help, secondary=secondary)

    def no_value(self, override: Override, known: Sequence[tuple[str, ...]]) -> None:
        path = ".".join(override.path)
        paths = endings(known)
        paths |= {f"{self.model.name}.{k[0]}" for k in known if len(k) == 1}
        *within, last = override.path
        inner = within[1:] if within[:1] == [self.model.name] else within
        beside = dict.fromkeys(
            each[-1]
            for each in known
            if within and (list(each[-1 - len(inner) : -1]) == inner if inner else len(each) == 1)
        )
        close = closest(last, beside)
        if close:
            help_ = f"did you mean `{'.'.join((*within, close))}`?"
        elif beside:
            such = " values such as" if len(beside) > MOST_OF_ONE else ""
            help_ = f"`{'.'.join(within)}` has{such} {quoted([*beside][:MOST_OF_ONE])}"
        elif not (help_ := did_you_mean(path, paths)):
            callers = sorted({self.model.name, *(name for path in known for name in path[:-1])})
            help_ = f"a value is named by its module: {quoted(callers)}"
        self.add(f"no value is called `{path}`", override, help_)

    # ---- other clauses ----

    def check_pipeline(self) -> None:
        pipeline = self.plan.pipeline
        if pipeline is None:
            return
        counts = {
            step.text
            for body in self.reachable()
            for step in body.walk()
            if isinstance(step, RepeatStep)
        }
        for count in pipeline.counts:
            if count in counts or self.table.values.get(count, 0) is None:
                continue
            changed: dict[str, str] = {}
            if count in self.table.dim_names:
                message = f"no repeat runs `{count}` times"
            elif count in schedule_names():
                message = f"`{count}` is a schedule: a pipeline is of the dim that says how often its layers repeat"
                changed = {"schedule": count}
            else:
                message = f"there is no dim `{count}`"
            named = counts & {*self.table.dim_names}
            close = closest(count, named) if not changed else None
            meant = [close] if close else sorted(named - {*pipeline.counts})[:MOST_SHOWN]
            ways = [[each if name == count else name for name in pipeline.counts] for each in meant]
            proposed = [
                written(f"pipeline {', '.join(names)} over {pipeline.axis}", pipeline, **changed)
                for names in ways
            ]
            help_ = f"write {quoted(proposed, last='or')}" if proposed else "repeat the layers"
            if counts and not named:
                # A number says how often, and no plan can name it.
                number, name = min(counts), self.unused_name(count, "L", "layers", "num_layers")
                clause = written(f"pipeline {name} over {pipeline.axis}", pipeline, **changed)
                help_ = f"name the number of layers: `dim {name} = {number}`, `repeat {name}` and `{clause}`"
            self.findings.say("E0405", message, pipeline.span, help=help_)

    def unused_name(self, *names: str) -> str:
        """The first of these names that could be a dim's, and is none yet."""
        taken = {*self.table.dim_names, *schedule_names()}
        return next((name for name in names if name not in taken), names[-1])

    def check_names(self) -> None:
        """Modules of `unit` and `recompute`, ops and values of `recompute` and `offload`."""
        plan = self.plan
        for path in plan.units or ():
            self.check_module(path, plan.given.get(f"unit.{path}"))
        self.check_frozen()
        for path in plan.collectives.keep_in:
            self.check_module(path, plan.collectives.place("keep_in", path))
        for path in plan.device.captured:
            self.check_module(path, plan.device.place("captured", path))
        for path in plan.recompute.modules or ():
            self.check_module(path, plan.recompute.place("modules", path))
        self.check_words(plan.recompute, "what", REGIONS, "recompute")
        self.check_words(plan.offload, "activations", ("all", "inputs"), "offload")
        self.check_precision()

    def check_precision(self) -> None:
        """Values that are kept in fewer bits; modules and weights whose products are not of them, or whose gradients are reduced late."""
        precision = self.plan.precision
        self.check_words(precision, "saved_values", (), "keep in fewer bits")
        span = precision.given.get("scaling")
        if span is not None and precision.products != "fp8":
            message = "`scaling` is that of `products = fp8`, which have one scale for a tensor"
            self.findings.say("E0401", message, span, help="write `products = fp8`")
        self.check_maxima()
        gradients = self.plan.gradients
        for name in precision.unquantized:
            self.check_weight(name, precision.place("unquantized", name))
        for name in gradients.late:
            self.check_weight(name, gradients.place("late", name))

    def check_maxima(self) -> None:
        """Ranks that agree on scales are ranks along axes of the mesh; stages of a pipeline have other layers."""
        plan = self.plan
        names = plan.precision.maxima
        stages = plan.pipeline.axis if plan.pipeline is not None else None
        for name in names if names not in (("all",), ("none",)) else ():
            known, span = [*plan.mesh, *plan.products], plan.precision.place("maxima", name)
            if name not in known:
                help_ = (
                    did_you_mean(name, known)
                    or f"there are {quoted(known)}; or write `all`, or `none`"
                )
                self.findings.say("E0403", f"the mesh has no axis `{name}`", span, help=help_)
            elif stages in plan.products.get(name, (name,)):
                message = f"ranks along `{stages}` have other layers, and other maxima"
                self.findings.say("E0401", message, span, help=f"leave `{name}` out")

    def weights(self) -> list[tuple[Scope, WeightStep]]:
        return list(weights_of(self.model, self.bodies, Scope(self.model.name)))

    def check_weight(self, name: str, span: Span | None, purpose: str = "") -> None:
        """The name of a weight, or of a module that has some."""
        weights = self.weights()
        if any(is_named(name.split("."), scope, step.name) for scope, step in weights):
            return
        paths = {(*scope.instances, step.name) for scope, step in weights}
        modules = {path[-2] for path in paths if len(path) > 1}
        known = {*self.definitions.modules, *endings(paths)}
        help_ = alike(name, known) or some_of(
            {"module": modules, "weight": {".".join(path[-2:]) for path in paths}}
        )
        message = f"there is no weight `{name}`{purpose}, and no module of weights"
        self.findings.say("E0401", message, span, help=help_)

    def check_words(
        self, clause: Clause, setting: str, regions: Iterable[str], purpose: str
    ) -> None:
        """Ops and values that a clause names."""
        values = list(self.named())
        known = {
            *regions,
            *op_words(),
            *self.definitions.functions,
            *self.definitions.ops,
            *self.definitions.modules,
        }
        for what in getattr(clause, setting):
            path = what.split(".")
            is_value = any(scope.means(path, step.name) for scope, step in values)
            if is_value or what in known or path[-1] in self.definitions.modules:
                continue
            paths = {(*scope.instances, step.name) for scope, step in values}
            modules = {path[-2] for path in paths if len(path) > 1}
            weights = {(*scope.instances, step.name) for scope, step in self.weights()}
            help_ = alike(what, {*known, *endings(paths)}) or some_of(
                {"module": modules, "value": {".".join(path[-2:]) for path in paths - weights}}
            )
            message = f"there is no op or value `{what}` to {purpose}"
            self.findings.say("E0401", message, clause.place(setting, what), help=help_)

    def check_frozen(self) -> None:
        """`freeze` names weights, or modules that have some, and leaves something to train."""
        plan = self.plan
        for name in plan.frozen:
            self.check_weight(name, plan.given.get(f"freeze.{name}"), " to freeze")
        patterns = [name.split(".") for name in plan.frozen]
        if patterns and all(
            any(is_named(pattern, scope, step.name) for pattern in patterns)
            for scope, step in self.weights()
        ):
            message = "nothing is left to train: `freeze` names all weights"
            help_ = "leave out those that are trained, or evaluate the loss alone: `schedule = forward_only`"
            self.findings.say("E0401", message, plan.frozen_span, help=help_)

    def check_module(self, path: str, span: Span | None) -> None:
        if path.split(".")[-1] in self.definitions.modules:
            return
        help_ = suggestion(path, sorted(self.definitions.modules))
        self.findings.say("E0401", f"there is no module `{path}`", span, help=help_)


def alike(name: str, paths: Iterable[str]) -> str:
    """`did you mean ...?` for a misspelt path, not for one that has only its modules in common."""
    *within, last = name.split(".")
    known = [path for path in paths if not within or path.split(".")[:-1] != within]
    beside = {path.split(".")[-1] for path in paths if path not in known}
    close = closest(last, beside) if within else None
    if close:
        return f"did you mean `{'.'.join((*within, close))}`?"
    return "" if beside else did_you_mean(name, known)


def endings(paths: Iterable[Sequence[str]]) -> set[str]:
    """What a path may be called by: all of it, or as much of its end as one likes."""
    return {".".join(path[-n:]) for path in paths for n in range(1, len(path) + 1)}


MOST_OF_ONE = 12
"""So many values of one module are shown."""
MOST_SHOWN = 4
"""So many names of a kind are examples enough."""


def some_of(kinds: Mapping[str, Collection[str]]) -> str:
    """Names that there are, by what they name: `there are: the module `A`; values such as `A.x``."""

    def shown(kind: str, names: Sequence[str]) -> str:
        article, such = ("", " such as") if len(names) > MOST_SHOWN else ("the ", "")
        plural = "s" if len(names) > 1 else ""
        return f"{article}{kind}{plural}{such} {quoted(names[:MOST_SHOWN])}"

    parts = [shown(kind, sorted(names)) for kind, names in kinds.items() if names]
    return f"there are: {'; '.join(parts)}" if parts else ""
