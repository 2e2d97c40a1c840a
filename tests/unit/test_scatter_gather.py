"""Values that travel in parts between stages: what moves, and what it costs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from stagec.backend.program import RankClass
from stagec.dialects.sched.actions import Collective, Compute, Transfer
from tests.fidelity.totals import nodes_of
from tests.replay.models import Job, compiled
from tests.unit.seldom import mostly, some

PARTS = ("scatter_gather = true",)


def p2p_bytes(rank_class: RankClass) -> int:
    return sum(
        count * node.action.num_bytes
        for node, count in nodes_of(rank_class)
        if isinstance(node.action, Transfer)
    )


def collectives(rank_class: RankClass) -> Counter[tuple[str, int]]:
    """How many there are over `tp`, by kind and bytes after."""
    found: Counter[tuple[str, int]] = Counter()
    for node, count in nodes_of(rank_class):
        if isinstance(node.action, Collective) and node.action.axes == ("tp",):
            found[node.action.kind, node.action.result_bytes] += count
    return found


def num_received(rank_class: RankClass) -> int:
    return sum(
        count
        for node, count in nodes_of(rank_class)
        if isinstance(node.action, Transfer) and node.action.kind == "recv"
    )


def flops(rank_class: RankClass) -> int:
    return sum(
        count * node.action.num_ops
        for node, count in nodes_of(rank_class)
        if isinstance(node.action, Compute) and node.op != "slice"
    )


@pytest.mark.parametrize("tp", mostly((2).__eq__, [2, 4], 2))
@pytest.mark.parametrize(
    "job",
    some(
        [
            Job(p=2, m=4),
            Job(p=4, m=4, schedule="gpipe", tied=True),
            Job(p=2, v=2, m=4, schedule="interleaved_1f1b"),
            Job(p=2, v=2, m=4, schedule="zb_v"),
            Job(p=2, m=4, schedule="dualpipe"),
            Job(p=3, m=3, extra_layers=1, dp=2, zero=3),
        ],
        4,
    ),
    ids=lambda job: job.schedule,
)
def test_each_rank_sends_its_part_and_gathers_what_it_gets(job: Job, tp: int):
    whole = compiled(replace(job, tp=tp)).trace_set.classes
    parts = compiled(replace(job, tp=tp, pipeline=PARTS)).trace_set.classes
    for before, after in zip(whole, parts, strict=True):
        assert p2p_bytes(before) == tp * p2p_bytes(after) > 0
        assert flops(before) == flops(after)
        received = num_received(before)
        assert received == num_received(after)
        # [1, 16, 16] in bf16.
        assert collectives(after) - collectives(before) == {("all_gather", 512): received}


def test_it_changes_nothing_under_sequence_parallelism():
    job = Job(p=2, m=4, tp=2, clauses=("shard S over tp",))
    whole, parts = (compiled(replace(job, pipeline=p)).trace_set for p in ((), PARTS))
    for before, after in zip(whole.classes, parts.classes, strict=True):
        assert p2p_bytes(before) == p2p_bytes(after)
        assert collectives(before) == collectives(after)
