"""The estimate of a step: a roofline by hand, and times against those of emitted traces node by node."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from stagec.backend.encode import encode_traces
from stagec.backend.encoded import TraceOptions
from stagec.backend.et_def_pb2 import CollectiveCommType, Node, NodeType
from stagec.compiled import Compiled
from stagec.diagnostics import CompileError
from stagec.driver import compile_text
from stagec.estimate.graph import build_graph
from stagec.estimate.prices import Prices
from stagec.estimate.step import estimate
from stagec.estimate.timeline import FEW, piece_durations, solve
from tests.fidelity.trace import attributes
from tests.replay.models import Job, compiled, encoded, traces_of
from tests.replay.waiting import node_ends
from tests.unit.model_texts import EXPERTS
from tests.unit.seldom import some
from tests.unit.test_replay import jobs

DEVICE = "device { flops_per_s = 1e9, memory_bytes_per_s = 5e8, link_bytes_per_s = 1e8, host_bytes_per_s = 1e7 }"

PRODUCT = """
dim B = 64
dim D = 32
model M(x[B, D]) {
  weight w[D, N]
  return x @ w
}
dim N = 128
plan p {
  device { flops_per_s = %s, memory_bytes_per_s = %s }
}
"""


@pytest.mark.parametrize(
    ("peak", "bandwidth", "expected"),
    [
        # 2 * 64 * 32 * 128 FLOPs; 4 bytes for each number of x, w and the product.
        ("1e6", "1e9", 524288 / 1e6),
        ("1e12", "1e6", 4 * (64 * 32 + 32 * 128 + 64 * 128) / 1e6),
    ],
)
def test_roofline(peak: str, bandwidth: str, expected: float):
    found = compile_text(PRODUCT % (peak, bandwidth))
    assert estimate(found).step_time_us / 1e6 == pytest.approx(expected)


def test_mfu():
    found = compile_text(PRODUCT % ("1e6", "1e15"))
    assert estimate(found).mfu == pytest.approx(1.0)


def test_half_of_what_is_computed_twice_counts_not():
    text = compiled_text = Job(p=1, m=1, clauses=("recompute full", DEVICE)).text()
    again = compile_text(compiled_text, plan="p")
    once = compile_text(text.replace("recompute full", ""), plan="p")
    longer, shorter = (estimate(c) for c in (again, once))
    assert longer.step_time_us > shorter.step_time_us
    assert longer.mfu * longer.step_time_us == pytest.approx(shorter.mfu * shorter.step_time_us)


@pytest.mark.parametrize(
    ("device", "missing"),
    some(
        [
            ("", ["flops_per_s", "memory_bytes_per_s", "link_bytes_per_s"]),
            (
                "device { memory = 1GiB, flops_per_s = 1 }",
                ["memory_bytes_per_s", "link_bytes_per_s"],
            ),
            ("device { flops_per_s = 1, memory_bytes_per_s = 1B }", ["link_bytes_per_s"]),
        ],
        2,
    ),
)
def test_what_the_plan_does_not_say(device: str, missing: list[str]):
    found = compiled(Job(clauses=(device,)))
    with pytest.raises(CompileError) as caught:
        estimate(found)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E0410"
    assert all(f"`{name}`" in diagnostic.message for name in missing)


def cost(node: Node, ranks: int) -> float:
    """By the formulas, in µs, for `DEVICE`."""
    given = attributes(node)
    if node.type == NodeType.COMP_NODE:
        return 1e6 * max(int(given["num_ops"]) / 1e9, int(given["tensor_size"]) / 5e8)
    if node.type == NodeType.COMM_RECV_NODE:
        return 0.0
    if node.type in (NodeType.MEM_LOAD_NODE, NodeType.MEM_STORE_NODE):
        return int(given["tensor_size"]) / 10
    size = int(given["comm_size"])
    if node.type == NodeType.COMM_COLL_NODE:
        share = (ranks - 1) / ranks
        factor = {
            CollectiveCommType.ALL_GATHER: ranks - 1,
            CollectiveCommType.ALL_REDUCE: 2 * share,
        }
        size *= factor.get(int(given["comm_type"]), share)
    return size / 100


def with_device(job: Job) -> Job:
    return replace(job, clauses=(*job.clauses, DEVICE))


@pytest.mark.seldom
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(jobs())
def test_every_node_ends_when_what_it_waits_for_lets_it(job: Job):
    job = with_device(job)
    found = compiled(job)
    timeline = estimate(found).timeline
    traces, groups = traces_of(encoded(job))
    expected = node_ends(traces, groups, cost)
    assert timeline.makespan_us == pytest.approx(max(expected.values()))
    ranks_of = {}
    for rank in traces:
        coordinate = next(
            number
            for number, each in enumerate(found.trace_set.classes)
            if pp_coordinate(job, rank) in each.where["pp"]
        )
        ranks_of.setdefault(coordinate, rank)
    for number, rank in ranks_of.items():
        starts, ends = timeline.of_class(number)
        ids = [node.id for node in traces[rank]]
        assert len(ids) == len(ends)
        np.testing.assert_allclose(ends, [expected[rank, i] for i in ids])
        assert (starts >= -1e-9).all()
        assert (starts <= ends).all()
    assert_plans_together_are_what_each_is_alone(found)


def assert_plans_together_are_what_each_is_alone(found: Compiled) -> None:
    """To the last bit: one plan is followed level by level, several are instance by instance."""
    graph, prices = build_graph(found.trace_set), Prices.of(found.trace_set, found.plan)
    own = [piece_durations(piece, found.trace_set, prices) for piece in graph.pieces]
    faster = np.linspace(1, 2, FEW)
    whole = [solve(graph.every_node, [each * factor for each in own]) for factor in faster]
    some = graph.with_nodes(np.arange(0, graph.begins[-1], 7))
    for asked in (graph.every_node, graph.exits_alone, some):
        together = solve(asked, [each[:, None] * faster for each in own])
        known = asked.index[:-1] >= 0
        assert known[::7].all() or asked is graph.exits_alone
        for k, factor in enumerate(faster):
            alone = solve(asked, [each * factor for each in own])
            np.testing.assert_array_equal(together.ends[:, k], alone.ends)
            np.testing.assert_array_equal(alone.ends[:-1], whole[k].ends[:-1][known])
            assert alone.makespan == whole[k].makespan


def pp_coordinate(job: Job, rank: int) -> int:
    sizes = {"dp": job.dp, "pp": job.p, "tp": job.tp}
    for axis in reversed(job.axes):
        rank, coordinate = divmod(rank, sizes[axis])
        if axis == "pp":
            return coordinate
    raise AssertionError


RING = """
dim B = 4
dim S = 64
dim D = 16
dim H = 4
dim E = D / H
dim L = 4

