"""Which dims and values a plan splits over which axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stagec.diagnostics import Mistake, Span, did_you_mean, quoted, suggestion
from stagec.frontend import syntax
from stagec.frontend.plans.plan_reader import PlanReader
from stagec.plans import clauses as resolved


def read_rules(reader: PlanReader) -> Iterable[resolved.Rule]:
    for clause in reader.merged.rules:
        if [a.text for a in clause.axes] == ["none"]:
            help_ = "leave the rule out; `none` is for one value: `shard Block.h over none`"
            reader.error("E0303", "a rule over no axis says nothing", clause, help_)
            continue
        spans: dict[str, Span] = {}
        for target in clause.targets:
            name = target.path.names[0]
            if name.text not in reader.table.dim_names:
                unknown_dim(reader, name)
            elif name.text in spans:
                message = f"dim `{name}` stands twice in one rule"
                first = [(spans[name.text], "first here")]
                help_ = "leave one of them out"
                reader.findings.say("E0303", message, name.span, secondary=first, help=help_)
            else:
                spans[name.text] = name.span
        axes = reader.real_axes(clause.axes, "one rule")
        uneven = rule_settings(reader, clause)
        if spans and axes:
            yield from rules_of_dims(reader, clause.span, spans, axes, uneven)


def rules_of_dims(
    reader: PlanReader,
    span: Span,
    dims: Mapping[str, Span],
    axes: Sequence[str],
    uneven: str | None,
) -> Iterable[resolved.Rule]:
    """A rule as it is; one of a dim with copies by itself, as rules are tried dim by dim."""
    if not any(name in reader.table.shared for name in dims):
        yield resolved.Rule(tuple(dims), tuple(axes), span, dims, uneven=uneven)
        return
    for name, place in dims.items():
        axis = reader.table.shared.get(name)
        split, *copies = axes if axis is None else reader.table.copied[axis]
        own, kept = (axes, ()) if axis is None else ((split,), copies)
        yield resolved.Rule((name,), tuple(own), span, {name: place}, tuple(kept), uneven)


def rule_settings(reader: PlanReader, clause: syntax.Shard) -> str | None:
    """What a rule does where its axes do not divide a dim: `SizeTable` has the sizes that follow. How its parts differ, if they may."""
    read = reader.settings.read(clause.settings, resolved.Shard, "`shard`")
    done = {
        "pad": "a dim is padded",
        "replicate": "its parts are replicated",
        "uneven": "its parts are uneven",
    }
    said = [name for name in done if read.get(name)]
    if len(said) > 1:
        message = ", or ".join(done[name] for name in said)
        help_ = f"leave {quoted(said, 'or')} out"
        reader.error("E0402", message, clause, help_)
    if read.get("replicate") and len(reader.apart(clause.axes)) > 1:
        message = "parts of a dim are replicated along one axis"
        help_ = "write a rule of its own for the axis whose ranks share parts"
        reader.error("E0303", message, clause, help_)
    for target in clause.targets:
        name = target.path.names[0]
        if "pad" in read["given"] and name.text in reader.table.served:
            message = f"`serve` says the size of `{name}`, and it is not padded"
            help_ = "serve as many as the axes divide, or leave `pad` out"
            reader.error("E0303", message, name, help_)
    uneven = read.get("uneven")
    contexts = [clause.axis for clause in reader.merged.all(syntax.Context)]
    shared = set(reader.apart(contexts)) & set(reader.apart(clause.axes))
    if uneven is not None and shared:
        message = f"contexts along {quoted(sorted(shared))} exchange parts of one size"
        help_ = "pad the sequence instead: `{ pad = 1 }`"
        reader.error("E0303", message, clause, help_)
    return uneven


def unknown_dim(reader: PlanReader, name: syntax.Name) -> None:
    help_ = did_you_mean(name.text, reader.table.dim_names)
    if not help_ and name.text in reader.axis_names:
        help_ = "a rule reads `shard DIMS over AXES`"
    elif not help_:
        help_ = f"for one value, name its dims: `shard Block.{name}[S] over tp`"
    reader.error(
        "E0304", f"there is no dim `{name}`", name, help_, mistake=Mistake("no dim", name.text)
    )


def read_overrides(reader: PlanReader) -> Iterable[resolved.Override]:
    for target, clause in reader.merged.overrides.values():
        is_none = [a.text for a in clause.axes] == ["none"]
        axes = [] if is_none else reader.real_axes(clause.axes, "one override")
        for dim in target.dims or ():
            if dim.text not in reader.table.dim_names:
                help_ = suggestion(dim.text, reader.table.dim_names)
                message = f"there is no dim `{dim}`"
                reader.error("E0304", message, dim, help_, mistake=Mistake("no dim", dim.text))
        for entry in clause.settings.entries if clause.settings is not None else ():
            message = f"`{entry.name}` is a setting of rules for dims, not of one value"
            help_ = f"write it where `{target.path}`'s dims have their rules"
            reader.error("E0402", message, entry, help_)
        dims = None if target.dims is None else tuple(dim.text for dim in target.dims)
        if not is_none and (dims is None or len(dims) != 1):
            message = "an override over axes names one dim of its value"
            help_ = f"name the one that is split: `{target.path}[S]`"
            reader.error("E0303", message, target, help_)
            continue
        path = tuple(name.text for name in target.path.names)
        yield resolved.Override(path, tuple(axes), target.span, dims)
