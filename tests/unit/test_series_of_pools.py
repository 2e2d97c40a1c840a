"""Series of pools of random meshes: each iteration computes what it computes alone, and hands over what it completes to those that go on with it."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from io import BytesIO
from math import prod
from pathlib import Path

import numpy as np
import pytest

from stagec.backend.bundle import Bundle, from_bytes, to_bytes
from stagec.backend.encode import encode_traces
from stagec.backend.et_file import TraceReader
from stagec.backend.writer import iterate_traces, write_traces
from stagec.checking import check_traces
from stagec.cli.batch_command import rows_of
from stagec.cli.inputs import compile_iterations
from stagec.cli.series_page import file_of_pool
from stagec.compiled import CompiledPoolSeries
from stagec.diagnostics import CompileError
from stagec.estimate.batcher import BatchedPool, Policy, Request, batch_pools
from stagec.estimate.pool_series import times_of_series
from stagec.estimate.series import Clock
from stagec.frontend import parse_file, parse_text
from stagec.frontend.plans.iterations import read_iterations
from stagec.pools import compile_pools
from stagec.pools.series import compile_series_of_pools
from tests.replay.machine import replay
from tests.replay.models import traces_of
from tests.unit.seldom import some
from tests.unit.test_pools import BYTES, HEADS, LAYERS, MODEL, WIDTHS, Drawn, drawn

POOLS = ("prefill", "decode")


@dataclass
class Rows:
    """Lines of both files, and what goes from which iteration to which."""

    prefill: list[str] = field(default_factory=list)
    decode: list[str] = field(default_factory=list)
    handed: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Positions."""


def rows_drawn(rng: random.Random, dp: tuple[int, int]) -> Rows:
    """Prompts in one or two parts; what is completed begins in some later iteration, or nowhere."""
    rows = Rows()
    left: list[tuple[int, int, int]] = []
    begun: list[str] = []
    for at in range(rng.randint(2, 5)):
        words = [f"{dp[0]}x3"]
        for _ in range(rng.randint(0, 2)):
            count, new, before = dp[0] * rng.randint(1, 2), rng.randint(2, 40), rng.choice([0, 16])
            words.append(f"{count}x{new}@{before}")
            left.append((count, new + before, at))
        rows.prefill.append(f"{' '.join(words)},")
    for _ in range(rng.randint(2, 6)):
        rng.shuffle(left)
        here = [left.pop() for _ in range(rng.randint(0, min(2, len(left))))]
        for count, positions, at in here:
            rows.handed[at, len(rows.decode)] += count * positions
        begun = [f"{dp[1]}@{rng.randint(1, 90)}", *(f"{n}@{p}" for n, p, _ in here)]
        taken = " ".join(f"{n}x{p}@{at}" for n, p, at in here)
        rows.decode.append(f",{' '.join(begun)},{taken}")
    return rows


def text_of(pools: tuple[Drawn, Drawn], microbatches: tuple[int, int] = (1, 1)) -> str:
    first = pools[0].clauses(f"prefill 6 x 20, microbatches = {microbatches[0]}")
    second = pools[1].clauses(f"decode 6 at 20 from prefill, microbatches = {microbatches[1]}")
    return f"{MODEL}\nplan p {{\nprecision {{ weights = bf16 }}\ndevice h100\npool prefill {{\n{first}\n}}\npool decode {{\n{second}\n}}\n}}\n"


def compiled(text: str, rows: Rows, folder: Path) -> CompiledPoolSeries:
    model = folder / "net.stg"
    model.write_text(text)
    files = {name: Path(file_of_pool(str(folder / "rows.csv"), name)) for name in POOLS}
    for name, file in files.items():
        lines = getattr(rows, name)
        file.write_text(
            "\n".join([f"prefill,decode{',taken' if name == 'decode' else ''}", *lines])
        )
    iterations = {name: read_iterations(str(file)) for name, file in files.items()}
    return compile_series_of_pools(parse_file(model), None, {}, iterations)


def nodes_of(traces) -> dict[int, list]:
    encoded = from_bytes(to_bytes(Bundle(encode_traces(traces)))).traces
    return {rank: list(TraceReader(BytesIO(data), "")) for rank, data in iterate_traces(encoded)}


def by_iteration(nodes: list) -> dict[int, list]:
    found: dict[int, list] = defaultdict(list)
    for node in nodes:
        found[int(node.name.rpartition("/i")[2])].append(node)
    return found


def attributes(node) -> dict[str, str]:
    return {a.name: str(getattr(a, a.WhichOneof("value"))) for a in node.attr}


def work(nodes: list) -> list[object]:
    """What nodes do but for transfers, in order."""
    found: list[object] = []
    for node in nodes:
        values = {a.name: str(a) for a in node.attr if a.name not in ("comm_tag", "pg_name")}
        if "comm_src" not in values:
            found.append((node.name.partition("/i")[0], node.type, values))
    return found


