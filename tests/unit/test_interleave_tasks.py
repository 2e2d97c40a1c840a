"""Tasks that overlap take turns: what is computed and sent stays the same, and exchanges travel while the other task computes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

import stagec
from stagec.checking import check_traces
from stagec.dialects.sched.tasks import TASKS
from stagec.rank_orders import plain_order
from stagec.schedules import build
from tests.differential.random_plans import Drawn
from tests.differential.sweeps import differences
from tests.unit.seldom import some

MODEL = """
dim B = 32
dim S = 256
dim D = 512
dim F = 1024
dim V = 64
dim L = 8
dim X = 4
dim A = 2
dim N = B * S * A / X

module Experts(x[B, S, D]) -> [B, S, D] {
  weight router[D, X], up[X, D, F], down[X, F, D]
  gates, chosen = topk(softmax(x @ router, over = X), over = X, to = A)
  r = dispatch(x, chosen, experts = X, tokens = N)
  u[X, N, F] = r @ up
  y[X, N, D] = silu(u) @ down
  return combine(y, gates, chosen)
}

module Block(x[B, S, D]) -> [B, S, D] {
  weight norm[D], first[D, F], second[F, D]
  h = x + gelu(x @ first) @ second
  return h + Experts(rms_norm(h, norm))
}

model Net(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[V, D], head[D, V]
  x = embedding(tokens, embed)
  repeat L { x = Block(x) }
  loss = cross_entropy(x @ head, targets)
}

plan p {
  mesh pp = 2, ep = 2
  shard B, X over ep
  pipeline L over pp { schedule = SCHEDULE, microbatch = 1 }
  overlap { ep = OVERLAP }
  device { flops_per_s = 5e13, memory_bytes_per_s = 3TB, link_bytes_per_s = 100GB, link_latency_us = 1 }
}
"""


PIPELINE = "mesh pp = 2, ep = 2\n  shard B, X over ep\n  pipeline L over pp { schedule = SCHEDULE, microbatch = 1 }"
INTERLEAVED = "interleaved_1f1b, virtual_stages = 2"


def text(schedule: str, overlap: bool) -> str:
    """Of a schedule with its settings, or without a pipeline."""
    shown = MODEL
    if schedule == "none":
        shown = shown.replace(PIPELINE, "mesh ep = 4\n  shard B, X over ep\n  microbatch 1")
    shown = shown.replace("SCHEDULE", schedule)
    return shown.replace("OVERLAP", "true" if overlap else "false")


def exposed(compiled: stagec.Job, axes: Sequence[str] = ("ep",)) -> float:
    """Seconds in which nothing is computed while tokens travel."""
    shares = compiled.headline.shares
    return sum(shares.get(f"exposed {axis}", 0.0) for axis in axes) * compiled.step_time


@pytest.mark.seldom
@pytest.mark.parametrize("schedule", ["dualpipe", "dualpipe_v", INTERLEAVED, "none"])
def test_exchanges_travel_while_the_other_task_computes(schedule: str) -> None:
    one_by_one = stagec.compile(text(schedule, overlap=False))
    in_turns = stagec.compile(text(schedule, overlap=True))
    before, after = (exposed(each) for each in (one_by_one, in_turns))
    # What is left: passes at the ends, which have no partner.
    assert 0 < after < before / 2
    assert in_turns.step_time < one_by_one.step_time
    for same in ("summary", "communication"):
        assert dict(getattr(in_turns, same)) == dict(getattr(one_by_one, same))


@pytest.mark.seldom
def test_both_steps_of_a_hierarchical_exchange_travel_meanwhile() -> None:
    """And what a device forwards from one to the other: DeepEP's kernels do so, beside those that compute."""
    one_by_one, in_turns = (
        stagec.compile(
            text("dualpipe", overlap)
            .replace("ep = 2", "en = 2, el = 2, ep = en * el")
            .replace("  overlap", "  collectives { exchange = hierarchical }\n  overlap")
        )
        for overlap in (False, True)
    )
    for axis in ("en", "el"):
        assert exposed(in_turns, [axis]) < exposed(one_by_one, [axis]) / 2
    assert dict(in_turns.communication) == dict(one_by_one.communication)


@pytest.mark.parametrize("microbatches", [2, 3])
def test_two_microbatches_that_are_served_take_turns(microbatches: int, tmp_path: Path) -> None:
    """What each computes and sends is the same, tokens of one travel while the other computes, and no rank waits for ever."""
    served = f"mesh ep = 4\n  shard B over ep\n  shard X over ep\n  microbatch 2\n  serve {{ prefill {8 * microbatches} x 256, logits = all }}"
    shown = MODEL.replace(PIPELINE, served).replace("dim D", "dim P = S\ndim D", 1)
    shown = shown.replace(
        "loss = cross_entropy(x @ head, targets)", "return x @ head, append(past, x)"
    )
    shown = shown.replace("  x = embedding", "  cache past[B, P, D]\n  x = embedding")
    one_by_one, in_turns = (
        stagec.compile(shown.replace("OVERLAP", said)) for said in ("false", "true")
    )
    # Of three the last has no partner.
    assert 0 < exposed(in_turns) < exposed(one_by_one) * (0.5 if microbatches == 2 else 0.7)
    assert in_turns.step_time < one_by_one.step_time
    for same in ("summary", "communication"):
        assert dict(getattr(in_turns, same)) == dict(getattr(one_by_one, same))
    in_turns.write(tmp_path / "traces")
    assert not check_traces(tmp_path / "traces").findings


def test_passes_of_two_microbatches_run_beside_each_other() -> None:
    """Megatron-LM, `combined_1f1b_schedule_for_no_pipelining`; in a pipeline, a forward pass earlier (`get_pp_rank_microbatches`)."""
    alone = plain_order(3, ("F", "B"), together=2)
    found = [(TASKS[task], number, joined) for task, _, number, _, joined in alone.table.tolist()]
    assert found == [("F", 0, 0), ("F", 1, 0), ("B", 0, 1), ("F", 2, 0), ("B", 1, 1), ("B", 2, 0)]
    served = plain_order(5, ("F",), together=2).table.tolist()
    assert [(number, joined) for _, _, number, _, joined in served] == [
        (0, 0),
        (1, 1),
        (2, 0),
        (3, 1),
        (4, 0),
    ]
    of_pipeline = str(build("overlapped_1f1b", 2, 2, 4)).splitlines()
    assert of_pipeline[1].endswith("3F0 3F1&3B0 1F2&3B1 1F3&1B0 3F2&1B1 3F3&3B2 3B3 1B2 1B3")


@pytest.mark.seldom
@pytest.mark.parametrize("schedule", ["dualpipe_v", "none"])
def test_a_sweep_says_what_compilations_say(schedule: str) -> None:
    drawn = Drawn(text(schedule, overlap=True), ("B=32,48", "L=4,8"))
    assert not differences(drawn, Random(schedule), most=3)


@pytest.mark.parametrize("schedule", some(["dualpipe", INTERLEAVED, "interleaved_1f1b"], 3))
def test_what_a_stage_gathers_again_is_there_for_both_passes(schedule: str, tmp_path: Path) -> None:
    """The backward pass of a pair gathers in its middle what the forward pass, which begins first, reads too."""
    sharded = text(schedule, overlap=True).replace("  overlap", "  zero 3 over ep\n  overlap")
    stagec.compile(sharded).write(tmp_path)
    assert not check_traces(tmp_path).findings
