"""Closed forms of memory at few layers are those at many: each is evaluated at all of them, against whole compilations."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stagec.driver import Stops, compile_program
from stagec.explaining.job import NamedJob
from stagec.explaining.questions import ask
from stagec.frontend import check, parse_text
from tests.resuming.texts import random_text

UNROLLED = Stops(unroll=False)
QUANTITIES = ("memory.activations", "memory.in_flight", "memory.host", "memory.peak")


@pytest.mark.parametrize(
    ("seed", "counts"), [(4, range(1, 9)), (5, (1, 2, 3, 8)), (8, (1, 2, 3, 8))]
)
def test_forms_hold_at_all_counts(seed: int, counts: Sequence[int]) -> None:
    """Of a peak as long as it stays at its moment, which the answer says."""
    text = random_text(seed)
    source = parse_text(text, "net.stg")
    step = 2 if "pipeline L" in text else 1
    jobs = [
        NamedJob(compile_program(check(source, None, {"L": str(step * count)}), stops=UNROLLED))
        for count in counts
    ]
    for what in QUANTITIES:
        answers = [ask(job, what) for job in jobs]
        for one, answer in zip(jobs, answers, strict=True):
            for other, wanted in zip(jobs, answers, strict=True):
                for number, (own, found) in enumerate(
                    zip(answer.classes, wanted.classes, strict=True)
                ):
                    if what == "memory.peak" and moment(one, number) != moment(other, number):
                        continue
                    values = {**other.names.values, **other.classes[number].run.stages[0].values}
                    assert own.form.evaluate(values) == found.value, (what, own.name)


def moment(job: NamedJob, number: int) -> tuple[str, str, str]:
    peak = job.memory[number].peak
    return peak.task, peak.op, peak.scope
