"""Series of attention and experts apart: each iteration is what it is alone, and what each device dispatches, it sends, however much that is."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from stagec.backend.bundle import Bundle, from_bytes, to_bytes
from stagec.backend.encode import encode_traces
from stagec.backend.et_file import TraceReader
from stagec.backend.writer import iterate_traces, write_traces
from stagec.checking import check_traces
from stagec.cli.batch_command import clock_of_parts, make_parser, read_requests, rows_of
from stagec.compiled import CompiledPoolSeries
from stagec.diagnostics import CompileError
from stagec.dialects.sched.actions import Compute
from stagec.estimate.batcher import Policy, batch
from stagec.estimate.pool_series import times_of_series
from stagec.estimate.pools import estimate_pools
from stagec.frontend import parse_file, parse_text
from stagec.frontend.plans.iterations import read_iterations
from stagec.plugins import registry
from stagec.pools import compile_pools
from stagec.pools.series import compile_series_of_parts
from tests.replay.machine import replay
from tests.replay.models import traces_of
from tests.unit.test_experts_apart import WIDTH, Drawn, drawn
from tests.unit.test_series import said

Row = list[list[tuple[int, int, int]]]
"""The sequences of each device with attention."""


def text_of(case: Drawn, split: str) -> str:
    said = f"experts = average, microbatches = {case.microbatches}, split = {split}"
    text = re.sub(r"\n    microbatch \d+", "", case.text)
    return text.replace("experts = average, part", f"{said}, part")


def series_of(text: str, rows: list[Row], folder: Path) -> CompiledPoolSeries:
    lines = ["prefill,decode"]
    for row in rows:
        words = [" ".join(f"{n}x{new}@{before}" for n, new, before in own) for own in row]
        lines.append(f"{'|'.join(words)},")
    file = folder / "rows.csv"
    file.write_text("\n".join(lines) + "\n")
    source = parse_text(text)
    return compile_series_of_parts(
        lambda some: compile_pools(source, "p", {}, iterations=some), read_iterations(str(file))
    )


def nodes_of(series: CompiledPoolSeries) -> dict[int, list]:
    traces = series.pooled(lambda each: each.trace_set)
    encoded = from_bytes(to_bytes(Bundle(encode_traces(traces)))).traces
    return {rank: list(TraceReader(BytesIO(data), "")) for rank, data in iterate_traces(encoded)}


def by_iteration(nodes: list) -> list[list]:
    found: dict[str, list] = {}
    for node in nodes:
        found.setdefault(node.name.rpartition("/i")[2], []).append(node)
    return list(found.values())


def attributes(node) -> dict[str, int]:
    return {a.name: getattr(a, a.WhichOneof("value")) for a in node.attr}


def row_drawn(rng: random.Random, case: Drawn) -> Row:
    def own() -> list[tuple[int, int, int]]:
        kinds = [(rng.randint(1, 4), 1, rng.randint(1, 40)) for _ in range(rng.randint(0, 2))]
        return [*kinds, (rng.randint(1, 3), rng.randint(1, 30), rng.choice([0, 16]))]

    return [own() for _ in range(case.dp)]


@pytest.mark.seldom
@pytest.mark.parametrize("split", ["tokens", "sequences"])
@pytest.mark.parametrize("seed", range(1))
def test_each_iteration_is_what_it_is_alone(seed: int, split: str, tmp_path: Path) -> None:
    rng = random.Random(f"{seed} {split}")
    case = replace(drawn(seed), edp=1)
    rows = [row_drawn(rng, case) for _ in range(rng.randint(2, 5))]
    text = text_of(case, split)
    whole = series_of(text, rows, tmp_path)
    found = nodes_of(whole)
    for at, row in enumerate(rows):
        alone = nodes_of(series_of(text, [row], tmp_path))
        for rank, nodes in found.items():
            here, twins = by_iteration(nodes)[at], alone[rank]
            first = here[0].id - twins[0].id
            assert [said(n, first) for n in here] == [said(n, 0) for n in twins]
    encoded = encode_traces(whole.pooled(lambda each: each.trace_set))
    assert not replay(*traces_of(encoded)).missing
    write_traces(encoded, str(tmp_path / "set"))
    report = check_traces(tmp_path / "set", jobs=1)
    assert all(finding.code.startswith("W") for finding in report.findings), report.text()
    check_tokens(case, rows, found)


def check_tokens(case: Drawn, rows: list[Row], found: dict[int, list]) -> None:
    """A copy of each token of a device for each of its experts travels there, to all devices that have a part of that, and back."""
    element = {"": 2, "fp8": 1}[case.dispatch]
    num_experts = case.ep * case.etp
    first = num_experts if case.experts_first else 0
    for at, row in enumerate(rows):
        sent, got = Counter[int](), Counter[int]()
        for device in range(case.dp):
            for j in range(case.tp):
                nodes = by_iteration(found[first + device * case.tp + j])[at]
                for each in (attributes(n) for n in nodes if n.name.startswith("p2p")):
                    way, end = (sent, "comm_src") if each["comm_src"] == first + device * case.tp + j else (got, "comm_dst")  # fmt: skip
                    assert each[end] == first + device * case.tp + j
                    way[device] += each["comm_size"]
        for device, own in enumerate(row):
            copies = sum(n * new for n, new, _ in own) * case.chosen * WIDTH * case.calls
            # Bytes of a message are whole.
            most = 2 * case.calls * case.microbatches * num_experts * case.tp
            assert 0 <= sent[device] - copies * element * case.etp < most
            assert 0 <= got[device] - copies * 2 * case.tp < most


@pytest.mark.seldom
@pytest.mark.parametrize("seed", range(4))
def test_experts_compute_the_tokens_of_all_devices(seed: int, tmp_path: Path) -> None:
    rng = random.Random(f"tokens {seed}")
    case = replace(drawn(seed), edp=1)
    rows = [row_drawn(rng, case) for _ in range(3)]
    for row in rows:
        (done,) = series_of(text_of(case, "tokens"), [row], tmp_path).pools["experts"].parts
        products = sum(
            int((each.program.segment == index).sum()) * node.action.num_ops
            for each in done.trace_set.classes
            for index, segment in enumerate(each.program.segments)
            for node in segment.nodes
            if isinstance(node.action, Compute) and node.op == "contract"
        )
        tokens = sum(n * new for own in row for n, new, _ in own)
        exact = 4 * tokens * case.chosen * WIDTH * case.hidden * case.calls
        exact /= case.ep * case.etp
        assert exact <= products < exact + 2 * case.calls * case.microbatches


@pytest.mark.seldom
def test_as_many_in_each_is_the_plan_that_says_microbatch(tmp_path: Path) -> None:
    """Of sequences that divide, `microbatch` and `microbatches` are the same traces, and so is a series of that iteration."""
    for seed in range(2):
        case = replace(drawn(seed), edp=1)
        one, other = (
            compile_pools(parse_text(t), "p", {}) for t in (case.text, text_of(case, "tokens"))
        )
        row = [[(case.sequences // case.dp, case.new, case.context)]] * case.dp
        series = series_of(text_of(case, "tokens"), [row], tmp_path)
        for name in one.pools:
            (part,) = series.pools[name].parts
            for own in (other.pools[name], part):
                for a, b in zip(
                    one.pools[name].trace_set.classes, own.trace_set.classes, strict=True
                ):
                    assert costs(a) == costs(b)


def costs(each) -> list[tuple[str, object]]:
    """In issue order, but for how a kernel of attention is described."""
    nodes = [n for s in each.program.segment.tolist() for n in each.program.segments[s].nodes]
    return [
        (
            n.op,
            (n.action.num_ops, n.action.num_bytes) if isinstance(n.action, Compute) else n.action,
        )
        for n in nodes
    ]


@pytest.mark.seldom
def test_times_are_those_of_each_iteration(tmp_path: Path) -> None:
    case = replace(drawn(3), edp=1, dp=2, microbatches=2, takes_turns=True)
    rng = random.Random("times")
    rows = [row_drawn(rng, case) for _ in range(3)]
    text = text_of(case, "tokens")
    found = times_of_series(series_of(text, rows, tmp_path))
    ends = 0.0
    for at, row in enumerate(rows):
        alone = series_of(text, [row], tmp_path)
        ends += estimate_pools({name: each.parts[0] for name, each in alone.pools.items()}).end_us
        for each in found.values():
            assert each.end_us[at] == pytest.approx(ends)


@pytest.mark.seldom
def test_the_clock_of_the_batcher_is_that_of_the_series(tmp_path: Path) -> None:
    """Each device with attention is an engine; what an iteration is estimated to take while it is made, it takes in the series of the file."""
    case = replace(drawn(3), edp=1, dp=2, microbatches=3, takes_turns=True)
    model, requests, out = (tmp_path / name for name in ("net.stg", "requests.csv", "rows.csv"))
    model.write_text(text_of(case, "tokens"))
    requests.write_text("arrival,prompt,output\n0,40,2\n0,9,2\n0,21,1\n0.00001,2,2\n")
    options = make_parser().read(
        [str(requests), str(model), "--plan", "p", "--tokens", "30", "-o", str(out)]
    )
    pool = clock_of_parts(parse_file(model), options, registry(), Policy())
    assert pool.engines == 2
    found = batch(read_requests(str(requests)).requests, Policy(tokens=30), pool)
    out.write_text(rows_of(found))
    source = parse_file(model)
    series = compile_series_of_parts(
        lambda some: compile_pools(source, "p", {}, iterations=some), read_iterations(str(out))
    )
    assert len(series.pools["experts"].parts) > 1
    for times in times_of_series(series).values():
        assert times.end_us / 1e6 == pytest.approx([each.end_s for each in found.iterations])


@pytest.mark.seldom
def test_tokens_are_not_split_again_where_devices_have_other_ones(tmp_path: Path) -> None:
    case = replace(drawn(0), dp=2, edp=2, microbatches=1)
    with pytest.raises(CompileError, match="split again"):
        series_of(text_of(case, "tokens"), [[[(1, 3, 0)], [(1, 4, 0)]]], tmp_path)
