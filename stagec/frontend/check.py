"""`check`, and the warnings about a plan that splits less than it says."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from xdsl.dialects.builtin import ModuleOp

from stagec.diagnostics import Diagnostic, refused, span_of, told_of_parts
from stagec.dialects import stg
from stagec.frontend import checker, syntax
from stagec.frontend.checker import CheckedModel, pools_in
from stagec.frontend.files import Source, parse_text
from stagec.frontend.plans.iterations import Iterations
from stagec.frontend.plans.merge import DOT
from stagec.frontend.plans.moved_parts import moved_parts
from stagec.frontend.plans.repeated_work import repeated_work
from stagec.frontend.plans.split_routers import split_routers
from stagec.frontend.plans.unused_axes import unused_axes
from stagec.frontend.plans.unused_rules import (
    idle_balances,
    idle_contexts,
    idle_overrides,
    unused_rules,
)
from stagec.frontend.routed_tokens import summed_experts
from stagec.symbolic.conditions import unrecorded


def check(
    source: Source,
    plan: str | None = None,
    overrides: Mapping[str, str] | None = None,
    functions: Mapping[str, stg.Function] = stg.FUNCTIONS,
    iterations: Iterations | None = None,
) -> CheckedModel:
    """Raises `CompileError` with all mistakes. Without a name, the first plan of the file holds.

    `overrides` are those of `--set`: the sizes of dims and axes, as text. `functions` are those of the language, with
    those of plug-ins, `iterations` those of a series.
    """
    checked = checker.check(source, plan, overrides, functions, iterations)
    with unrecorded():
        found = unused_axes(checked.plan, checked.sizes.origins, checked.batch_dim)
    return replace(checked, warnings=(*checked.warnings, *found)) if found else checked


def extended(
    checked: CheckedModel, clauses: Sequence[str], functions: Mapping[str, stg.Function]
) -> CheckedModel | None:
    """The model under a plan that extends its own by some clauses; nothing where that is a pool's, or of another file."""
    source, name = checked.source, checked.plan.name
    program = source.files[source.file]
    if not any(isinstance(item, syntax.Plan) and item.name.text == name for item in program.items):
        return None
    # Beside the text, whose folder has the files that clauses name.
    file = os.path.join(os.path.dirname(source.file), "<help>")
    every = [item for own in source.files.values() for item in own.items]
    longest = max(len(item.name.text) for item in every if isinstance(item, syntax.Plan))
    new = name + "_" * longest  # no plan has it
    text = f"plan {new} extends {name} {{\n{chr(10).join(clauses)}\n}}\n"
    items = parse_text(text, file).files[file].items
    files = {**source.files, source.file: replace(program, items=(*program.items, *items))}
    whole = replace(source, files=files, texts={**source.texts, file: text})
    return check(whole, new, checked.overrides, functions)


def check_not_a_part(checked: CheckedModel) -> None:
    """E0422 for one pool of several that have parts of the model: it is a part of the model, and what it takes is the others' to say."""
    plan, dot, pool = checked.plan.name.rpartition(DOT)
    if not dot or not checked.has_part or pool not in pools_in(checked.source, plan):
        return
    verb = "trains" if checked.batch is None else "serves"
    message = f"the pool `{pool}` {verb} a part of the model, which the other pools of `{plan}` hand values to and take values from"
    help_ = f"compile all of them: `stagec MODEL.stg --plan {plan}`; `stagec explain MODEL.stg --plan {plan}{DOT}{pool}` answers questions about this one"
    raise refused("E0422", message, checked.plan.span, help=help_)


def warnings_of(checked: CheckedModel, module: ModuleOp) -> list[Diagnostic]:
    """What is doubtful about a model, and about the rules of its plan, as its IR shows before any pass; of a pool, about it alone."""
    return doubts_of(checked.alone, module)


def doubts_of(checked: CheckedModel, module: ModuleOp) -> list[Diagnostic]:
    places = {each.span for each in checked.warnings if each.code == "W0302"}
    told = {axis.name for axis in checked.plan.axes if axis.span in places}
    with unrecorded():
        rules = [
            *unused_rules(module, checked.implied_dims),
            *idle_overrides(module),
            *idle_contexts(module, checked.batch_dim, told),
            *idle_balances(module, checked.plan, checked.own_settings),
        ]
        rules += [*moved_parts(module), *split_routers(module)]
        if checked.part != "attention":  # whose experts another pool has
            rules += [*summed_experts(module), *repeated_work(module)]
        return [*checked.warnings, *rules]


def warnings_of_pools(pools: Sequence[tuple[CheckedModel, ModuleOp]]) -> list[Diagnostic]:
    """What is doubtful about a model on several pools, each with the module of what it computes; each warning once."""
    return [each for of_pool in warnings_by_pool(pools) for each in of_pool]


def warnings_by_pool(pools: Sequence[tuple[CheckedModel, ModuleOp]]) -> list[list[Diagnostic]]:
    """Likewise, by the first pool that each is about.

    A rule, a context or a setting that several pools have from one clause is to change something in one of them.
    """
    found = [[*doubts_of(*pool), *elsewhere(*pool)] for pool in pools]
    return told_of_parts(found, [checked.plan.says for checked, _ in pools])


def elsewhere(checked: CheckedModel, module: ModuleOp) -> list[Diagnostic]:
    """A warning for each override of a value that other pools compute."""
    here = {span_of(op.location) for op in module.walk() if isinstance(op, stg.PlaceOp)}
    note = "no pool that it is said to computes the value"
    return [
        Diagnostic("W0301", "the override places nothing", each.span.start, notes=[note])
        for each in checked.plan.overrides
        if each.span.start not in here
    ]