module Block(x[B, S, D]) -> [B, S, D] {
  weight wq[D, H, E], wk[D, H, E], wv[D, H, E], wo[H, E, D]
  return x + attention(rope(x @ wq), rope(x @ wk), x @ wv, causal = true) @ wo
}

model Ring(x[B, S, D]) {
  weight norm[D]
  repeat L { x = Block(x) }
  loss = mean(rms_norm(x, norm), over = [B, S, D])
}

plan p {
  mesh pp = %d, cp = 4, tp = 2
  shard H over tp
  shard S over cp
  context cp { rotate = %s, balance = %s }
  microbatch 1
  %s
  device { flops_per_s = 1e9, memory_bytes_per_s = 5e8, link_bytes_per_s = 1e8 }
}
"""


@pytest.mark.seldom
@pytest.mark.parametrize(
    ("rotate", "balance", "stages"),
    product(["send_recv", "all_to_all", "all_gather"], ["head_tail", "none"], [1, 2]),
)
def test_classes_that_do_not_keep_step_wait_for_each_other(rotate: str, balance: str, stages: int):
    """Without balance ranks of a ring have more and less to compute, and are classes of their own."""
    pipeline = "pipeline L over pp" if stages > 1 else ""
    found = compile_text(RING % (stages, rotate, balance, pipeline))
    classes = found.trace_set.classes
    assert len(classes) == stages * (4 if balance == "none" else 1)
    timeline = estimate(found).timeline
    traces, groups = traces_of(encode_traces(found.trace_set, TraceOptions(provenance=True)))
    expected = node_ends(traces, groups, cost)
    for number, each in enumerate(classes):
        place = {axis: each.where.get(axis, (0,))[0] for axis in ("pp", "cp")}
        rank = place["pp"] * 8 + place["cp"] * 2
        _, ends = timeline.of_class(number)
        ids = [node.id for node in traces[rank]]
        np.testing.assert_allclose(ends, [expected[rank, i] for i in ids])


LOADED = (
    """
dim B = 16
dim S = 32
dim D = 16
dim F = 64
dim X = 8
dim A = 2
dim N = B * S * A / X
dim L = 3

"""
    + EXPERTS
    + """

model Routed(x[B, S, D]) {
  repeat L { x = x + Experts(x) }
  loss = mean(x, over = [B, S, D])
}

plan p {
  mesh edp = 2, ep = 4, dp = edp * ep
  shard B over dp
  shard X over ep
  shard N over dp
  load { zipf = 1.2, seed = 3 }
  device { flops_per_s = 1e9, memory_bytes_per_s = 5e8, link_bytes_per_s = 1e8 }
}
"""
)


def test_an_uneven_exchange_takes_as_long_as_its_slowest_member():
    found = compile_text(LOADED)
    classes = found.trace_set.classes
    assert len(classes) > 1
    timeline = estimate(found).timeline
    traces, groups = traces_of(encode_traces(found.trace_set, TraceOptions(provenance=True)))
    expected = node_ends(traces, groups, cost)
    for number, each in enumerate(classes):
        place = {axis: each.where.get(axis, (0,))[0] for axis in ("edp", "ep")}
        rank = place["edp"] * 4 + place["ep"]
        _, ends = timeline.of_class(number)
        np.testing.assert_allclose(ends, [expected[rank, node.id] for node in traces[rank]])
    assert timeline.makespan_us == pytest.approx(max(expected.values()))
