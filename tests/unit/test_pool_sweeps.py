"""A sweep of a plan with pools: each row equals a compilation of all of them, and what is left out does not compile."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import pytest

from stagec.diagnostics import CompileError
from stagec.estimate.pools import estimate_pools
from stagec.estimate.step import estimate, on_device
from stagec.explaining.names import MICROBATCH
from stagec.frontend import parse_text
from stagec.frontend.files import Source
from stagec.plans.clauses import Plan
from stagec.pools import CompiledPools, compile_pools
from stagec.sweeping.grid import Listed, grid
from stagec.sweeping.plans import SweepRequest, with_microbatch
from stagec.sweeping.pools import names_of_plan, table_of
from tests.differential.sweeps import NEAR_S, whole
from tests.unit import test_experts_apart as experts, test_towers as towers
from tests.unit.test_pools import MODEL, Drawn, drawn

LEFT_OUT = ("memory.activations", "memory.in_flight")
"""Of training."""


def text_of(rng: random.Random) -> str:
    """Pools whose sequences are counted by `N`, of `P` positions; some of the second pool's are its own, alike or not."""
    one, other, count, positions = drawn(rng.randrange(100))
    own = rng.choice(["", "decode N at 40,", "decode M at P,", "decode 3 at 20,"])
    first, second = "prefill N x P", f"{own} decode N at P from prefill"

    def clauses(pool: Drawn, serve: str) -> str:
        return replace(pool, microbatch=1).clauses(serve)

    return (
        f"dim N = {count}\ndim M = {2 * count}\ndim P = {positions}\n{MODEL}\nplan p {{\n"
        "precision { weights = bf16 }\ndevice h100\n"
        f"pool prefill {{\n{clauses(one, first)}\n}}\npool decode {{\n{clauses(other, second)}\n}}\n}}\n"
    )


FORMULA = "decode.cc=prefill.tp"
VARIED = (
    "N=2,3,4,6",
    "P=12,48",
    "tp=1,2,3",
    "decode.tp=1,4",
    "prefill.dp=1,2",
    "dp=2,4",
    "decode.N=4,6",
    "L=4,8",
    "decode.pp=1,2",
    "D=8,12",
    "M=6,8",
    FORMULA,
)


def expected(compiled: CompiledPools) -> dict[str, int | float]:
    pools = {
        name: {
            **whole(each),
            "ranks": each.plan.num_ranks,
            "step_time": estimate(each).step_time_us / 1e6,
        }
        for name, each in compiled.pools.items()
    }
    first = next(iter(pools.values()))
    found = {what: max(own[what] for own in pools.values()) for what in first}
    found["ranks"] = sum(own["ranks"] for own in pools.values())
    found["step_time"] = estimate_pools(compiled.pools).end_us / 1e6
    return found | {f"{pool}.{what}": own[what] for pool, own in pools.items() for what in own}


@pytest.mark.seldom
@pytest.mark.parametrize("seed", [5])
def test_each_row_is_a_compilation(seed: int) -> None:
    rng = random.Random(seed)
    source = parse_text(text_of(rng), "pools.stg")
    varied = rng.sample(VARIED, 3)
    if FORMULA in varied and "tp=1,2,3" not in varied:
        varied[varied.index(FORMULA)] = "tp=1,2,3"
    check_rows(rng, source, varied, ("prefill", "decode"))


VARIED_PARTS = (
    "B=36,72",
    "text.tp=1,2,3",
    "tp=1,2",
    "text.dp=2,3",
    "dp=1,3",
    "text.pp=1,2",
    "tower0.pp=1,2",
    "L=2,4",
    "D=24,36",
    "text.microbatch=3,6",
    "tower0.microbatch=2,6",
)
"""Of models whose towers train on pools of their own."""


@pytest.mark.seldom
@pytest.mark.parametrize("seed", [4])
def test_each_row_of_pools_that_train_is_a_compilation(seed: int) -> None:
    rng = random.Random(seed)
    pools, schedule = towers.drawn(seed)
    optimizer = towers.OPTIMIZERS[seed % 3]
    text = towers.text_of(pools, schedule, bool(seed % 2), optimizer, towers.is_shared(seed))
    varied = rng.sample(VARIED_PARTS, 3)
    check_rows(rng, parse_text(text, "towers.stg"), varied, tuple(pool.name for pool in pools))


VARIED_EXPERTS = (
    "attention.dp=1,2",
    "attention.tp=1,2,4",
    "experts.ep=1,2,4",
    "experts.etp=1,2",
    "edp=1,2",
    "L=1,3",
    "F=16,24",
    "X=4,8",
    "experts.X=4,8",
    "A=1,2",
    "attention.microbatch=2,4",
    "experts.microbatch=4,8",
)
"""Of models whose experts are served by a pool of their own."""


