"""Stages that differ in their first layer share a layout: each is what a layout of its own would be."""

from dataclasses import replace

import numpy as np
import pytest

from stagec.backend.encode import encode_traces
from stagec.backend.lowering.programs import Unroller
from stagec.driver import Compiled, compile_text
from stagec.memory import plan_memory
from stagec.unrolling.module import rank_runs
from stagec.unrolling.rank import RankRun
from tests.unit.seldom import some

TEXT = """
dim B = 8
dim S = 16
dim D = 8
dim M = 2
dim L = 12

module Inner(x[B, S, D]) -> [B, S, D] {{
  weight w[D, D2]
  y[B, S, D2] = gelu(x @ w)
  return y[D2 -> D]
}}
dim D2 = D

module Block(x[B, S, D]) -> [B, S, D] {{
  weight norm[D]
  h = rms_norm(x, norm)
  repeat M {{ h = h + Inner(h) }}
  return x + h
}}

model Net(x[B, S, D]) {{
  repeat L {{ x = Block(x) }}
  loss = mean(x, over = [B, S, D])
}}

plan p {{
  mesh dp = 2, pp = {pp}, tp = 2
  shard B over dp
  shard D2 over tp
  zero 1 over dp
  pipeline L over pp {{ {settings} }}
}}
"""

PIPELINES = {
    "1f1b": (4, "schedule = 1f1b"),
    "interleaved": (2, "schedule = interleaved_1f1b, virtual_stages = 3"),
    "zero bubble": (3, "schedule = zb_h1, first = -1, last = 1"),
    "listed": (3, "schedule = gpipe, layers = [5, 2, 5]"),
}


def compiled(name: str) -> Compiled:
    pp, settings = PIPELINES[name]
    return compile_text(TEXT.format(pp=pp, settings=settings), "net.stg")


def alone(job: Compiled, number: int) -> RankRun:
    """A class of a reader of its own, which unrolls nothing for another."""
    return rank_runs(job.module)[number]


@pytest.mark.parametrize("name", some(PIPELINES, 2))
def test_a_shared_layout_is_an_own_one(name: str) -> None:
    job = compiled(name)
    layers: set[int] = set()
    for number, run in enumerate(job.runs):
        for shared, own in zip(run.stages, alone(job, number).stages, strict=True):
            assert shared.layout.places == own.layout.places
            assert shared.layout.layers(shared.values) == own.layout.layers(own.values)
            layers.update(
                layer for rows in own.layout.layers(own.values).values() for layer in rows
            )
    # Layers of the model, and of the inner repeat, counted through.
    assert {-1, *range(24)} <= layers


def test_one_layout_for_the_middle_of_a_pipeline() -> None:
    first, *middle, last = (run.stages[0] for run in compiled("1f1b").runs)
    assert middle[0].layout is middle[1].layout
    assert middle[0].layout.layers(middle[0].values) != middle[1].layout.layers(middle[1].values)
    assert all(end.layout is not middle[0].layout for end in (first, last))


@pytest.mark.parametrize("name", some(["1f1b", "interleaved"], 2))
def test_traces_and_tracked_tensors_of_later_stages(name: str) -> None:
    """Every rank by itself, unrolled by what is asked for nothing else."""
    job = compiled(name)
    for number, ranks in enumerate(job.trace_set.classes):
        program = Unroller().program(alone(job, number))
        mine = ranks.program
        assert [program.segments[i] for i in program.segment] == [
            mine.segments[i] for i in mine.segment
        ]
        for column in ("slots", "layer", "microbatch", "stage", "tag"):
            assert (getattr(program, column) == getattr(mine, column)).all()
    labels = {
        tensor.layer
        for ranks in job.tracked.classes
        for segment in ranks.program.segments
        for node in segment.nodes
        for tensor in (node.outputs or ())
    }
    assert set(range(12)) <= labels


EXPERTS = """
dim B = 16
dim S = 8
dim D = 16
dim F = 24
dim X = 8
dim A = 2
dim T = B * S * A / X
dim L = 4

module Experts(x[B, S, D]) -> [B, S, D] {{
  weight router[D, X], up[X, D, F], down[X, F, D]
  gates, chosen = topk(softmax(x @ router, over = X), over = X, to = A)
  h[X, T, F] = silu(dispatch(x, chosen, experts = X, tokens = T) @ up)
  y[X, T, D] = h @ down
  return combine(y, gates, chosen)
}}

model Net(x[B, S, D]) {{
  repeat L {{ x = x + Experts(x) }}
  loss = mean(x, over = [B, S, D])
}}

plan p {{
  mesh {mesh}en = 2, el = 2, ep = en * el
  shard B over ep
  shard X over ep
  shard T over ep
  load {{ zipf = 1.5, seed = 2 }}
  {settings}
}}
"""

LOADED = {
    "no pipeline": ("", "microbatch 2"),
    "1f1b": ("pp = 2, ", "pipeline L over pp { schedule = 1f1b }"),
    "both halves": ("pp = 2, ", "pipeline L over pp { schedule = dualpipe, virtual_stages = 2 }"),
    "two steps": (
        "pp = 2, ",
        "pipeline L over pp { schedule = zb_h1 }\n  collectives { exchange = hierarchical }",
    ),
}


@pytest.mark.parametrize("name", some(LOADED, 4))
def test_a_program_with_another_load_is_an_own_one(name: str) -> None:
    """Each class has the program, and the encoding, that it has if nothing is shared."""
    mesh, settings = LOADED[name]
    job = compile_text(EXPERTS.format(mesh=mesh, settings=settings), "net.stg")
    traces, made = job.trace_set, []
    for number, ranks in enumerate(traces.classes):
        program = Unroller().program(alone(job, number))
        assert program.segments == ranks.program.segments
        for column in ("segment", "slots", "layer", "microbatch", "stage", "tag"):
            assert np.array_equal(getattr(program, column), getattr(ranks.program, column))
        made.append(replace(ranks, program=program))
    # Ranks of a pipeline may be alike: in DualPipe each has a stage of either half.
    own = {(c.where.get("pp"), c.program.segments) for c in made}
    assert len(own) == len(made) > 2
    assert encode_traces(replace(traces, classes=tuple(made))) == encode_traces(traces)
    for number, plan in enumerate(job.memory):
        (again,) = plan_memory([alone(job, number)])
        assert again.peak_bytes == plan.peak_bytes
