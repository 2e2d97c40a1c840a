"""What a pool takes ends when the last of it is sent, found message by message; else each pool is as it would be alone."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from stagec.backend.program import PooledTraces
from stagec.backend.ranks import at_coordinates, ranks_where
from stagec.dialects.sched.actions import Transfer
from stagec.estimate.network import Network
from stagec.estimate.pools import PoolsEstimate, estimate_pools, transfer_s
from stagec.estimate.step import estimate
from stagec.frontend import parse_file, parse_text
from stagec.pools import CompiledPools, compile_pools
from stagec.reports.traffic import traffic
from tests.unit.examples import FOLDER
from tests.unit.seldom import some
from tests.unit.test_pools import drawn, text_of

Key = tuple[int, int, int, int]
"""Source, destination, channel, tag."""


def compiled(seed: int) -> CompiledPools:
    text = text_of(*drawn(seed)).replace("precision {", "device h100\nprecision {")
    return compile_pools(parse_text(text), "p", {})


def ends(
    traces: PooledTraces, found: PoolsEstimate, pool: str, kind: str
) -> dict[Key, list[tuple[float, object, list[float]]]]:
    """Of each message, in the order of its rank: when its node ends, which instance of a class it is, and when what it waits for ends."""
    own, first = dict(traces.pools)[pool], traces.firsts[pool]
    rows: list[tuple[int, Key, float, object, list[float]]] = []
    for number, each in enumerate(own.classes):
        _, end = found.pools[pool].timeline.of_class(number)
        program = each.program
        for rank in ranks_where(own.mesh, each.where).tolist():
            for row, segment in enumerate(program.segment.tolist()):
                begin = int(program.first_node[row])
                for place, node in enumerate(program.segments[segment].nodes):
                    action = node.action
                    if not isinstance(action, Transfer) or not action.peer or action.kind != kind:
                        continue
                    peer = int(at_coordinates(own.mesh, action.peer.rank, np.array([rank]))[0])
                    here = rank + first
                    source, destination = (here, peer) if kind == "send" else (peer, here)
                    deps = [
                        begin + d.node if d.slot < 0 else int(program.slots[row, d.slot])
                        for d in (*node.data_deps, *node.ctrl_deps)
                    ]
                    before = [float(end[at]) for at in deps if at >= 0]
                    key = (source, destination, action.channel, int(program.tag[row]))
                    where = (number, begin + place)
                    rows.append((begin + place, key, float(end[begin + place]), where, before))
    result: dict[Key, list[tuple[float, object, list[float]]]] = defaultdict(list)
    for _, key, when, where, before in sorted(rows, key=lambda row: row[0]):
        result[key].append((when, where, before))
    return result


@pytest.mark.parametrize("seed", some(range(3), 3))
def test_what_is_taken_ends_when_the_last_of_it_is_sent(seed: int) -> None:
    made = compiled(seed)
    found = estimate_pools(made.pools)
    sent = ends(made.traces, found, "prefill", "send")
    got = ends(made.traces, found, "decode", "recv")
    assert sent.keys() == got.keys()
    wanted: dict[object, float] = defaultdict(float)
    ended: dict[object, float] = {}
    for key, taken in got.items():
        for (when, _, _), (end, where, before) in zip(sent[key], taken, strict=True):
            wanted[where] = max(wanted[where], when, *before)
            ended[where] = end
    assert ended == pytest.approx(dict(wanted))
    assert max(wanted.values()) > 0
    alone = {name: estimate(each) for name, each in made.pools.items()}
    assert found.pools["prefill"].step_time_us == alone["prefill"].step_time_us
    assert found.pools["decode"].step_time_us > alone["decode"].step_time_us
    for each in made.pools.values():
        between, block = traffic(each)
        assert block > 1 or not np.diag(between).any()  # what goes to a pool goes not to oneself
    (way,) = found.ways
    assert way.end_us.max() <= found.pools["prefill"].step_time_us


def test_a_transfer_takes_what_the_slower_end_takes() -> None:
    """Llama 3 70B has 327,680 bytes a token: over 8 devices that give them, and 8 that take them."""
    made = compile_pools(parse_file(FOLDER / "llama3_70b.stg"), "disaggregated", {})
    took = transfer_s(made.pools, "prefill", "decode", (1, 2))
    far = Network.of(made.first.plan, made.first.trace_set.mesh).far
    assert far.bytes_per_s is not None
    assert took(1024) - took(24) == pytest.approx(1000 * 327_680 / 8 / far.bytes_per_s)
