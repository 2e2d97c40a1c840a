"""Whole sets: targets, groups, deadlock whatever the times, and what is reported."""

import json
from pathlib import Path

import pytest

from stagec.checking import check_traces, deadlock, program, replay, symmetry
from stagec.checking.findings import Findings, Place, ranges
from stagec.checking.symmetry import color_ranks
from tests.corpus import mutations
from tests.corpus.good import GOOD, Rank, mesh
from tests.corpus.traces import ALL_REDUCE, Node, Traces


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("set")


def codes(report) -> set[str]:
    return {finding.code for finding in report.findings}


def write(traces: Traces, directory: Path) -> Path:
    traces.write(directory)
    return directory


def two_streams(ranks: int = 4) -> Traces:
    """Collectives over rows and columns of a square, not ordered with each other."""
    traces = Traces({}, {"1": [0, 1], "2": [2, 3], "3": [0, 2], "4": [1, 3]})
    for rank in range(ranks):
        row, column = ("1", "1", "2", "2")[rank], ("3", "4", "3", "4")[rank]
        build = Rank()
        work: Node | None = None
        for step in range(4):
            early = build.comp(f"early{step}", work)
            late = work = build.comp(f"late{step}", early)
            early.set("num_ops", 10**9)
            late.set("num_ops", 10**9)
            build.coll(f"column{step}", ALL_REDUCE, 4096, column, late)
            build.coll(f"row{step}", ALL_REDUCE, 4096, row, early)
        traces.nodes[rank] = build.nodes
    return traces


def test_run_times_that_differ_are_tried_on_request(directory: Path) -> None:
    write(two_streams(), directory)
    report = check_traces(directory)
    assert not report.findings
    unproved = "not proved for all (rank 0 may issue nodes 2 and 3 in either order)"
    assert report.summary.deadlock == f"{deadlock.ONE_REPLAY}, {unproved}"
    # With times of their own, one rank may be at its row while another is at its column.
    stressed = check_traces(directory, stress=20)
    assert codes(stressed) == {"W0660"}
    (finding,) = stressed.findings
    detail = finding.places[0].first.detail
    assert detail.startswith("with random times")
    assert "waits for rank" in detail
    assert check_traces(directory, stress=20).json() == stressed.json()


def test_ordered_communication_needs_no_trial(directory: Path) -> None:
    traces = two_streams()
    for nodes in traces.nodes.values():
        last: Node | None = None
        for node in nodes:
            if node.get("pg_name"):
                node.ctrl += [last.id] if last else []
                last = node
    report = check_traces(write(traces, directory), stress=20)
    assert not report.findings
    assert report.summary.deadlock == deadlock.ANY_TIMES


def test_a_deadlock_is_explained(directory: Path) -> None:
    traces = Traces({}, {"1": [0, 1], "2": [0, 1]})
    for rank in (0, 1):
        build = Rank()
        work = build.comp("work")
        for group in ("12", "21")[rank]:
            build.coll(f"on{group}", ALL_REDUCE, 4096, group, work)
        traces.nodes[rank] = build.nodes
    (finding,) = check_traces(write(traces, directory)).findings
    assert finding.code == "E0661"
    assert finding.places[0].first.detail.split("\n") == [
        "rank 0: node 1 `on1` waits for rank 1 in group `1`",
        "rank 1: node 2 `on1` is ready, but node 1 has the slot",
        "rank 1: node 1 `on2` waits for rank 0 in group `2`",
        "rank 0: node 2 `on2` is ready, but node 1 has the slot",
    ]


