"""`node 123`: what one node of a rank's trace is, and where its numbers come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stagec.backend.lowering import Arrangement
from stagec.backend.lowering.dataflow import Source
from stagec.backend.node_records import FIRST_ID
from stagec.backend.program import Collective, Compute, Node
from stagec.diagnostics import CompileError, Diagnostic
from stagec.explaining.job import Job
from stagec.explaining.papers import sources
from stagec.explaining.terms import Amount, ClassTerms, RolledOp, Term, TermMaker
from stagec.memory.plan import Moment, moment
from stagec.symbolic import total


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


def node(job: Job, number: int, name: str | None) -> NodeAnswer:
    """Of the class that is named, or else the first. E0715 where there is no such node."""
    each = next((c for c in job.classes if name in (None, c.name)), None)
    assert each is not None, name
    arrangement = each.tasks.assembler.arrange(each.tasks.chunks, each.tasks.order)
    num_nodes = int(arrangement.first[-1])
    if not 0 <= number - FIRST_ID < num_nodes:
        last = num_nodes - 1 + FIRST_ID
        message = f"a rank of `{each.name}` has no node {number}"
        help_ = f"its nodes are {FIRST_ID} to {last}"
        raise CompileError(
            [Diagnostic("E0715", message, origin=f"explain node {number}", help=help_)]
        )
    program = each.tasks.assembler.program(each.tasks.chunks, each.tasks.order)
    position = program.position(number - FIRST_ID)
    row, at = row_of(arrangement, position)
    found = arrangement.segments[int(arrangement.rows.segment[row])].nodes[at]
    when = moment(arrangement, each.tasks, position)
    terms = terms_behind(job, each, arrangement, row, at)
    return NodeAnswer(
        number,
        each.name,
        found,
        when,
        figures(found, terms),
        len(terms),
        sources([found.made_by], [found.op]),
    )


def row_of(arrangement: Arrangement, position: int) -> tuple[int, int]:
    """The row of a node, and its place in that row."""
    place = int(np.searchsorted(arrangement.first, position, side="right")) - 1
    return int(arrangement.order[place]), position - int(arrangement.first[place])


def terms_behind(
    job: Job, each: ClassTerms, arrangement: Arrangement, row: int, at: int
) -> list[Term]:
    """The ops that a node stands for: one, or the members of a bucket."""
    bases = [(base, key) for key, base in arrangement.bases.items() if base <= row]
    base, (task, chunk, _) = max(bases)
    layout, own = arrangement.layouts[chunk], each.tasks.chunks[chunk]
    maker = TermMaker(job.names, own.values, own.owners, own.stage)
    found: list[Term] = []
    behind: Source
    for behind, place in layout.places.items():
        if (place.task, place.row, place.node) == (task, row - base, at):
            found.append(maker.term(RolledOp(behind.op, task, ()), "step", 1))
    return found


def figures(found: Node, terms: Sequence[Term]) -> tuple[Figure, ...]:
    """The numbers that a trace has for a node, with their forms."""

    def summed(name: str, unit: str, *fields: str) -> Figure:
        amounts = [getattr(term, field) for term in terms for field in fields]
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
