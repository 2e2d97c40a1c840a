"""`--provenance`: each node says where it comes from, which pass made it, and when it runs."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from stagec.backend.encode import encode_traces
from stagec.backend.encoded import TraceOptions
from stagec.backend.et_file import TraceReader
from stagec.backend.writer import iterate_traces, write_traces
from stagec.checking import check_traces
from stagec.checking.schema import ATTRIBUTES
from stagec.dialects.sched.tasks import COMPUTE_TASKS, GATHER_TASKS, ONCE, TRANSFER_TASKS
from stagec.driver import Compiled, compile_text
from stagec.passes import ALL_PASSES
from tests.fidelity.totals import nodes_of
from tests.unit.examples import FIRST, compile_example, ids
from tests.unit.model_texts import EXPERTS
from tests.unit.seldom import some

TASKS = {*COMPUTE_TASKS, *ONCE, *TRANSFER_TASKS, *GATHER_TASKS}
ADDED = {"location", "made_by", "stream", "schedule_slot"}
SLOT = re.compile(
    r"(?P<task>\w+)(?:/s(?P<stage>\d+))?(?:/L(?P<layer>\d+))?(?:/m(?P<microbatch>\d+))?"
)

MODEL = (
    """
dim B = 32
dim S = 16
dim D = 32
dim H = 8
dim E = D / H
dim F = 48
dim X = 4
dim A = 2
dim N = B * S * A / X
dim V = 64
dim L = 8

"""
    + EXPERTS
    + """

module Block(x[B, S, D]) -> [B, S, D] {
  weight n1[D], wq[D, H, E], wk[D, H, E], wv[D, H, E], wo[H, E, D], n2[D]
  n = rms_norm(x, n1)
  h = x + attention(rope(n @ wq), rope(n @ wk), n @ wv, causal = true) @ wo
  return h + Experts(rms_norm(h, n2))
}

model Net(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[V, D]
  x = embedding(tokens, embed)
  repeat L { x = Block(x) }
  loss = cross_entropy(x @ embed, targets)
}

plan p {
%s
}
"""
)
BASE = "mesh pp = 4, edp = 2, ep = 2, dp = edp * ep\nshard B over dp\nshard X over ep\nshard N over dp\n"
PLANS = {
    "experts": "mesh edp = 2, ep = 2, dp = edp * ep\nshard B over dp\nshard X over ep\nshard N over dp\n",
    "tensor": "mesh dp = 2, tp = 4\nshard B over dp\nshard H, V over tp\nshard S over tp\nmicrobatch 4\n"
    "recompute full in Block\ncollectives { keep = shard }\n",
    "fsdp": "mesh dp = 4\nshard B over dp\nzero 3 over dp\nunit Block\nrecompute attention\n",
    "buckets": "mesh dp = 4\nshard B over dp\nzero 1 over dp\ngradients { bucket_bytes = 16KiB }\n",
    "ring": "mesh cp = 4\nshard S over cp\ncontext cp { method = ring }\n",
    "rotated": "mesh cp = 4\nshard S over cp\ncontext cp { method = ring, rotate = all_to_all }\n",
    "ulysses": "mesh cp = 4\nshard S over cp\ncontext cp { method = ulysses }\n",
    "1f1b": BASE + "pipeline L over pp { schedule = 1f1b }\n",
    "interleaved": BASE
    + "pipeline L over pp { schedule = interleaved_1f1b, virtual_stages = 2 }\n",
    "zero_bubble": BASE + "pipeline L over pp { schedule = zb_h1 }\n",
    "dualpipe": BASE + "pipeline L over pp { schedule = dualpipe_v }\n",
}


def compiled(name: str) -> Compiled:
    return compile_text(MODEL % PLANS[name], name)


def check_nodes(job: Compiled) -> None:
    for rank_class in job.trace_set.classes:
        for segment in rank_class.program.segments:
            assert segment.task in TASKS, segment.name
        for node, _ in nodes_of(rank_class):
            assert re.fullmatch(r".+:\d+:\d+", node.location), node
            assert node.made_by in {"lower", *ALL_PASSES}, node


@pytest.mark.parametrize(("path", "plan"), some(FIRST, 9), ids=ids(FIRST))
def test_examples_say_where_nodes_come_from(path: Path, plan: str) -> None:
    check_nodes(compile_example(path, plan))


@pytest.mark.parametrize("name", some(PLANS, 8))
def test_every_plan_says_where_nodes_come_from(name: str) -> None:
    check_nodes(compiled(name))


@pytest.mark.parametrize(
    "name", some(["1f1b", "interleaved", "zero_bubble", "dualpipe", "fsdp"], 6)
)
def test_slots_are_those_of_the_schedule(name: str) -> None:
    """What the nodes of a trace say of the schedule is what the program says of its instances."""
    job = compiled(name)
    encoded = encode_traces(job.trace_set, TraceOptions(provenance=True))
    mesh = job.trace_set.mesh
    for rank_class in job.trace_set.classes:
        rank = sum(min(rank_class.where.get(a, (0,))) * mesh.stride(a) for a in mesh.axes)
        program = rank_class.program
        expected: list[tuple[str, int, int, int]] = []
        columns = (program.segment, program.stage, program.layer, program.microbatch)
        for number, *place in zip(*(c.tolist() for c in columns), strict=True):
            segment = program.segments[number]
            expected += [(segment.task, *place)] * len(segment.nodes)
        found: list[tuple[str, int, int, int]] = []
        for node in TraceReader.of_bytes(dict(iterate_traces(encoded, str(rank)))[rank]):
            shown = {a.name: a.string_val for a in node.attr if a.name in ADDED}
            assert shown.keys() == ADDED
            match = SLOT.fullmatch(shown["schedule_slot"])
            assert match is not None, shown
            place = [int(match[part] or -1) for part in ("stage", "layer", "microbatch")]
            found.append((match["task"], *place))
        assert found == expected


def test_zero_bubble_tells_the_halves_of_the_backward_pass_apart() -> None:
    job = compiled("zero_bubble")
    tasks = Counter[str]()
    for rank_class in job.trace_set.classes:
        program = rank_class.program
        for number in program.segment.tolist():
            tasks[program.segments[number].task] += 1
    assert {"F", "I", "W", "step", *TRANSFER_TASKS} <= set(tasks)
    assert "B" not in tasks


def test_no_consumer_reads_what_is_added() -> None:
    """ASTRA-sim ignores attributes that it does not know; those that it knows are `ATTRIBUTES`."""
    assert not ADDED & {*ATTRIBUTES, "comm_priority", "involved_dim", "runtime", "comm_group"}


@pytest.mark.parametrize("name", some(["experts", "zero_bubble", "fsdp"], 3))
def test_traces_with_provenance_run_alike(name: str, tmp_path: Path) -> None:
    """Without what is added, the nodes are those of a trace without it."""
    job = compiled(name)
    plain = encode_traces(job.trace_set)
    full = encode_traces(job.trace_set, TraceOptions(provenance=True))
    for rank in (0, job.trace_set.mesh.num_ranks - 1):
        pairs = zip(
            *(
                TraceReader.of_bytes(dict(iterate_traces(traces, str(rank)))[rank])
                for traces in (plain, full)
            ),
            strict=True,
        )
        for before, after in pairs:
            kept = [a for a in after.attr if a.name not in ADDED]
            del after.attr[:]
            after.attr.extend(kept)
            assert before == after
    write_traces(full, str(tmp_path / "traces"))
    assert check_traces(tmp_path / "traces").findings == []
