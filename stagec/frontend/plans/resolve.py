"""A merged plan to a `Plan`: axes, rules and settings checked, names resolved.

What a plan says of values and modules is checked where those are known (`checker/sharding.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from stagec.diagnostics import Diagnostics
from stagec.frontend import syntax
from stagec.frontend.numbers import as_read, whole
from stagec.frontend.plans.devices import read_device, read_links
from stagec.frontend.plans.host_memory import read_offload, read_process
from stagec.frontend.plans.merge import Merged
from stagec.frontend.plans.mesh import read_mesh
from stagec.frontend.plans.optimizer import of_eight_bits, read_optimizer
from stagec.frontend.plans.parallelism import (
    as_overlapped,
    read_contexts,
    read_gradients,
    read_pipeline,
    read_zero,
)
from stagec.frontend.plans.plan_reader import PlanReader, places_of
from stagec.frontend.plans.precision import read_precision
from stagec.frontend.plans.rules import read_overrides, read_rules
from stagec.frontend.plans.settings import BatchRows
from stagec.frontend.plans.tokens import read_documents, read_load
from stagec.frontend.sizes import SizeTable
from stagec.plans import clauses as resolved


def resolve_plan(
    merged: Merged, table: SizeTable, findings: Diagnostics, rows: BatchRows = BatchRows.SEQUENCES
) -> resolved.Plan:
    """Every clause as plain values; mistakes are findings and leave the default."""
    reader = PlanReader(merged, table, findings, rows)
    microbatch = merged.get(syntax.Microbatch)
    num_sequences = read_microbatch(reader, microbatch)
    unit, freeze = merged.get(syntax.Unit), merged.get(syntax.Freeze)
    optimizer = read_optimizer(reader)
    zero, precision = read_zero(reader), read_precision(reader)
    overlap = reader.only_settings(syntax.Overlap, resolved.Overlap)
    pipeline = as_overlapped(read_pipeline(reader, num_sequences), overlap)
    if optimizer.bits == 8:
        precision = of_eight_bits(reader, precision, optimizer)
    use, contexts = merged.get(syntax.Use), tuple(read_contexts(reader))
    plan = resolved.Plan(
        name=merged.plan.name.text if merged.plan else "",
        span=merged.plan.name.span if merged.plan else None,
        axes=read_mesh(reader),
        products=dict(reader.table.products),
        rules=tuple(read_rules(reader)),
        overrides=tuple(read_overrides(reader)),
        pipeline=pipeline,
        microbatch=num_sequences,
        microbatch_span=microbatch.span if microbatch else None,
        zero=zero,
        units=read_units(reader, unit),
        units_span=unit.span if unit else None,
        frozen=read_frozen(reader, freeze),
        frozen_span=freeze.span if freeze else None,
        given={
            **places_of("unit", unit.modules if unit else ()),
            **places_of("freeze", freeze.weights if freeze else ()),
        },
        replaced=read_replaced(reader, use),
        replaced_span=use.span if use else None,
        recompute=read_recompute(reader),
        precision=precision,
        optimizer=optimizer,
        collectives=read_collectives(reader),
        contexts=contexts,
        gradients=read_gradients(reader, zero, pipeline, precision),
        overlap=overlap,
        offload=read_offload(reader),
        process=read_process(reader),
        loss_chunks=read_loss_chunks(reader),
        device=read_device(reader),
        links=tuple(read_links(reader)),
        load=read_load(reader),
        documents=read_documents(reader, contexts),
        passes=tuple(read_passes(reader)),
    )
    reader.tell_mesh()
    return replace(plan, formulas=reader.settings.formulas)


def read_collectives(reader: PlanReader) -> resolved.Collectives:
    found = reader.only_settings(syntax.Collectives, resolved.Collectives)
    if found.keep_in and found.keep == "gathered":
        message = "`keep_in` says where shards are kept, and none are"
        help_ = "write `keep = shard` too"
        span = found.given.get("keep_in")
        reader.findings.say("E0402", message, span, help=help_)
    if found.like is not None and found.exchange == "hierarchical":
        message = "what travels beside tokens in a hierarchical exchange, Megatron-LM leaves to DeepEP's kernels"
        help_ = "leave `like` out, or `exchange = hierarchical`"
        reader.findings.say("E0402", message, found.given.get("like"), help=help_)
    return found


def read_recompute(reader: PlanReader) -> resolved.Recompute:
    clause = reader.merged.get(syntax.Recompute)
    if clause is None:
        return resolved.Recompute()
    what = tuple(map(str, clause.what))
    alone = [w for w in what if w in ("none", "full", "whole")]
    if alone and len(what) > 1:
        message = f"`{alone[0]}` stands alone in `recompute`"
        reader.error("E0401", message, clause, f"write `recompute {alone[0]}`")
    modules = tuple(map(str, clause.modules)) if clause.modules else None
    given = {**places_of("what", clause.what), **places_of("modules", clause.modules or ())}
    return resolved.Recompute(what=what, modules=modules, span=clause.span, given=given)


def read_microbatch(reader: PlanReader, clause: syntax.Microbatch | None) -> int | None:
    if clause is None:
        return None
    return reader.settings.microbatch(clause.size, "a microbatch")


def read_loss_chunks(reader: PlanReader) -> int:
    clause = reader.merged.get(syntax.LossChunks)
    if clause is None:
        return 1
    found = whole(clause.count, reader.table.values, reader.findings, "the number of chunks")
    reader.settings.note("loss_chunks", clause.count)
    return 1 if found is None else as_read(found)


def read_units(reader: PlanReader, clause: syntax.Unit | None) -> tuple[str, ...] | None:
    if clause is None:
        return None
    modules = tuple(map(str, clause.modules))
    return () if modules == ("none",) else modules


def read_frozen(reader: PlanReader, clause: syntax.Freeze | None) -> tuple[str, ...]:
    names = tuple(map(str, clause.weights)) if clause is not None else ()
    return () if names == ("none",) else names


def read_replaced(reader: PlanReader, clause: syntax.Use | None) -> dict[str, str]:
    """`use Absorbed for Attention`: which module's calls are of which other."""
    if clause is None:
        return {}
    if isinstance(clause.what, syntax.Reference):
        if clause.what.name.text != "none":
            help_ = "write `use Absorbed for Attention`, or `use none`"
            reader.error("E0401", "`use` names a module, and the one it stands for", clause, help_)
        return {}
    found: dict[str, str] = {}
    for each in clause.what:
        if each.replaced.text in found:
            message, help_ = f"`{each.replaced}` is replaced twice", "leave one of them out"
            reader.error("E0401", message, each, help_)
        found[each.replaced.text] = each.module.text
    return found


def read_passes(reader: PlanReader) -> Iterable[resolved.PassCall]:
    for clause in reader.merged.all(syntax.Pass):
        arguments = reader.settings.arguments(clause.settings)
        yield resolved.PassCall(name=clause.name.text, arguments=arguments, span=clause.span)
