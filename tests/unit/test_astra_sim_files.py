"""`--for astra-sim` and `check --log`: docs/astra_sim.md followed up to the binary, for which a script stands in."""

from __future__ import annotations

import json
import math
import os
import random
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from stagec.cli import main
from stagec.driver import compile_text
from stagec.simulators.astra_sim import astra_sim_files, dimensions
from stagec.simulators.logs import read_log, verdict

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "astra_sim.md").read_text()
MODEL = """
dim B = 192
model Net(x[B]) {
  weight w[B]
  loss = mean(x * w, over = B)
}
plan p {
  mesh dp = SIZE
  shard B over dp
  device h100 EXTRA
}
"""
SIMULATOR = """#!/bin/sh
for flag in "$@"; do
  case "$flag" in
    --workload-configuration=*) [ -f "${flag#*=}.0.et" ] || exit 3 ;;
    --*-configuration=*) [ -f "${flag#*=}" ] || exit 4 ;;
  esac
done
mkdir log && cp "$(dirname "$0")"/made/* log/
"""


def files(size: int, extra: str = "", links: str = "") -> dict[str, str]:
    text = MODEL.replace("SIZE", str(size)).replace("EXTRA", extra + links)
    compiled = compile_text(text)
    return astra_sim_files(compiled.trace_set, compiled.plan)


def network(text: str) -> dict[str, list[str]]:
    rows = re.findall(r"^([\w-]+): \[ (.*) \]", text, re.MULTILINE)
    return {name: values.split(", ") for name, values in rows}


@pytest.mark.parametrize(("size", "levels"), [(2, [2]), (8, [8]), (16, [8, 2]), (12, [12])])
def test_network_has_the_levels_of_the_device(size: int, levels: list[int]) -> None:
    """As many NPUs as there are traces; 450 and 50 GB/s in GiB/s."""
    made = files(size)
    found = network(made["network.yml"])
    assert set(found) == {"topology", "npus_count", "bandwidth", "latency"}
    assert [int(n) for n in found["npus_count"]] == levels
    assert math.prod(levels) == size
    assert {len(values) for values in found.values()} == {len(levels)}
    if len(levels) == 2:
        assert float(found["bandwidth"][0]) > float(found["bandwidth"][1])
    system = json.loads(made["system.json"])
    lists = [value for name, value in system.items() if name.endswith("-implementation")]
    assert len(lists) == 4
    assert {len(value) for value in lists} == {len(levels)}
    needed = {"scheduling-policy", "preferred-dataset-splits", "roofline-enabled", "peak-perf"}
    assert needed | {"local-mem-bw"} <= system.keys()


def test_nodes_that_are_not_full_are_told(tmp_path: Path, capsys) -> None:
    """12 ranks on nodes of 8 are simulated at the network's speed; 16, and 12 on nodes of 6, are not."""
    told = {}
    for size, node in ((12, 8), (16, 8), (12, 6), (4, 8)):
        path = tmp_path / "mlp.stg"
        text = MODEL.replace("SIZE", str(size)).replace("EXTRA", f"{{ node = {node} }}")
        path.write_text(text)
        assert (
            main([str(path), "--for", "astra-sim", "-q", "-o", str(tmp_path / f"{size}-{node}")])
            == 0
        )
        told[size, node] = "W0704" in capsys.readouterr().err
    assert told == {(12, 8): True, (16, 8): False, (12, 6): False, (4, 8): False}


PRODUCTS = """
dim B = 512
dim D = 256
dim F = 512
model Net(x[B, D]) {
  weight w[D, F]
  loss = mean(x @ w, over = [B, F])
}
plan p {
  mesh dp = 2
  shard B over dp
  precision { weights = DTYPE }
  device DEVICE
}
"""


@pytest.mark.parametrize(
    ("dtype", "device", "peak"),
    [
        ("fp32", "h100", 66.9),
        ("bf16", "h100", 989.4),
        ("fp32", "h100 { flops_per_s = 1978.8e12 }", 133.8),
        ("fp32", "{ flops_per_s = 1e14, memory_bytes_per_s = 1TB, link_bytes_per_s = 1TB }", 100.0),
    ],
)
def test_the_peak_is_that_of_what_the_plan_multiplies_in(
    dtype: str, device: str, peak: float
) -> None:
    compiled = compile_text(PRODUCTS.replace("DTYPE", dtype).replace("DEVICE", device))
    made = astra_sim_files(compiled.trace_set, compiled.plan)
    assert json.loads(made["system.json"])["peak-perf"] == pytest.approx(peak)


