"""What `stagec explain` says equals what the emitted traces add up to, for every example under its last plan."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from stagec.backend.encode import encode_traces
from stagec.backend.encoded import TraceOptions
from stagec.backend.et_def_pb2 import CollectiveCommType, NodeType
from stagec.backend.et_file import read_trace
from stagec.backend.program import RankClass, TraceSet
from stagec.backend.ranks import ranks_where
from stagec.backend.writer import WriteOptions, write_traces
from stagec.comparing.jobs import class_totals
from stagec.dialects.memory import STORED
from stagec.driver import Compiled, compile_model
from stagec.explaining.job import NamedJob
from stagec.explaining.memory import KINDS, QUANTITIES
from stagec.explaining.nodes import node
from stagec.explaining.quantities import Answer, total_over_ranks
from stagec.explaining.questions import ask
from stagec.summary import summarize
from tests.fidelity.oracle import axes_of
from tests.fidelity.trace import Traces, attributes
from tests.unit.examples import ENDS, FOLDER, compile_example, compile_small, ids, is_small
from tests.unit.seldom import mostly

LAST = list(dict(ENDS).items())[::3]
"""The last plans of examples."""

FULL_SIZE = [case for case in ENDS if case[0].stem in ("deepseek_v3", "gpt", "llama3_70b")]
"""Two plans each of a few examples."""

MOST_CLASSES = 2
"""Of the classes of a plan, the first and the last are read."""


def read_classes(traces: TraceSet) -> list[RankClass]:
    classes = list(traces.classes)
    return classes if len(classes) <= MOST_CLASSES else [classes[0], classes[-1]]


def add_up(traces: Traces, rank: int) -> Counter[str]:
    """What the nodes of a rank say, by the words of questions."""
    found: Counter[str] = Counter()
    _, nodes = read_trace(traces.directory / f"{traces.model}.{rank}.et")
    for each in nodes:
        said = attributes(each)
        if each.type == NodeType.COMP_NODE and said["is_cpu_op"]:
            continue  # the host's work
        if each.type == NodeType.COMP_NODE:
            found["flops"] += int(said["num_ops"])
            found["bytes"] += int(said["tensor_size"])
            continue
        if each.type in (NodeType.MEM_LOAD_NODE, NodeType.MEM_STORE_NODE):
            continue  # to and from the host
        if each.type == NodeType.COMM_COLL_NODE:
            kind = CollectiveCommType.Name(int(said["comm_type"])).lower()
            axes = axes_of(traces.groups[str(said["pg_name"])], traces.mesh)
        else:
            kind = "send" if each.type == NodeType.COMM_SEND_NODE else "recv"
            axes = axes_of((int(said["comm_src"]), int(said["comm_dst"])), traces.mesh)
        found["comm"] += int(said["comm_size"]) if kind != "recv" else 0
        found[f"comm.{axes}.{kind}"] += int(said["comm_size"])
    return found


def free_nodes(job: NamedJob, number: int, what: str) -> int:
    """Nodes whose trace says 1 because simulators never end one of 0 FLOPs or bytes."""
    terms = [term for term in job.classes[number].terms if term.is_computation]
    if what == "flops":
        return sum(t.count.number for t in terms if not t.amounts.flops.number)
    return sum(
        t.count.number for t in terms if not t.amounts.read.number + t.amounts.written.number
    )


class Questions:
    """A job, and what was asked about it."""

    def __init__(self, compiled: Compiled) -> None:
        self.compiled, self.job = compiled, NamedJob(compiled)
        self.asked: dict[str, Answer] = {}

    def ask(self, what: str) -> Answer:
        if what not in self.asked:
            self.asked[what] = ask(self.job, what)
        return self.asked[what]


@pytest.mark.parametrize(("path", "plan"), mostly(is_small, LAST, 15), ids=ids(LAST))
def test_values_are_those_of_the_traces(path: Path, plan: str, tmp_path: Path) -> None:
    """At small sizes: also the forms, the summary and the plan of memory."""
    questions = Questions(compile_small(path, plan))
    check_traces(questions, tmp_path)
    check_forms(questions)
    check_summary(questions)
    check_memory(questions)


@pytest.mark.parametrize(
    ("path", "plan"),
    mostly(lambda case: case[0].stem != "deepseek_v3", FULL_SIZE, 2),
    ids=ids(FULL_SIZE),
)
def test_values_at_full_size(path: Path, plan: str) -> None:
    questions = Questions(compile_example(path, plan))
    check_forms(questions)
    check_summary(questions)


def check_traces(questions: Questions, folder: Path) -> None:
    job, traces = questions.job, questions.compiled.trace_set
    chosen = read_classes(traces)
    ranks = [int(ranks_where(traces.mesh, each.where)[0]) for each in chosen]
    selection = ",".join(map(str, ranks))
    write_traces(encode_traces(traces), str(folder / "set"), WriteOptions(ranks=selection))
    mesh = dict(zip(traces.mesh.axes, traces.mesh.sizes, strict=True))
    written = Traces(folder / "set", traces.model, mesh)
    for each, rank in zip(chosen, ranks, strict=True):
        number = [c.name for c in job.classes].index(each.name)
        for what, total in add_up(written, rank).items():
            answer = questions.ask(what).classes[number]
            extra = free_nodes(job, number, what) if what in ("flops", "bytes") else 0
            assert answer.value + extra == total, (each.name, what)


def check_forms(questions: Questions) -> None:
    """They come to their values, of each class and of all ranks; parts add up to the whole."""
    job = questions.job
    axes = {"+".join(t.axes) for c in job.classes for t in c.terms if t.axes}
    comm = [f"comm{axis}{m}" for axis in ("", *(f".{a}" for a in axes)) for m in MEASURED]
    for what in ("flops", "flops.matrix", "bytes", "bytes.read", "params", *comm):
        answer = questions.ask(what)
        for each, own in zip(answer.classes, job.classes, strict=True):
            values = {**job.names.values, **own.run.stages[0].values}
            assert each.at_its_place.evaluate(values) == each.value, (what, each.name)
            assert sum(part.value for part in each.parts) == each.value
        whole = total_over_ranks(answer, job.names)
        assert whole.form.evaluate(job.names.values) == whole.number, what


MEASURED = ("", ".count", ".result_bytes", ".sent_bytes")


def check_summary(questions: Questions) -> None:
    compiled, ask = questions.compiled, questions.ask
    summary = summarize(compiled.module, compiled.counts)
    found = {what: ask(what) for what in ("flops.matrix", "flops.other", "bytes", "params", "comm")}
    for number, each in enumerate(summary.classes):
        assert found["flops.matrix"].classes[number].value == each.matrix_flops
        assert found["flops.other"].classes[number].value == each.other_flops
        assert found["bytes"].classes[number].value == each.bytes_moved
        assert found["params"].classes[number].value == each.parameters.count
        assert found["comm"].classes[number].value == class_totals(each)["communication"]
        for row in (row for row in each.traffic if row.axes):  # the others go to the host
            what = f"comm.{'+'.join(row.axes)}.{row.kind}"
            assert ask(what).classes[number].value == row.operand_bytes
            after = ask(f"{what}.result_bytes").classes[number].value
            assert after == row.result_bytes
    whole = found["params"].whole
    assert whole is not None
    assert whole.number == summary.num_parameters


def check_memory(questions: Questions) -> None:
    """Forms come to what the plan of memory says, of each class."""
    job, ask = questions.job, questions.ask
    answers = {what: ask(f"memory.{what}") for what in QUANTITIES}
    peaks = {kind: ask(f"memory.peak.{name}") for name, kind in KINDS.items()}
    for number, each in enumerate(job.memory):
        values = {**job.names.values, **each.stages[0].values}
        for what, answer in answers.items():
            own = answer.classes[number]
            assert own.form.evaluate(values) == own.value, (each.name, what)
        assert answers["peak"].classes[number].value == each.peak_bytes
        assert answers["host"].classes[number].value == sum(each.host_bytes.values())
        assert answers["activations"].classes[number].value == sum(each.saved_bytes)
        for kind in STORED:
            found = answers[kind.name.lower()].classes[number].value
            assert found == each.static.num_bytes[kind], kind
        by_kind = {kind: answer.classes[number].value for kind, answer in peaks.items()}
        assert by_kind == {kind: n for kind, n in each.at_peak().items() if kind in by_kind}


def test_nodes_are_those_of_the_trace(tmp_path: Path) -> None:
    """Every node of a rank: its numbers and its slot."""
    path = FOLDER / "gpt2.stg"
    sizes = {"L": "2", "B": "32", "dp": "2"}
    compiled = compile_model(path, "ddp8", sizes)
    options = TraceOptions(provenance=True)
    write_traces(encode_traces(compiled.trace_set, options), str(tmp_path), WriteOptions(ranks="0"))
    _, nodes = read_trace(tmp_path / f"{compiled.trace_set.model}.0.et")
    job = NamedJob(compiled)
    joined = 0
    for each in nodes[::3]:
        said, answer = attributes(each), node(job, each.id, None)
        numbers = [figure.amount.number for figure in answer.figures]
        for figure in answer.figures:
            values = {**job.names.values, **job.classes[0].run.stages[0].values}
            assert figure.amount.form.evaluate(values) == figure.amount.number
        if each.type == NodeType.COMP_NODE:
            assert max(1, numbers[0]) == said["num_ops"]
            assert max(1, numbers[1] + numbers[2]) == said["tensor_size"]
        else:
            assert numbers[0] == said["comm_size"]
            joined = max(joined, answer.num_joined)
        assert answer.node.location == said.get("location", "")
        assert each.name.startswith(
            "/".join(p for p in (answer.node.phase, answer.node.scope) if p)
        )
    assert joined > 1
