"""Emitted traces of all ranks run to their end under the issue rules of ASTRA-sim."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence

from hypothesis import HealthCheck, given, settings, strategies as st

from stagec.backend.et_def_pb2 import Node, NodeType
from stagec.schedules import CATALOGUE, ScheduleError, build, names, validate
from tests.fidelity.trace import attributes
from tests.replay.machine import Duration, replay
from tests.replay.models import Job, encoded, traces_of

TIMES = (1, 1, 2, 5, 20, 100)


def fixed_times(seed: int, ranks: Mapping[int, object]) -> Duration:
    """What a node takes depends on `ranks` of its rank, and on what it is, but for its layer."""
    generator = random.Random(seed)
    times: dict[object, int] = defaultdict(lambda: generator.choice(TIMES))

    def duration(rank: int, node: Node) -> int:
        return times[ranks[rank], node.name.partition("/L")[0], node.type]

    return duration


WITHOUT_BATCHES = ("zb_v", "zb_h2", "looped_bfs", "interleaved_zero_bubble")
"""Schedules whose ranks may wait for each other for ever if all they send and receive between two passes is one batch."""


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    schedule = draw(st.sampled_from(names()))
    if schedule == "forward_only":
        schedule = "gpipe"
    p = draw(st.sampled_from((2, 4) if schedule == "dualpipe" else (1, 2, 3, 4)))
    v = CATALOGUE[schedule].stages_per_rank or draw(st.integers(1, 3))
    m = draw(st.integers(1, 6))
    if schedule.startswith("dualpipe"):
        m = 2 * max(p, m)
    try:
        build(schedule, p, v, m)
    except ScheduleError:
        m *= p
    dp, tp = draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2)]))
    clauses: list[str] = []
    if tp > 1 and draw(st.booleans()):
        clauses.append("shard S over tp")
    said = ["scatter_gather = true" if draw(st.booleans()) else "scatter_gather = false"]
    in_batches = draw(st.sampled_from(("", "as_sent", "batched")))
    if in_batches == "as_sent" or (in_batches and schedule not in WITHOUT_BATCHES):
        said.append(f"transfers = {in_batches}")
    overlaps = [f"{kind} = {str(draw(st.booleans())).lower()}" for kind in ("zero", "p2p", "tp")]
    clauses.append(f"overlap {{ {', '.join(overlaps)} }}")
    gradients = [f"overlap = {str(draw(st.booleans())).lower()}"]
    gradients.append(f"reduce = {draw(st.sampled_from(('step', 'microbatch')))}")
    if draw(st.booleans()):
        gradients.append("bucket_bytes = 4096, first_bucket_bytes = 1024")
    clauses.append(f"gradients {{ {', '.join(gradients)} }}")
    zero = draw(st.integers(0, 3)) if dp > 1 else 0
    if draw(st.booleans()):
        # Under sequence parallelism what is saved of a sum is gathered: no result of `add`.
        sums = "[contract]" if "shard S over tp" in clauses else "[contract, add]"
        kept = draw(st.sampled_from(("all", "inputs", sums)))
        words = {"activations": kept, "optimizer": "true", "prefetch": str(draw(st.integers(0, 2)))}
        if zero in (0, 3):
            words["parameters"] = "true"
        chosen = [f"{word} = {words[word]}" for word in words if draw(st.booleans())]
        clauses.append(f"offload {{ {', '.join(chosen)} }}")
    return Job(
        p=p,
        v=v,
        m=m,
        schedule=schedule,
        dp=dp,
        tp=tp,
        zero=zero,
        tied=draw(st.booleans()),
        extra_layers=draw(st.integers(-1, 1)) if p > 1 else 0,
        clauses=tuple(clauses),
        pipeline=tuple(said),
        layers_per_stage=draw(st.integers(1, 2)),
        axes=draw(st.sampled_from([("dp", "pp", "tp"), ("pp", "dp", "tp")])),
    )


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(jobs(), st.integers(0, 1000))
def test_every_node_of_every_rank_runs(job: Job, seed: int) -> None:
    """And as many microbatches are in flight as the schedule says."""
    traces, groups = traces_of(encoded(job))
    assert not replay(traces, groups).missing
    assert not replay(traces, groups, fixed_times(seed, alike(job, traces))).missing
    expected = validate(build(job.schedule, job.p, job.v, job.m)).in_flight.rank_peak
    for rank, nodes in traces.items():
        assert peak_in_flight(nodes) == expected[stage_coordinate(job, rank)]


def alike(job: Job, traces: Mapping[int, object]) -> dict[int, int]:
    """Ranks that take equally long for equal nodes: none, but where gathers of parameters are issued ahead of tensor-parallel
    collectives. There one slot for both deadlocks if ranks of one stage do not keep step.
    """
    keep_step = job.zero == 3 and job.tp > 1
    return {rank: stage_coordinate(job, rank) if keep_step else rank for rank in traces}


def stage_coordinate(job: Job, rank: int) -> int:
    sizes = {"dp": job.dp, "pp": job.p, "tp": job.tp}
    for axis in reversed(job.axes):
        rank, coordinate = divmod(rank, sizes[axis])
        if axis == "pp":
            return coordinate
    raise AssertionError(job.axes)


def peak_in_flight(nodes: Sequence[Node]) -> int:
    """Stage-microbatches between their first computation forward and their last one backward."""
    first: dict[tuple[str, str], int] = {}
    last: dict[tuple[str, str], int] = {}
    for node in nodes:
        slot = str(attributes(node)["schedule_slot"]).split("/")[1:]
        if node.type != NodeType.COMP_NODE:
            continue
        stage = next((part for part in slot if part.startswith("s")), "")
        microbatch = next((part for part in slot if part.startswith("m")), "")
        if not microbatch:
            continue
        key = stage, microbatch
        first.setdefault(key, node.id)
        last[key] = max(last.get(key, 0), node.id)
    changes = sorted([(at, 1) for at in first.values()] + [(at, -1) for at in last.values()])
    peak = count = 0
    for _, change in changes:
        count += change
        peak = max(peak, count)
    return peak
