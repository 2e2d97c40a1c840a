"""Plans: compiled, written, checked for all run times, and with all the work in them."""

from __future__ import annotations

import math
import random
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from stagec.backend.encode import encode_traces
from stagec.backend.errors import TraceError
from stagec.backend.et_def_pb2 import NodeType
from stagec.backend.et_file import read_trace
from stagec.backend.writer import WriteOptions, write_traces
from stagec.checking import check_traces
from stagec.checking.deadlock import ANY_TIMES
from stagec.diagnostics import CompileError
from stagec.driver import Compiled, compile_text
from stagec.step_count import MatrixFlops, matrix_flops
from stagec.summary import Summary, summarize
from tests.attack.case import Failure, Kind
from tests.attack.models import MODELS, random_model, random_plan
from tests.differential.random_plans import Drawn
from tests.differential.sweeps import differences
from tests.fidelity.trace import attributes

HARMLESS = {"W0643", "W0638", "W0634"}
"""Sizes so small that some device would take no time for them: what these models have."""
TOO_SMALL = {"E0682"}
"""A single rank, which the target does not run."""


@dataclass(frozen=True)
class Case:
    model: str
    plan: str

    @property
    def text(self) -> str:
        return MODELS[self.model] + self.plan


def make(draw: random.Random) -> Case:
    model = random_model(draw)
    return Case(model, random_plan(draw, model))


@lru_cache
def alone(model: str) -> MatrixFlops:
    """The FLOPs of matrix products of a step on one device."""
    compiled = compile_text(MODELS[model] + "\nplan alone { mesh one = 1 }\n", "attack.stg")
    return matrix_flops(compiled.module, compiled.counts)


def work_of(compiled: Compiled, model: str) -> None:
    """However ranks share the work, and some of them repeat it, the model asks for the same as on one device."""
    found, least = matrix_flops(compiled.module, compiled.counts), alone(model)
    # What traces state is in whole FLOPs: a part that is none counts as one more.
    if not math.isclose(found.model, least.model, rel_tol=1e-3):
        raise Failure(
            f"the model asks for {found.model} FLOPs, and on one device for {least.model}"
        )
    if found.hardware < least.hardware:
        raise Failure(f"all ranks do {found.hardware} FLOPs, and one device does {least.hardware}")


def summary_of(compiled: Compiled) -> Summary:
    return summarize(compiled.module, compiled.counts, compiled.plan.name)


def run(case: Case) -> None:
    try:
        compiled = compile_text(case.text, "attack.stg", "p")
        summary = summary_of(compiled)
        encoded = encode_traces(compiled.trace_set)
    except (CompileError, TraceError):
        return
    work_of(compiled, case.model)
    if sum(c.num_ranks * c.parameters.count for c in summary.classes) < summary.num_parameters:
        raise Failure("the ranks have fewer parameters than the model")
    sent, received = (
        sum(
            c.num_ranks * t.operand_bytes for c in summary.classes for t in c.traffic if t.kind == k
        )
        for k in ("send", "recv")
    )
    if sent != received:
        raise Failure(f"{sent} bytes are sent, {received} received")
    with tempfile.TemporaryDirectory() as directory:
        out = f"{directory}/set"
        write_traces(encoded, out, WriteOptions(executor="serial"))
        report = check_traces(out, jobs=1)
        wrong = {finding.code for finding in report.findings} - HARMLESS - TOO_SMALL
        if wrong:
            raise Failure(report.text())
        is_one = summary.mesh.num_ranks == 1
        if not is_one and report.summary.deadlock != ANY_TIMES:
            raise Failure(f"deadlock: {report.summary.deadlock}")
        counted(summary, encoded.model, out)


def counted(summary: Summary, model: str, out: str) -> None:
    """What is in the files is what the summary says: FLOPs and bytes, of one rank of each class."""
    sizes = [summary.mesh.size(axis) for axis in summary.mesh.axes]
    for each in summary.classes:
        rank = 0
        for axis, size in zip(summary.mesh.axes, sizes, strict=True):
            rank = rank * size + min(each.where.get(axis, (0,)))
        _, nodes = read_trace(f"{out}/{model}.{rank}.et")
        if len(nodes) != each.num_nodes:
            raise Failure(f"{each.name} has {each.num_nodes} nodes, its file {len(nodes)}")
        flops = sum(int(attributes(n)["num_ops"]) for n in nodes if n.type == NodeType.COMP_NODE)
        # A computation of no FLOPs is written as one of 1.
        free = sum(n.type == NodeType.COMP_NODE for n in nodes)
        said = each.matrix_flops + each.other_flops
        if not said <= flops <= said + free:
            raise Failure(f"{each.name}: {said} FLOPs are said, {flops} written")
        sent = [t for t in each.traffic if t.kind not in ("load", "store")]
        types = (NodeType.COMM_COLL_NODE, NodeType.COMM_SEND_NODE, NodeType.COMM_RECV_NODE)
        num = sum(t.count for t in sent)
        written = [int(attributes(n)["comm_size"]) for n in nodes if n.type in types]
        if num != len(written):
            raise Failure(f"{each.name}: {num} communications are said, {len(written)} written")
        # Nothing is written as one byte.
        said = sum(t.operand_bytes for t in sent)
        if not said <= sum(written) <= said + num:
            raise Failure(f"{each.name}: {said} bytes are communicated, {sum(written)} written")
        moved = sum(
            int(attributes(n)["tensor_size"]) for n in nodes if n.type == NodeType.COMP_NODE
        )
        if not each.bytes_moved <= moved <= each.bytes_moved + free:
            raise Failure(f"{each.name}: {each.bytes_moved} bytes are moved, {moved} written")


def smaller(case: Case) -> Iterator[Case]:
    lines = case.plan.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("  ") and not line.startswith("  mesh"):
            rest = [*lines[:number], *lines[number + 1 :]]
            yield Case(case.model, "\n".join(rest) + "\n")


@dataclass(frozen=True)
class Swept:
    """A plan, and the names that are varied."""

    case: Case
    varied: tuple[str, ...]


def make_swept(draw: random.Random) -> Swept:
    case = make(draw)
    axes = re.findall(r"(\w+) = \d+", case.plan.splitlines()[2])
    varied = [f"{draw.choice(axes)}={draw.choice(('1,2,4', '2..4', '1,3'))}"]
    if draw.random() < 0.5:
        varied.append(f"{draw.choice('BSLF')}={draw.choice(('24,48', '12,96'))}")
    return Swept(case, tuple(varied))


def run_swept(swept: Swept) -> None:
    """What a sweep says of a plan is what the plan says that is compiled by itself."""
    text = swept.case.text
    found = differences(Drawn(text, swept.varied), random.Random(len(text)), most=2)
    if found:
        raise Failure("\n".join(found))


def smaller_swept(swept: Swept) -> Iterator[Swept]:
    yield from (replace(swept, varied=swept.varied[k : k + 1]) for k in range(len(swept.varied)))
    yield from (replace(swept, case=case) for case in smaller(swept.case))


PLANS = Kind(
    "plans", make, run, smaller, lambda case: f"model {case.model}\n{case.plan}", seconds=60
)
SWEEPS = Kind(
    "sweeps",
    make_swept,
    run_swept,
    smaller_swept,
    lambda swept: f"{swept.varied} of model {swept.case.model}\n{swept.case.plan}",
    seconds=60,
)
