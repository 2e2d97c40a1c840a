"""`check`: a parsed program, a plan and `--set` to a model that can be lowered."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stagec.diagnostics import (
    CompileError,
    Diagnostic,
    Diagnostics,
    Kind,
    Mistake,
    Span,
    closest,
    quoted,
    refused,
)
from stagec.dialects import stg
from stagec.frontend import syntax
from stagec.frontend.checker.bodies import check_body
from stagec.frontend.checker.context import CheckerContext
from stagec.frontend.checker.definitions import Definitions, collect, plans_of
from stagec.frontend.checker.graph import call_order, check_extent, dims_of_dispatches, needed
from stagec.frontend.checker.replacing import with_replacements
from stagec.frontend.checker.sharding import PlanChecker
from stagec.frontend.checker.steps import CheckedBody, OnceStep, RepeatStep
from stagec.frontend.checker.types import TypeReader
from stagec.frontend.checker.user_ops import read_op
from stagec.frontend.files import Source, parse_file
from stagec.frontend.paths import Scope, weights_of
from stagec.frontend.plans.files import check_files
from stagec.frontend.plans.idle_settings import (
    idle_documents,
    idle_microbatch,
    idle_names,
    idle_of_contexts,
    idle_schedule,
    idle_settings,
    idle_shares,
    idle_split,
    idle_training,
    idle_unit,
    idle_zero,
    is_of_training,
    title_of,
)
from stagec.frontend.plans.iterations import Iterations
from stagec.frontend.plans.merge import (
    DOT,
    Merged,
    merge,
    merge_own,
    own_steps,
    pools_of,
    with_pools,
)
from stagec.frontend.plans.resolve import resolve_plan
from stagec.frontend.plans.settings import BatchRows
from stagec.frontend.printing import text_of
from stagec.frontend.serving.batch import Batch
from stagec.frontend.serving.clause import ServeReader
from stagec.frontend.serving.dealing import batch_of
from stagec.frontend.serving.microbatches import idle_in_serving, rows_of
from stagec.frontend.serving.roles import Roles, roles_of, unserved
from stagec.frontend.serving.sharing import idle_sharing
from stagec.frontend.serving.spreads import spread_rules, spreads_of
from stagec.frontend.sizes import (
    TRAINED,
    Routed,
    SizeTable,
    check_requirements,
    missing_axis_sizes,
    resolve_sizes,
)
from stagec.plans.clauses import Load, Plan, Serve
from stagec.schedules.catalogue import FORWARD_ONLY
from stagec.symbolic.conditions import unrecorded

SUFFIX = ".stg"


MOST_ERRORS = 200
"""The most errors that are reported of one text."""


Adapt = Callable[[Plan], Plan]
"""Changes what of a plan decides no program: its device, and its links."""


def settings_beside(plan: Plan) -> frozenset[Span]:
    """Where settings stand that a command line gives the plan."""
    return frozenset(span for span in plan.device.given.values() if span.is_flag)


Idle = Sequence[Diagnostic]
"""W0304 of settings that change nothing, as far as the plan alone says so."""


def on_device_of_command(
    plan: Plan, adapt: Adapt, own: frozenset[Span], *, serves: bool, trains: bool
) -> tuple[Plan, frozenset[Span], Idle]:
    """A plan on a device, or with links, that a command states, and what of its `own` settings, among which those of the command are then, changes nothing."""
    found = adapt(plan)
    own |= settings_beside(found) - settings_beside(plan)
    idle = idle_settings(found, own, serves=serves, trains=trains)
    return found if serves else found.with_nccl, own, idle


@dataclass(frozen=True)
class CheckedModel:
    """A program without mistakes, under one plan and with all sizes known."""

    name: str
    source: Source
    plan: Plan
    sizes: SizeTable
    bodies: Mapping[str, CheckedBody]
    """The bodies of the model and of each module that it needs."""
    warnings: tuple[Diagnostic, ...]
    batch: Batch | None = None
    """What an iteration of serving computes; nothing under a plan without `serve`."""
    roles: Roles | None = None
    """Which dims say what of a request."""
    own_settings: frozenset[Span] = frozenset()
    """Where the settings stand that the plan says itself, and does not inherit."""
    of_all_pools: tuple[Span, ...] = ()
    """The clauses that a pool has because its plan says them for all pools."""
    trains: bool = True
    """Whether there is a backward pass."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Sizes that were given beside the text, as text."""

    @property
    def unsaid_settings(self) -> frozenset[Span]:
        """Its own settings, but for those of which the plan alone says that they change nothing."""
        return self.own_settings - {each.span for each in self.warnings if each.code == "W0304"}

    @property
    def repeat_counts(self) -> set[str]:
        """The sizes that say how often bodies run, and those that these are made of."""
        steps = (step for body in self.bodies.values() for step in body.walk())
        found = {n for each in steps if isinstance(each, RepeatStep) for n in each.count.names}
        dims = self.sizes.dims
        while more := {n for name in found & dims.keys() for n in dims[name].size.names} - found:
            found |= more
        return found

    @property
    def alone(self) -> CheckedModel:
        """The model under a pool by itself, where other pools may need what the plan says for all: it is not told of that."""

        def is_own(span: Span | None) -> bool:
            return span is None or not any(span in each for each in self.of_all_pools)

        told = tuple(w for w in self.warnings if w.code != "W0304" or is_own(w.span))
        own = frozenset(filter(is_own, self.own_settings))
        return replace(self, warnings=told, own_settings=own, of_all_pools=())

    def adapted(self, adapt: Adapt) -> CheckedModel:
        """The model on a device, or with links, that a command states: its settings are the plan's own, and W0304 where they change nothing."""
        serves = self.batch is not None
        plan, own, idle = on_device_of_command(
            self.plan, adapt, self.own_settings, serves=serves, trains=self.trains
        )
        if plan == self.plan and own == self.own_settings:
            return self
        before = idle_settings(self.plan, own, serves=serves, trains=self.trains)
        kept = [each for each in self.warnings if each not in before]
        return replace(self, plan=plan, own_settings=own, warnings=(*kept, *idle))

    @property
    def body(self) -> CheckedBody:
        return self.bodies[self.name]

    @property
    def batch_dim(self) -> str:
        return self.body.batch_dim

    @property
    def part(self) -> str | None:
        """Which part of each layer a pool serves, if it serves a part."""
        return None if self.batch is None else self.batch.serve.part

    @property
    def has_part(self) -> bool:
        """Whether a pool has a part of the model: it trains, or serves experts or what is beside them."""
        return self.batch is None or self.part is not None

    @property
    def computes_once(self) -> bool:
        """Whether something is computed for sequences that begin alone."""
        return any(isinstance(s, OnceStep) for body in self.bodies.values() for s in body.walk())

    @property
    def sends_unequally(self) -> bool:
        """Whether devices have sequences of their own, and experts an average of what they send."""
        sums = None if self.batch is None else self.batch.sums
        return sums is not None and bool(sums.axes) and bool(self.sizes.averages)

    @property
    def implied_dims(self) -> frozenset[str]:
        """Positions of caches: without `serve` they are new ones, and split as those are, if no rule names them."""
        if self.roles is None or self.batch is not None:
            return frozenset()
        named = {dim for rule in self.plan.rules for dim in rule.dim_spans}
        return frozenset(self.roles.positions) - named


