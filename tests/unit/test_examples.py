"""Every example: compiles with every plan, small in IR, the same each time, and what it writes can run."""

from pathlib import Path

import pytest

from stagec.backend.encode import encode_traces
from stagec.backend.program import TraceSet
from stagec.backend.writer import write_traces
from stagec.checking import check_traces
from stagec.dialects.sched.actions import HostUpdate
from stagec.driver import Stops, compile_model, compile_program
from stagec.frontend import check
from tests.unit.examples import (
    CASES,
    ENDS,
    EXAMPLES,
    FIRST,
    FOLDER,
    compile_example,
    compile_small,
    digest,
    ids,
    is_first,
    is_small,
    parsed,
    plans_of,
    smaller,
)
from tests.unit.seldom import mostly

MOST_NODES = 50_000
"""A set that is written and replayed here has at most so many nodes on all ranks together."""

COMPILED_TWICE = ("gpt", "dit_xl2", "mlp")
"""Examples that are compiled again, to the same bytes; test_cli.py does so in processes of their own."""


def num_nodes(traces: TraceSet) -> int:
    """On all ranks."""
    found = 0
    for each in traces.classes:
        ranks = 1
        for axis, size in zip(traces.mesh.axes, traces.mesh.sizes, strict=True):
            ranks *= len(each.where.get(axis, range(size)))
        found += ranks * int(each.program.first_node[-1])
    return found


@pytest.mark.parametrize(("path", "plan"), mostly(is_first, CASES, 15), ids=ids(CASES))
def test_compiles_to_a_small_program(path: Path, plan: str) -> None:
    example = compile_example(path, plan)
    assert sum(1 for _ in example.module.walk()) < 3000
    assert len(example.trace_set.classes) <= 16


@pytest.mark.seldom
@pytest.mark.parametrize(("path", "plan"), FIRST[::2])
def test_what_a_pass_leaves_verifies(path: Path, plan: str) -> None:
    """Behind each pass, and not behind the last alone: who stops there is shown it."""
    compile_program(check(parsed(path), plan), stops=Stops(after="lower-to-tasks"))


@pytest.mark.parametrize(("path", "plan"), mostly(is_small, ENDS, 3), ids=ids(ENDS))
def test_a_small_version_runs(path: Path, plan: str, tmp_path: Path) -> None:
    example = compile_small(path, plan)
    if path.stem in COMPILED_TWICE and is_small((path, plan)):
        assert digest(example) == digest(compile_model(path, plan, smaller(path, plan)))
    traces = example.trace_set
    encoded = encode_traces(traces)
    if num_nodes(traces) > MOST_NODES:
        # Too large to replay here: its programs at least refer to nothing that comes later.
        for each in traces.classes:
            ends = each.program.first_node[1:]
            assert (each.program.slots < ends[:, None]).all()
        return
    write_traces(encoded, str(tmp_path / "set"))
    report = check_traces(tmp_path / "set", jobs=1)
    nodes = (n for each in traces.classes for s in each.program.segments for n in s.nodes)
    said = {"W0642"} if any(isinstance(node.action, HostUpdate) for node in nodes) else set()
    assert {finding.code for finding in report.findings} == said, report.text()


def test_every_example_has_a_plan() -> None:
    for path in EXAMPLES:
        assert plans_of(path), path


def test_gpt_by_hand() -> None:
    """FLOPs of the README's model on one of its 32 ranks, from its sizes alone.

    Tokens on a data-parallel rank: 16 x 2048. Matrices of a layer: 4 D D + 2 D F = 12 D^2, the head D V, split over tp = 8.
    Forward 2 per multiply-add, backward twice that. Attention, half masked: 2 S^2 D forward, 2.5 times that backward.
    """
    (only,) = compile_example(FOLDER / "gpt.stg", "dp4_tp8").trace_set.classes
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
