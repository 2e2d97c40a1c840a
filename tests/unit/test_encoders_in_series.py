"""Sequences that begin beside sequences that go on: an encoder computes the sources of the first, and attention reads those of all."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from stagec.backend.encode import encode_traces
from stagec.backend.writer import write_traces
from stagec.checking import check_traces
from stagec.cli.batch_command import clock_in, rows_of
from stagec.compiled import Compiled
from stagec.diagnostics import CompileError
from stagec.dialects.sched.actions import Compute
from stagec.driver import compile_ir, compile_text
from stagec.estimate.batcher import Policy, Request, batch
from stagec.estimate.series import Clock
from stagec.estimate.step import batch_of
from stagec.frontend import parse_file
from stagec.ir_text import print_ir
from stagec.memory import Kind
from stagec.plugins import registry
from tests.unit.seldom import some
from tests.unit.test_series import said
from tests.unit.test_series_of_programs import nodes_of, series_of
from tests.unit.test_serving import unrolled

MODEL = """
dim B = 8
dim S = 24
dim T = S
dim C = 20
dim G = 2 * C
dim U = C
dim D = 16
dim H = 4
dim E = D / H
dim F = 32
dim L = 3
dim R = 7

op halve(x[B, G, D], kernel[D, F]) -> [B, C, F] {
  flops = 2 * B * C * D * F
  bytes = 2 * (B * G * D + B * C * F + D * F)
}

module Encoder(x[B, C, F], bias[C, U, H]) -> [B, C, F] {
  weight wq[F, H, E], wk[F, H, E], wv[F, H, E], wo[H, E, F], norm[F]
  n = rms_norm(x, norm)
  return x + attention(n @ wq, (n @ wk)[C -> U], (n @ wv)[C -> U], bias) @ wo
}

module Decoder(x[B, S, F], source[B, C, F], bias[S, T, H]) -> [B, S, F] {
  weight wq[F, H, E], wk[F, H, E], wv[F, H, E], wo[H, E, F], cq[F, H, E], ck[F, H, E], cv[F, H, E], co[H, E, F]
  cache keys[B, T, H, E], values[B, T, H, E], far[B, C, H, E], past[B, C, H, E]
  h = x + attention(x @ wq, append(keys, x @ wk), append(values, x @ wv), bias, causal = true) @ wo
  return h + attention(h @ cq, once(far, source @ ck), once(past, source @ cv)) @ co
}

# As in T5, one table of biases serves all layers of a side.
model Net(sound[B, G, D], x[B, S, F], near[C, U]: i32, past[S, T]: i32) {
  weight kernel[D, F], places[C, F], distances[R, H], delays[R, H]
  y = halve(sound, kernel) + places
  bias = embedding(near, distances)
  repeat L { y = Encoder(y, bias) }
  bias = embedding(past, delays)
  repeat L { x = Decoder(x, y, bias) }
  return x
}
"""
C, H, E, F, L, D = 20, 4, 4, 32, 3, 16
Kinds = list[tuple[int, int, int]]


def plan(dp: int, tp: int, served: str) -> str:
    return f"""