def check(
    source: Source,
    plan: str | None = None,
    overrides: Mapping[str, str] | None = None,
    functions: Mapping[str, stg.Function] = stg.FUNCTIONS,
    iterations: Iterations | None = None,
) -> CheckedModel:
    """Raises `CompileError` with all mistakes, the first 200. Without a name, the first plan of the file holds; `FILE.stg:NAME` is one of
    another file, and `FILE.stg` its first.

    `overrides` are those of `--set`: the sizes of dims and axes, as text. `iterations` are those of a series, instead of the one that the plan serves.
    """
    folders = [os.path.dirname(each) for each in (source.file, _lender(plan)) if each]
    source, plan, plans = _lent(source, plan)
    findings = Diagnostics(most=MOST_ERRORS, sources=source.texts)
    definitions = collect(source, findings, functions)
    models = definitions.models
    is_ambiguous = any(each.code == "E0202" for each in findings.errors)
    if is_ambiguous or not models or models[0].name.text in definitions.modules:
        # Of a plan alone nothing more can be said, nor of names that mean two things, nor of a model that would call itself.
        raise_errors(findings, definitions, source)
    definitions.plans = with_pools(plans if plans is not None else definitions.plans)
    chosen = _choose(definitions, plan, findings)
    _is_one(chosen, definitions.plans, findings, source)
    merged = merge(chosen, definitions.plans, findings)
    check_files(merged, folders, findings)
    if any(each.code in ("E0404", "E0721") for each in findings.errors):
        # What a plan says is not known without the one that it extends, or the files that it names.
        raise_errors(findings, definitions, source)
    batch = _batch(source, definitions, merged, overrides or {}, findings, iterations)
    if batch is None and merged.get(syntax.Serve) is not None:
        # Without what is served, nothing is known of its sizes.
        raise_errors(findings, definitions, source)
    served = batch.sizes if batch is not None else {}
    shares = _shares(definitions, batch, findings)
    experts, tokens = (dims_of_dispatches(definitions, each) for each in ("experts", "tokens"))
    copies = batch.serve.redundant if batch is not None else 0
    routed = Routed(frozenset(experts), frozenset(tokens), copies)
    table = resolve_sizes(
        definitions.dims, merged, overrides or {}, findings, served, shares, routed
    )
    if any(each.code == "E0202" for each in findings.errors):
        # Nor of axes that are called like a dim, or twice.
        raise_errors(findings, definitions, source)
    missing_axis_sizes(merged, table, findings)
    of_one = batch.longest if batch is not None and batch.is_packed else {}
    check_requirements(definitions.requires, table, findings, of_one)
    resolved = resolve_plan(merged, table, findings, rows_of(batch))
    if batch is not None:
        _check_copies(resolved.load, batch.serve, bool(experts), findings)
        _check_load(resolved.load, batch.serve, bool(tokens), findings)
    num_errors = findings.num_errors
    read = resolved
    if batch is not None:
        # Logits are what is served, and no loss converts them.
        read = replace(resolved, precision=replace(resolved.precision, loss=None))
    bodies = _check_bodies(source, definitions, table, read, findings)
    if findings.num_errors != num_errors:
        # Of caches, and of where the plan has values, nothing is known of bodies with mistakes.
        raise_errors(findings, definitions, source)
    roles = batch.roles if batch is not None else None
    if batch is None:
        roles = roles_of(bodies.values(), findings)
        resolved = unserved(resolved, roles, table, findings, merged.sizes)
    else:
        resolved = spread_rules(resolved, batch.spreads)
    if findings.num_errors == num_errors:
        PlanChecker(resolved, definitions, bodies, table, findings).check()
    raise_errors(findings, definitions, source)
    model = definitions.models[0]
    said = merge_own(chosen, definitions.plans)
    own = _settings_of(said)
    of_all_pools = [
        c.span for step in own_steps(chosen, definitions.plans)[1:] for c in step.clauses
    ]
    served_as = batch.serve if batch is not None else None
    body = bodies[model.name.text]
    trains = batch is None and _trains(body, resolved, chosen)
    steps = [*weights_of(body, bodies, Scope(body.name))]
    weights = [(scope, step.name) for scope, step in steps]
    leaves_a_dtype = any(not step.is_own for _, step in steps)
    idle = [
        *idle_settings(resolved, own, serves=batch is not None, trains=trains),
        *idle_of_contexts(resolved, own),
        *idle_names(said, weights),
        *idle_shares(merged, table, own),
        *(idle_microbatch(resolved, said) if rows_of(batch) is BatchRows.SEQUENCES else ()),
        *idle_in_serving(batch, resolved.microbatch_size, said),
        *idle_schedule(resolved, served_as, own),
        *idle_unit(resolved, said),
        *idle_split(served_as, own),
        *idle_sharing(batch, table, own),
        *(idle_training(said, serves=batch is not None) if not trains else ()),
        *(idle_documents(resolved, said, table) if batch is None else ()),
        *(idle_zero(resolved, said, leaves_a_dtype) if not trains else ()),
    ]
    if served_as is None:
        resolved = resolved.with_nccl
    else:
        resolved = resolved.as_served(served_as.microbatches > 1)
    return CheckedModel(
        name=model.name.text,
        source=source,
        plan=resolved,
        sizes=table,
        bodies=bodies,
        warnings=(*findings.warnings, *idle),
        batch=batch,
        roles=roles,
        own_settings=own,
        of_all_pools=tuple(of_all_pools),
        trains=trains,
        overrides=dict(overrides or {}),
    )


