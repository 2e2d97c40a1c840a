"""What is counted of ops is known before their order: answers after `place-reductions` are those after all passes."""

from __future__ import annotations

import contextlib
import random

import pytest

from stagec.cli.explanation import COUNTED, COUNTED_AFTER
from stagec.diagnostics import CompileError
from stagec.driver import Stops, compile_text
from stagec.explaining.job import NamedJob
from stagec.explaining.questions import ask
from tests.attack.models import MODELS, random_plan
from tests.unit.seldom import some


@pytest.mark.parametrize("seed", some(range(4), 4))
def test_counts_need_no_order(seed: int) -> None:
    draw = random.Random(seed)
    model = draw.choice(("matrices", "attention", "words"))
    jobs: list[NamedJob] = []
    text = ""
    while len(jobs) < 2:
        text, jobs = MODELS[model] + random_plan(draw, model), []
        for after in (COUNTED_AFTER, None):
            with contextlib.suppress(CompileError):
                stops = Stops(after=after, unroll=False)
                jobs.append(NamedJob(compile_text(text, stops=stops)))
    for what in COUNTED:
        early, late = (shown(job, what) for job in jobs)
        assert early == late, (what, text)


def shown(job: NamedJob, what: str) -> object:
    try:
        answer = ask(job, what)
    except CompileError as error:
        return str(error)
    return [(each.name, each.form, each.value, each.parts) for each in answer.classes]
