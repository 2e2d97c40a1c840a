"""What `stagec explain` prints of a quantity: closed forms, numbers, parts, sources."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence

from stagec.advice import idle_parts
from stagec.cli.closed_forms import number, printed, simplified, where, wrapped
from stagec.cli.device_flags import planned
from stagec.cli.inputs import compile_parts, is_ir
from stagec.cli.node_page import node_page, sources_text
from stagec.cli.step_page import step_page
from stagec.cli.tables import label, lines_of, plain_table, text_of
from stagec.cli.usage import usage_error
from stagec.diagnostics import did_you_mean, quoted, render
from stagec.dialects.types import TIME_AXIS
from stagec.driver import Stops
from stagec.explaining import algebra
from stagec.explaining.job import NamedJob
from stagec.explaining.nodes import node
from stagec.explaining.quantities import (
    SUM,
    Answer,
    ClassAnswer,
    Contribution,
    Number,
    num_ranks,
    total_over_ranks,
)
from stagec.explaining.questions import OVERVIEW, ask
from stagec.pictures.scales import amount
from stagec.symbolic import Size


def explain(options: argparse.Namespace) -> int:
    """Explain what is asked; of a plan with pools, for one pool after the other."""
    takes_time = options.what == "step_time"
    parts = compile_parts(
        options.model,
        options.plan,
        options.sizes,
        stops=Stops(after=last_pass_for(options), unroll=takes_time),
        plug_ins=options.plug_ins,
        adapt=(lambda plan: planned(plan, options)) if takes_time else (lambda plan: plan),
    )
    for each in parts.values():
        sys.stderr.write(render(idle_parts(each), each.sources))
    if takes_time:
        pages = [step_page(each, len(parts) > 1) for each in parts.values()]
    else:
        pages = [explained(NamedJob(each), options) for each in parts.values()]
    sys.stdout.write("\n".join(pages))
    return 0


def explained(job: NamedJob, options: argparse.Namespace) -> str:
    if not options.what:
        return overview(job)
    if options.node is not None:
        check_class([each.name for each in job.classes], options.rank_class)
        return node_page(job, node(job, options.node, options.rank_class))
    answer = ask(job, options.what)
    shown = chosen(job, answer, options.rank_class)
    if options.d is not None:
        return derivatives(job, answer, shown, options)
    if options.format == "text":
        return page(job, answer, shown, options)
    return spelled(job, shown, options)


COUNTED_AFTER, PLANNED_AFTER = "place-reductions", "plan-memory"
"""The passes behind which nothing changes any more of which ops run, and how often; and of what lives until when."""
COUNTED = ("bytes", "comm", "flops", "host", "params", "ranks")
"""What is counted of the ops that run, whatever their order."""


def last_pass_for(options: argparse.Namespace) -> str | None:
    """The pass behind which a question can be answered; nothing for the last.

    What waits for what takes as long as a step has microbatches.
    """
    if is_ir(options.model) or options.node is not None or options.what == "step_time":
        return None
    return COUNTED_AFTER if options.what.partition(".")[0] in COUNTED else PLANNED_AFTER


Shown = tuple[str, Size, Number, Sequence[Contribution]]
"""A title, the closed form, its value, its parts."""


def chosen(job: NamedJob, answer: Answer, name: str | None) -> list[Shown]:
    """What to show: each group of classes that are alike and the sum, or the one that is named. E0710 for no class."""
    names = [each.name for each in answer.classes]
    if name is None:
        shown = [of_group(job, answer, group) for group in answer.groups()]
        return shown + ([of_sum(job, answer)] if has_sum(job, answer) else [])
    if name == SUM and (answer.is_additive or answer.whole):
        return [of_sum(job, answer)]
    check_class([*names, SUM] if answer.is_additive or answer.whole else names, name)
    found = next(each for each in answer.classes if each.name == name)
    return [(f"one rank of {name}", found.form, found.value, found.parts)]


def check_class(known: Sequence[str], name: str | None) -> None:
    if name is not None and name not in known:
        help_ = did_you_mean(name, known) or f"there are {quoted(shortened(known))}"
        raise usage_error(f"--class {name}", f"there is no rank class `{name}`", "E0710", help_)


def shortened(names: Sequence[str]) -> list[str]:
    return [*names] if len(names) <= 8 else [*names[:3], "...", *names[-2:]]


def has_sum(job: NamedJob, answer: Answer) -> bool:
    many = any(size > 1 for size in job.names.mesh.values())
    return many and (answer.is_additive or answer.whole is not None)


def of_group(job: NamedJob, answer: Answer, group: Sequence[ClassAnswer]) -> Shown:
    ranks = num_ranks(group, job.names).number
    first = group[0]
    members = [i for i, each in enumerate(answer.classes) if any(each is own for own in group)]
    title = f"one rank of {label(answer.classes, members)}"
    if len(job.classes) == len(group):
        title = "one rank"
    if ranks > 1:
        title += f" ({ranks:,} alike)"
    return title, first.form, first.value, first.parts


def of_sum(job: NamedJob, answer: Answer) -> Shown:
    whole = total_over_ranks(answer, job.names)
    title = "the whole model" if answer.whole is not None else "all ranks together"
    return title, whole.form, whole.number, ()


# Pages


def page(job: NamedJob, answer: Answer, shown: Sequence[Shown], options: argparse.Namespace) -> str:
    """All of it, for people."""
    out = [f"{heading(job)}{options.what}: {answer.title}\n"]
    used: set[str] = set()
    for title, form, value, _ in shown:
        text, names = printed(job, form)
        used |= names
        out.append(f"{title}\n{wrapped(text)}  = {number(value, answer.unit)}\n")
    if used:
        out.append(lines_of(f"where {where(job, used)}", "  "))
    notes = "".join(lines_of(f"note: {note}", "  ") for note in answer.notes)
    worst = max(shown, key=lambda each: (bool(each[3]), each[2]))
    if worst[3]:
        out.append(parts_text(job, worst, answer, options))
    sources = sources_text(answer.sources)
    if sources:
        out.append(f"sources\n{sources}")
    return "\n".join(out) + (f"\n{notes}" if notes else "")


def heading(job: NamedJob) -> str:
    compiled = job.compiled
    plan = f", plan {compiled.plan.name}" if compiled.plan.name else ""
    axes = ", ".join(f"{axis} = {size}" for axis, size in job.names.mesh.items())
    return lines_of(f"{compiled.name}{plan}{f' ({axes})' if axes else ''}", " " * 8)


def parts_text(job: NamedJob, shown: Shown, answer: Answer, options: argparse.Namespace) -> str:
    title, _, value, parts = shown
    table = plain_table(f"parts of {title.partition(' (')[0]}")
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("module\nline")
    table.add_column("op\nmade by")
    table.add_column("closed form", overflow="fold")
    plan = job.compiled.plan.span  # of IR, it is where the model is
    folder = os.path.dirname(plan.file if plan is not None else options.model)
    for part in parts[: options.parts]:
        table.add_row(
            f"{100 * part.value / max(value, 1):.1f} %",
            f"{amount(part.value)}{answer.unit if answer.unit == 'B' else ''}".strip(),
            joined(
                part.scope or job.compiled.name,
                os.path.relpath(part.location, folder or ".") if part.location else "",
            ),
            joined(part.op, "the text" if part.made_by == "lower" else part.made_by),
            printed(job, part.form)[0],
        )
    rest = parts[options.parts :]
    if rest:
        share = 100 * sum(part.value for part in rest) / max(value, 1)
        table.add_row(f"{share:.1f} %", "", f"{len(rest)} more (`--parts`)", "", "")
    return text_of(table)


def joined(*cells: str) -> str:
    """What stands below one another in a cell."""
    return "\n".join(filter(None, cells))


def spelled(job: NamedJob, shown: Sequence[Shown], options: argparse.Namespace) -> str:
    """LaTeX, or Python: the form alone, for other programs."""
    out: list[str] = []
    for title, form, value, _ in shown:
        found = simplified(job, form)
        if options.format == "latex":
            out.append(f"% {title}: {value}\n{algebra.as_latex(found)}\n")
        else:
            name = options.what if len(shown) == 1 else f"{options.what}_of_{title}"
            name = re.sub(
                r"_of_(one_rank_of_)?", "_", re.sub(r"[ ,-]+", "_", name.partition(" (")[0])
            )
            values = {n: job.names.values.get(n) for n in sorted(algebra.names_in(found))}
            arguments = ", ".join(f"{algebra.identifier(n)}={v}" for n, v in values.items())
            comment = f"# {title}: {value} with {arguments}\n"
            out.append(f"{comment}{algebra.as_python(found, name)}")
    return "\n\n".join(out) if options.format == "python" else "\n".join(out)


def derivatives(
    job: NamedJob, answer: Answer, shown: Sequence[Shown], options: argparse.Namespace
) -> str:
    """How each form changes with one name, dims that are defined by it included."""
    known = [n for n in job.names.values if n.partition(".")[0] != TIME_AXIS]
    if options.d not in job.names.values:
        help_ = did_you_mean(options.d, known) or f"there are {quoted(shortened(known))}"
        raise usage_error(f"--d {options.d}", f"there is no size `{options.d}`", "E0710", help_)
    out = [] if options.format != "text" else [f"{heading(job)}d {options.what} / d {options.d}\n"]
    used: set[str] = set()
    for title, form, _, _ in shown:
        whole = job.names.written_out(form, options.d)
        found = algebra.shortest(algebra.derivative(whole, options.d))
        used |= algebra.names_in(found)
        if options.format == "latex":
            out.append(f"% {title}\n{algebra.as_latex(found)}\n")
        elif options.format == "python":
            out.append(algebra.as_python(found, f"d_{options.what}_d_{options.d}"))
        else:
            value = algebra.value_of(found, job.names.values)
            text = f"{value}" if value.is_integer else f"{float(value):,.6g}"
            if value.is_integer:
                text = f"{int(value):,}"
            unit = f" {answer.unit}" if answer.unit else ""
            out.append(
                f"{title}\n{wrapped(algebra.as_text(found))}  = {text}{unit} per {options.d}\n"
            )
    if used and options.format == "text":
        out.append(lines_of(f"where {where(job, used)}", "  "))
    return "\n".join(out)


def overview(job: NamedJob) -> str:
    """The main quantities, each where it is largest."""
    table = plain_table("one step; of the rank class that has most")
    table.add_column("what", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("class", no_wrap=True)
    table.add_column("closed form", overflow="fold")
    for what in (*OVERVIEW, *(f"comm.{axes}" for axes in used_axes(job))):
        answer = ask(job, what)
        worst = answer.worst
        value = f"{amount(int(worst.value))}{answer.unit if answer.unit == 'B' else ''}".strip()
        table.add_row(what, value, worst.name, algebra.as_text(simplified(job, worst.form)))
    return f"{heading(job)}\n{text_of(table)}"


def used_axes(job: NamedJob) -> list[str]:
    """The axes that something goes over, and the pools, as questions name them."""
    found = {term.axes for each in job.classes for term in each.terms if term.axes}
    order = [*job.names.mesh, *job.names.pools]
    return [
        "+".join(axes) for axes in sorted(found, key=lambda axes: [order.index(a) for a in axes])
    ]
