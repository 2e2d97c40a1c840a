"""A series of iterations is its iterations one by one, and sequences that are dealt unevenly are those of each device."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from stagec.backend.bundle import Bundle, from_bytes, to_bytes
from stagec.backend.class_table import unpack
from stagec.backend.encode import encode_traces
from stagec.backend.et_file import TraceReader
from stagec.backend.stamping import make_stamp
from stagec.backend.unroll import unroll
from stagec.backend.writer import iterate_traces
from stagec.cli.inputs import compile_iterations
from stagec.driver import Compiled, compile_model
from stagec.estimate.series import Clock
from stagec.estimate.step import with_durations
from stagec.memory import Kind
from tests.unit.seldom import some
from tests.unit.test_serving import text
from tests.unit.test_serving_experts import MODEL as EXPERTS

Group = tuple[int, int, int]


@dataclass(frozen=True)
class Case:
    dp: int
    tp: int
    pp: int
    window: bool
    iterations: tuple[tuple[Group, ...], ...]
    split: str = ""
    """What microbatches have as many of; nothing without any."""
    cp: int = 1
    """Devices that share the positions of caches."""

    @property
    def plan(self) -> str:
        shared = "shard T over cp context cp { method = partial, interleave = 4 }"
        return f"""
plan p {{
  mesh pp = {self.pp}, dp = {self.dp}, tp = {self.tp}, cp = {self.cp}
  shard B over dp
  shard K over tp
  shard H, F over tp, cp
  {shared if self.cp > 1 else ""}
  {"pipeline L over pp { schedule = forward_only }" if self.pp > 1 else ""}
  precision {{ weights = bf16, cache = fp8 }}
  device h100
  serve {{ decode 1 at 1, block = 16{f", microbatches = 2, split = {self.split}" if self.split else ""} }}
}}
"""


def drawn(seed: int, split: str = "") -> Case:
    rng = random.Random(seed)

    def group() -> Group:
        if rng.random() < 0.5:
            return rng.randint(1, 5), 1, rng.randint(1, 300)
        return rng.randint(1, 3), rng.randint(2, 200), rng.choice([0, rng.randint(1, 90)])

    dp, tp, pp = rng.choice([(1, 1, 1), (1, 4, 1), (2, 2, 1), (1, 2, 3), (3, 1, 1), (2, 1, 3)])
    iterations = tuple(
        ((2 * dp if split else dp, 1, 7), *(group() for _ in range(rng.randint(1, 4))))
        for _ in range(rng.randint(2, 6))
    )
    window = rng.random() < 0.4
    return Case(dp, tp, pp, window, iterations, split, 1 if window else rng.choice([1, 2]))


def line(groups: tuple[Group, ...]) -> str:
    """A line of the file: what is decoded stands first in an iteration, but sums do not mind. Some are verified."""
    prefills, decodes = list[str](), list[str]()
    for n, new, before in groups:
        is_verified = bool(before) and new % 3 == 0
        (decodes if new == 1 or is_verified else prefills).append(f"{n}x{new}@{before}")
    return f"{' '.join(prefills)},{' '.join(decodes)}"


def compiled(case: Case, iterations: tuple[tuple[Group, ...], ...], folder: Path) -> Compiled:
    model, rows = folder / "net.stg", folder / "rows.csv"
    model.write_text(text(case.window) + case.plan)
    rows.write_text("\n".join(["prefill,decode", *map(line, iterations)]) + "\n")
    (found,) = compile_iterations(str(model), str(rows)).parts
    return found


def traces_of(done: Compiled, timed: bool = False) -> dict[int, list]:
    programs = done.trace_set
    if timed and done.num_iterations > 1:
        programs = Clock(done).with_durations()
    elif timed:
        programs = with_durations(programs, done.plan)
    encoded = from_bytes(to_bytes(Bundle(encode_traces(programs)))).traces
    return {rank: list(TraceReader(BytesIO(data), "")) for rank, data in iterate_traces(encoded)}


def most(done: Compiled) -> int:
    """Bytes of the rank that needs most."""
    return max(plan.peak_bytes for plan in done.memory)


def said(node, first: int) -> tuple[object, ...]:
    """All that a node says, with ids counted from the first of its iteration; tags and groups are another matter."""
    values = {a.name: str(a) for a in node.attr if a.name not in ("comm_tag", "pg_name")}
    own = [
        sorted(d - first for d in deps if d > first) for deps in (node.ctrl_deps, node.data_deps)
    ]
    name = node.name.partition("/i")[0]
    return node.id - first, name, node.type, node.duration_micros, own, values


IN_MICROBATCHES = [(seed, split) for seed in range(2) for split in ("tokens", "sequences")]


@pytest.mark.parametrize(
    ("seed", "split"), some([*((seed, "") for seed in range(2)), *IN_MICROBATCHES], 16)
)
def test_a_series_is_its_iterations_one_by_one(seed: int, split: str, tmp_path: Path):
    case = drawn(seed, split)
    timed = seed % 2 == 0
    whole = compiled(case, case.iterations, tmp_path)
    each = [compiled(case, (groups,), tmp_path) for groups in case.iterations]
    assert most(whole) == max(map(most, each))
    series, alone = traces_of(whole, timed), [traces_of(one, timed) for one in each]
    assert all(bool(n.duration_micros) is timed for nodes in series.values() for n in nodes)
    for rank, nodes in series.items():
        number = len(alone[0][rank])
        assert len(nodes) == number * len(alone)
        tags: set[int] = set()
        for at, other in enumerate(alone):
            here = nodes[at * number : (at + 1) * number]
            assert [said(n, at * number) for n in here] == [said(n, 0) for n in other[rank]]
            # It begins when all before it has ended.
            sinks = {n.id for n in other[rank]}
            sinks -= {d for n in other[rank] for d in (*n.ctrl_deps, *n.data_deps)}
            for node, twin in zip(here, other[rank], strict=True):
                before = {d - (at - 1) * number for d in node.ctrl_deps if d <= at * number}
                is_root = not twin.ctrl_deps and not twin.data_deps
                assert before == (sinks if is_root and at else set())
            own = {a.int32_val for n in here for a in n.attr if a.name == "comm_tag"}
            assert not own & tags
            tags |= own


@pytest.mark.parametrize("seed", some(range(6), 4))
def test_classes_that_are_copied_are_as_each_is_made_alone(seed: int, tmp_path: Path):
    """Devices of other sequences share one template, into which each puts its own numbers."""
    rng = random.Random(f"copied {seed}")
    case = replace(drawn(seed), dp=rng.choice([2, 3]), tp=rng.choice([1, 2]), pp=rng.choice([1, 3]))
    many = tuple(((case.dp, 1, 7), *each) for each in case.iterations)
    encoded = encode_traces(compiled(case, many, tmp_path).trace_set)
    for number in rng.sample(range(len(encoded.classes)), len(encoded.classes)):
        traces = encoded.class_traces(number)
        table = unpack(traces.encoded.payload)
        stamp = make_stamp(traces)
        alone = unroll(table, traces.header, traces.tag_span)
        # What ranks leave in a sheet is gone before the next class has it.
        ranks = np.arange(encoded.num_ranks)[: rng.randint(1, 4)]
        assert len(list(stamp.stamp(stamp.rows(ranks), len(ranks)))) == len(ranks)
        with stamp.sheets.sheet(stamp.sizes) as sheet:
            assert bytes(sheet) == bytes(alone.data)
        assert stamp.crc == zlib.crc32(alone.data.data)
        for one, other in zip(stamp.template.columns, alone.columns, strict=True):
            assert one.positions.tolist() == other.positions.tolist()


@pytest.mark.parametrize("seed", some(range(6), 4))
def test_what_is_dealt_out_is_each_devices_own(seed: int, tmp_path: Path):
    """Of each device that has sequences of its own: the costs and the memory of these alone."""
    rng = random.Random(f"dealt {seed}")
    ways, tp = rng.choice([2, 3]), rng.choice([1, 2])
    lengths = [rng.randint(1, 400) for _ in range(rng.randint(ways, 3 * ways))]
    plan = f"""
