"""The proof that written sets cannot deadlock: it accepts what the compiler makes, and nothing that `check` has doubts about."""

import random
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stagec.backend import encode
from stagec.backend.deadlock import check_progress, in_a_circle
from stagec.backend.encode import encode_traces
from stagec.backend.program import Dep, Node, TraceProgram, TraceSegment, TraceSet
from stagec.backend.writer import WriteOptions, write_traces
from stagec.checking import check_traces
from stagec.checking.deadlock import ANY_TIMES
from stagec.diagnostics import CompileError, Span
from stagec.dialects.sched.actions import Collective, Transfer
from stagec.driver import compile_text
from stagec.estimate.graph import build_graph
from tests.attack.models import MODELS, random_plan
from tests.unit.backend_samples import pipelined_job
from tests.unit.seldom import mostly


def without_a_dep(node: Node, draw: random.Random) -> Node:
    """The node without one of those that it waits for."""
    left = list(node.ctrl_deps)
    left.pop(draw.randrange(len(left)))
    return replace(node, ctrl_deps=tuple(left))


def spoilt(traces: TraceSet, draw: random.Random) -> TraceSet:
    """The set with a class that waits for less, or does its rows in another order."""
    classes = list(traces.classes)
    number = draw.randrange(len(classes))
    program = classes[number].program
    segments = list(program.segments)
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(segments))
        nodes = list(segments[at].nodes)
        j = draw.randrange(len(nodes))
        if nodes[j].ctrl_deps:
            nodes[j] = without_a_dep(nodes[j], draw)
            segments[at] = replace(segments[at], nodes=tuple(nodes))
    ahead = program.ahead
    if draw.random() < 0.5:
        # Two rows next to each other swap their numbers.
        length = np.diff(program.first_node)
        row = draw.randrange(max(1, len(length) - 1))
        first = program.first_number
        if row + 1 < len(length) and first[row + 1] == first[row] + length[row]:
            ahead = np.zeros(len(length), np.int64) if ahead is None else ahead.copy()
            ahead[row] -= length[row + 1]
            ahead[row + 1] += length[row]
    program = replace(program, segments=tuple(segments), ahead=ahead)
    classes[number] = replace(classes[number], program=program)
    return replace(traces, classes=tuple(classes))


def doubts(traces: TraceSet, directory: str) -> str:
    """What `check` says of a set, if it does not prove it."""
    write_traces(encode_traces(traces), directory, WriteOptions(executor="serial"))
    report = check_traces(directory, jobs=1)
    found = report.summary.deadlock
    return "" if found == ANY_TIMES else f"{found}\n{report.text()}"


@pytest.mark.seldom
def test_what_is_proved_is_proved_by_the_checker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "check_progress", lambda traces: None)
    proved = refused = 0
    number = 0
    while proved < 6 or refused < 6:
        draw = random.Random(f"spoilt {number}")
        number += 1
        model = draw.choice(list(MODELS))
        try:
            made = compile_text(MODELS[model] + random_plan(draw, model), "a.stg", "p").trace_set
        except CompileError:
            continue
        if made.mesh.num_ranks == 1:
            continue
        check_progress(made)
        for _ in range(3):
            traces = spoilt(made, draw)
            try:
                check_progress(traces)
            except CompileError as error:
                assert error.diagnostics[0].code == "E0613"
                refused += 1
                continue
            proved += 1
            with tempfile.TemporaryDirectory() as directory:
                assert not doubts(traces, f"{directory}/set"), (number, model)


RING = """
dim B = 8
dim S = 24
dim D = 16
dim F = 32
dim H = 4
dim E = 4
dim V = 32
dim L = 2

module Block(x[B, S, D]) -> [B, S, D] {{
  weight n1[D], wq[D, H, E], wk[D, H, E], wv[D, H, E], wo[H, E, D], n2[D], up[D, F], down[F, D]
  a = rms_norm(x, n1)
  h = x + attention(a @ wq, a @ wk, a @ wv, causal = true) @ wo
  return h + gelu(rms_norm(h, n2) @ up) @ down
}}

model Net(tokens[B, S]: i32, targets[B, S]: i32) {{
  weight embed[V, D], norm[D], head[D, V]
  x = embedding(tokens, embed)
  repeat L {{ x = Block(x) }}
  loss = cross_entropy(rms_norm(x, norm) @ head, targets)
}}

plan p {{
  mesh dp = 2, cp = {cp}{stages}
  shard B over dp
  shard S over cp
  context cp {{ method = ring, balance = {balance} }}
  zero 3 over {axes} {{ {settings} }}
  unit Block
  recompute {recompute}
  {steps}
}}
"""
STEPS = ", pp = 2", "pipeline L over pp { schedule = 1f1b, microbatch = 1 }"


def ring(draw: random.Random) -> TraceSet:
    """A ring whose parameters are gathered over more ranks than keys go around: gathers are ready before keys are sent."""
    stages, steps = draw.choice((STEPS, ("", "microbatch 1"), ("", "microbatch 2")))
    text = RING.format(
        cp=draw.choice((2, 3)),
        balance=draw.choice(("head_tail", "none")),
        stages=stages,
        axes=draw.choice(("dp, cp", "cp, dp")),
        settings=draw.choice(("like = fsdp2", "reshard = false", "prefetch = 2")),
        recompute=draw.choice(("none", "full in Block")),
        steps=steps,
    )
    return compile_text(text, "a.stg", "p").trace_set


