"""The file of events: valid, no two events of a track at the same time, as long as the estimate says."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from stagec.estimate import perfetto
from stagec.estimate.perfetto import perfetto_trace
from stagec.estimate.step import estimate
from tests.replay.models import Job, compiled
from tests.unit.test_replay import jobs

DEVICE = "device { flops_per_s = 1e9, memory_bytes_per_s = 5e8, link_bytes_per_s = 1e8, host_bytes_per_s = 1e7 }"


def events_of(job: Job) -> tuple[list[dict[str, Any]], float, int]:
    """All events, how long a step takes, and how many nodes there are."""
    found = compiled(replace(job, clauses=(*job.clauses, DEVICE)))
    timeline = estimate(found).timeline
    written = json.loads(perfetto_trace(found.trace_set, timeline, {}))
    return written["traceEvents"], timeline.makespan_us, timeline.begins[-1]


def tracks(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Starts and ends in nanoseconds, by process and thread."""
    found: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start, length = round(event["ts"] * 1000), round(event["dur"] * 1000)
            found[event["pid"], event["tid"]].append((start, start + length))
    return found


@pytest.mark.seldom
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(jobs())
def test_events_of_a_track_come_one_after_the_other(job: Job):
    events, step_us, num_nodes = events_of(job)
    found = tracks(events)
    assert sum(map(len, found.values())) == num_nodes
    latest = 0
    for bars in found.values():
        assert bars == sorted(bars)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(bars))
        latest = max(latest, *(end for _, end in bars))
    assert latest == pytest.approx(step_us * 1000, abs=1)
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert found.keys() <= named


def test_a_transfer_arrives_when_it_was_sent():
    events, _, _ = events_of(Job(p=2, m=3))
    sends = [e for e in events if e["name"].startswith("send")]
    receives = [e for e in events if e["name"].startswith("recv")]
    for receive in receives:
        end = receive["ts"] + receive["dur"]
        key = ("microbatch", "bytes")
        same = [
            s
            for s in sends
            if s["pid"] != receive["pid"] and all(s["args"][k] == receive["args"][k] for k in key)
        ]
        assert min(s["ts"] + s["dur"] for s in same) <= end + 1e-3


def test_enormous_steps_are_joined(monkeypatch: pytest.MonkeyPatch):
    job = Job(p=2, m=3, dp=2, tp=2, zero=1)
    events, step_us, num_nodes = events_of(job)
    monkeypatch.setattr(perfetto, "MOST_NODES", 10)
    joined, joined_us, _ = events_of(job)
    assert len(joined) < len(events) / 2
    assert joined_us == step_us
    assert sum(e["args"].get("nodes", 0) for e in joined) == num_nodes
    for bars in tracks(joined).values():
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(bars))


def test_the_same_text_gives_the_same_bytes():
    found = compiled(Job(clauses=(DEVICE,)))
    once, again = (perfetto_trace(found.trace_set, estimate(found).timeline, {}) for _ in range(2))
    assert once == again
