"""Iterations that are different programs make one series: each is what it is alone, and waits for the one before it, whatever that is."""

from __future__ import annotations

import random
from io import BytesIO
from pathlib import Path

import pytest

from stagec import series
from stagec.backend.bundle import Bundle, from_bytes, to_bytes
from stagec.backend.encode import encode_traces
from stagec.backend.et_file import TraceReader
from stagec.backend.program import SeriesTraces, TraceSet
from stagec.backend.writer import iterate_traces
from stagec.cli.inputs import compile_iterations
from stagec.compiled import CompiledSeries
from stagec.diagnostics import CompileError
from stagec.driver import compile_model
from stagec.estimate.series import Clock
from stagec.estimate.step import with_durations
from tests.replay.machine import replay
from tests.replay.models import traces_of as traces_in
from tests.unit.seldom import some
from tests.unit.test_series import said

MODEL = """
dim B = 8
dim S = 24
dim U = S
dim T = 16
dim W = T
dim D = 16
dim H = 4
dim E = D / H
dim F = 32
dim L = 3

module Encoder(x[B, S, D]) -> [B, S, D] {
  weight wq[D, H, E], wk[D, H, E], wv[D, H, E], wo[H, E, D]
  scores[B, H, S, U] = (x @ wq) @ (x @ wk)[S -> U]
  mixed[B, S, H, E] = softmax(scores, over = U) @ (x @ wv)[S -> U]
  return x + mixed @ wo
}

module Decoder(x[B, T, D], source[B, S, D]) -> [B, T, D] {
  weight wq[D, H, E], wk[D, H, E], wv[D, H, E], wo[H, E, D], ck[D, H, E], cv[D, H, E], up[D, F], down[F, D]
  cache keys[B, W, H, E], values[B, W, H, E], far[B, S, H, E], past[B, S, H, E]
  scores[B, H, T, W] = (x @ wq) @ append(keys, x @ wk)
  mixed[B, T, H, E] = softmax(causal_mask(scores, query = T, key = W), over = W) @ append(values, x @ wv)
  h = x + mixed @ wo
  cross[B, H, T, S] = (h @ wq) @ once(far, source @ ck)
  seen[B, T, H, E] = softmax(cross, over = S) @ once(past, source @ cv)
  return h + gelu((seen @ wo) @ up) @ down
}

model Net(source[B, S, D], x[B, T, D]) {
  y = source
  repeat L { y = Encoder(y) }
  repeat L { x = Decoder(x, y) }
  return x
}
"""


def plan(dp: int, tp: int, microbatch: int, served: str) -> str:
    return f"""
plan p {{
  mesh dp = {dp}, tp = {tp}
  shard B over dp
  shard H, F over tp
  {f"microbatch {microbatch}" if microbatch else ""}
  precision {{ weights = bf16, cache = fp8 }}
  device h100
  serve {{ {served} }}
}}
"""


def nodes_of(traces: TraceSet | SeriesTraces) -> dict[int, list]:
    encoded = from_bytes(to_bytes(Bundle(encode_traces(traces)))).traces
    return {rank: list(TraceReader(BytesIO(data), "")) for rank, data in iterate_traces(encoded)}


def series_of(text: str, rows: list[str], folder: Path) -> CompiledSeries:
    model, file = folder / "net.stg", folder / "rows.csv"
    model.write_text(text)
    file.write_text("\n".join(["prefill,decode", *rows]) + "\n")
    return compile_iterations(str(model), str(file))


@pytest.mark.parametrize("seed", some(range(4), 4))
def test_iterations_of_an_encoder_and_a_decoder_are_those_of_each_alone(seed: int, tmp_path: Path):
    """Some begin sequences, and encode their source; others go on with them. With microbatches, there are more or fewer of these."""
    rng = random.Random(seed)
    dp, tp = rng.choice([(1, 1), (1, 4), (2, 2)])
    microbatch = rng.choice([0, 0, 2])
    clauses: list[str] = []
    rows: list[str] = []
    for _ in range(rng.randint(2, 9)):
        count = dp * (microbatch or 1) * rng.randint(1, 2 if microbatch else 5)
        new, before = rng.choice([1, 3]), rng.randint(1, 40)
        begins = rng.random() < 0.4
        rows.append(f"{count}x{new}," if begins else f",{count}@{before}")
        clauses.append(f"prefill {count} x {new}" if begins else f"decode {count} at {before}")
    timed = seed % 2 == 0
    whole = series_of(MODEL + plan(dp, tp, microbatch, "prefill 2 x 1"), rows, tmp_path)

    def traces_of(one, is_series: bool) -> TraceSet:
        if not timed:
            return one.trace_set
        return Clock(one).with_durations() if is_series else with_durations(one.trace_set, one.plan)

    alone: list[dict[int, list]] = []
    for clause in clauses:
        model = tmp_path / "alone.stg"
        model.write_text(MODEL + plan(dp, tp, microbatch, clause))
        alone.append(nodes_of(traces_of(compile_model(model), False)))
    assert not replay(*traces_in(encode_traces(whole.traces))).missing
    series = nodes_of(whole.joined(lambda one: traces_of(one, one.num_iterations > 1)))
    for rank, nodes in series.items():
        begin, tags = 0, set[int]()
        ended: set[int] = set()
        for number, other in enumerate(alone):
            twins = other[rank]
            here = nodes[begin : begin + len(twins)]
            assert [said(n, begin) for n in here] == [said(n, 0) for n in twins]
            assert {n.name.partition("/i")[2] for n in here} == {f"{number:04}"}
            for node, twin in zip(here, twins, strict=True):
                waits = {d for d in node.ctrl_deps if d <= begin}
                is_root = not twin.ctrl_deps and not twin.data_deps
                assert waits == (ended if is_root else set())
            ended = {begin + n.id for n in twins}
            ended -= {begin + d for n in twins for d in (*n.ctrl_deps, *n.data_deps)}
            own = {a.int32_val for n in here for a in n.attr if a.name == "comm_tag"}
            assert not own & tags
            tags |= own
            begin += len(twins)
        assert begin == len(nodes)


def test_sequences_that_begin_beside_others_are_refused_by_their_line(tmp_path: Path):
    with pytest.raises(CompileError) as caught:
        series_of(MODEL + plan(1, 1, 0, "prefill 2 x 1"), ["2x1,", "1x1,2@3"], tmp_path)
    assert {each.code for each in caught.value.diagnostics} == {"E0415"}


def test_each_number_of_microbatches_is_a_program(tmp_path: Path):
    rows = ["2x1,", ",4@1", ",6@2", ",6@3"]
    whole = series_of(MODEL + plan(1, 1, 2, "prefill 2 x 1"), rows, tmp_path)
    assert whole.which.tolist() == [0, 1, 2, 2]


def test_a_series_of_too_many_programs_is_an_error_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(series, "MOST_PROGRAMS", 1)
    with pytest.raises(CompileError) as caught:
        series_of(MODEL + plan(1, 1, 0, "prefill 2 x 1"), ["2x1,", "3x1,", ",2@3"], tmp_path)
    (found,) = caught.value.diagnostics
    assert found.code == "E0421"
    assert found.message == "the iterations are more than 1 different programs"
    assert found.span is not None
    assert (found.span.file.rpartition("/")[2], found.span.line) == ("rows.csv", 4)
