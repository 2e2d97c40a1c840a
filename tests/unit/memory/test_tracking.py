"""`--track-memory`: what a simulator's tracker adds up is the plan of memory, on every node of every class."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import pytest

from stagec.backend.et_def_pb2 import Node
from stagec.dialects.memory import Kind
from stagec.driver import Compiled, compile_model, compile_text
from stagec.estimate.step import estimate, on_device
from stagec.memory import peak_along_time
from tests.differential.tracking import (
    are_releases,
    draw_tracked,
    read_early,
    tensors,
    traces_of_classes,
    tracked_bytes,
    wrong_tracking,
)
from tests.unit.model_texts import EXPERTS, FEED_FORWARD
from tests.unit.seldom import some

EXAMPLES = Path(__file__).parents[3] / "examples"

MOE = (
    """
dim B = 16
dim S = 128
dim V = 1024
dim D = 64
dim F = 256
dim X = 8
dim A = 2
dim L = 2
dim N = B * S * A / X

"""
    + EXPERTS
    + """

model Routed(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[V, D], head[D, V]
  x = embedding(tokens, embed)
  repeat L { x = x + Experts(x) }
  loss = cross_entropy(x @ head, targets)
}

plan p {
  mesh edp = 2, ep = 2, dp = edp * ep
  shard B over dp
  shard X over ep
  shard N over dp
  microbatch 2
  precision { weights = bf16, gradients = fp32 }
}
"""
)

PIPELINE = (
    """
dim B = 8
dim S = 64
dim V = 512
dim D = 64
dim F = 128
dim L = 8

"""
    + FEED_FORWARD
    + """

model Net(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[V, D]
  x = embedding(tokens, embed)
  repeat L { x = Block(x) }
  loss = cross_entropy(x @ embed, targets)
}

plan p {
  mesh dp = 2, pp = 2, tp = 2
  shard B over dp
  shard F, V over tp
  SCHEDULE
  precision { weights = bf16, gradients = fp32 }
  CLAUSES
}
"""
)

SCHEDULES = {
    "1f1b": "pipeline L over pp",
    "interleaved": "pipeline L over pp { schedule = interleaved_1f1b, virtual_stages = 2 }",
    "zero_bubble": "pipeline L over pp { schedule = zb_h1 }",
    "v_shaped": "pipeline L over pp { schedule = zb_v }",
}


@cache
def job(name: str) -> Compiled:
    """Nobody changes what this returns."""
    if name == "fsdp":
        return compile_model(EXAMPLES / "llama3_8b.stg", "fsdp64", {"L": "3"})
    if name == "gpt":
        return compile_model(EXAMPLES / "gpt.stg", None, {"L": "2"})
    if name == "moe":
        return compile_text(MOE, "moe.stg")
    schedule, _, clauses = name.partition(" ")
    text = PIPELINE.replace("SCHEDULE", SCHEDULES[schedule]).replace("CLAUSES", clauses)
    return compile_text(text, "pipeline.stg")


SEEDS = (340, 15, 24, 2, 19, 50)
"""Of random plans that compile. In 340 parts that a gather was given die with a node that does not wait for them."""

JOBS = [
    "gpt",
    "fsdp",
    "moe",
    *SCHEDULES,
    "1f1b zero 1 over dp gradients { bucket_bytes = 64KiB }",
    "interleaved recompute full",
    "1f1b zero 2 over dp",
    "zero_bubble zero 3 over dp { reshard = false }",
    "1f1b loss_chunks 4 zero 1 over dp",
    "interleaved loss_chunks 2 offload { parameters = true }",
    "1f1b offload { activations = all, optimizer = true, parameters = true }",
    "interleaved zero 3 over dp offload { activations = inputs, optimizer = true, prefetch = 2 }",
]


@pytest.mark.parametrize("name", some(JOBS, 12))
def test_tracked_bytes_are_those_of_the_plan(name: str) -> None:
    """And no tensor is read too early."""
    for plan, nodes in traces_of_classes(job(name)):
        assert not list(read_early(nodes))
        found = tracked_bytes(nodes)
        first, *rest = nodes
        assert not first.data_deps and not first.ctrl_deps
        assert all(node.data_deps or node.ctrl_deps for node in rest)
        np.testing.assert_array_equal(found[~are_releases(nodes)][1:], plan.timeline())
        assert found.max() == plan.peak_bytes


@pytest.mark.parametrize("seed", some(SEEDS, 6))
def test_tracked_bytes_of_random_plans(seed: int) -> None:
    """A few of what `python -m tests.differential --track` tries."""
    drawn = draw_tracked(Random(seed))
    compile_text(drawn.text, drawn.file, drawn.plan)
    assert not wrong_tracking(drawn)


UNREAD = """
dim B = 8
dim D = 37
dim F = 53
module Mlp(x[B, D]) -> [B, D] {
  weight up[D, F], down[F, D]
  return gelu(x @ up) @ down
}
model Net(x[B, D]) {
  repeat 3 { x = x + Mlp(x) }
  loss = mean(x, over = [B, D])
}
plan p {
  mesh dp = 2
  shard B over dp
  STORED
  precision { weights = bf16, gradients = fp32 }
}
"""


def test_a_release_reads_what_nobody_else_does() -> None:
    """It waits for what writes that, and for the release before it, and nothing waits for it."""
    stored = "microbatch 1  zero 2 over dp { like = deepspeed }"
    compiled = compile_text(UNREAD.replace("STORED", stored), "unread.stg")
    ((plan, nodes),) = traces_of_classes(compiled)
    is_release = are_releases(nodes)
    assert len(nodes) == 1 + plan.lives.num_nodes + is_release.sum()
    releases = [node for node, yes in zip(nodes, is_release, strict=True) if yes]
    names = {node.id: node.name for node in nodes}
    scattered = [each for each in releases if "reduce_scatter" in names[each.id - 1]]
    # A bucket in each microbatch.
    assert len(scattered) == 4
    assert all(each.id - 1 in each.data_deps and len(tensors(each, "inputs")) for each in releases)
    assert not any(tensors(each, "outputs") for each in releases)
    ids = {each.id for each in releases}
    others = [node for node in nodes if node.id not in ids]
    assert not any(ids & {*node.data_deps, *node.ctrl_deps} for node in others)


def test_padding_of_buffers_is_tracked() -> None:
    """What is padded in Megatron's buffers of parameters and of gradients is of no weight."""
    stored = "zero 1 over dp { like = megatron }"
    compiled = compile_text(UNREAD.replace("STORED", stored), "padded.stg")
    ((plan, nodes),) = traces_of_classes(compiled)
    sizes = dict(tensors(nodes[0], "outputs"))
    for kind, start in ((Kind.PARAMETERS, "parameter/"), (Kind.GRADIENTS, "gradient/")):
        tracked = sum(size for name, size in sizes.items() if name.startswith(start))
        assert sizes[f"{start}padding of buffers"] > 0
        assert tracked == plan.static.num_bytes[kind]


