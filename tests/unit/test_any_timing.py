"""What is proved to run whatever the run times does run, and stagec's own traces are proved so."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from stagec.backend.et_file import read_trace
from stagec.backend.writer import write_traces
from stagec.checking import check_traces, deadlock
from tests.corpus.good import Rank
from tests.corpus.traces import ALL_REDUCE, Node, Traces
from tests.replay.machine import replay
from tests.replay.models import Job, encoded
from tests.unit.seldom import some

PLANS = {
    # The gather of the next layer's parameters is ready while this one's tensor-parallel collectives go on.
    "fsdp_and_tensors": Job(p=1, m=1, dp=2, tp=2, zero=3, clauses=("shard S over tp",)),
    "fsdp_within_stages": Job(p=2, m=3, dp=2, tp=2, zero=3),
    "sharded_gradients": Job(p=2, m=3, dp=2, tp=2, zero=2, clauses=("shard S over tp",)),
    "interleaved": Job(p=2, v=2, m=4, dp=2, tp=2, zero=1, schedule="interleaved_1f1b"),
}


@pytest.mark.parametrize("name", some(PLANS, 4))
def test_compiled_sets_run_whatever_the_times(name: str, tmp_path: Path) -> None:
    write_traces(encoded(PLANS[name]), str(tmp_path / "traces"))
    report = check_traces(tmp_path / "traces", jobs=1)
    assert report.summary.deadlock == deadlock.ANY_TIMES, report.text()


def random_set(seed: int) -> Traces:
    """Four ranks of one program: collectives over rows and columns, sends to a neighbour, some of it in no order."""
    draw = random.Random(seed)
    groups = {"1": [0, 1], "2": [2, 3], "3": [0, 2], "4": [1, 3]}
    row, column = ("1", "1", "2", "2"), ("3", "4", "3", "4")
    builds = [Rank() for _ in range(4)]
    steps: list[list[Node]] = [[] for _ in range(4)]
    density = draw.choice((0.1, 0.2, 0.5, 1.0))
    for step in range(draw.randint(4, 9)):
        kind = draw.choice(("comp", "row", "column", "ring"))
        before = [k for k in range(len(steps[0])) if draw.random() < density]
        for rank, build in enumerate(builds):
            deps = [steps[rank][k] for k in before]
            if kind == "comp":
                made = [build.comp(f"comp{step}", *deps)]
            elif kind == "ring":
                made = [
                    build.send(f"send{step}", (rank + 1) % 4, 64, step, *deps),
                    build.recv(f"recv{step}", (rank - 1) % 4, 64, step),
                ]
                made[0].set("comm_src", rank)
                made[1].set("comm_dst", rank)
            else:
                group = (row if kind == "row" else column)[rank]
                made = [build.coll(f"{kind}{step}", ALL_REDUCE, 64, group, *deps)]
            steps[rank] += made
    return Traces({rank: build.nodes for rank, build in enumerate(builds)}, groups)


def test_what_is_proved_never_stops(tmp_path_factory: pytest.TempPathFactory) -> None:
    stopped = proved = 0
    for seed in range(40):
        traces = random_set(seed)
        if not traces.nodes[0]:
            continue
        directory = tmp_path_factory.mktemp("set")
        traces.write(directory)
        report = check_traces(directory, jobs=1)
        files = {rank: read_trace(directory / traces.file(rank))[1] for rank in traces.nodes}
        is_proved = report.summary.deadlock == deadlock.ANY_TIMES
        proved += is_proved
        for times in range(8):
            draw = random.Random(times)
            ran = replay(files, traces.groups, lambda _r, _n, d=draw: d.choice((1, 9, 60)))
            stopped += bool(ran.missing)
            assert not (is_proved and ran.missing), f"seed {seed}, times {times}: {ran.missing}"
    assert proved > 10
    assert stopped
