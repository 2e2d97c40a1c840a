"""`node 123`: what one node of a rank's trace is, and where its numbers come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stagec.backend.node_records import FIRST_ID
from stagec.backend.program import Node
from stagec.diagnostics import refused
from stagec.dialects.sched.actions import Collective, Compute
from stagec.explaining.job import NamedJob
from stagec.explaining.papers import sources
from stagec.explaining.rolled_operations import Amount, ClassOperations, Forms, Term
from stagec.memory.plan import Moment, moment
from stagec.step_count import CountedOp
from stagec.symbolic import total
from stagec.unrolling.rank import Arrangement


@dataclass(frozen=True)
class Figure:
    """One number of a node."""

    name: str
    unit: str
    amount: Amount


@dataclass(frozen=True)
class NodeAnswer:
    """One node of the ranks of a class."""

    number: int
    rank_class: str
    node: Node
    moment: Moment
    figures: tuple[Figure, ...]
    num_joined: int
    """Reductions that travel as one bucket; 1 for any other node."""
    sources: dict[str, str]


def node(job: NamedJob, number: int, name: str | None) -> NodeAnswer:
    """A node of the class that is named, or else of the first. E0715 where there is no such node."""
    each = next((c for c in job.classes if name in (None, c.name)), None)
    assert each is not None, name
    arrangement = job.compiled.unroller.arrangements.of(each.run)
    num_nodes = int(arrangement.first[-1])
    if not 0 <= number - FIRST_ID < num_nodes:
        last = num_nodes - 1 + FIRST_ID
        message = f"a rank of `{each.name}` has no node {number}"
        help_ = f"its nodes are {FIRST_ID} to {last}"
        raise refused("E0715", message, origin=f"explain node {number}", help=help_)
    position = job.compiled.unroller.program(each.run).position(number - FIRST_ID)
    row, at = arrangement.node_at(position)
    found = job.compiled.unroller.node(each.run, row, at)
    terms = terms_behind(job, each, arrangement, row, at)
    return NodeAnswer(
        number,
        each.name,
        found,
        moment(arrangement, position),
        figures(found, terms),
        len(terms),
        sources([found.made_by], [found.op]),
    )


def terms_behind(
    job: NamedJob, each: ClassOperations, arrangement: Arrangement, row: int, at: int
) -> list[Term]:
    """The ops that a node stands for: one, or the members of a bucket."""
    number, _ = arrangement.task_at(row)
    task, stage, _ = each.run.task_name(number)
    own = each.run.stages[stage]
    forms = Forms(job.names, own.stage)
    body = arrangement.bodies[int(arrangement.body[row])].body
    ops = body.ops if body.is_bucket else body.ops[at : at + 1]
    return [
        forms.term(CountedOp(op, own, task, layer=body.layer, axis=each.run.axis)) for op in ops
    ]


def figures(found: Node, terms: Sequence[Term]) -> tuple[Figure, ...]:
    """The numbers that a trace has for a node, with their forms."""

    def summed(name: str, unit: str, *fields: str) -> Figure:
        amounts = [getattr(term.amounts, field) for term in terms for field in fields]
        form = total(amount.form for amount in amounts)
        return Figure(name, unit, Amount(form, sum(amount.number for amount in amounts)))

    if isinstance(found.action, Compute):
        return (
            summed("flops", "FLOPs", "flops"),
            summed("bytes read", "B", "read"),
            summed("bytes written", "B", "written"),
        )
    if isinstance(found.action, Collective):
        return (
            summed("operand bytes", "B", "before"),
            summed("result bytes", "B", "after"),
            summed("sent on a ring", "B", "sent"),
        )
    return (summed("bytes", "B", "before"),)