@pytest.mark.seldom
@pytest.mark.parametrize(
    ("seed", "microbatches"),
    [*((n, (1, 1)) for n in range(2)), (8, (2, 3)), (10, (1, 2))],
)
def test_each_iteration_is_what_it_is_alone_and_hands_over_what_it_completes(
    seed: int, microbatches: tuple[int, int], tmp_path: Path
):
    """What is handed over travels with each microbatch of either side; iterations of few tokens have fewer of these."""
    rng = random.Random(f"series {seed}")
    one, other, *_ = drawn(seed)
    rows = rows_drawn(rng, (one.dp, other.dp))
    text = text_of((one, other), microbatches)
    whole = compiled(text, rows, tmp_path)
    found = nodes_of(whole.traces)
    first = dict(zip(POOLS, (0, one.mesh.num_ranks), strict=True))
    sent: Counter[tuple[int, int, int, int]] = Counter()
    got: Counter[tuple[int, int, int, int]] = Counter()
    ways: dict[tuple[int, int, int], list[int]] = {}
    for name in POOLS:
        alone = tmp_path / "alone.csv"
        lines = getattr(rows, name)
        for at, line in enumerate(lines):
            alone.write_text(f"prefill,decode\n{','.join(line.split(',')[:2])}\n")
            (part,) = compile_iterations(str(tmp_path / "net.stg"), str(alone), f"p.{name}").parts
            twins = nodes_of(part.trace_set)
            for rank, nodes in twins.items():
                here = by_iteration(found[first[name] + rank])[at]
                mine = work(here)
                theirs = work(nodes)
                assert mine == theirs
                for node in here:
                    said = attributes(node)
                    if "comm_src" not in said:
                        continue
                    ends = int(said["comm_src"]), int(said["comm_dst"])
                    if len({end < one.mesh.num_ranks for end in ends}) == 1:
                        continue
                    key = (*ends, int(said["comm_tag"]))
                    side = sent if name == "prefill" else got
                    side[(*key, int(said["comm_size"]))] += 1
                    ways.setdefault(key, [-1, -1])[name == "decode"] = at
    assert sent == got
    assert {tuple(each) for each in ways.values()} == set(rows.handed)
    moved: Counter[tuple[int, int]] = Counter()
    for (*key, size), number in sent.items():
        at, there = ways[key[0], key[1], key[2]]
        moved[at, there] += number * size
    for way, positions in rows.handed.items():
        # What each rank of the decode pool is to have: heads are split, what is in all is there for each.
        copies = (
            other.rest
            * other.tp
            // np.gcd(other.tp, HEADS)
            // (other.tp // np.gcd(other.tp, HEADS))
        )
        exact = LAYERS * positions * BYTES
        exact *= HEADS * WIDTHS["keys"] * copies + WIDTHS["shared"] * other.rest * other.tp
        # Each message has whole elements.
        assert exact <= moved[way] < exact * (positions + 24 * prod(microbatches)) / positions
    assert not replay(*traces_of(encode_traces(whole.traces))).missing
    write_traces(encode_traces(whole.traces), str(tmp_path / "traces"))
    assert not check_traces(str(tmp_path / "traces")).findings


@pytest.mark.seldom
def test_an_iteration_of_each_is_what_pools_are_without_a_series(tmp_path: Path):
    """Where sequences divide, a series of one iteration each is the job of one, but for the names."""
    one, other = Drawn(1, 2, 2, 1, 1), Drawn(2, 1, 1, 2, 1)
    rows = Rows(["2x20 2x7,"], [",2@20 2@31,2x20@0"])
    text = text_of((one, other))
    served = text.replace("prefill 6 x 20", "prefill 2 x 20, prefill 2 x 7")
    served = served.replace(
        "decode 6 at 20 from prefill", "decode 2 at 20 from prefill, decode 2 at 31"
    )
    with pytest.raises(CompileError):  # without a series nothing may be left behind
        compile_pools(parse_text(served), None, {})
    rows = Rows(["2x20 2x7,"], [",2@20 2@7 2@31,2x20@0 2x7@0"])
    served = served.replace("decode 2 at 31", "decode 2 at 7 from prefill, decode 2 at 31")
    series, alone = (
        nodes_of(compiled(text, rows, tmp_path).traces),
        nodes_of(compile_pools(parse_text(served), None, {}).traces),
    )
    for rank, nodes in alone.items():
        assert len(series[rank]) == len(nodes)
        for mine, theirs in zip(series[rank], nodes, strict=True):
            assert mine.name.rpartition("/i")[0] in ("", theirs.name)
            said, other_said = attributes(mine), attributes(theirs)
            for values in (said, other_said):
                values.pop("comm_tag", None)
            assert said == other_said
            assert [*mine.ctrl_deps] == [*theirs.ctrl_deps]
            assert [*mine.data_deps] == [*theirs.data_deps]