def tracked_along(nodes: list[Node], start: np.ndarray, end: np.ndarray) -> int:
    """The most that the same tracker sees, if the nodes behind the first start and end so: nanoseconds are told apart."""
    born: dict[str, int] = {}
    freed: dict[str, int] = {}
    size: dict[str, int] = {}
    starts, ends = (np.round(1000 * times).astype(np.int64).tolist() for times in (start, end))
    for node, begins, stops in zip(nodes, [0, *starts], [0, *ends], strict=True):
        for name, _ in tensors(node, "inputs"):
            freed[name] = max(freed.get(name, 0), stops)
        for name, num_bytes in tensors(node, "outputs"):
            size[name], born[name] = num_bytes, begins
    change: dict[int, int] = defaultdict(int)
    for name, num_bytes in size.items():
        change[born[name]] += num_bytes
        change[max(freed[name], born[name] + 1)] -= num_bytes
    return int(np.cumsum([change[time] for time in sorted(change)]).max())


@pytest.mark.parametrize(
    "name", some(["gpt", "fsdp", "moe", "1f1b", "zero_bubble", "1f1b zero 2 over dp"], 3)
)
def test_the_peak_along_time_is_what_a_tracker_sees(name: str) -> None:
    """If a release, which the estimate does not know, takes no time."""
    compiled = job(name)
    timeline = estimate(compiled, on_device(compiled.plan, "h100")).timeline
    for number, (plan, nodes) in enumerate(traces_of_classes(compiled)):
        start, end = timeline.of_class(number)
        found = peak_along_time(plan, start, end).num_bytes
        is_release = are_releases(nodes)[1:]
        own = np.cumsum(~is_release) - 1
        tracked = tracked_along(nodes, np.where(is_release, end[own], start[own]), end[own])
        assert tracked == found, plan.name
        # Reductions of FSDP end long after later units are computed.
        assert name != "fsdp" or found > 1.02 * plan.peak_bytes


def test_without_communication_time_is_issue_order() -> None:
    compiled = compile_model(EXAMPLES / "gpt.stg", None, {"L": "2", "dp": "1", "tp": "1"})
    timeline = estimate(compiled, on_device(compiled.plan, "h100")).timeline
    (plan,) = compiled.memory
    found = peak_along_time(plan, *timeline.of_class(0))
    assert found.num_bytes == plan.peak_bytes
    assert (found.at.task, found.at.op, found.at.layer) == (
        plan.peak.task,
        plan.peak.op,
        plan.peak.layer,
    )


@pytest.mark.seldom
@pytest.mark.parametrize("plan", ["fsdp64", "dp8_tp8"])
def test_layers_share_their_templates(plan: str) -> None:
    def variants(layers: int) -> int:
        compiled = compile_model(EXAMPLES / "llama3_8b.stg", plan, {"L": str(layers)})
        (ranks,) = compiled.tracked.classes
        return len(ranks.program.segments)

    assert variants(8) == variants(32)
