"""Weights that several stages share, on ranks of several stages, with a step that knows of all gradients: ranks never wait for each other."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from stagec.backend.encode import encode_traces
from stagec.backend.writer import WriteOptions, write_traces
from stagec.checking import check_traces
from stagec.checking.deadlock import ANY_TIMES
from stagec.diagnostics import CompileError
from stagec.driver import compile_text
from stagec.estimate.step import estimate
from stagec.memory.lifetimes import lifetimes
from stagec.memory.value_table import value_table
from stagec.searching.evaluation import NAME
from stagec.searching.whole_plans import WholePlan, compiled_whole
from stagec.unrolling.module import rank_runs
from stagec.unrolling.rank import arrange
from tests.unit.seldom import mostly

LOOPED = ("interleaved_1f1b", "looped_bfs", "overlapped_1f1b")
SCHEDULES = (*LOOPED * 2, "1f1b", "gpipe", "zb_h1", "zb_v", "dualpipe", "dualpipe_v")


def model(draw: random.Random) -> tuple[str, str]:
    """A table at both ends, and norms between layers that have their weights in common; what counts the layers."""
    parts = draw.choice((1, 4, 4))
    dims = [f"L{part}" for part in range(parts)]
    norms = [f"n{number}" for number in range(draw.choice((1, 2, 3, 4)))] if parts > 1 else []
    lines = [
        *("dim B = 32", "dim S = 64", "dim V = 256", "dim D = 64"),
        *(f"dim {dim} = {8 // parts}" for dim in dims),
        "module Block(x[B, S, D]) -> [B, S, D] { weight w[D]  return x + rms_norm(x, w) }",
        "model M(tokens[B, S]: i32, targets[B, S]: i32) {",
        f"  weight {', '.join(['embed[V, D]', *(f'{norm}[D]' for norm in norms)])}",
        "  x = embedding(tokens, embed)",
    ]
    for dim in dims:
        lines.append(f"  repeat {dim} {{ x = Block(x) }}")
        some = draw.sample(norms, draw.randint(0, len(norms)))
        lines += [f"  x = rms_norm(x, {norm})" for norm in some]
    lines += ["  loss = cross_entropy(x @ embed, targets)", "}"]
    return "\n".join(lines), ", ".join(dims)


def plan(draw: random.Random, layers: str) -> str:
    mesh = {"pp": draw.choice((2, 4)), "dp": draw.choice((1, 2)), "tp": draw.choice((1, 1, 2))}
    schedule, level = draw.choice(SCHEDULES), draw.choice((0, 1, 2, 3))
    settings = [f"schedule = {schedule}", f"microbatch = {draw.choice((1, 2))}"]
    settings += ["virtual_stages = 2"] if schedule in LOOPED else []
    told = draw.sample(("clip = 1", "loss_scale = dynamic"), draw.choice((0, 1, 1, 2)))
    gradients = draw.choice(("", "", "overlap = false", "bucket_bytes = 1KiB"))
    clauses = [
        f"mesh {', '.join(f'{axis} = {mesh[axis]}' for axis in draw.sample(sorted(mesh), 3))}",
        "shard B over dp",
        "shard V over tp" if draw.random() < 0.5 else "",
        f"pipeline {layers} over pp {{ {', '.join(settings)} }}",
        f"optimizer adamw {{ {', '.join(told)} }}" if told else "optimizer adamw",
        f"zero {level} over dp{' { like = fsdp2 }' if level == 3 and mesh['tp'] == 1 else ''}"
        if level
        else "",
        "unit Block" if level == 3 else "",
        f"gradients {{ {gradients} }}" if gradients and level != 3 else "",
        "device h100",
    ]
    return "plan p {\n" + "".join(f"  {clause}\n" for clause in clauses if clause) + "}\n"


@pytest.mark.parametrize("seed", mostly((22).__eq__, range(2, 150, 10)))
def test_ranks_of_several_stages_keep_one_order(seed: int, tmp_path: Path) -> None:
    draw = random.Random(f"tied {seed}")
    text, layers = model(draw)
    text += "\n" + plan(draw, layers)
    try:
        compiled = compile_text(text)
    except CompileError as error:
        # Three weights or more (the table is one) can be shared so that no order of stages is one of weights.
        assert [found.code for found in error.diagnostics] == ["E0613"], text
        assert "n1[D]" in text, text
        return
    assert estimate(compiled).step_time_us > 0
    write_traces(encode_traces(compiled.trace_set), str(tmp_path), WriteOptions())
    report = check_traces(str(tmp_path), jobs=1)
    assert report.summary.deadlock == ANY_TIMES, f"{text}\n{report.text()}"
    assert not report.findings, f"{text}\n{report.text()}"


CROSSWISE = """
dim B = 32
dim S = 64
dim V = 256
dim D = 64
dim P = 1
dim Q = 1
dim R = 1
dim T = 1
module Block(x[B, S, D]) -> [B, S, D] { weight w[D]  return x + rms_norm(x, w) }
model M(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[V, D], head[D, V], a[D], b[D], c[D], d[D]
  x = rms_norm(rms_norm(embedding(tokens, embed), a), d)
  repeat P { x = Block(x) }
  x = rms_norm(rms_norm(x, a), b)
  repeat Q { x = Block(x) }
  x = rms_norm(rms_norm(x, b), c)
  repeat R { x = Block(x) }
  x = rms_norm(rms_norm(x, c), d)
  repeat T { x = Block(x) }
  loss = cross_entropy(x @ head, targets)
}
plan p {
  mesh pp = 2, dp = 2
  shard B over dp
  pipeline P, Q, R, T over pp { schedule = interleaved_1f1b, virtual_stages = 2 }
  device h100
}
"""


def test_what_no_order_fits_is_refused_and_no_candidate() -> None:
    with pytest.raises(CompileError, match="E0613"):
        compile_text(CROSSWISE)
    found = compiled_whole(WholePlan("m.stg", CROSSWISE.replace("plan p", f"plan {NAME}"), 0))
    assert [each.code for each in found.diagnostics] == ["E0613"]


ENDS = """
dim B = 32
dim V = 256
dim D = 64
dim L = 8
module Block(x[B, D]) -> [B, D] { weight w[D]  return x + rms_norm(x, w) }
model M(tokens[B]: i32, targets[B]: i32) {
  weight embed[V, D]
  x = embedding(tokens, embed)
  repeat L { x = Block(x) }
  loss = cross_entropy(x @ embed, targets)
}
plan p {
  mesh pp = 2, dp = 2
  shard B over dp
  pipeline L over pp { schedule = zb_v }
}
"""


def test_a_gradient_that_another_stage_gives_is_there_until_it_is_added() -> None:
    """In a V the first and the last stage are on one rank, which adds the gradients that both have of the table."""
    run = rank_runs(compile_text(ENDS).module)[0]
    rank, tables = arrange(run), list(map(value_table, run.stages))
    bodies = [rank.bodies[which].body for which in rank.body.tolist()]
    (row,) = [
        n
        for n, body in enumerate(bodies)
        if body.nodes[0].node_name == "add" and body.task == "tied"
    ]
    made = [rank.task_at(int(at))[0] for at in rank.source_row[row, : bodies[row].num_slots]]
    assert [rank.run.task_name(task)[:2] for task in made] == [("W", 0), ("W", 1)]
    lives = lifetimes(rank, tables)
    there = lives.alive_at(int(rank.first[rank.place[row]]))
    of_table = there[lives.num_bytes[there] == 4 * 256 * 64]
    assert set(lives.stage[of_table].tolist()) == {0, 1}