def test_times_are_on_one_axis(tmp_path: Path):
    """What nobody waits for takes what it takes alone; what waits begins behind what it waits for."""
    one, other = Drawn(1, 2, 1, 1, 1), Drawn(1, 1, 1, 1, 1)
    rows = Rows(["2x3000,", "1x9000,"], [",2@20,", ",2@21 1@9000,1x9000@1", ",2@22 1@9001,"])
    series = compiled(text_of((one, other)), rows, tmp_path)
    times = times_of_series(series)
    alone = [0.0] * 3
    for part, each in enumerate(series.pools["decode"].parts):
        for at, took in zip(
            np.flatnonzero(series.pools["decode"].which == part),
            Clock(each).times_us(),
            strict=True,
        ):
            alone[int(at)] = float(took)
    decode, prefill = times["decode"], times["prefill"]
    assert prefill.begin_us[1] == prefill.end_us[0]
    assert decode.end_us[0] == pytest.approx(alone[0])
    assert decode.end_us[1] > prefill.begin_us[1]
    assert decode.waited_us[1] == pytest.approx(decode.end_us[1] - decode.begin_us[1] - alone[1])
    assert decode.end_us[2] - decode.begin_us[2] == pytest.approx(alone[2])


@pytest.mark.parametrize("seed", some(range(3), 3))
def test_the_batcher_says_which_iteration_goes_on_with_which(seed: int, tmp_path: Path):
    """Every sequence that wants more than one token is taken once, from the iteration that completes its prompt."""
    rng = random.Random(seed)
    requests = [Request(rng.random(), rng.randint(1, 60), rng.randint(1, 5)) for _ in range(30)]
    policy = Policy(tokens=64, sequences=8, block=4, blocks=40)
    one, two = (BatchedPool(engines, lambda _: 0.01) for engines in (1, 2))
    prompts, further = batch_pools(requests, policy, one, two, lambda count: 1e-5 * count)
    taken = Counter[int]()
    lines = rows_of(further).splitlines()
    assert lines[0] == "prefill,decode,taken"
    for line in lines[1:]:
        for word in line.split(",")[2].split():
            number, _, rest = word.partition("x")
            taken[int(rest.partition("@")[0])] += int(number)
    assert taken == Counter(each.prompt for each in requests if each.output > 1)
    rows = Rows(rows_of(prompts).splitlines()[1:], lines[1:])
    series = compiled(text_of((Drawn(1, 2, 1, 1, 1), Drawn(2, 1, 1, 1, 1))), rows, tmp_path)
    assert sum(each.count for each in series.handovers) == sum(taken.values())
    write_traces(encode_traces(series.traces), str(tmp_path / "traces"))
    assert not check_traces(str(tmp_path / "traces")).findings


@pytest.mark.parametrize(
    ("prefill", "decode", "said"),
    [
        ("2x20,", ",2@20,2x20@1", "there is no iteration 1 of `prefill`"),
        (
            "2x20,",
            ",3@20,3x20@0",
            "iteration 0 of `prefill` leaves 2 sequences of 20 positions, and 3 are taken",
        ),
        (
            "2x20,",
            ",2@21,2x20@0",
            "2 sequences of 20 positions are taken, and the iteration goes on with 0",
        ),
        ("2x20,", ",2@20,20@0", "`20@0` says nothing that is taken"),
        ("2x20,", ",2@20,0x20@0", "`0x20@0` says nothing that is taken"),
    ],
)
def test_what_no_iteration_completes_is_an_error_with_its_line(
    prefill: str, decode: str, said: str, tmp_path: Path
):
    text = text_of((Drawn(1, 1, 1, 1, 1), Drawn(1, 1, 1, 1, 1)))
    with pytest.raises(CompileError) as caught:
        compiled(text, Rows([prefill], [decode]), tmp_path)
    (found,) = caught.value.diagnostics
    assert found.code == "E0421"
    assert found.message == said
    assert found.span is not None
    assert (found.span.file.rpartition("/")[2], found.span.line) == ("rows.decode.csv", 2)


def test_how_many_microbatches_there_are_is_said_before(tmp_path: Path):
    """Of so many sequences there are none: an iteration of a pool is a row on each device, and the other pool has to know how many there are."""
    pools = Drawn(1, 1, 1, 1, 1), Drawn(1, 1, 1, 1, 1)
    text = text_of(pools).replace("serve { prefill", "microbatch 2\nserve { prefill", 1)
    rows = Rows(["4x20,", "2x20,"], [",2@20,2x20@0"])
    with pytest.raises(CompileError, match="microbatches = 2") as caught:
        compiled(text, rows, tmp_path)
    assert {each.code for each in caught.value.diagnostics} == {"E0308"}