plan p {{
  mesh dp = WAYS, tp = {tp}
  shard B over dp
  shard H, K, F over tp
  precision {{ weights = bf16, cache = fp8 }}
  device h100
  serve {{ decode COUNT at LENGTHS, block = 16 }}
}}
"""
    window = rng.random() < 0.4

    def served(own: list[int], ways: int) -> Compiled:
        said = plan.replace("WAYS", str(ways)).replace("COUNT", str(len(own)))
        model = tmp_path / "net.stg"
        model.write_text(text(window) + said.replace("LENGTHS", str(own)))
        return compile_model(model)

    whole = served(lengths, ways)
    # Of each kind the sequences are dealt in turn; equal lengths are one kind.
    hands: list[list[int]] = [[] for _ in range(ways)]
    for turn, length in enumerate(sorted(lengths, key=lengths.index)):
        hands[turn % ways].append(length)
    found = traces_of(whole)
    for device, hand in enumerate(hands):
        alone = served(hand, 1)
        own = traces_of(alone)[0]
        assert [said(n, 0) for n in found[device * tp]] == [said(n, 0) for n in own]
        caches = {m.static.num_bytes[Kind.CACHE] for m in alone.memory}
        (of_device,) = (
            m for m in whole.memory if not m.where or device in m.where.get("dp", (device,))
        )
        assert {of_device.static.num_bytes[Kind.CACHE]} == caches
        assert of_device.peak_bytes == alone.memory[0].peak_bytes


@pytest.mark.parametrize("seed", some(range(3), 3))
def test_a_series_over_experts_is_its_iterations_one_by_one(seed: int, tmp_path: Path):
    """Routers that choose among groups, tokens that do not divide over experts: each iteration is one of the plan."""
    rng = random.Random(f"experts {seed}")
    net, rows = tmp_path / "net.stg", tmp_path / "rows.csv"
    axes = ["shard X over tp", "shard B over tp shard X over tp", "shard F over tp"][seed % 3]
    plan = f"plan p {{ mesh tp = 2 {axes} precision {{ weights = bf16 }} serve {{ decode 2 at 5, experts = average }} }}"
    net.write_text(EXPERTS.replace("to = A)", "to = A, groups = 4, limit = 2)") + plan)

    def kind() -> str:
        return f"{rng.randint(2, 9)}x{rng.randint(1, 9)}"

    lines = [rng.choice([f"{kind()},", f",{kind()}@9", f"{kind()},{kind()}@9"]) for _ in range(4)]

    def served(lines: list[str]) -> dict[int, list]:
        rows.write_text("\n".join(["prefill,decode", *lines]) + "\n")
        return traces_of(compile_iterations(str(net), str(rows)).parts[0])

    series, alone = served(lines), [served([each]) for each in lines]
    for rank, nodes in series.items():
        count = len(nodes) // len(lines)
        for at, other in enumerate(alone):
            here = nodes[at * count : (at + 1) * count]
            assert [said(n, at * count) for n in here] == [said(n, 0) for n in other[rank]]
