"""Files are read once, in parallel, in bounded memory; equal traces cost nothing twice."""

import gzip
import os
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from stagec.checking import check_traces, known_traces, node_decoding, node_table, scan, trace_file
from stagec.checking.analysis import FileSummary, KnownTrace, TraceAnalysis, analyse
from stagec.checking.node_decoding import FileFindings, LoadedTrace, decode_trace
from stagec.checking.scan import Scanner, scan_traces
from stagec.checking.trace_file import find_traces
from stagec.reading import at_once
from tests.corpus.good import mesh
from tests.corpus.traces import Node, Traces, encode_node, encode_trace, varint

WIDTHS = {"comm_src": 3, "comm_dst": 3, "comm_tag": 3}


def trace(nodes: list[Node]) -> bytes:
    """A trace whose ranks, tags and groups have the same width on every rank."""
    out = varint(0)
    for node in nodes:
        message = encode_node(node, WIDTHS)
        out += varint(len(message)) + message
    return out


def analysis(data: bytes) -> TraceAnalysis:
    found = FileFindings()
    buffer = np.frombuffer(data, dtype=np.uint8)
    return analyse(LoadedTrace(decode_trace(buffer, found), False, len(data), found), True)


def patched(first: bytes, second: bytes) -> FileSummary | None:
    result = KnownTrace(analysis(first)).patch(np.frombuffer(second, dtype=np.uint8))
    return None if result is None else result.summary


def test_what_differs_between_ranks_is_patched() -> None:
    nodes = mesh(pp=4, dp=2, tp=2, memory=True).nodes
    stage = [nodes[rank] for rank in range(4, 8)]
    for other in stage:
        summary = patched(trace(stage[0]), trace(other))
        assert summary is not None
        assert summary == analysis(trace(other)).summary


@pytest.mark.parametrize(
    "change",
    [
        lambda node: setattr(node, "name", node.name[:-1] + "x"),
        lambda node: node.set("comm_size", 2047),
        lambda node: setattr(node, "type", 6),
        lambda node: node.deps.__setitem__(0, node.deps[0] - 1),
        lambda node: node.set("comm_dst", -1),
        lambda node: setattr(node, "id", 99),
    ],
)
def test_other_differences_are_not(change: Callable[[Node], None]) -> None:
    first = mesh(pp=2, dp=1, tp=1, memory=False)
    other = mesh(pp=2, dp=1, tp=1, memory=False)
    change(other.find(0, "sendF1"))
    data, differs = trace(first.nodes[0]), trace(other.nodes[0])
    assert data != differs
    if len(data) == len(differs):
        assert patched(data, differs) is None


def test_equal_traces_have_one_summary() -> None:
    data = trace(mesh().nodes[0])
    template = KnownTrace(analysis(data))
    result = template.patch(np.frombuffer(data, dtype=np.uint8))
    assert result is template.analysis


