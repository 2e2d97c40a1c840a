"""Recurrences that are served against what one counts by hand, sequence by sequence; and a text with state against one without."""

from __future__ import annotations

import random
from math import ceil

import pytest

from stagec.diagnostics import CompileError
from stagec.dialects.sched.actions import Compute
from stagec.driver import Compiled, compile_text
from stagec.estimate.step import batch_of
from stagec.memory import Kind
from tests.unit.seldom import some
from tests.unit.test_serving import Group, drawn, unrolled

D, H, E, N, G, W, L = 64, 8, 8, 16, 4, 4, 3

MODEL = f"""
dim B = 8
dim S = 64
dim D = {D}
dim H = {H}
dim E = {E}
dim N = {N}
dim G = {G}
dim W = {W}
dim L = {L}

module Mixer(x[B, S, D]) -> [B, S, D] {{
  weight wu[D, H, E], filter[W, H, E], wb[D, G, N], wc[D, G, N], wt[D, H], rate[H], wo[H, E, D]
  CACHE
  u = silu(causal_conv(x @ wu, filter, over = S SEEN))
  y = ssd_scan(u, softplus(x @ wt), -exp(rate), x @ wb, x @ wc, chunk = CHUNK STATE)
  return y @ wo
}}

model Net(x[B, S, D]) {{
  repeat L {{ x = x + Mixer(x) }}
  loss = mean(x, over = [B, S, D])
}}
"""


def text(chunk: int, kept: bool = True) -> str:
    cache = "cache seen[B, W, H, E], state[B, H, E, N]: fp32" if kept else ""
    return (
        MODEL.replace("CACHE", cache)
        .replace("SEEN", ", state = seen" if kept else "")
        .replace("STATE", ", state = state" if kept else "")
        .replace("CHUNK", str(chunk))
    )


def served(groups: list[Group], dp: int, tp: int, chunk: int) -> Compiled:
    sequences = ", ".join(g.clause for g in groups)
    model = text(chunk).replace("loss = mean(x, over = [B, S, D])", "return x")
    plan = f"""
plan p {{
  mesh dp = {dp}, tp = {tp}
  shard B over dp
  shard H, G over tp
  precision {{ weights = bf16, activations = bf16 }}
  serve {{ {sequences}, logits = all }}
}}
"""
    return compile_text(model + plan)


