"""Every example: compiles with every plan, small in IR, the same each time, and what it writes can run."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stagec.backend.bundle import describe
from stagec.backend.encode import encode_traces
from stagec.backend.program import TraceSet
from stagec.backend.writer import write_traces
from stagec.checking import check_traces
from stagec.driver import Compiled, compile_model
from stagec.frontend import check, parse_file
from tests.unit.plans_of import plans_of

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.stg"))
CASES = [(path, plan) for path in EXAMPLES for plan in plans_of(path)]
IDS = [f"{path.stem}-{plan}" for path, plan in CASES]
ENDS = [(path, plan) for path in EXAMPLES for plan in {plans_of(path)[0]: 0, plans_of(path)[-1]: 0}]
"""The first and the last plan of each example."""

MOST_NODES = 120_000
"""A set that is written and replayed here has at most so many nodes on all ranks together."""


def digest(compiled: Compiled) -> str:
    described = json.dumps(describe(encode_traces(compiled.trace_set)), sort_keys=True)
    return hashlib.sha256(described.encode()).hexdigest()


def num_nodes(traces: TraceSet) -> int:
    """On all ranks."""
    found = 0
    for each in traces.classes:
        ranks = 1
        for axis, size in zip(traces.mesh.axes, traces.mesh.sizes, strict=True):
            ranks *= len(each.where.get(axis, range(size)))
        found += ranks * int(each.program.first_node[-1])
    return found


def smaller(path: Path, plan: str) -> dict[str, str]:
    """The same plan on as few data-parallel ranks as it takes, with as few layers as it has stages."""
    checked, text = check(parse_file(path), plan), path.read_text()
    mesh = checked.plan.mesh
    overrides: dict[str, str] = {}
    if "dp" in mesh and mesh["dp"] > 2:
        overrides["dp"] = "2"
        overrides["B"] = str(max(checked.sizes.known["B"] * 2 // mesh["dp"], 2))
    if "pp" not in mesh or mesh["pp"] == 1:
        overrides |= {count: "2" for count in ("L", "M") if f"repeat {count} " in text}
    return overrides


@pytest.mark.parametrize(("path", "plan"), CASES, ids=IDS)
def test_compiles_to_a_small_program(path: Path, plan: str) -> None:
    compiled = compile_model(path, plan)
    assert sum(1 for _ in compiled.module.walk()) < 3000
    assert len(compiled.trace_set.classes) <= 16


@pytest.mark.parametrize(("path", "plan"), ENDS, ids=[f"{p.stem}-{n}" for p, n in ENDS])
def test_a_small_version_runs(path: Path, plan: str, tmp_path: Path) -> None:
    sizes = smaller(path, plan)
    compiled = compile_model(path, plan, sizes)
    if plan == plans_of(path)[0]:
        assert digest(compiled) == digest(compile_model(path, plan, sizes))
    traces = compiled.trace_set
    encoded = encode_traces(traces)
    if num_nodes(traces) > MOST_NODES:
        # Too large to replay here: its programs at least refer to nothing that comes later.
        for each in traces.classes:
            ends = each.program.first_node[1:]
            assert (each.program.slots < ends[:, None]).all()
        return
    write_traces(encoded, str(tmp_path / "set"))
    report = check_traces(tmp_path / "set", jobs=1)
    assert not report.findings, report.text()


def test_every_example_has_two_plans() -> None:
    for path in EXAMPLES:
        if path.stem != "gpt":
            assert len(plans_of(path)) >= 2, path


def test_bytes_do_not_depend_on_hash_seeds() -> None:
    example = next(path for path in EXAMPLES if path.stem == "gpt2")
    program = (
        "from tests.unit.test_examples import digest; from stagec.driver import compile_model;"
        f"print(digest(compile_model({str(example)!r})))"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(digests) == 1


def test_gpt_by_hand() -> None:
    """FLOPs of the README's model on one of its 32 ranks, from its sizes alone.

    Tokens on a data-parallel rank: 16 x 2048. Matrices of a layer: 4 D D + 2 D F = 12 D^2, the head D V, split over tp = 8.
    Forward 2 per multiply-add, backward twice that. Attention, half masked: 2 S^2 D forward, 2.5 times that backward.
    """
    compiled = compile_model(Path(__file__).parents[2] / "examples" / "gpt.stg")
    (only,) = compiled.trace_set.classes
    tokens, layers, width, vocabulary, length = 16 * 2048, 24, 2048, 32000, 2048
    matrices = 6 * tokens * (layers * 12 * width**2 + width * vocabulary) // 8
    attention = 16 * layers * 2 * length**2 * width * 7 // 2 // 8
    counted = 0
    for segment, runs in zip(
        only.program.segments,
        [int((only.program.segment == i).sum()) for i in range(len(only.program.segments))],
        strict=True,
    ):
        for node in segment.nodes:
            if node.op in ("contract", "attention", "attention_grad"):
                counted += runs * node.action.num_ops  # pyright: ignore
    assert counted == matrices + attention