def raise_errors(findings: Diagnostics, definitions: Definitions, source: Source) -> None:
    """End the phase if a mistake was found. A dim that is not there is one, whether shapes or bodies read it. Where a dim is called like something else,
    and one that is read is not there, the dim's name is the mistake.
    """
    absent = names_of(findings, "no dim", "E0201")
    findings.found = [
        replace(each, mistake=Mistake("no dim", what.name))
        if (what := each.mistake) is not None and what.kind == "no value" and what.name in absent
        else each
        for each in findings.found
    ]
    taken = names_of(findings, "name of a dim", "E0202") & definitions.dims.keys()
    missing = names_of(findings, "no dim")
    if len(taken) == len(missing) == 1:
        (old,), (new,) = taken, missing
        where = (definitions.dims[old].name.span, "this is the name of something else, too")
        help_ = f"call that dim `{new}`"
        findings.found = [
            replace(each, secondary=(*each.secondary, where), help=help_)
            if each.mistake == Mistake("no dim", new)
            else each
            for each in findings.found
            if each.mistake != Mistake("name of a dim", old)
        ]
    findings.raise_errors(source.texts)


def names_of(findings: Diagnostics, kind: Kind, code: str = "") -> set[str]:
    """The names that errors, of some code, say to be such a mistake."""
    return {
        each.mistake.name
        for each in findings.found
        if each.mistake is not None and each.mistake.kind == kind and each.is_error
        if each.code == (code or each.code)
    }


