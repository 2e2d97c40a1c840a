"""The tasks of a picture are those that the program of a rank lists, in its order."""

from __future__ import annotations

import pytest

from stagec.dialects.sched.tasks import TASKS
from stagec.driver import compile_text
from stagec.estimate.step import estimate
from stagec.estimate.tasks import tasks_of
from tests.unit.seldom import mostly

MODEL = """
dim B = 16
dim S = 16
dim V = 64
dim D = 64
dim F = 64
dim L = 8
module Block(x[B, S, D]) -> [B, S, D] {
  weight up[D, F], down[F, D]
  return x + gelu(x @ up) @ down
}
model Staged(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[V, D], head[D, V]
  x = embedding(tokens, embed)
  repeat L { x = Block(x) }
  loss = cross_entropy(x @ head, targets)
}
plan p {
  mesh pp = 4
  pipeline L over pp { microbatch = 2, SETTINGS }
  recompute full
  precision { weights = bf16, activations = bf16, gradients = fp32, optimizer = fp32 }
  optimizer adamw
  device h100
}
"""
SETTINGS = (
    "schedule = zb_h1, first_backward = whole",
    "schedule = zb_h1",
    "schedule = 1f1b",
    "schedule = interleaved_1f1b, virtual_stages = 2",
)


@pytest.mark.parametrize("settings", mostly(lambda each: "zb" in each, SETTINGS))
def test_tasks_are_those_of_the_program(settings: str) -> None:
    """Also of a first stage whose whole backward pass waits until gradients of weights are due. Two halves, one behind the other, are a `B`."""
    found = estimate(compile_text(MODEL.replace("SETTINGS", settings)))
    compiled = found.compiled
    for number, run in enumerate(compiled.runs):
        order = run.order.table.tolist()
        stages = [each.stage for each in run.stages]
        listed = [(TASKS[task], stages[stage], at) for task, stage, at, *_ in order if at >= 0]
        computed = [each for each in listed if each[0] in ("F", "B", "I", "W")]
        ranks, times = compiled.trace_set.classes[number], found.timeline.of_class(number)
        drawn = tasks_of(ranks, *times, halves=True)
        assert [(t.letter, t.stage, t.microbatch) for t in drawn if t.microbatch >= 0] == computed
        joined = tasks_of(ranks, *times, halves=False)
        assert {t.letter for t in joined if t.microbatch >= 0} <= {"F", "B"}
