"""What `stagec calibrate` reads, and what it says of what it cannot read."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stagec.backend.et_def_pb2 import AttributeProto, GlobalMetadata, Node, NodeType
from stagec.backend.node_records import varint
from stagec.calibrate.folder import COLUMNS, FILES, Reader, added, read_file, read_folder
from stagec.calibrate.traces import read_trace
from stagec.cli import main
from stagec.devices import load
from stagec.diagnostics import CompileError

CELLS = {
    "role": "primary",
    "dtype": "bf16",
    "cache": "bf16",
    "pass": "forward",
    "kernel": "flash2",
    "collective": "all_reduce",
    "library": "nccl",
    "op": "scale_matrix",
    "mode": "normal",
    "phase": "dispatch",
    "distribution": "balanced",
    "kernel_source": "",
    "window": "0",
    "ms": "0.5",
}
"""What stands in columns, where it is not a number of 64."""


@pytest.mark.parametrize("name", COLUMNS)
def test_a_table_needs_the_columns_that_it_is_said_to_need(name: str, tmp_path: Path) -> None:
    needed, optional = (names.split() for names in COLUMNS[name])
    path = tmp_path / name

    def read(columns: list[str]) -> int:
        row = [CELLS.get(column, "64") for column in columns]
        path.write_text("\n".join(",".join(words) for words in (columns, row)) + "\n")
        return len(list(read_file(path, *FILES[name])))

    assert read(needed + optional)
    assert read(needed)
    for column in needed:
        with pytest.raises(CompileError) as found:
            read([each for each in needed if each != column])
        assert found.value.diagnostics[0].message == f"`{name}` has no column `{column}`"


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("dtype,m,n,k\nbf16,8,8,8\n", "1:1", "`gemm.csv` has no column `ms`"),
        ("dtype,m,n,k,ms\nbf16,8,8,8\n", "2:1", "this row has 4 cells, and the head 5"),
        ("dtype,m,n,k,ms\nbf16,8,8,8,1,2\n", "2:1", "this row has 6 cells, and the head 5"),
        ("dtype,m,n,k,ms,ms\nbf16,8,8,8,1,2\n", "1:1", "two columns are `ms`"),
        ("dtype,m,n,k,ms\nbf16,8, 8x,8,1\n", "2:9", "`n` is `8x`, and no whole number"),
        ("dtype,m,n,k,ms\nbf16,8,8,8.5,1\n", "2:10", "`k` is `8.5`, and no whole number"),
        ("dtype,m,n,k,ms\n\nbf16,8,8,8,inf\n", "3:12", "`ms` is `inf`, and no time"),
        ("dtype,m,n,k,ms\nbf17,8,8,8,1\n", "2:1", "`dtype` is `bf17`"),
        ("role,dtype,m,n,k,ms\nthird,bf16,8,8,8,1\n", "2:1", "`role` is `third`"),
        ("dtype,m,n,k,ms\nbf16,8,8,8,0\n", "", "nothing that was measured is a table"),
        ("dtype,m,n,k,ms\nbf16,8,8,8,1\n", "", "no table has 5 rows"),
    ],
)
def test_mistakes_in_a_table(
    text: str, place: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One mistake, at the cell or the row; no file is written."""
    path, out = tmp_path / "gemm.csv", tmp_path / "own.toml"
    path.write_text(text)
    assert main(["calibrate", "h100", str(path), "-o", str(out)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error[E0418]: {says}")
    assert said.count("error") == 1
    assert not place or f" --> {path}:{place}\n" in said
    assert "= help: " in said
    assert not out.exists()


@pytest.mark.parametrize("head", ["gpu,op,tokens,hidden", "gpu,op,tokens,hidden,ms"])
def test_rows_of_another_device_are_left_out_whatever_they_say(
    head: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "layer_ops.csv"
    row = ["a100", "add", "8", "8", "abc"][: head.count(",") + 1]
    path.write_text(f"{head}\n{','.join(row)}\n")
    assert main(["calibrate", "h100", str(path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error[E0418]: nothing that was measured is a table")
    assert "left out: rows whose `gpu` is not `h100` (1)" in said


READERS: Mapping[str, tuple[Reader, ...]] = {**FILES, "layer_ops.csv": (added("h100"),)}
LAYER_OPS = {"gpu": "h100", "op": "add"}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", READERS)
def test_any_table_is_read_or_is_a_mistake(name: str, seed: int, tmp_path: Path) -> None:
    """Whatever stands in a cell, and whichever column is not there."""
    draws = random.Random(f"{name} {seed}")
    known = " ".join(COLUMNS.get(name, ("gpu op tokens hidden ms",))).split()
    head = [each for each in known if draws.random() < 0.95]
    usual = CELLS if name in FILES else CELLS | LAYER_OPS
    rows = [
        [
            draws.choice(["", "abc", "0", "-1", "nan"])
            if draws.random() < 0.1
            else usual.get(column, "64")
            for column in head
        ]
        for _ in range(4)
    ]
    (tmp_path / name).write_text("\n".join(",".join(words) for words in (head, *rows)) + "\n")
    try:
        assert len(list(read_file(tmp_path / name, *READERS[name]))) >= len(rows)
    except CompileError as error:
        assert [each.code for each in error.diagnostics] == ["E0418"]


def test_a_table_of_a_spreadsheet(tmp_path: Path) -> None:
    """With the mark that some programs put in front, and spaces around words."""
    (tmp_path / "memory.csv").write_bytes(b"\xef\xbb\xbfbytes, ms\r\n 1024 , 0.5\r\n")
    rows = list(read_file(tmp_path / "memory.csv", *FILES["memory.csv"]))
    assert rows == [(("memory",), (1024.0,), 500.0, "primary")]


@pytest.mark.parametrize("kernels", ["eager", "fused"])
def test_a_trace_that_stagec_wrote(kernels: str, tmp_path: Path) -> None:
    """Its collectives and copies take what they were priced at, but for whole µs."""
    device = f"h100 {{ kernels = {kernels} }}"
    flags = ["--plan", "dp4_tp8", "--set", "L=2", "--ranks", "0", "--durations", "-q"]
    assert main(["gpt", *flags, "--device", device, "-o", str(tmp_path)]) == 0
    h100, trace = load("h100"), next(tmp_path.glob("*.et"))
    found = read_trace(trace, 8, Counter())
    assert {"all_gather", "reduce_scatter"} <= {key[-1] for key in found}
    assert ("memory",) in found
    for measured in found.values():
        assert np.abs(measured.estimated_us(h100) - measured.us).max() <= 0.5
    # The groups of `dp` leave nodes of eight.
    ranks = read_trace(trace, None, Counter())["collective", "all_reduce"].sizes["gpus"]
    assert 4 in ranks
    assert 4 not in found["collective", "all_reduce"].sizes["gpus"]


def attribute(name: str, value: int | str) -> AttributeProto:
    if isinstance(value, str):
        return AttributeProto(name=name, string_val=value)
    return AttributeProto(name=name, int64_val=value)


def written(path: Path, *nodes: Node) -> Path:
    records = [each.SerializeToString() for each in (GlobalMetadata(version="0.0.4"), *nodes)]
    path.write_bytes(b"".join(varint(len(record)) + record for record in records))
    return path


def operator(number: int, name: str, shapes: object, types: object, *us: int) -> list[Node]:
    """An operator of PyTorch and its kernels, as Chakra's converter writes them."""
    found = Node(id=number, name=name, type=NodeType.COMP_NODE, duration_micros=3)
    found.inputs.shapes, found.inputs.types = str(shapes), str(types)
    found.attr.append(AttributeProto(name="is_cpu_op", bool_val=True))
    kernels = [
        Node(
            id=number + each,
            name="sm90_kernel",
            type=NodeType.COMP_NODE,
            duration_micros=one,
            ctrl_deps=[number],
            inputs=found.inputs,
            attr=[AttributeProto(name="is_cpu_op", bool_val=False)],
        )
        for each, one in enumerate(us, 1)
    ]
    return [found, *kernels]


def test_a_trace_of_pytorch_as_chakra_has_it(tmp_path: Path) -> None:
    """Kernels have the shapes of the operator that launched them; what an all-gather puts in is a rank's part."""
    half = "Tensor(c10::BFloat16)"
    gather = Node(id=90, name="nccl", type=NodeType.COMM_COLL_NODE, duration_micros=70)
    gather.attr.extend(
        [attribute("comm_type", 2), attribute("comm_size", 1000), attribute("pg_name", "1")]
    )
    (tmp_path / "comm_group.json").write_text('{"1": [0, 1, 2, 3], "2": [0, 8]}')
    path = written(
        tmp_path / "run.0.et",
        *operator(10, "aten::mm", [[64, 32], [32, 128]], [half, half], 20, 5),
        *operator(
            20, "aten::addmm", [[96], [64, 32], [32, 96], [], []], [half] * 3 + ["Int"] * 2, 9
        ),
        *operator(30, "aten::linear", [[64, 32], [128, 32]], [half, half], 11),
        *operator(40, "aten::add_", [[64, 32], [64, 32], []], [half, half, "Int"], 4),
        *operator(50, "aten::copy_", [[64, 32], [64, 32], []], ["Tensor(float)", half, "Bool"], 6),
        *operator(60, "aten::sort", [[64, 32]], [half], 6),
        *operator(70, "aten::mm", "no list", [half, half], 20),
        gather,
    )
    found = read_trace(path, 8, Counter())
    product = found["product", "bf16"]
    assert sorted(zip(*(c.tolist() for c in product.sizes.values()), product.us, strict=True)) == [
        (64, 96, 32, 9),
        (64, 128, 32, 11),
        (64, 128, 32, 25),
    ]
    moved = found["memory",]
    assert sorted(zip(moved.sizes["bytes"], moved.us, strict=True)) == [
        (64 * 32 * 6, 4),
        (64 * 32 * 6, 6),
    ]
    gathered = found["collective", "all_gather"]
    assert (gathered.sizes["gpus"], gathered.sizes["bytes"], gathered.us) == (4, 4000, 70)


def kineto() -> list[dict[str, Any]]:
    """Events of `torch.profiler`: two operators, their kernels, and two collectives."""

    def launched(number: int, us: float, **more: object) -> dict[str, Any]:
        return {"cat": "kernel", "dur": us, "args": {"External id": number, **more}}

    def operator(number: int, name: str, dims: object, types: object) -> dict[str, Any]:
        arguments = {"External id": number, "Input Dims": dims, "Input type": types}
        return {"cat": "cpu_op", "name": name, "dur": 1, "args": arguments}

    reduced = {"Collective name": "allreduce", "In msg nelems": 512, "Out msg nelems": 512}
    half = "c10::BFloat16"
    return [
        operator(1, "aten::mm", [[64, 32], [32, 128]], [half, half]),
        operator(2, "aten::mul", [[64, 32], [64, 32]], [half, half]),
        launched(1, 20.5),
        launched(1, 5),
        launched(2, 4),
        launched(3, 70, **reduced, **{"Group size": 4, "Process Group Ranks": "[0, 1, 2, 3]"}),
        launched(4, 90, **reduced, **{"Group size": 2, "Process Group Ranks": "[0, 8]"}),
    ]


def read_kineto(path: Path, events: object) -> Mapping[tuple[str, ...], list[float]]:
    path.write_text(json.dumps({"traceEvents": events}))
    return {key: rows.us.tolist() for key, rows in read_trace(path, 8, Counter()).items()}


TIMED = ((9, 3), (77, 3), (1, 0))
"""Kernels: of an operator without a table, of none, and one without a time."""


def test_what_no_table_is_made_of_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each row, kernel and operator is in a table or among those that are left out, with the reason."""
    rows = [f"{m},1024,1024,bf16,{m / 1e5}" for m in (64, 128, 256, 512, 1024, 2048)]
    rows[2:2] = ["8,8,8,bf16,0", "8,8,8,bf16,0.0"]
    path = tmp_path / "gemm.csv"
    path.write_text("\n".join(["m,n,k,dtype,ms", *rows]))
    (tmp_path / "quantize.csv").write_text("m,k,ms\n8,8,0\n")
    assert main(["calibrate", "h100", str(tmp_path)]) == 0
    two, one = (f"rows of `{name}.csv` whose `ms` is 0, as if" for name in ("gemm", "quantize"))
    said = capsys.readouterr().err
    assert said.startswith(f"note: left out: {two} a clock had missed them (2), {one} ")
    assert said.count("\n") == 1
    left_out: Counter[str] = Counter()
    said_of = {"External id": 9, "Input Dims": [[64, 32]], "Input type": ["c10::BFloat16"]}
    events = [
        *kineto(),
        {"cat": "cpu_op", "name": "aten::native_layer_norm", "dur": 1, "args": said_of},
        *({"cat": "kernel", "dur": us, "args": {"External id": n}} for n, us in TIMED),
    ]
    trace = tmp_path / "run.json"
    trace.write_text(json.dumps({"traceEvents": events}))
    found = read_trace(trace, 8, left_out)
    assert left_out == {
        "collectives that leave a node": 1,
        "operators of which no table is made": 1,
        "kernels of no operator that the trace has": 1,
        "kernels without a time": 1,
    }
    assert sum(len(each.us) for each in found.values()) == 3


@pytest.mark.parametrize("seed", range(10))
def test_no_row_is_lost(seed: int, tmp_path: Path) -> None:
    """Of rows drawn at random, with and without times: as many as there are, in tables and left out."""
    draws, left_out = random.Random(seed), Counter[str]()
    times = [draws.choice(["0", "0.5", "2"]) for _ in range(draws.randrange(1, 30))]
    rows = [f"{draws.randrange(1, 99)},8,{ms},computescale" for ms in times]
    (tmp_path / "quantize.csv").write_text("\n".join(["m,k,ms,op", *rows]))
    found = read_folder(tmp_path, left_out)
    assert sum(len(each.us) for each in found.values()) == len(times) - times.count("0")
    assert sum(left_out.values()) == times.count("0")


def test_a_trace_of_kineto(tmp_path: Path) -> None:
    assert read_kineto(tmp_path / "run.json", kineto()) == {
        ("product", "bf16"): [25.5],
        ("memory",): [4.0],
        ("collective", "all_reduce"): [70.0],
    }


@pytest.mark.parametrize("seed", range(40))
def test_a_trace_of_kineto_that_says_something_else(seed: int, tmp_path: Path) -> None:
    """Whatever stands in a place of an event, it is left out, or the trace is none."""
    draw = random.Random(seed)
    events: list[Any] = kineto()
    other = draw.choice([None, [], [1], {}, "x", -1, 0, True, 1e300, 10**30, [[8, 8], "x"]])
    place = events
    while True:
        key = draw.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if not isinstance(place[key], dict | list) or not place[key] or draw.random() < 0.2:
            break
        place = place[key]
    if isinstance(place, dict) and draw.random() < 0.3:
        del place[key]
    else:
        place[key] = other
    try:
        read_kineto(tmp_path / "run.json", events)
    except CompileError as error:
        assert [each.code for each in error.diagnostics] == ["E0418"]


def test_a_system_without_aiconfigurator_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is silent of nothing: a folder of measurements has no systems."""
    assert main(["calibrate", "h100", str(tmp_path), "--system", "h100_sxm"]) == 1
    assert "error[E0711]: `--system` is of aiconfigurator" in capsys.readouterr().err