def _trains(model: CheckedBody, plan: Plan, said: syntax.Plan | None) -> bool:
    """Whether there is a loss, and a backward pass. A plan of another file than the model may be about one that has a loss."""
    if plan.pipeline is not None and plan.pipeline.schedule == FORWARD_ONLY:
        return False
    has_loss = len(model.results) == 1 and not model.results[0].type.dims
    return has_loss or (said is not None and said.span.file != model.span.file)


def _settings_of(said: Merged) -> frozenset[Span]:
    """Where the settings stand that a plan says itself."""
    clauses = (*said.rules, *said.clauses.values())
    found = (getattr(clause, "settings", getattr(clause, "what", None)) for clause in clauses)
    return frozenset(entry.span for each in found for entry in getattr(each, "entries", ()))


HOW = {"padded": "padded", "average": "an average"}
"""What tokens of experts are, in words."""


def _shares(definitions: Definitions, batch: Batch | None, findings: Diagnostics) -> dict[str, str]:
    """The dims of experts' tokens, and whether they are exact, rounded up or an average; of what trains an average where they do not divide."""
    tokens = dims_of_dispatches(definitions, "tokens")
    if batch is None:
        return dict.fromkeys(tokens, TRAINED)
    how = batch.serve.experts
    if how != "exact" and not tokens:
        message = f"the model has no experts whose tokens could be {HOW[how]}"
        span = batch.serve.given.get("experts", batch.serve.span)
        findings.say("E0401", message, span, help="leave it out")
    return dict.fromkeys(tokens, how)