plan p {{
  mesh dp = {dp}, tp = {tp}
  shard B over dp
  shard H over tp
  precision {{ weights = bf16, cache = fp8 }}
  device h100
  serve {{ {served} }}
}}
"""


def clause(kinds: Kinds) -> str:
    return ", ".join(f"prefill {n} x {new} at {before}" for n, new, before in kinds)


def drawn(seed: int) -> tuple[int, int, Kinds, Kinds]:
    """dp, tp, sequences that begin and sequences that go on."""
    rng = random.Random(seed)
    dp, tp = rng.choice([(1, 1), (1, 4), (2, 2), (3, 1)])
    begin = [(dp * rng.randint(1, 3), rng.randint(1, 5), 0) for _ in range(rng.randint(1, 2))]
    on = [(dp * rng.randint(1, 4), rng.choice([1, 3]), rng.randint(1, 30)) for _ in range(2)]
    return dp, tp, begin, on


def matrix_flops(done: Compiled) -> int:
    nodes = [node for c in done.trace_set.classes for node in unrolled(c.program)]
    works = ("contract", "attention", "halve")
    return sum(n.action.num_ops for n in nodes if isinstance(n.action, Compute) and n.op in works)


@pytest.mark.parametrize("seed", some(range(4), 4))
@pytest.mark.parametrize("alike", [False, True])
def test_new_tokens_are_the_decoders(seed: int, alike: bool):
    """Neither the positions that an encoder reads, nor inputs that are no tokens; of the IR as of the text."""
    dp, tp, begin, on = drawn(seed)
    kinds = begin[:1] if alike else [*begin, *on]
    counted = sum(n for n, _, _ in kinds), sum(n * new for n, new, _ in kinds)
    for devices in (1, dp):
        done = compile_text(MODEL + plan(devices, tp, clause(kinds)))
        assert batch_of(done) == counted
        assert batch_of(compile_ir(print_ir(done.module), "printed.mlir")) == counted


@pytest.mark.parametrize("seed", some(range(4), 2))
def test_an_iteration_costs_its_sequences_one_by_one(seed: int):
    dp, tp, begin, on = drawn(seed)
    done = compile_text(MODEL + plan(dp, tp, clause([*begin, *on])))
    flops = cached = read = 0
    for count, new, before in [*begin, *on]:
        pairs = sum(before + 1 + k for k in range(new))
        each = L * (new * 2 * 6 * F * H * E + (4 * E + 1) * pairs * H + 4 * new * C * H * E)
        # Queries and what is mixed, keys and values as they are cached, of the bias what a mask leaves, and a number for each query.
        moved = H // tp * (new * 2 * E * 2 + 2 * (before + new) * E + 2 * pairs + 4 * new)
        read += L * count // dp * moved
        if not before:
            encoder = C * 2 * 4 * F * H * E + (4 * E + 1) * C * C * H
            each += L * (encoder + 2 * C * 2 * F * H * E)
            flops += count // dp * 2 * C * D * F
        flops += count // dp * each // tp
        cached += count // dp * L * 2 * (before + new + C) * H * E // tp
    assert matrix_flops(done) == flops
    attends = [
        node.action.num_bytes
        for c in done.trace_set.classes
        for node in unrolled(c.program)
        if node.op == "attention" and node.scope == "Decoder" and isinstance(node.action, Compute)
    ]
    assert sum(attends[::2]) == read
    (memory,) = done.memory
    assert memory.static.num_bytes[Kind.CACHE] == cached
    fills = [
        node.action
        for c in done.trace_set.classes
        for node in unrolled(c.program)
        if node.op == "fill"
    ]
    begun = sum(count for count, *_ in begin) // dp
    # Read as it is computed, written as it is kept.
    assert [each.num_bytes for each in fills] == [begun * C * H * E // tp * (2 + 1)] * (2 * L)


@pytest.mark.seldom
@pytest.mark.parametrize("seed", range(3))
def test_a_series_is_its_iterations_one_by_one(seed: int, tmp_path: Path):
    """Those in which sequences begin are one program, whether others go on beside them; those in which none does are the other."""
    rng = random.Random(f"mixed {seed}")
    dp, tp = rng.choice([(1, 1), (1, 4), (2, 2)])

    def words(low: int) -> tuple[str, str]:
        begin = " ".join(
            f"{dp * rng.randint(1, 3)}x{rng.randint(1, 5)}" for _ in range(rng.randint(low, 2))
        )
        on = " ".join(
            f"{dp * rng.randint(1, 3)}@{rng.randint(1, 40)}" for _ in range(rng.randint(1, 2))
        )
        return begin, on

    rows = [",".join(words(rng.randint(0, 1))) for _ in range(rng.randint(3, 6))]
    text = MODEL + plan(dp, tp, "prefill 6 x 1")
    whole = series_of(text, rows, tmp_path)
    assert len(whole.parts) == len({row.startswith(",") for row in rows})
    alone: list[dict[int, list]] = []
    for row in rows:
        (part,) = series_of(text, [row], tmp_path).parts
        alone.append(nodes_of(part.trace_set))
    for rank, nodes in nodes_of(whole.traces).items():
        begin = 0
        for other in alone:
            twins = other[rank]
            here = nodes[begin : begin + len(twins)]
            assert [said(n, begin) for n in here] == [said(n, 0) for n in twins]
            begin += len(twins)
        assert begin == len(nodes)
    if dp * tp > 1:
        write_traces(encode_traces(whole.traces), str(tmp_path / "traces"))
        report = check_traces(str(tmp_path / "traces"))
        assert not [f for f in report.findings if f.code != "W0643"]


@pytest.mark.seldom
@pytest.mark.parametrize("dp", [1, 2, 3])
def test_the_batcher_counts_encoders_where_sequences_begin(dp: int, tmp_path: Path):
    """Its clock says of each iteration what the series of its rows takes. Where sequences begin on one device, they do on each (E0420 else)."""
    model = tmp_path / "net.stg"
    model.write_text(MODEL + plan(dp, 2, "prefill 2 x 1"))
    pool = clock_in(parse_file(model), None, {}, None, registry(), Policy())
    assert pool.engines == dp
    requests = [Request(0.0, 4, 3), Request(1e-6, 7, 4), Request(1e-6, 3, 9)]
    found = batch(requests, Policy(tokens=8), pool)
    series = series_of(model.read_text(), rows_of(found).splitlines()[1:], tmp_path)
    times = np.zeros(series.num_iterations)
    for number, part in enumerate(series.parts):
        times[series.which == number] = Clock(part).times_us()
    assert len(series.parts) == 2
    took = [(each.end_s - each.begin_s) * 1e6 for each in found.iterations]
    assert took == pytest.approx(times.tolist())


def test_what_a_text_requires_holds_for_each_sequence():
    """Positions of a row are those of all of its sequences; a table of positions has to be as long as the longest."""
    text = MODEL.replace("dim C = 20", "dim C = 20\ndim P = 40\nrequire T <= P")
    compile_text(text + plan(1, 1, "prefill 3 x 5, decode 4 at 39"))
    with pytest.raises(CompileError) as caught:
        compile_text(text + plan(1, 1, "prefill 3 x 5, decode 4 at 40"))
    assert [each.code for each in caught.value.diagnostics] == ["E0207"]
