"""The count of a step against what the trace programs say, node by node: for random models and plans."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress

import pytest

from stagec.backend.program import RankClass
from stagec.diagnostics import CompileError
from stagec.dialects.sched.actions import Compute, HostCopy, Transfer
from stagec.driver import compile_text
from stagec.estimate.step import estimate
from stagec.step_count import ClassCount, matrix_flops
from tests.attack import plans
from tests.fidelity.totals import nodes_of
from tests.resuming.texts import TEXT, random_text
from tests.unit.seldom import some
from tests.unit.test_routing import MODEL

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


@pytest.mark.parametrize("seed", some(range(4), 2))
def test_the_count_is_what_traces_say(seed: int) -> None:
    job = compile_text(random_text(seed), "net.stg")
    for rank_class, count in zip(job.trace_set.classes, job.counts, strict=True):
        assert counted(count) == tallied(rank_class), rank_class.name


@pytest.mark.parametrize("seed", some(range(6), 4))
def test_a_model_asks_for_the_same_whatever_its_plan(seed: int) -> None:
    """MFU is tokens per second times the FLOPs of a token on one device, over the peak: also where ranks repeat each other's work."""
    chance = random.Random(seed)
    case, job = plans.make(chance), None
    while job is None:
        case = plans.make(chance)
        with suppress(CompileError):
            device = "device { flops_per_s = 1e9, memory_bytes_per_s = 1e9, link_bytes_per_s = 1e9, host_bytes_per_s = 1e9 }"
            text = case.text.replace("plan p {", f"plan p {{\n  {device}")
            job = compile_text(text, "net.stg", "p")
    plans.work_of(job, case.model)
    found = estimate(job)
    could = job.trace_set.mesh.num_ranks * 1e9 * found.step_time_us / 1e6
    assert found.mfu == pytest.approx(plans.alone(case.model).model / could, rel=1e-3)


def test_what_ranks_repeat_counts_once() -> None:
    """Of two copies neither the FLOPs of the second nor the columns that pad a dim are the model's; devices do them."""
    text = TEXT.format(pp=3, tp=2, clauses="").replace("V = 64", "V = 60")
    padded = text.replace("shard F, V over tp", "shard F over tp  shard V over tp { pad = 8 }")
    single = text.replace("mesh dp = 2, pp = 3, tp = 2", "mesh dp = 1, tp = 1")
    alone, many = (
        matrix_flops(job.module, job.counts) for job in map(compile_text, (single, padded))
    )
    assert many.model == alone.model == alone.hardware
    head = 6 * 16 * 8 * 16
    assert many.hardware == 3 * (alone.hardware + 4 * head)


@pytest.mark.parametrize("seed", some(range(4), 4))
def test_padding_that_goes_to_unequal_experts_is_not_the_models(seed: int) -> None:
    """A batch that axes do not divide is padded, and padding is sent to experts like any token, however busy these are."""
    chance = random.Random(seed)
    batch, experts = chance.choice((9, 10, 13, 15)), chance.choice((4, 8))
    clauses = (
        "",
        "mesh edp = 2, el = 2, ep = edp * el shard B over ep { pad = 1 } shard X over ep shard N over ep "
        f"load {{ zipf = {chance.choice(('0.5', '1.2'))}, seed = {seed} }} "
        + chance.choice(("", "collectives { exchange = hierarchical }", "recompute full"))
        + chance.choice(("", " microbatch 1")),
    )
    sizes = {"batch": batch, "experts": experts, "sequence": 8, "width": 8, "chosen": 2}
    texts = (
        MODEL.format(**sizes, layers=2, tokens="B * S * A / X", drops="", plan=plan)
        for plan in clauses
    )
    alone, many = (
        matrix_flops(job.module, job.counts)
        for job in (compile_text(text, "net.stg", "p") for text in texts)
    )
    assert many.model == alone.model == alone.hardware < many.hardware
