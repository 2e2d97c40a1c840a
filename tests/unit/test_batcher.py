"""Continuous batching against a small simulation of its own, and its file against the clock that made it."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from stagec.cli.batch_command import clock_in, rows_of
from stagec.cli.inputs import compile_iterations
from stagec.estimate.batcher import IDLE, BatchedPool, Policy, Request, batch, batch_pools, unfit
from stagec.estimate.series import Clock
from stagec.frontend import parse_file
from stagec.plugins import registry
from tests.unit.test_serving import text


def drawn(seed: int) -> tuple[list[Request], Policy]:
    rng = random.Random(seed)
    policy = Policy(
        tokens=rng.choice([16, 64, 300]),
        sequences=rng.choice([2, 5, 100]),
        block=rng.choice([1, 4, 16]),
        blocks=rng.choice([None, 40, 80]),
        chunked=rng.random() < 0.7,
    )
    requests = [
        Request(rng.choice([0.0, rng.random() * 3]), rng.randint(1, 60), rng.randint(1, 12))
        for _ in range(rng.randint(1, 25))
    ]
    wrong = set(unfit(requests, policy))
    return [r for i, r in enumerate(requests) if i not in wrong] or [Request(0, 3, 3)], policy


def simulated(
    requests: list[Request], policy: Policy, step_s: float, ready: dict[int, float] | None = None
):
    """The same policy, said with lists of positions: what is in the cache of each, and one iteration after the other.

    `ready` says when those come whose prompt is computed elsewhere.
    """
    comes = {i: r.arrival_s for i, r in enumerate(requests)} if ready is None else ready
    todo = sorted(comes, key=lambda i: (comes[i], requests[i].arrival_s, i))
    have = {i: 0 if ready is None else requests[i].prompt for i in todo}
    cached: dict[int, int] = {}  # of those that run, in order of admission
    queue: list[int] = []
    made = dict.fromkeys(todo, 0 if ready is None else 1)
    first, last, now, thrown = {}, {}, 0.0, 0
    iterations: list[Counter[tuple[int, int]]] = []
    ends: list[float] = []

    def in_use(changed: dict[int, int]) -> int:
        return sum(-(-size // policy.block) for size in {**held, **changed}.values())

    held: dict[int, int] = {}  # positions that blocks are allotted for
    room = policy.blocks if policy.blocks is not None else 10**9
    while todo or queue or cached:
        if not queue and not cached:
            now = max(now, comes[todo[0]])
        while todo and comes[todo[0]] <= now:
            queue.append(todo.pop(0))
        budget, now_new, somebody_left = policy.tokens, {}, False
        for who in list(cached):
            if who not in cached or not budget:
                continue
            new = min(requests[who].prompt + made[who] - cached[who], budget)
            while who in cached and in_use({who: cached[who] + new}) > room:
                victim = list(cached)[-1]
                del cached[victim], held[victim]
                have[victim] = 0
                queue.insert(0, victim)
                thrown, somebody_left = thrown + 1, True
            if who in cached:
                held[who] = cached[who] + new
                now_new[who] = new
                budget -= new
        while queue and budget and not somebody_left and len(cached) < policy.sequences:
            who = queue[0]
            wanted = requests[who].prompt + made[who] - have[who]
            new = min(wanted, budget)
            if (new < wanted and not policy.chunked) or in_use({who: have[who] + new}) > room:
                break
            queue.pop(0)
            cached[who], held[who], now_new[who] = have[who], have[who] + new, new
            budget -= new
        iterations.append(Counter((new, cached[who]) for who, new in now_new.items()))
        now += step_s
        ends.append(now)
        for who, new in now_new.items():
            cached[who] += new
            if cached[who] == requests[who].prompt + made[who]:
                made[who] += 1
                first.setdefault(who, now)
                if made[who] == requests[who].output:
                    last[who] = now
                    del cached[who], held[who]
    return iterations, first, last, thrown, ends


@pytest.mark.parametrize("seed", range(150))
def test_it_is_the_policy_said_in_other_words(seed: int):
    requests, policy = drawn(seed)
    found = batch(requests, policy, BatchedPool(1, lambda _: 0.25))
    iterations, first, last, thrown, _ = simulated(requests, policy, 0.25)
    own = [
        Counter({(new, before): count for count, new, before in each.devices[0]})
        for each in found.iterations
    ]
    assert own == iterations
    assert found.preempted == thrown
    order = sorted(range(len(requests)), key=lambda i: requests[i].arrival_s)
    assert [each.first_s for each in found.served] == [first[i] for i in order]
    assert [each.end_s for each in found.served] == [last[i] for i in order]


@pytest.mark.parametrize("seed", range(60))
def test_two_pools_are_the_policy_twice(seed: int):
    """Prompts in the first; the second has what is handed over, from when it is."""
    requests, policy = drawn(seed)
    requests.sort(key=lambda each: each.arrival_s)
    pools = BatchedPool(1, lambda _: 0.25), BatchedPool(1, lambda _: 0.125)
    prompts, further = batch_pools(requests, policy, *pools, lambda count: 0.03 * count)
    alone = [Request(r.arrival_s, r.prompt, 1) for r in requests]
    _, first, *_ = simulated(alone, policy, 0.25)
    completed = Counter[float]()
    for i, each in enumerate(requests):
        completed[first[i]] += each.prompt
    ready = {
        i: max(first[i], first[i] - 0.25 + 0.03 * completed[first[i]])
        for i, r in enumerate(requests)
        if r.output > 1
    }
    assert [each.end_s for each in prompts.served] == [first[i] for i in range(len(requests))]
    iterations, _, last, thrown, _ = simulated(requests, policy, 0.125, ready)
    own = [
        Counter({(new, before): count for count, new, before in each.devices[0]})
        for each in further.iterations
    ]
    assert own == iterations
    assert further.preempted == thrown
    order = sorted(ready, key=lambda i: (ready[i], requests[i].arrival_s, i))
    assert [each.end_s for each in further.served] == [last[i] for i in order]
    assert [each.first_s for each in further.served] == [first[i] for i in order]
    assert [each.handover_s for each in further.served] == [
        0.03 * completed[first[i]] for i in order
    ]
    late = [ready[i] - first[i] for i in order]
    assert [each.late_s for each in further.served] == pytest.approx(late)


@pytest.mark.parametrize("engines", [2, 3])
def test_engines_keep_step(engines: int):
    """Each has a part of the requests, and computes a token that nobody reads while only others have some."""
    requests = [Request(0.0, 10 + i, 3 + 2 * i) for i in range(2 * engines - 1)]
    found = batch(requests, Policy(), BatchedPool(engines, lambda _: 1.0))
    new = sum(n * s for each in found.iterations for kinds in each.devices for n, s, _ in kinds)
    idle = sum(kinds == (IDLE,) for each in found.iterations for kinds in each.devices)
    assert new - idle == sum(r.prompt + r.output - 1 for r in requests)
    assert all(len(each.devices) == engines for each in found.iterations)


@pytest.mark.seldom
@pytest.mark.parametrize("split", ["tokens", "sequences"])
def test_iterations_of_fewer_tokens_have_fewer_microbatches(split: str, tmp_path: Path):
    """The batcher's clock and the series that is compiled of its file agree on how many there are, and on what they take."""
    model = tmp_path / "net.stg"
    served = f"serve {{ decode 2 at 1, microbatches = 3, split = {split} }}"
    mesh = "mesh dp = 2, tp = 2 shard B over dp shard H, K, F over tp device h100"
    model.write_text(text() + f"plan p {{ {mesh} {served} }}\n")
    requests = [Request(0.0, 40, 6), Request(0.0, 9, 3), Request(0.0, 20, 2), Request(1e-5, 2, 4)]
    pool = clock_in(parse_file(model), None, {}, None, registry(), Policy())
    assert pool.engines == 2
    found = batch(requests, Policy(tokens=30), pool)
    (tmp_path / "rows.csv").write_text(rows_of(found))
    series = compile_iterations(str(model), str(tmp_path / "rows.csv"))
    assert len(series.parts) > 1
    times = np.zeros(series.num_iterations)
    for number, part in enumerate(series.parts):
        times[series.which == number] = Clock(part).times_us()
    took = [(each.end_s - each.begin_s) * 1e6 for each in found.iterations]
    assert took == pytest.approx(times.tolist())


def test_the_clock_is_that_of_the_series(tmp_path: Path):
    """What an iteration is estimated to take while it is made, it takes in the series that is compiled of the file."""
    plan = """
plan p {
  mesh dp = 2, tp = 2
  shard B over dp
  shard H, K, F over tp
  device h100
  serve { decode 2 at 1 }
}
"""
    model, rows = tmp_path / "net.stg", tmp_path / "rows.csv"
    model.write_text(text() + plan)
    rows.write_text("prefill,decode\n,1@1 1@2\n")
    clock = Clock(compile_iterations(str(model), str(rows)).parts[0])
    rng = random.Random(0)
    requests = [Request(0.0, rng.randint(1, 300), rng.randint(1, 5)) for _ in range(7)]
    found = batch(requests, Policy(tokens=200), BatchedPool(2, lambda d: clock.time_of_us(d) / 1e6))
    rows.write_text(rows_of(found))
    series = Clock(compile_iterations(str(model), str(rows)).parts[0])
    for number, each in enumerate(found.iterations):
        assert series.time_us(number) / 1e6 == pytest.approx(each.end_s - each.begin_s)
