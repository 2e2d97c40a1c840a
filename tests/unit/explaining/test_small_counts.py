"""Closed forms at few layers are those at many: each is evaluated at all of them, against whole compilations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from stagec.diagnostics import CompileError
from stagec.driver import Stops, compile_program
from stagec.explaining.job import NamedJob
from stagec.explaining.memory import OF_A_MOMENT, fullest
from stagec.explaining.quantities import Answer
from stagec.explaining.questions import ask
from stagec.frontend import check, parse_text
from stagec.memory.plan import Moment, moment
from tests.differential.random_plans import draw
from tests.resuming.texts import random_text

UNROLLED = Stops(unroll=False)
QUANTITIES = (
    *("flops", "bytes", "comm", "comm.count", "params"),
    *("memory.static", "memory.activations", "memory.in_flight", "memory.host", "memory.peak"),
)


@pytest.mark.seldom
@pytest.mark.parametrize(
    ("seed", "counts"),
    [(4, range(1, 9)), (5, (1, 2, 3, 8)), (8, (1, 2, 3, 8))],
)
def test_forms_hold_at_all_counts(seed: int, counts: Sequence[int]) -> None:
    text = random_text(seed)
    step = 2 if "pipeline L" in text else 1
    compare(text, [step * count for count in counts])


COMPILED = (8, 12, 21, 216, 221)
"""Seeds of plans that can be compiled. Of these 12 has stages without layers, in 8 there are as many virtual stages as layers, in 21 experts
have a load, 216 peels a layer, 221 pads buckets."""


@pytest.mark.seldom
@pytest.mark.parametrize("seed", COMPILED)
def test_forms_of_random_plans_hold_at_all_counts(seed: int) -> None:
    """Of models and plans with every clause: or the answer says of what it is the form."""
    compare(draw(Random(f"forms{seed}")).text, range(1, 7))


def compare(text: str, counts: Sequence[int]) -> None:
    """The forms at each number of layers, with the numbers of all others, beside what these come to."""
    source, jobs = parse_text(text, "net.stg"), list[NamedJob]()
    for count in counts:
        try:
            found = compile_program(check(source, "p", {"L": str(count)}), stops=UNROLLED)
        except CompileError:
            continue  # L does not divide
        jobs.append(NamedJob(found))
    assert jobs
    for what in QUANTITIES:
        answers = [ask(job, what) for job in jobs]
        of_moment = what.removeprefix("memory.") in OF_A_MOMENT
        for number, (one, answer) in enumerate(zip(jobs, answers, strict=True)):
            first = number if of_moment else 0
            for other, wanted in zip(jobs[first:], answers[first:], strict=True):
                if one is other or not (conditions(answer) or has_empty_stages(other)):
                    check_forms(what, one, answer, other, wanted)


def check_forms(what: str, one: NamedJob, answer: Answer, other: NamedJob, wanted: Answer) -> None:
    """Those of one number of layers with the sizes of the other, class by class."""
    classes = zip(answer.classes, wanted.classes, other.classes, strict=False)
    for number, (own, found, each) in enumerate(classes):
        if own.where == found.where and peak(one, what, number) == peak(other, what, number):
            values = {**other.names.values, **each.run.stages[0].values}
            assert own.at_its_place.evaluate(values) == found.value, (what, own.name)


def peak(job: NamedJob, what: str, number: int) -> Moment | None:
    """The moment of which a form is, without the node."""
    kind = what.removeprefix("memory.")
    if kind not in OF_A_MOMENT:
        return None
    plan = job.memory[number]
    node = fullest(plan, OF_A_MOMENT[kind])
    return None if node is None else replace(moment(plan.arrangement, node), node=0)


def has_empty_stages(job: NamedJob) -> bool:
    """Whether stages have no layers, so that what they do once for all of theirs is nothing."""
    stages = job.names.stages
    return stages is not None and any(0 in each.layers for each in stages.stages.data)


CONDITION = re.compile("of many layers there is another|numbers? in the form")


def conditions(answer: Answer) -> list[str]:
    """What an answer says of sizes for which it is not the form."""
    return [note for note in answer.notes if CONDITION.search(note)]