def test_links_of_axes_are_levels() -> None:
    text = MODEL.replace("SIZE", "4, tp = 2").replace(
        "EXTRA", "\n  link dp { bytes_per_s = 10737418240, latency_us = 3 }"
    )
    compiled = compile_text(text)
    levels = dimensions(compiled.trace_set, compiled.plan)
    assert [level.size for level in levels] == [2, 4]
    found = network(astra_sim_files(compiled.trace_set, compiled.plan)["network.yml"])
    # Large transfers reach 0.82 of a link of an H100's node.
    assert (found["bandwidth"][1], found["latency"][1]) == ("8.2", "3000")


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """Its commands, with a script for the binary: it finds every file that it is given."""
    block = re.search(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    assert block
    write, run, check = (shlex.split(line) for line in block[1].strip().split("\n"))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    assert main(write[1:]) == 0
    made = tmp_path / "made"
    made.mkdir()
    nodes = node_counts(capsys.readouterr().out)
    for number, lines in enumerate(parts(log_lines(nodes), 3)):
        (made / f"log.{number}.log").write_text("".join(lines))
    binary = tmp_path / "simulator"
    binary.write_text(SIMULATOR)
    binary.chmod(0o755)
    done = subprocess.run([run[0], str(binary)], capture_output=True, text=True, check=False)
    assert "status 0" in done.stderr
    logs = sorted(str(path) for path in (tmp_path / "traces" / "log").iterdir())
    assert main([*check[1:-1], *logs]) == 0
    assert f"{len(nodes)} of {len(nodes)} ranks have finished" in capsys.readouterr().out
    assert main([*check[1:-1], logs[0]]) == 1
    assert "not" in capsys.readouterr().out


def test_the_visualizer_has_lines_that_it_reads(tmp_path: Path) -> None:
    """The page's filter leaves issues and callbacks, oldest first, in the five columns that Chakra's tool splits."""
    block = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)[-1]
    (command,) = (line for line in block.splitlines() if line.startswith("cat "))
    nodes = {0: 5, 1: 4}
    logs = tmp_path / "typed" / "log"
    logs.mkdir(parents=True)
    lines = [f"[2026-01-01 10:00:00.000] {line}" for line in log_lines(nodes)]
    for number, part in enumerate(parts(lines, 3)):
        path = logs / (f"log.{2 - number}.log" if number < 2 else "log.log")
        path.write_text("".join(part))
        os.utime(path, (number, number))
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    columns = [line.split(",") for line in (tmp_path / "events.log").read_text().splitlines()]
    assert [row[0] for row in columns] == ["issue", "callback"] * sum(nodes.values())
    names = ["sys->id", " tick", " node->id", " node->name"]
    assert all([each.split("=")[0] for each in row[1:5]] == names for row in columns)


def node_counts(shown: str) -> dict[int, int]:
    found = re.search(r"^all +(\d+) +([\d,]+)", shown, re.MULTILINE)
    assert found
    ranks, nodes = found.groups()
    return dict.fromkeys(range(int(ranks)), int(nodes.replace(",", "")))


def log_lines(nodes: dict[int, int]) -> list[str]:
    """As the workload logger of ASTRA-sim writes them."""
    lines: list[str] = []
    for rank, count in nodes.items():
        for node in range(count):
            for event in ("issue", "callback"):
                lines.append(
                    f"[workload] [debug] {event},sys->id={rank}, tick={node}, node->id={node}, "
                    f"node->name=op {node}, node->type=4\n"
                )
        lines.append(f"[workload] [info] sys[{rank}] finished, 9 cycles, exposed communication 0\n")
    return lines


def parts(lines: list[str], count: int) -> list[list[str]]:
    return [lines[i * len(lines) // count : (i + 1) * len(lines) // count] for i in range(count)]


def test_any_missing_line_is_told() -> None:
    nodes = {0: 3, 1: 4, 2: 2}
    lines = log_lines(nodes)
    complete, is_complete = verdict(read_log(line.encode() for line in lines), nodes)
    assert is_complete, complete
    rng = random.Random(1)
    for _ in range(40):
        left_out = rng.randrange(len(lines))
        kept = [line.encode() for i, line in enumerate(lines) if i != left_out]
        said, is_complete = verdict(read_log(kept), nodes)
        assert is_complete == (",sys->id" in lines[left_out] and "issue" in lines[left_out]), said


def test_where_a_rank_waits() -> None:
    nodes = {0: 2, 1: 2}
    lines = [line for line in log_lines(nodes) if "sys[1]" not in line]
    lines = [x for x in lines if not ("callback" in x and "sys->id=1" in x and "node->id=1" in x)]
    said, is_complete = verdict(read_log(line.encode() for line in lines), nodes)
    assert not is_complete
    assert said[-1] == "rank 1 has not finished: 1 of 2 nodes have run; it waits in node 1 `op 1`"