def _check_copies(
    load: Load | None, serve: Serve, has_experts: bool, findings: Diagnostics
) -> None:
    """E0401 for copies of experts that there are not, E0402 where it is not said what they have to do."""
    span = serve.given.get("redundant", serve.span)
    if not serve.redundant:
        return
    if not has_experts:
        message = "the model has no experts that could have copies"
        findings.say("E0401", message, span, help="leave `redundant` out")
    elif serve.experts != "average":
        message = "experts and their copies have an average of the tokens"
        help_ = "write `experts = average` beside `redundant`"
        findings.say("E0402", message, span, help=help_)
    if load is not None:
        message = "a load is of experts, and copies are there to even it out"
        help_ = "leave out `load`, or `redundant`"
        findings.say("E0402", message, span, secondary=here(load), help=help_)


def here(load: Load) -> list[tuple[Span, str]]:
    return [(load.span, "here")] if load.span is not None else []


def _check_load(load: Load | None, serve: Serve, has_experts: bool, findings: Diagnostics) -> None:
    """E0402 for a load of experts that have as many places as each other."""
    if load is not None and has_experts and serve.experts == "padded" and not serve.redundant:
        message = "experts that are `padded` have as many tokens as each other, and a load says who has more"
        span, help_ = (
            serve.given.get("experts", serve.span),
            "write `experts = average`, or leave out `load`",
        )
        findings.say("E0402", message, span, secondary=here(load), help=help_)


def _trains_nothing(merged: Merged, serve: syntax.Serve, findings: Diagnostics) -> None:
    """E0401 for clauses without effect in a plan that serves. A plan that it extends may have them."""
    for clause in merged.plan.clauses if merged.plan else ():
        if is_of_training(clause, serves=True):
            message = f"`{title_of(clause)}` is about training, and this plan serves"
            findings.say(
                "E0401", message, clause.span, secondary=[(serve.span, "here")], help="leave it out"
            )


def _serves_nothing(
    source: Source, definitions: Definitions, merged: Merged, iterations: Iterations
) -> CompileError:
    """E0421 at the plan, where the file has one."""
    plans = definitions.plans
    serving = dict.fromkeys(
        name.partition(DOT)[0]
        for name, plan in plans.items()
        if merge(plan, plans, Diagnostics()).get(syntax.Serve) is not None
    )
    help_ = "add `serve { decode 1 at 1 }`: its settings hold, and the file says what"
    if serving:
        help_ = f"name one that serves: {' or '.join(f'`--plan {name}`' for name in serving)}"
    if merged.plan is None:
        message = "the model has no plan that serves"
        return refused("E0421", message, origin=iterations.path, help=help_)
    name = merged.plan.name
    message = f"plan `{name}` serves nothing"
    return refused("E0421", message, name.span, help=help_, sources=source.texts)


def _batch(
    source: Source,
    definitions: Definitions,
    merged: Merged,
    overrides: Mapping[str, str],
    findings: Diagnostics,
    iterations: Iterations | None,
) -> Batch | None:
    """What an iteration serves, under a plan that says so.

    Bodies are checked for it under the sizes of the text: which dims are those of requests is said by types, which name dims.
    """
    clause = merged.get(syntax.Serve)
    if clause is None:
        if iterations is not None:
            findings.raise_errors(source.texts)  # the plan may not be there
            raise _serves_nothing(source, definitions, merged, iterations)
        return None
    unheard = Diagnostics()
    with unrecorded():
        # What is asked of the text's sizes is not asked of those that are served.
        table = resolve_sizes(definitions.dims, merged, overrides, unheard)
        plan = resolve_plan(merged, table, unheard)
    serve = ServeReader(clause, table.values, findings).read()
    if serve is None:
        return None
    _trains_nothing(merged, clause, findings)
    is_pool = merged.plan is not None and DOT in merged.plan.name.text
    for setting in ("part", "modules"):
        needed = is_pool if setting == "part" else serve.part is not None
        if getattr(serve, setting) and not needed:
            message = f"`{setting}` says what a pool serves of each layer, and this is not one of two that do so"
            help_ = "leave it out, or say `part = experts` in a `pool`, and `part = attention` in another"
            findings.say("E0401", message, serve.given[setting], help=help_)
    for each in serve.sequences:
        if each.source and not is_pool:
            message = f"sequences come from `{each.source}`, and the plan has no pools"
            help_ = f"leave out `from {each.source}`, or serve them in a `pool`"
            findings.say("E0401", message, each.span, help=help_)
    of_bodies = Diagnostics()
    with unrecorded():
        bodies = _check_bodies(source, definitions, table, plan, of_bodies)
    roles = roles_of(bodies.values(), findings)
    if roles is None and of_bodies.errors:
        return None  # what is wrong there is said when bodies are checked again
    if roles is None:
        message = "the model has no `cache`, so nothing says which dims are sequences and positions"
        inputs = [each.shape for model in definitions.models for each in model.parameters][:1]
        named = [text_of(dim) for shape in inputs for dim in shape.dims]
        sizes = [f"{name} = {table.values[name]}" for name in named if name in table.dim_names]
        help_ = "declare one; a model without state is served like any forward pass"
        help_ += f": `set {', '.join(sizes)}`" if sizes else ""
        findings.say("E0401", message, clause.span, help=help_)
        return None
    spreads = spreads_of(plan, roles, table, findings)
    return batch_of(serve, roles, merged, table, findings, iterations, spreads)


