"""`stagec diff`: sums of a job are whole, and sets of traces are compared by class of node."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import re
from fractions import Fraction
from pathlib import Path

import pytest

from stagec.backend.program import Mesh
from stagec.checking.trace_file import read_bytes
from stagec.cli import main
from stagec.cli.diff_tables import change_text, shown_amount
from stagec.comparing import traces as comparing_traces
from stagec.comparing.comparison import AmountChange, Section, compare
from stagec.comparing.jobs import (
    WITH_MOST,
    ComparedJob,
    compare_jobs,
    compare_pools,
    job_of,
    joined,
)
from stagec.comparing.labels import Labels, mesh_of_manifest
from stagec.comparing.node_counts import op_name
from stagec.comparing.traces import compare_traces
from stagec.diagnostics import CompileError
from stagec.driver import compile_model, compile_text
from stagec.frontend import parse_text
from stagec.memory import Kind
from stagec.pools import compile_pools
from tests.corpus.good import GOOD, mesh
from tests.corpus.traces import Traces
from tests.unit.seldom import some
from tests.unit.test_pools import drawn, text_of

EXAMPLES = Path(__file__).parents[2] / "examples"
PLANS = {
    f"{path.stem}:{plan}": (path, plan)
    for path in sorted(EXAMPLES.glob("*.stg"))
    for plan in re.findall(r"^plan (\w+)", path.read_text("utf-8"), re.MULTILINE)
}


def written(traces: Traces, directory: Path) -> str:
    directory.mkdir()
    traces.write(directory)
    return str(directory)


def total(job: ComparedJob, number: int, what: str) -> int:
    return sum(row.get(what, 0) for row in job.sections[number].rows.values())


# Jobs


@pytest.mark.parametrize(
    "name",
    some(["gpt:dp4_tp8", "llama3_8b:fsdp64", "llama3_70b:ranks_32k", "llama3_70b:serve_tp8"], 4),
)
def test_parts_add_up_to_the_whole(name: str) -> None:
    path, plan = PLANS[name]
    compiled = compile_model(path, plan)
    job = job_of(compiled)
    whole = job.sections[0].rows["the job",]
    for number in (3, 4):
        for what in ("matrix FLOPs", "other FLOPs", "bytes moved", "communication"):
            assert total(job, number, what) == whole[what], what
    peak = max(each.peak_bytes for each in compiled.memory)
    assert job.sections[0].rows["the rank with most",]["memory"] == peak
    assert total(job, 2, "bytes") == total(job, 3, "memory") == total(job, 4, "memory") == peak
    sent = sum(
        row["bytes before"]
        for (_, kind), row in job.sections[1].rows.items()
        if kind not in ("recv", "load", "store")
    )
    assert sent == whole["communication"]


def test_what_pads_buffers_of_gradients_is_compared() -> None:
    """It stays from step to step, though gradients do not."""
    text = "dim B = 4 dim D = 33 dim F = 3 model Net(x[B, D]) { weight w[D, F] loss = mean(x @ w, over = [B, F]) } "
    text += "plan p { mesh dp = 2 shard B over dp zero 1 over dp { like = megatron } precision { weights = bf16, gradients = fp32 } }"
    compiled = compile_text(text)
    job = job_of(compiled)
    (memory,) = compiled.memory
    assert any(each.kind == Kind.GRADIENTS for each in memory.always)
    assert total(job, 2, "bytes") == total(job, 4, "memory") == memory.peak_bytes


@pytest.mark.seldom
def test_a_job_equals_itself(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(EXAMPLES / "gpt.stg")
    assert main(["diff", model, f"{model}:dp4_tp8"]) == 0
    assert "no difference in FLOPs, communication or memory" in capsys.readouterr().out
    assert main(["diff", model, model, "--set-b", "S=1024"]) == 3
    assert main(["diff", model, model, "--set", "S=1024", "--format", "json"]) == 0


def test_ir_is_compared_as_it_is_edited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(EXAMPLES / "mlp.stg"), "--stop-after", "lower-to-tasks"]) == 0
    text = capsys.readouterr().out
    (tmp_path / "x.mlir").write_text(text)
    for edited, status in ((text, 0), (text.replace('flops "2*', 'flops "4*'), 3)):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(edited.encode())))
        assert main(["diff", str(tmp_path / "x.mlir"), "-"]) == status
    capsys.readouterr()
    assert main(["diff", "-", "-"]) == 1
    assert "standard input is one of the two" in capsys.readouterr().err


def test_a_job_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(EXAMPLES / "gpt.stg")
    assert main(["diff", model, model, "--set-b", "tp=4", "--format", "json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert not found["same"]
    assert found["a"]["mesh"] == {"dp": 4, "tp": 8}
    assert found["b"]["set"] == {"tp": "4"}
    step = {(row["of"], row["what"]): row for row in found["sections"][0]["rows"]}
    assert (step["the job", "ranks"]["a"], step["the job", "ranks"]["b"]) == (32, 16)
    assert not step["the job", "parameters"]["differs"]


@pytest.mark.parametrize("seed", some([1, 2], 2))
def test_pools_together_are_the_sum_of_pools(seed: int) -> None:
    rng = random.Random(seed)
    one, other = (
        compile_pools(parse_text(text_of(*drawn(rng.randrange(5)))), "p", {}) for _ in "ab"
    )
    pools = {name: job_of(each) for name, each in one.pools.items()}
    others = {name: job_of(each) for name, each in other.pools.items()}
    whole = joined(list(pools.values()))
    for number in (0, 1, 3, 4):
        for what in ("matrix FLOPs", "count", "bytes before", "communication", "nodes"):
            found = [
                sum(
                    row.get(what, 0)
                    for key, row in job.sections[number].rows.items()
                    if key != WITH_MOST
                )
                for job in (whole, *pools.values())
            ]
            assert found[0] == sum(found[1:]), (number, what)
    peaks = [each.peak_bytes for compiled in one.pools.values() for each in compiled.memory]
    assert whole.sections[0].rows[WITH_MOST]["memory"] == max(peaks)
    assert total(whole, 2, "bytes") == total(whole, 3, "memory") == max(peaks)
    # Each pool with the one of its name, and not with another.
    apart = [[*compare_jobs(pools[name], others[name])] for name in pools]
    assert [each.changes for each in compare_pools(pools, others)] == [
        each.changes for found in apart for each in found
    ]


def test_means_are_compared_where_ranks_are_more() -> None:
    before, after = Section("", ("of",), num_ranks=3), Section("", ("of",), num_ranks=6)
    before.add(("x",), bytes=7)
    after.add(("x",), bytes=14)
    assert not compare(before, after).differing
    after.add(("x",), bytes=1)
    (change,) = compare(before, after).differing
    assert change.means == (Fraction(7, 3), Fraction(5, 2))


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        (8, 8, ""),
        (0, 8, "new"),
        (8, 0, "gone"),
        (8, 9, "+ 12.5 %"),
        (9, 8, "- 11.1 %"),
        (8, 32, "x 4"),
        (9, 3, "/ 3"),
        (10**9, 10**9 + 1, "+ 1"),
    ],
)
def test_changes_in_words(before: int, after: int, shown: str) -> None:
    assert change_text(AmountChange(("k",), "count", before, after)) == shown


def test_amounts_in_words() -> None:
    assert shown_amount("bytes", Fraction(2048)) == "2.048 kB"
    assert shown_amount("count", Fraction(5, 2)) == "2.5"
    assert shown_amount("count", Fraction(99_999)) == "99,999"
    assert shown_amount("FLOPs", Fraction(10**12)) == "1.000 T"


# Traces


@pytest.mark.parametrize("name", GOOD)
def test_a_set_equals_itself(name: str, tmp_path: Path) -> None:
    a, b = (written(GOOD[name](), tmp_path / side) for side in "ab")
    found = compare_traces(a, b)
    assert not found.differs
    assert found.same_bytes


def test_one_node_of_one_rank(tmp_path: Path) -> None:
    a, b = mesh(), mesh()
    node = b.find(5, "F0a")
    ops = node.get("num_ops")
    assert isinstance(ops, int)
    node.set("num_ops", ops + 1)
    found = compare_traces(written(a, tmp_path / "a"), written(b, tmp_path / "b"))
    (change,) = found.classes
    assert change.ranks == (5,)
    (flops,) = change.comparison.differing
    assert (flops.key, flops.what) == (("compute", "", op_name("F0a")), "FLOPs")
    assert flops.after == flops.before + 1


def test_order_is_no_difference_of_classes_but_of_bytes(tmp_path: Path) -> None:
    a, b = mesh(), mesh()
    b.find(5, "F1a").ctrl.append(b.find(5, "F0a").id)
    found = compare_traces(written(a, tmp_path / "a"), written(b, tmp_path / "b"))
    assert not found.differs
    assert not found.same_bytes


def test_numbers_of_groups_and_compression_are_no_difference(tmp_path: Path) -> None:
    a, b = mesh(), mesh()
    numbers = {old: str(int(old) + 60) for old in b.groups}
    b.groups = {numbers[old]: members for old, members in b.groups.items()}
    for nodes in b.nodes.values():
        for node in nodes:
            if node.get("pg_name") is not None:
                node.set("pg_name", numbers[str(node.get("pg_name"))], "string")
    first, second = written(a, tmp_path / "a"), written(b, tmp_path / "b")
    for file in list(Path(second).glob("*.et")):
        file.with_suffix(".et.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    found = compare_traces(first, second)
    assert not found.differs
    assert not found.same_bytes


def test_ranks_of_one_side(tmp_path: Path) -> None:
    a, b = mesh(), mesh()
    del b.nodes[7]
    found = compare_traces(written(a, tmp_path / "a"), written(b, tmp_path / "b"))
    assert found.only == ((7,), ())
    assert found.differs


@pytest.mark.seldom
def test_shared_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = Path(written(mesh(), tmp_path / "a"))
    for rank in range(8, 3000):
        os.link(directory / "model.0.et", directory / f"model.{rank}.et")
    num_read = 0

    def counted(path: str) -> object:
        nonlocal num_read
        num_read += 1
        return read_bytes(path)

    monkeypatch.setattr(comparing_traces, "read_bytes", counted)
    assert not compare_traces(str(directory), str(directory)).differs
    assert num_read == 16


@pytest.mark.parametrize("cut", [1, 40, 400])
def test_a_broken_trace_is_refused(cut: int, tmp_path: Path) -> None:
    a, b = mesh(), mesh()
    b.cut[3] = cut
    sides = written(a, tmp_path / "a"), written(b, tmp_path / "b")
    with pytest.raises(CompileError) as error:
        compare_traces(*sides)
    assert [each.code for each in error.value.diagnostics] == ["E0714"]


def test_our_traces_by_axis(tmp_path: Path) -> None:
    model = str(EXAMPLES / "gpt.stg")
    for side, sizes in (("a", ["L=2"]), ("b", ["L=2", "tp=4"])):
        flags = [word for size in sizes for word in ("--set", size)]
        assert main([model, *flags, "-q", "-o", str(tmp_path / side)]) == 0
    found = compare_traces(str(tmp_path / "a"), str(tmp_path / "b"))
    assert found.only == (tuple(range(16, 32)), ())
    keys = {change.key for each in found.classes for change in each.comparison.changes}
    assert ("all_gather", "tp", "fwd/Block/all_gather[bf16]") in keys
    assert {partner for _, partner, _ in keys} == {"", "dp", "tp"}


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("fwd/Block.wq/contract[bf16]/L003/m01", "fwd/Block.wq/contract[bf16]"),
        ("bwd/Block.w2/contract/m01", "bwd/Block.w2/contract"),
        ("transformer.12.mlp@3", "transformer.*.mlp@*"),
        ("layer12_conv2d", "layer*_conv2d"),
        ("", ""),
    ],
)
def test_names_without_numbers(name: str, kept: str) -> None:
    assert op_name(name) == kept


def test_labels_of_groups() -> None:
    shape = Labels({"1": (0, 4), "2": tuple(range(8)), "3": (0, 1, 5)}, 8)
    assert [shape.group(name) for name in ("1", "2", "3", "9", "")] == [
        "2 ranks, 4 apart",
        "all ranks",
        "3 ranks",
        "group 9",
        "all ranks",
    ]
    axes = Labels(shape.members, 8, Mesh(("pp", "dp", "tp"), (2, 2, 2)))
    assert axes.group("1") == "pp"
    assert axes.group("2") == "pp, dp, tp"
    assert axes.group("3") == "pp, tp (3 ranks)"
    assert axes.peer(1, 5) == "pp"
    assert shape.peer(5, 1) == "rank - 4"


@pytest.mark.parametrize(
    "text",
    ["", "[", "[]", '{"mesh": 3}', '{"mesh": {"dp": "x"}}', '{"mesh": {"dp": -1}}', "[" * 9999],
)
def test_a_manifest_of_others_names_no_mesh(text: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(text)
    assert mesh_of_manifest(str(tmp_path)) is None