def write_wide(directory: Path, ranks: int = 24) -> Traces:
    traces = mesh(pp=3, dp=ranks // 12, tp=4)
    traces.write(directory)
    return traces


def test_each_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_wide(tmp_path)
    (tmp_path / "model.24.et").hardlink_to(tmp_path / "model.0.et")
    (tmp_path / "model.25.et").symlink_to(tmp_path / "model.0.et")
    opened: list[str] = []
    read = trace_file.read_bytes

    def counted(path: str):
        opened.append(os.path.basename(path))
        return read(path)

    monkeypatch.setattr(scan, "read_bytes", counted)
    (found,), _ = find_traces(str(tmp_path))
    result = scan_traces(list(found.files.values()), True, 1, None)
    assert len(opened) == len(set(opened)) == 24
    assert len(result.summaries) == 26
    assert result.summaries[24] is result.summaries[25] is result.summaries[0]


def test_ranks_of_a_class_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = mesh(pp=2, dp=4, tp=4).nodes
    decoded: list[int] = []

    def counted(buffer: np.ndarray, found: FileFindings):
        decoded.append(buffer.size)
        return decode_trace(buffer, found)

    monkeypatch.setattr(scan, "decode_trace", counted)
    scanner = Scanner(astra_sim=True)
    for rank, found in nodes.items():
        path = tmp_path / f"m.{rank}.et"
        # Group ids have one digit or two, so that there are at most four lengths per stage.
        path.write_bytes(trace(found))
        scanner.scan(str(path), {})
    assert len(nodes) == 32
    assert len(decoded) <= 8


def test_processes_find_what_one_does(tmp_path: Path) -> None:
    traces = write_wide(tmp_path)
    traces.find(3, "reduce").set("comm_size", 12)
    traces.find(9, "F0a").set("num_ops", 0)
    traces.write(tmp_path)
    seen: list[tuple[int, int]] = []
    alone = check_traces(tmp_path, jobs=1)
    together = check_traces(tmp_path, jobs=2, progress=lambda done, of: seen.append((done, of)))
    assert alone.json() == together.json()
    assert seen[-1] == (24, 24)


@pytest.mark.seldom
def test_a_reader_that_dies_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_wide(tmp_path)
    read = trace_file.read_bytes

    def deadly(path: str):
        if path.endswith(".7.et"):
            os._exit(9)
        return read(path)

    monkeypatch.setattr(scan, "read_bytes", deadly)
    report = check_traces(tmp_path, jobs=2)
    assert [finding.code for finding in report.findings] == ["E0698"]
    assert [shared.first.rank for shared in report.findings[0].places] == [7]


def test_running_out_of_memory_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wide(tmp_path)

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(scan, "decode_trace", fail)
    report = check_traces(tmp_path)
    assert {finding.code for finding in report.findings} == {"E0698"}


def one_file(directory: Path, data: bytes) -> set[str]:
    (directory / "m.0.et").write_bytes(data)
    (directory / "m.1.et").write_bytes(encode_trace([Node(0, "a", 4)]))
    return {finding.code for finding in check_traces(directory, target="none").findings}


def test_a_gzip_bomb_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "MAX_FILE_BYTES", 8 << 20)
    bomb = gzip.compress(b"\0" * (64 << 20))
    tracemalloc.start()
    assert one_file(tmp_path, bomb) == {"E0698"}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 << 20


def test_millions_of_empty_messages_are_a_finding(tmp_path: Path) -> None:
    assert one_file(tmp_path, b"\0" * (3 << 20)) == {"E0698"}


def test_too_large_a_file_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "MAX_FILE_BYTES", 1 << 20)
    assert one_file(tmp_path, varint(0) + b"\1\0" * (1 << 20)) == {"E0698"}


@pytest.mark.parametrize("compress", [False, True])
def test_large_files_are_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compress: bool
) -> None:
    monkeypatch.setattr(trace_file, "MAPPED_BYTES", 100)
    nodes = [Node(k, f"n{k}", 4, [k - 1] if k else []) for k in range(100)]
    nodes[50].deps.append(4000)
    data = encode_trace(nodes)
    assert one_file(tmp_path, gzip.compress(data) if compress else data) == {"E0621"}


def test_limits_of_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_trace([Node(k, "n", 4, list(range(k))) for k in range(60)])
    assert one_file(tmp_path, data) == set()
    monkeypatch.setattr(node_decoding, "MAX_NODES", 59)
    assert one_file(tmp_path, data) == {"E0698"}
    monkeypatch.setattr(node_decoding, "MAX_NODES", 60)
    assert one_file(tmp_path, data) == set()
    monkeypatch.setattr(node_table, "MAX_DEPENDENCIES", 1000)
    assert one_file(tmp_path, data) == {"E0698"}


def test_templates_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_traces, "TEMPLATE_BYTES", 30_000)
    write_wide(tmp_path)
    scanner = Scanner(astra_sim=True)
    for rank in range(24):
        scanner.scan(str(tmp_path / f"model.{rank}.et"), {})
    assert 1 <= len(scanner._templates) <= 3


KERNEL_LOG = "/proc/kmsg"


def test_what_has_nothing_to_say_is_not_waited_for() -> None:
    """The kernel's log: a regular file by its looks, which a reader would wait at."""
    with suppress(PermissionError), open(KERNEL_LOG, "rb", buffering=0, opener=at_once) as log:
        while log.read(1 << 20):
            pass  # what it has to say
    with pytest.raises(trace_file.TraceFileError) as refused:
        trace_file.read_bytes(KERNEL_LOG)
    assert refused.value.code == "E0691"
