"""What `stagec explain MODEL.stg node 123` prints."""

from __future__ import annotations

from collections.abc import Mapping

from stagec.cli.closed_forms import number, simplified, where, wrapped
from stagec.cli.tables import lines_of
from stagec.dialects.sched.actions import Collective, Transfer
from stagec.explaining import algebra
from stagec.explaining.job import NamedJob
from stagec.explaining.nodes import NodeAnswer


def node_page(job: NamedJob, answer: NodeAnswer) -> str:
    """All of it, for people."""
    node = answer.node
    location = node.location or "no line of the model"
    rows = [
        ("what", title(answer)),
        ("in", node.scope or job.compiled.name),
        ("line", location),
        ("made by", "the text" if node.made_by in ("", "lower") else node.made_by),
        ("phase", node.phase),
        ("slot", slot(answer)),
        ("stream", node.stream),
    ]
    out = [f"node {answer.number} of a rank of {answer.rank_class}\n"]
    out.append("".join(lines_of(f"{name:<12}{text}", " " * 12, margin=2) for name, text in rows))
    used: set[str] = set()
    for figure in answer.figures:
        form = simplified(job, figure.amount.form)
        used |= algebra.names_in(form)
        value = number(figure.amount.number, figure.unit)
        out.append(f"{figure.name}\n{wrapped(algebra.as_text(form))}  = {value}\n")
    if used:
        out.append(lines_of(f"where {where(job, used)}", "  "))
    if answer.sources:
        out.append(f"sources\n{sources_text(answer.sources)}")
    return "\n".join(out)


def sources_text(sources: Mapping[str, str]) -> str:
    """What passes and ops follow: papers and code, by name."""
    return "".join(
        lines_of(f"{name}: {source}", "  ", margin=2) for name, source in sources.items()
    )


def title(answer: NodeAnswer) -> str:
    action = answer.node.action
    text = answer.node.op
    if isinstance(action, Collective | Transfer):
        text += f" over {', '.join(action.axes)} in {action.dtype}"
    if answer.num_joined > 1:
        text += f", a bucket of {answer.num_joined} tensors"
    return text


def slot(answer: NodeAnswer) -> str:
    """`B of microbatch 3 on stage 1, layer 7`."""
    return str(answer.moment).partition(": ")[0]