@pytest.mark.parametrize("name", GOOD)
def test_one_rank_of_each_color_stands_for_all(
    name: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks of one color do everything at the same time as the one that is replayed."""
    ends: list[dict[int, list[float]]] = []

    class Timed(replay.Replay):
        def run(self) -> bool:
            done: dict[int, list[float]] = {}
            finish = self._finish

            def record(color: int, node: int) -> None:
                done.setdefault(color, []).append(self._now)
                finish(color, node)

            self._finish = record  # pyright: ignore[reportAttributeAccessIssue]
            result = super().run()
            of_rank = self.coloring.of_rank
            ends.append({rank: sorted(done[of_rank[rank]]) for rank in of_rank})
            return result

    write(GOOD[name](), directory)
    monkeypatch.setattr(deadlock, "Replay", Timed)
    check_traces(directory)
    symmetric = ends[0]
    ends.clear()

    def apart(checked, start):
        return color_ranks(checked, lambda rank: rank)

    monkeypatch.setattr(deadlock, "color_ranks", apart)
    check_traces(directory)
    assert ends[0] == symmetric


def test_long_chains_are_not_refined_for_ever(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(mesh(pp=9, dp=1, tp=1, microbatches=2), directory)
    before = check_traces(directory)
    monkeypatch.setattr(symmetry, "MAX_REFINEMENTS", 1)
    assert check_traces(directory).json() == before.json()


def test_many_groups_cost_no_more_than_few(directory: Path) -> None:
    traces = GOOD["data_parallel"]()
    traces.groups = {str(k + 1): [0, 1, 2, 3] for k in range(400)}
    for rank in traces.nodes:
        build = Rank()
        last: Node | None = None
        for group in traces.groups:
            last = build.coll(f"on {group}", ALL_REDUCE, 64, group, last)
        traces.nodes[rank] = build.nodes
    assert not check_traces(write(traces, directory)).findings


def test_too_many_peers_are_a_finding(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "MAX_SLOTS", 1)
    assert "E0698" in codes(check_traces(write(mesh(), directory)))


def test_large_irregular_sets_are_replayed_without_their_times(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = GOOD["data_parallel"]()
    for rank, nodes in traces.nodes.items():
        nodes[0].set("num_ops", 4096 + rank * 10**12)
    write(traces, directory)
    limit = len(traces.nodes[0])
    monkeypatch.setattr(deadlock, "MAX_REPLAYED_NODES", limit)
    assert check_traces(directory).summary.deadlock == deadlock.ANY_TIMES
    monkeypatch.setattr(deadlock, "MAX_REPLAYED_NODES", limit - 1)
    report = check_traces(directory)
    assert codes(report) == {"W0661"}
    assert not report.has_errors
    assert report.summary.deadlock == deadlock.NOT_CHECKED


def test_other_targets_have_fewer_rules(directory: Path) -> None:
    traces = GOOD["mesh"]()
    traces.find(0, "F0a").set("num_ops", 0)
    for nodes in traces.nodes.values():
        for node in nodes:
            if node.get("pg_name"):
                node.set("pg_name", f"group {node.get('pg_name')}", "string")
    traces.groups = {f"group {name}": members for name, members in traces.groups.items()}
    write(traces, directory)
    assert codes(check_traces(directory)) == {"E0634", "E0641"}
    assert codes(check_traces(directory, target="none")) == set()
    traces.find(0, "reduce").set("comm_size", 8)
    traces.write(directory)
    assert codes(check_traces(directory, target="none")) == {"E0651"}


def test_groups_may_be_elsewhere(directory: Path, tmp_path_factory) -> None:
    write(mesh(), directory)
    other = tmp_path_factory.mktemp("groups") / "of_the_job.json"
    (directory / "comm_group.json").rename(other)
    assert codes(check_traces(directory)) == {"E0642"}
    assert codes(check_traces(directory, comm_group=other)) == set()
    other.rename(directory / "model.json")
    assert codes(check_traces(directory)) == set()
    assert codes(check_traces(directory, comm_group=directory / "none.json")) == {"E0640"}


def test_paths_that_switch_the_groups_off(directory: Path) -> None:
    write(mesh(), directory)
    file = directory / "my_empty_groups.json"
    (directory / "comm_group.json").rename(file)
    assert codes(check_traces(directory, comm_group=file)) == {"W0641"}


def test_a_directory_that_is_none(directory: Path) -> None:
    report = check_traces(directory / "nowhere")
    assert codes(report) == {"E0690"}
    assert codes(check_traces(directory)) == {"E0690"}


def test_thousands_of_ranks_share_a_finding(directory: Path) -> None:
    nodes = GOOD["data_parallel"]().nodes[0]
    nodes[0].set("num_ops", 0)
    traces = Traces({rank: nodes for rank in range(300)})
    report = check_traces(write(traces, directory))
    (finding,) = report.findings
    assert finding.count == 300
    assert len(finding.places) == 1
    assert report.text() == (
        "error[E0634]: `num_ops` of a COMP_NODE is 0\n"
        " --> model.0.et, node 0 `forward0`\n"
        "  = note: on 300 ranks: 0-299\n"
        "  = help: write at least 1 of `num_ops` and `tensor_size`: after a node without either, "
        "the simulator does not start its children\n"
        "\n"
        "300 ranks, 3,000 nodes, 1 program; deadlock: none, whatever the run times\n"
        "1 error, 0 warnings\n"
    )


def test_json(directory: Path) -> None:
    traces = GOOD["data_parallel"]()
    traces.remove(2, "reduce1")
    report = json.loads(check_traces(write(traces, directory)).json())
    assert report["version"] == 1
    assert (report["num_errors"], report["num_warnings"]) == (1, 0)
    (finding,) = report["findings"]
    assert (finding["code"], finding["severity"], finding["ranks"]) == ("E0648", "error", "2")
    (place,) = finding["places"]
    assert (place["file"], place["rank"], place["name"]) == ("model.2.et", 2, "reduce0")
    assert report["summary"]["nodes"] == 39


def test_what_traces_say_cannot_control_a_terminal(directory: Path) -> None:
    traces = GOOD["data_parallel"]()
    traces.find(0, "step").name = "\x1b[2J\nstep"
    traces.find(0, "\x1b[2J\nstep").deps.append(500)
    report = check_traces(write(traces, directory))
    assert "\x1b" not in report.text()
    assert json.loads(report.json())["findings"][0]["places"][0]["name"] == "\x1b[2J\nstep"


def test_findings_are_merged_and_counted() -> None:
    findings = Findings()
    for rank in range(40):
        findings.add("E0634", "m", Place("f", rank, 7, "same"))
        findings.add("E0634", "m", Place("f", rank, rank, "own", "d"))
    findings.add_unshown("E0634", "m", 3, 5)
    findings.add("W0640", "w", Place("g"))
    error, warning = findings.all()
    assert (error.code, error.count, warning.count) == ("E0634", 85, 1)
    assert len(error.places) == 12
    (same,) = [shared for shared in error.places if shared.first.name == "same"]
    assert same.ranks == set(range(40))
    shown = sum(len(shared.ranks) for shared in error.places)
    assert shown + error.unshown == error.count


def test_ranges() -> None:
    assert ranges([]) == ""
    assert ranges([3, 1, 2, 7, 9, 10]) == "1-3, 7, 9-10"
    assert ranges(range(0, 40, 2)) == "0, 2, 4, 6, 8, 10, ..."


@pytest.mark.parametrize("number", [0, 3, 7])
@pytest.mark.parametrize(("base", "node"), [("data_parallel", "reduce0"), ("mesh", "reduce")])
def test_a_group_that_is_a_number_is_the_one_it_spells(
    tmp_path: Path, base: str, node: str, number: int
) -> None:
    found: list[set[str]] = []
    for value, kind in ((str(number), "string"), (number, "int32"), (number, "uint64")):
        traces = GOOD[base]()
        mutations.change(0, node, "pg_name", value, kind)(traces)
        out = tmp_path / kind
        out.mkdir()
        traces.write(out)
        found.append({f.code for f in check_traces(out, jobs=1, target="none").findings})
    assert found[0] == found[1] == found[2]


def test_a_group_is_no_fraction(tmp_path: Path) -> None:
    traces = GOOD["mesh"]()
    mutations.change(0, "reduce", "pg_name", 1.0, "double")(traces)
    traces.write(tmp_path)
    codes = {f.code for f in check_traces(tmp_path, jobs=1, target="none").findings}
    assert codes == {"E0632"}