@pytest.mark.parametrize("seed", some(range(8), 2))
def test_an_iteration_is_its_sequences_one_by_one(seed: int):
    groups, dp, tp, _, _ = drawn(seed + 100)
    chunk = random.Random(seed).choice([4, 16, 64])
    done = served(groups, dp, tp, chunk)
    heads, kinds = H // tp, G // tp
    state = heads * E * N
    scan = moved = tokens = sequences = resumed = 0
    for group in groups:
        for _ in range(group.count // dp):
            sequences += 1
            resumed += bool(group.context)
            tokens += group.new
            if group.new == 1:
                scan += 5 * state
                continue
            width = min(chunk, group.new)
            chunks = ceil(group.new / chunk)
            scan += 2 * group.new * width * (kinds * N + heads * E)
            scan += (4 * group.new + 2 * chunks) * state
            moved += 2 * 4 * (2 * chunks * state + group.new * width * kinds)
    nodes = [n for c in done.trace_set.classes for n in unrolled(c.program)]
    scans = [n.action for n in nodes if n.op == "resumed_scan"]
    assert len(scans) == L
    # operands and the result in bf16: x, dt, a, b, c and y
    operands = tokens * (2 * heads * E + heads + 2 * kinds * N) + heads
    kept = 4 * state * (sequences + resumed)
    for action in scans:
        assert isinstance(action, Compute)
        assert (action.num_ops, action.num_bytes) == (scan, 2 * operands + moved + kept)
    filters = [n.action for n in nodes if n.op == "resumed_conv"]
    seen = W * heads * E
    expected = 2 * (2 * tokens * heads * E + seen + seen * (sequences + resumed))
    assert [a.num_bytes for a in filters if isinstance(a, Compute)] == [expected] * L
    # Vectors that come in are tokens, too.
    number = sum(each.count for each in groups)
    assert batch_of(done) == (number, sum(each.count * each.new for each in groups))
    (plan,) = done.memory
    assert plan.static.num_bytes[Kind.CACHE] == L * sequences * (4 * state + 2 * seen)


DELTA = f"""
dim B = 8
dim S = 64
dim D = {D}
dim K = {G}
dim H = {H}
dim E = {E}
dim G = {N}
dim L = {L}

module DeltaNet(x[B, S, D]) -> [B, S, D] {{
  weight wq[D, K, E], wk[D, K, E], wv[D, H, G], wd[D, H], wb[D, H], wo[H, G, D]
  cache state[B, H, E, G]: fp32
  y = gated_delta_rule(x @ wq, x @ wk, x @ wv, x @ wd, x @ wb, chunk = CHUNK, state = state)
  return y @ wo
}}

model Net(x[B, S, D]) {{
  repeat L {{ x = x + DeltaNet(x) }}
  return x
}}
"""


@pytest.mark.parametrize("seed", some(range(8), 1))
def test_a_delta_rule_goes_on_from_states_sequence_by_sequence(seed: int):
    """Chunks multiply as in training, a token alone takes a step of the recurrence; states are read where there are tokens before."""
    groups, dp, tp, _, _ = drawn(seed + 700)
    chunk = random.Random(seed).choice([4, 16, 64])
    plan = f"""
plan p {{
  mesh dp = {dp}, tp = {tp}
  shard B over dp
  shard K, H over tp
  precision {{ weights = bf16, activations = bf16 }}
  serve {{ {", ".join(g.clause for g in groups)}, logits = all }}
}}
"""
    done = compile_text(DELTA.replace("CHUNK", str(chunk)) + plan)
    heads, kinds, key, value = H // tp, G // tp, E, N
    flops = between = tokens = kept = 0
    for group in groups:
        for _ in range(group.count // dp):
            kept += heads * key * value * (1 + bool(group.context))
            tokens += group.new
            if group.new == 1:
                flops += 7 * heads * key * value
                continue
            width = min(chunk, group.new)
            of_pairs = group.new * width * (3 * key + 2 * value)
            flops += 2 * heads * (of_pairs + 3 * group.new * key * value)
            between += heads * group.new * (width + key + 2 * value)
            between += heads * ceil(group.new / chunk) * key * value
    operands = tokens * (2 * kinds * key + 2 * heads * value + 2 * heads)
    nodes = [n for c in done.trace_set.classes for n in unrolled(c.program)]
    actions = [n.action for n in nodes if n.op == "resumed_delta_rule"]
    assert len(actions) == L
    for action in actions:
        assert isinstance(action, Compute)
        counted = (action.num_ops, action.num_bytes)
        assert counted == (flops, 2 * operands + 2 * 2 * between + 4 * kept)


@pytest.mark.parametrize(
    "plan",
    some(
        [
            "mesh dp = 2, tp = 2 shard B over dp shard H, G over tp shard S over tp",
            "mesh dp = 4 shard B over dp zero 3 over dp recompute full",
            "mesh pp = 3, dp = 2 shard B over dp pipeline L over pp",
        ],
        3,
    ),
)
def test_training_knows_no_state(plan: str):
    kept, without = (
        compile_text(text(16, each) + f"\nplan p {{ {plan} }}") for each in (True, False)
    )
    shown = [
        [(n.op, n.phase, n.action) for c in done.trace_set.classes for n in unrolled(c.program)]
        for done in (kept, without)
    ]
    assert shown[0] == shown[1]


DECLARED = f"""
dim B = 8
dim S = 64
dim D = {D}
dim I = {2 * D}
dim N = {N}
dim L = {L}
dim C = 16

op scan(x[B, S, I], dt[B, S, I], a[I, N], b[B, S, N]) -> [B, S, I] {{
  flops = 7 * B * S * I * (N + min(C, S))
  bytes = 2 * B * S * (3 * I + N) + 2 * I * N
  state = [B, I, N], over = S
}}

module Mixer(x[B, S, D]) -> [B, S, D] {{
  weight u[D, I], t[D, I], a[I, N], b[D, N], o[I, D]
  cache h[B, I, N]: fp32
  return scan(x @ u, x @ t, a, x @ b, state = h) @ o
}}

model Net(x[B, S, D]) {{
  repeat L {{ x = x + Mixer(x) }}
  return x
}}
"""


@pytest.mark.parametrize("seed", some(range(6), 1))
def test_a_declared_op_goes_on_from_its_state(seed: int):
    """Its costs are stated of any sequences: each has them by itself, what does not name `B` is there once, and states are read and written besides."""
    groups, dp, tp, _, _ = drawn(seed + 300)
    sequences = ", ".join(g.clause for g in groups)
    plan = f"""
plan p {{
  mesh dp = {dp}, tp = {tp}
  shard B over dp
  shard I over tp
  precision {{ weights = bf16, activations = bf16 }}
  serve {{ {sequences}, logits = all }}
}}
"""
    done = compile_text(DECLARED + plan)
    inner = 2 * D // tp
    flops = tokens = count = resumed = 0
    for group in groups:
        here = group.count // dp
        count += here
        resumed += here * bool(group.context)
        tokens += here * group.new
        flops += here * group.new * 7 * inner * (N + min(16, group.new))
    nodes = [n for c in done.trace_set.classes for n in unrolled(c.program)]
    scans = [n.action for n in nodes if n.op == "scan"]
    assert len(scans) == L
    moved = (
        2 * tokens * (3 * inner + N / tp) + 2 * inner * N / dp + 4 * inner * N * (count + resumed)
    )
    for action in scans:
        assert isinstance(action, Compute)
        assert (action.num_ops, action.num_bytes) == (flops, pytest.approx(moved, abs=2))
    (memory,) = done.memory
    assert memory.static.num_bytes[Kind.CACHE] == L * count * 4 * inner * N


def test_a_declared_op_keeps_its_state_or_is_refused():
    plan = "plan p { serve { decode 4 at 9 } }"
    twice = "scan(scan(x @ u, x @ t, a, x @ b, state = h), x @ t, a, x @ b)"
    text = DECLARED.replace("scan(x @ u, x @ t, a, x @ b, state = h)", twice)
    with pytest.raises(
        CompileError, match="`scan` goes on from earlier tokens, but keeps nothing of them"
    ):
        compile_text(text + plan)
    for state, said in (
        ("state = [B, I, N]", "says `state` without `over`"),
        ("over = S", "says `over` without `state`"),
        ("state = [B, I, N], over = N", "`over` is a dim of the result"),
        ("state = [I, N], over = S", "a state begins with the dim of sequences"),
        ("state = [B, S, N], over = S", "has dims of operands but `S`"),
        ("state = [B, I, L], over = S", "has dims of operands but `S`"),
    ):
        with pytest.raises(CompileError, match=said):
            compile_text(DECLARED.replace("state = [B, I, N], over = S", state) + plan)
    with pytest.raises(CompileError, match="has no option `states`"):
        compile_text(DECLARED.replace("state = h", "states = h") + plan)
    with pytest.raises(CompileError, match="the state of this is"):
        compile_text(DECLARED.replace("cache h[B, I, N]", "cache h[B, N, I]") + plan)
