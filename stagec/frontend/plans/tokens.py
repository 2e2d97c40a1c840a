"""What tokens are of: the experts that they are for (`load`), and the documents that they come from."""

from __future__ import annotations

from collections.abc import Iterable

from stagec.diagnostics import suggestion
from stagec.frontend import syntax
from stagec.frontend.plans.lengths import DocumentsReader
from stagec.frontend.plans.plan_reader import PlanReader
from stagec.plans import clauses as resolved
from stagec.symbolic import conditions, symbol


def read_load(reader: PlanReader) -> resolved.Load | None:
    clause = reader.merged.get(syntax.Load)
    if clause is None or (clause.name and clause.name.text == "uniform" and not clause.settings):
        return None
    read = reader.settings.read(clause.settings, resolved.Load, "`load`")
    named = [entry.name.text for entry in clause.settings.entries] if clause.settings else []
    ways = [name for name in ("zipf", "shares", "file") if name in named]
    if clause.name is not None or len(ways) != 1:
        help_ = 'write `load uniform`, `load { zipf = 1.2, seed = 0 }`, `load { shares = [3, 1, 1, 1] }` or `load { file = "load.csv" }`'
        reader.error("E0401", "a load is `zipf`, `shares` or `file`", clause, help_)
        return None
    if "seed" in read["given"] and ways != ["zipf"]:
        message = f"`seed` draws who is busy under `zipf`; `{ways[0]}` says it"
        reader.findings.say("E0402", message, read["given"]["seed"], help="leave `seed` out")
    if ways[0] not in read["given"]:
        return None
    if ways == ["shares"] and not any(read["shares"]):
        message, help_ = "no expert has a share", "write one above 0, as in `[3, 1, 1, 1]`"
        reader.findings.say("E0403", message, read["given"]["shares"], help=help_)
    return resolved.Load(span=clause.span, **read)


def read_documents(
    reader: PlanReader, contexts: Iterable[resolved.Context]
) -> resolved.Documents | None:
    """What is packed into sequences; at least as much as one of them has."""
    clause = reader.merged.get(syntax.Documents)
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
                reader.findings.say("E0402", message, each.given["balance"], help=help_)
        return None
    if clause.lengths is None:
        help_ = f'write `documents {clause.dim} [1000, 3000, 96]` or `documents {clause.dim} file "lengths.csv"`'
        reader.error("E0401", "`documents` says no lengths", clause, help_)
        return None
    if clause.dim.text not in reader.table.dim_names:
        reader.error(
            "E0304",
            f"there is no dim `{clause.dim}`",
            clause.dim,
            suggestion(clause.dim.text, reader.table.dim_names),
        )
        return None
    for each in by_documents:
        if each.balance != "documents":
            message = "a ring needs as much of each document on each device"
            help_ = "write `balance = documents` in the context, or `method = all_gather`"
            where = [(clause.span, "documents are packed into a sequence")]
            reader.findings.say(
                "E0402",
                message,
                each.given.get("method", each.span),
                secondary=where,
                help=help_,
            )
    found = DocumentsReader(reader.table.values, reader.findings).read(clause.lengths)
    name, size = clause.dim.text, reader.table.values.get(clause.dim.text)
    if found is None or size is None:
        return None
    together = f"the documents have {sum(found):,} tokens together, and a sequence has"
    reason = f"{together} more"
    if not conditions.compare(symbol(name), "<=", sum(found), {name: size}, reason):
        message = f"{together} `{name} = {size:,}`"
        reader.error("E0401", message, clause.lengths, "list as many as fill a sequence")
    return resolved.Documents(dim=clause.dim.text, lengths=tuple(found), span=clause.span)