def sizes_of(source: Source, plan: str | None = None) -> list[str]:
    """The names whose sizes can be set: dims, and axes of the plan's mesh that are no products."""
    source, plan, plans = _lent(source, plan)
    findings = Diagnostics(most=MOST_ERRORS, sources=source.texts)
    definitions = collect(source, findings)
    definitions.plans = with_pools(plans if plans is not None else definitions.plans)
    merged = merge(_choose(definitions, plan, findings), definitions.plans, findings)
    findings.raise_errors(source.texts)
    with unrecorded():
        table = resolve_sizes(definitions.dims, merged, {}, Diagnostics())
    mesh = merged.get(syntax.Mesh)
    axes = [axis.name.text for axis in mesh.axes] if mesh else []
    hidden = set(table.unpadded.values())
    dims = [name for name in table.dim_names if name not in hidden]
    return [*dims, *(a for a in axes if a not in table.products or a in table.copied)]


def pools_in(source: Source, plan: str | None) -> list[str]:
    """The names of a plan's pools, in the order in which their ranks follow one another; none of a plan that is one by itself.

    A plan that is not there has none: `check` says so.
    """
    source, plan, plans = _lent(source, plan)
    plans = plans if plans is not None else plans_of(source)
    chosen = plans.get(plan) if plan is not None else next(iter(plans.values()), None)
    return [pool.name.text for pool in pools_of(chosen, plans)]


def plans_of_one_mesh(source: Source) -> list[str]:
    """The plans of a file that can be asked about: of one whose pools serve, these; none of one whose pools have parts of the model."""
    named = [item for item in source.files[source.file].items if isinstance(item, syntax.Plan)]
    known = with_pools(plans_of(source))
    found: list[str] = []
    for plan in named:
        pools = [f"{plan.name}{DOT}{pool.name}" for pool in pools_of(plan, known)]
        clauses = [merge(known[pool], known, Diagnostics()).get(syntax.Serve) for pool in pools]
        serves = [serve for serve in clauses if serve is not None]
        is_whole = bool(serves) and not any(map(_says_part, serves))
        found += (pools if is_whole else []) if pools else [plan.name.text]
    return found


def _says_part(serve: syntax.Serve) -> bool:
    """Whether a pool serves a part of each layer."""
    entries = serve.what.entries if isinstance(serve.what, syntax.Served) else ()
    return any(isinstance(each, syntax.Setting) and each.name.text == "part" for each in entries)


def plan_of_pool(source: Source, plan: str | None, pool: str) -> str:
    """What a pool is called as a plan by itself."""
    if plan is None or plan.endswith(SUFFIX):
        lent, _, plans = _lent(source, plan)
        first = next(iter(plans if plans is not None else plans_of(lent)))
        plan = first if plan is None else f"{plan}:{first}"
    return f"{plan}{DOT}{pool}"


