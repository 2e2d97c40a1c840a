"""The least that a ranking of measured plans can lose: `python -m tests.fidelity.search` prints it beside what ours loses."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from random import Random

import pytest

from tests.fidelity.calculon import Job
from tests.fidelity.search import Measured, is_no_slower, judged, least_regret

PLAN = Job("h100", 16, 2048, 8192, 32, 32, 4096, 2, 4, 16, 1, 32, zero=True)


def measured(throughput: float, job: Job) -> Measured:
    return Measured("group", throughput, "", {}, None, job)


def test_five_runs_of_nanotron_on_512() -> None:
    """Of which the fastest has the same ranks as one in larger microbatches, that took 2.9 times as long (docs/fidelity.md)."""
    other = replace(PLAN, dp=16, tp=32)
    runs = [
        measured(1 / 0.741, PLAN),
        measured(1 / 1.178, replace(other, microbatch=8, microbatches=2)),
        measured(1 / 1.928, replace(other, microbatch=4, microbatches=4, zero=False)),
        measured(1 / 2.135, replace(PLAN, microbatch=4, microbatches=2, zero=False)),
        measured(1 / 3.073, replace(other, microbatches=8, zero=False)),
    ]
    assert least_regret(runs) == pytest.approx(1 - 0.741 / 1.178)
    assert least_regret(runs[1:]) == 0


@pytest.mark.seldom
@pytest.mark.parametrize("seed", range(3))
def test_no_order_that_keeps_to_the_rule_loses_less(seed: int) -> None:
    """All orders of a few random plans."""
    rng = Random(seed)
    jobs = {
        replace(PLAN, tp=rng.choice((8, 16)), pp=rng.choice((1, 1, 2)), microbatch=own)
        for own in rng.choices((1, 2, 3, 4), k=7)
    }
    runs = [measured(rng.random(), replace(job, zero=rng.random() < 0.5)) for job in jobs]
    runs = [
        replace(each, job=replace(each.job, microbatches=24 // each.job.microbatch))
        for each in runs
    ]
    allowed = [
        order[0].throughput
        for order in permutations(runs)
        if not any(
            is_no_slower(later.job, earlier.job)
            for n, earlier in enumerate(order)
            for later in order[n + 1 :]
        )
    ]
    best = max(run.throughput for run in runs)
    assert least_regret(runs) == pytest.approx(1 - max(allowed) / best)


TEXT = """
dim B = 64
dim D = 1024
dim F = 4096
model Net(x[B, D], y[B, D]) {
  weight up[D, F], down[F, D]
  z = relu(x @ up) @ down
  loss = mean(z * y, over = [B, D])
}
plan searched { mesh dp = 2, tp = 2
  shard B over dp
  shard F over tp
  device h100 { kernels = eager, graphs = false } }
"""


def test_plans_are_judged_by_their_times_a_bound_and_calculon() -> None:
    runs = [Measured("group", 1.0, TEXT, {"B": size}, None, PLAN) for size in (64, 128)]
    for each in judged(runs):
        assert each is not None
        ours, bound, theirs = each.seconds
        assert 0 < bound <= ours
        assert theirs > 0
        assert each.peak_bytes > 0