@pytest.mark.seldom
@pytest.mark.parametrize("seed", [3])
def test_each_row_of_experts_apart_is_a_compilation(seed: int) -> None:
    rng = random.Random(seed)
    case = replace(experts.drawn(seed), sequences=16, dp=2, microbatches=rng.choice([1, 2]))
    varied = rng.sample(VARIED_EXPERTS, 3)
    check_rows(rng, parse_text(case.text, "experts.stg"), varied, ("attention", "experts"))


@pytest.mark.seldom
@pytest.mark.parametrize("seed", range(2))
def test_points_that_are_asked_one_by_one_go_on_with_the_programs_of_others(seed: int) -> None:
    """As `--solve` does. What comes out is what one sweep of all points says."""
    rng = random.Random(seed)
    if seed % 2:
        pools, schedule = towers.drawn(seed)
        text, varied = towers.text_of(pools, schedule, True, "adam", False), VARIED_PARTS
    else:
        text, varied = text_of(rng), VARIED[:-1]
    source = parse_text(text, "pools.stg")
    chosen = grid(rng.sample(varied, 2), names_of_plan(source, "p"))
    asked = SweepRequest(source, "p", {}, chosen, ("flops", "memory.peak"))
    whole = rows_of(asked)
    points = list(chosen.points())
    rng.shuffle(points)
    looks = replace(asked, programs={})
    one_by_one = [
        row
        for point in points
        for row in rows_of(replace(looks, grid=Listed(chosen.names, (tuple(point.values()),))))
    ]
    assert sorted(map(str, one_by_one)) == sorted(map(str, whole))


def rows_of(asked: SweepRequest) -> list[dict[str, int | float]]:
    try:
        return table_of(asked).rows()
    except CompileError:
        return []  # nothing of it compiles


def check_rows(
    rng: random.Random, source: Source, varied: Sequence[str], pools: Sequence[str]
) -> None:
    """That the rows are the plans that compile, with what each of them has."""
    points = [dict(zip(names_of(varied), row, strict=True)) for row in values_of(varied)]
    points = rng.sample(points, min(4, len(points)))
    wanted = expected_columns(pools)
    rows: dict[tuple[int, ...], dict[str, int | float]] = {}
    try:
        known = names_of_plan(source, "p")
        asked = SweepRequest(
            source, "p", {}, grid(varied, known), wanted, lambda plan: on_device(plan, "h100")
        )
        for row in table_of(asked).rows():
            rows[tuple(int(row[name]) for name in names_of(varied))] = row
    except CompileError:
        pass  # nothing of it compiles: so say all points
    for point in points:
        sizes = {n: str(v) for n, v in point.items() if not n.endswith(MICROBATCH)}
        if FORMULA in varied:
            sizes["decode.cc"] = sizes["tp"]
        try:
            compiled = compile_pools(
                source,
                "p",
                sizes,
                adapt=lambda plan, point=point: as_asked(plan, point),
            )
        except CompileError:
            assert tuple(point.values()) not in rows, point
            continue
        row = rows[tuple(point.values())]
        whole_job = expected(compiled)
        for what in wanted:
            near = NEAR_S if what.endswith("step_time") else 0
            assert abs(row[what] - whole_job[what]) <= near, (point, what)


def as_asked(plan: Plan, point: Mapping[str, int]) -> Plan:
    """With the microbatch that a point says of its pool."""
    size = point.get(f"{plan.name.rpartition('.')[2]}.{MICROBATCH}")
    plan = on_device(plan, "h100")
    return plan if size is None else with_microbatch(plan, size)


def expected_columns(pools: Sequence[str]) -> tuple[str, ...]:
    own = (
        "flops",
        "bytes",
        "comm",
        "comm.result_bytes",
        "memory.peak",
        "memory.static",
        "bubble",
        "params",
    )
    times = (*(f"{pool}.step_time" for pool in pools), "step_time", f"{pools[-1]}.ranks")
    return (*own, *(f"{pool}.{what}" for pool in pools for what in own), *times)


def names_of(varied: Sequence[str]) -> list[str]:
    return [each.partition("=")[0] for each in varied if "prefill" not in each.partition("=")[2]]


def values_of(varied: Sequence[str]) -> list[tuple[int, ...]]:
    listed = [each.partition("=")[2] for each in varied]
    return list(product(*(map(int, each.split(",")) for each in listed if "prefill" not in each)))
