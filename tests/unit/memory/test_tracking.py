"""`--track-memory`: what a simulator's tracker adds up is the plan of memory, on every node of every class."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from stagec.backend.encode import encode_traces
from stagec.backend.encoded import TraceOptions
from stagec.backend.et_def_pb2 import Node
from stagec.backend.et_file import TraceReader
from stagec.backend.writer import iterate_traces
from stagec.driver import Compiled, compile_model, compile_text
from stagec.estimate.step import estimate, on_device
from stagec.memory import ClassPlan, peak_along_time
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


def tensors(node: Node, name: str) -> list[tuple[str, int]]:
    (found,) = (a.string_list.values for a in node.attr if a.name == name)
    return [(found[i], int(found[i + 1])) for i in range(0, len(found), 2)]


def tracked_bytes(nodes: list[Node]) -> np.ndarray:
    """`LocalMemUsageTracker` of ASTRA-sim, if nodes run one after the other: bytes during each of them."""
    size: dict[str, int] = {}
    written: dict[str, int] = {}
    last_read: dict[str, int] = {}
    for position, node in enumerate(nodes):
        for name, num_bytes in tensors(node, "inputs"):
            assert size[name] == num_bytes, f"{name} is read before it is written, or in part"
            last_read[name] = position
        for name, num_bytes in tensors(node, "outputs"):
            assert name not in size, f"{name} is written twice"
            size[name], written[name] = num_bytes, position
    change = np.zeros(len(nodes) + 1, np.int64)
    for name, num_bytes in size.items():
        change[written[name]] += num_bytes
        change[last_read.get(name, len(nodes) - 1) + 1] -= num_bytes
    return np.cumsum(change)[:-1]


def unread_bytes(plan: ClassPlan, nodes: list[Node]) -> np.ndarray:
    """What the plan frees with its writer; a tracker cannot before another node of the stream has ended."""
    lives = plan.lives
    parts: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for row, key in enumerate(zip(lives.stage, lives.value, lives.microbatch, strict=True)):
        parts[key].append(row)  # pyright: ignore[reportArgumentType]
    streams = [next(a.string_val for a in n.attr if a.name == "stream") for n in nodes]
    following: dict[int, int] = {}
    seen: dict[str, int] = {}
    for position in reversed(range(len(nodes))):
        following[position] = seen.get(streams[position], len(nodes) - 1)
        seen[streams[position]] = position
    extra = np.zeros(len(nodes), np.int64)
    for rows in parts.values():
        birth, death = int(lives.birth[rows].min()), int(lives.death[rows].max())
        if birth == death:
            extra[death + 1 : following[birth] + 1] += int(lives.num_bytes[rows].max())
    return extra


def waits_for_writers(nodes: list[Node]) -> None:
    """However a simulator overlaps nodes, none reads a tensor before it is written."""
    before: dict[int, int] = {}
    writer: dict[str, int] = {}
    for node in nodes:
        deps = (*node.data_deps, *node.ctrl_deps)
        # Bits of a number: the nodes that have ended.
        before[node.id] = 0
        for dep in deps:
            before[node.id] |= before[dep] | 1 << dep
        for tensor, _ in tensors(node, "inputs"):
            assert before[node.id] >> writer[tensor] & 1, f"{node.name}, {tensor}"
        writer |= dict.fromkeys((t for t, _ in tensors(node, "outputs")), node.id)


@pytest.mark.parametrize("name", some(JOBS, 12))
def test_tracked_bytes_are_those_of_the_plan(name: str) -> None:
    """And no tensor is read too early."""
    compiled = job(name)
    encoded = encode_traces(compiled.tracked, TraceOptions(provenance=True))
    ranks = np.arange(encoded.mesh.num_ranks)
    leaders = {number: int(members[0]) for number, members in encoded.by_class(ranks)}
    traces = dict(iterate_traces(encoded, ",".join(map(str, leaders.values()))))
    for number, plan in enumerate(compiled.memory):
        nodes = list(TraceReader.of_bytes(bytes(traces[leaders[number]])))
        waits_for_writers(nodes)
        found = tracked_bytes(nodes)
        first, nodes = nodes[0], nodes[1:]
        assert not first.data_deps and not first.ctrl_deps
        assert all(node.data_deps or node.ctrl_deps for node in nodes)
        unread = unread_bytes(plan, nodes)
        np.testing.assert_array_equal(found[1:], plan.timeline() + unread)
        assert plan.peak_bytes <= found.max() <= plan.peak_bytes + unread.max()


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
        change[max(freed.get(name, max(ends)), born[name] + 1)] -= num_bytes
    return int(np.cumsum([change[time] for time in sorted(change)]).max())


@pytest.mark.parametrize(
    "name", some(["gpt", "fsdp", "moe", "1f1b", "zero_bubble", "1f1b zero 2 over dp"], 3)
)
def test_the_peak_along_time_is_what_a_tracker_sees(name: str) -> None:
    """But for what nobody reads, which a tracker keeps a little longer."""
    compiled = job(name)
    timeline = estimate(compiled, on_device(compiled.plan, "h100")).timeline
    encoded = encode_traces(compiled.tracked, TraceOptions(provenance=True))
    ranks = np.arange(encoded.mesh.num_ranks)
    for number, members in encoded.by_class(ranks):
        plan, (start, end) = compiled.memory[number], timeline.of_class(number)
        ((_, data),) = iterate_traces(encoded, str(members[0]))
        nodes = list(TraceReader.of_bytes(bytes(data)))
        found = peak_along_time(plan, start, end).num_bytes
        tracked = tracked_along(nodes, start, end)
        assert found <= tracked <= found + unread_bytes(plan, nodes[1:]).max(), plan.name
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


@pytest.mark.parametrize("plan", some(["fsdp64", "dp8_tp8"], 2))
def test_layers_share_their_templates(plan: str) -> None:
    def variants(layers: int) -> int:
        compiled = compile_model(EXAMPLES / "llama3_8b.stg", plan, {"L": str(layers)})
        (ranks,) = compiled.tracked.classes
        return len(ranks.program.segments)

    assert variants(8) == variants(32)