@pytest.mark.parametrize("seed", mostly((0).__eq__, range(12)))
def test_rings_beside_gathers_over_more_axes(
    seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All of them are proved; what is spoilt and still proved, the checker proves."""
    draw = random.Random(seed)
    made = ring(draw)
    check_progress(made)
    monkeypatch.setattr(encode, "check_progress", lambda traces: None)
    assert not doubts(made, str(tmp_path / "made"))
    for number in range(3):
        traces = spoilt(made, draw)
        try:
            check_progress(traces)
        except CompileError:
            continue
        assert not doubts(traces, str(tmp_path / str(number)))


def two_stages(first: list[Node], then: list[Node]) -> TraceSet:
    """Two ranks, one after the other along `pp`, that do these nodes."""
    sample = pipelined_job(dp=1, pp=2, cp=1, tp=1)
    made = []
    for rank, nodes in enumerate((first, then)):
        one = np.zeros(1, np.int32)
        program = TraceProgram(
            segments=(TraceSegment("s", tuple(nodes), 0),),
            segment=one,
            slots=np.zeros((1, 0), np.int64),
            layer=one - 1,
            microbatch=one,
            stage=one,
            tag=np.zeros(1, np.int64),
        )
        made.append(
            replace(sample.classes[0], name=f"r{rank}", where={"pp": (rank,)}, program=program)
        )
    return replace(sample, classes=tuple(made))


def transfer(kind: str, channel: int) -> Node:
    action = Transfer(kind, ("pp",), 1, 8, channel, "bf16")
    return Node(kind, "p2p", "", action, f"p2p.{kind}.{channel}", location="m.stg:3:5")


def after(node: Node, *numbers: int) -> Node:
    return replace(node, ctrl_deps=tuple(Dep(-1, number) for number in numbers))


ALL = Collective("all_reduce", ("pp",), 8, 8, "bf16")
REDUCE = Node("all_reduce", "grad_reduce", "", ALL, "comm.pp")


def test_each_waits_for_the_other() -> None:
    good = two_stages(
        [transfer("send", 0), after(transfer("recv", 1))],
        [transfer("recv", 0), after(transfer("send", 1), 0)],
    )
    check_progress(good)
    bad = two_stages(
        [transfer("recv", 1), after(transfer("send", 0), 0)],
        [transfer("recv", 0), after(transfer("send", 1), 0)],
    )
    with pytest.raises(CompileError, match="E0613") as caught:
        check_progress(bad)
    assert caught.value.diagnostics[0].span == Span.point("m.stg", 3, 5)
    with pytest.raises(CompileError, match="E0613"):
        check_progress(two_stages([transfer("send", 0)], [transfer("recv", 1)]))


def test_members_of_a_group_issue_the_same_collectives() -> None:
    other = after(replace(REDUCE, action=replace(ALL, operand_bytes=16, result_bytes=16)), 0)
    check_progress(two_stages([REDUCE, other], [REDUCE, other]))
    crossed = two_stages([REDUCE, other], [replace(other, ctrl_deps=()), after(REDUCE, 0)])
    with pytest.raises(CompileError, match="E0613"):
        check_progress(crossed)
    with pytest.raises(CompileError, match="E0613"):
        build_graph(crossed)


def test_the_estimate_refuses_what_never_ends() -> None:
    bad = two_stages(
        [transfer("recv", 1), after(transfer("send", 0), 0)],
        [transfer("recv", 0), after(transfer("send", 1), 0)],
    )
    with pytest.raises(CompileError, match="E0613") as caught:
        _ = build_graph(bad).instances
    (found,) = caught.value.diagnostics
    assert found.span == Span.point("m.stg", 3, 5)
    assert [note.partition(", waits")[0] for note in found.notes] == [
        f"`recv` of `the step` in microbatch 0 of stage 0, on ranks `{rank}`"
        for rank in ("r0", "r1")
    ]
    with pytest.raises(CompileError, match=r"on ranks `r1`, has no other end"):
        build_graph(two_stages([transfer("send", 0)], [transfer("recv", 1)]))


def test_a_collective_may_keep_the_slot_from_what_another_rank_waits_for() -> None:
    late = [transfer("recv", 1), after(transfer("send", 0), 0), REDUCE]
    with pytest.raises(CompileError, match="E0613"):
        # The first rank may begin the collective before it has something to send; the second does so when that has come.
        check_progress(
            two_stages(late, [transfer("send", 1), transfer("recv", 0), after(REDUCE, 1)])
        )
    certain = [transfer("recv", 1), after(transfer("send", 0), 0), after(REDUCE, 0)]
    check_progress(
        two_stages(certain, [transfer("send", 1), transfer("recv", 0), after(REDUCE, 1)])
    )


def test_circles() -> None:
    owner, dep = np.array([1, 2, 3, 1]), np.array([0, 1, 2, 3])
    assert in_a_circle(owner, dep, 5).tolist() == [1, 2, 3]
    assert not len(in_a_circle(owner[:3], dep[:3], 5))
