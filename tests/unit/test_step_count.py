"""The count of a step against what the trace programs say, node by node: for random models and plans."""

from __future__ import annotations

from collections import Counter

import pytest

from stagec.backend.program import Compute, HostCopy, RankClass, Transfer
from stagec.driver import compile_text
from stagec.step_count import ClassCount
from tests.fidelity.totals import nodes_of
from tests.resuming.texts import random_text

AMOUNTS = ("nodes", "flops", "moved", "before", "after")


def tallied(rank_class: RankClass) -> Counter[tuple[str, str, str]]:
    """Amounts by op and phase, as the nodes of a trace have them."""
    found: Counter[tuple[str, str, str]] = Counter()
    for node, count in nodes_of(rank_class):
        action = node.action
        match action:
            case Compute():
                amounts = (1, action.num_ops, action.num_bytes, 0, 0)
            case Transfer() | HostCopy():
                amounts = (1, 0, 0, action.num_bytes, action.num_bytes)
            case _:
                amounts = (1, 0, 0, action.operand_bytes, action.result_bytes)
        for what, amount in zip(AMOUNTS, amounts, strict=True):
            found[node.op, node.phase, what] += count * amount
    return +found


def counted(count: ClassCount) -> Counter[tuple[str, str, str]]:
    """Likewise, by the count of the step."""
    found: Counter[tuple[str, str, str]] = Counter()
    for each in count.operations:
        n, runs = each.numbers, each.runs
        amounts = (
            each.nodes,
            *(runs * a for a in (n.flops, n.read + n.written, n.before, n.after)),
        )
        for what, amount in zip(AMOUNTS, amounts, strict=True):
            found[each.name, each.phase, what] += amount
    return +found


@pytest.mark.parametrize("seed", range(8))
def test_the_count_is_what_traces_say(seed: int) -> None:
    job = compile_text(random_text(seed), "net.stg")
    for rank_class, count in zip(job.trace_set.classes, job.counts, strict=True):
        assert counted(count) == tallied(rank_class), rank_class.name