def _is_one(
    plan: syntax.Plan | None,
    plans: Mapping[str, syntax.Plan],
    findings: Diagnostics,
    source: Source,
) -> None:
    """E0422 for a plan of several pools, E0401 for a pool that has some."""
    if plan is None:
        return
    for clause in plan.clauses:
        if DOT in plan.name.text and isinstance(clause, syntax.Pool):
            help_ = "put it beside the other one"
            findings.say("E0401", "a pool has no pools", clause.span, help=help_)
            findings.raise_errors(source.texts)
    pools = [pool.name.text for pool in pools_of(plan, plans)] if DOT not in plan.name.text else []
    if pools:
        message = f"plan `{plan.name}` has pools, each with a mesh of its own"
        help_ = f"ask about one of them: {' or '.join(f'`--plan {plan.name}{DOT}{pool}`' for pool in pools)}"
        help_ += "; in Python, `stagec.compile_pools` takes all of them"
        findings.say("E0422", message, plan.name.span, help=help_)
        findings.raise_errors(source.texts)


def _lent(
    source: Source, plan: str | None
) -> tuple[Source, str | None, dict[str, syntax.Plan] | None]:
    """Where a plan is that of another file: the texts of both, its name there, and the plans of that file."""
    if plan is None or not (file := _lender(plan)):
        return source, plan, None
    name = plan[len(file) + 1 :]
    lender = parse_file(file)
    texts = {**source.texts, **lender.texts}
    return replace(source, texts=texts), name or None, plans_of(lender)


def _lender(plan: str | None) -> str:
    """The other file of a plan `FILE.stg:NAME`, or `FILE.stg`; nothing for a plan's name."""
    if plan is None or not (plan.endswith(SUFFIX) or f"{SUFFIX}:" in plan):
        return ""
    return plan.rpartition(":")[0] if f"{SUFFIX}:" in plan else plan


def _choose(
    definitions: Definitions, name: str | None, findings: Diagnostics
) -> syntax.Plan | None:
    plans = definitions.plans
    if name is None:
        return next(iter(plans.values()), None)
    if name not in plans:
        close = closest(name, plans)
        help_ = f"did you mean `{close}`?" if close else ""
        if not help_:
            there = "there is" if len(plans) == 1 else "there are"
            help_ = f"{there} {quoted(plans)}" if plans else "the file has no plans"
        message = f"there is no plan `{name}`"
        findings.say("E0703", message, origin=f"--plan {name}", help=help_)
    return plans.get(name)


def _check_bodies(
    source: Source,
    definitions: Definitions,
    table: SizeTable,
    plan: Plan,
    findings: Diagnostics,
) -> dict[str, CheckedBody]:
    modules, ops = needed(source.file, definitions, plan.replaced.values())
    order = call_order(modules, definitions, findings)
    sizes = table.dim_values
    types = TypeReader(sizes, findings)
    activations = plan.precision.activations
    declared: list[syntax.Module | syntax.Op] = [definitions.modules[n] for n in modules]
    declared += [definitions.ops[n] for n in ops]
    context = CheckerContext(
        definitions=definitions,
        signatures={d.name.text: types.signature(d, activations) for d in declared},
        sizes=sizes,
        precision=plan.precision,
        types=types,
        findings=findings,
        declared={n: read_op(definitions.ops[n], sizes, findings) for n in ops},
        plan_name=plan.name,
        served=table.served,
    )
    for name in ops:
        for each in types.misnamed(definitions.ops[name]):
            findings.add(each)
    bodies: dict[str, CheckedBody] = {}
    for name in order or modules:
        num_errors = findings.num_errors
        bodies[name] = check_body(definitions.modules[name], context)
        if findings.num_errors > num_errors:
            # Its mistake may be in what it declares, which is not held against its callers.
            context.signatures[name] = context.signatures[name].unknown
    for model in definitions.models:
        bodies[model.name.text] = check_body(model, context)
    if not findings.errors:
        bodies = with_replacements(bodies, plan, definitions, findings)
    if order is not None and not findings.errors:
        check_extent(order, definitions.models[0], bodies, findings)
    return bodies
