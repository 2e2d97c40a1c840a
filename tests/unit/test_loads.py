"""Experts that are not equally busy: no token is lost, and all members of a group agree on what they exchange."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from stagec.analysis.apportioning import apportion
from stagec.analysis.expert_loads import Loads, shares
from stagec.analysis.sizes import size_values
from stagec.backend.encode import encode_traces
from stagec.backend.program import RankClass
from stagec.backend.writer import write_traces
from stagec.checking import check_traces
from stagec.dialects import dist
from stagec.dialects.sched.actions import Collective, Compute
from stagec.driver import Compiled, compile_text
from stagec.explaining.job import NamedJob
from stagec.explaining.questions import ask
from tests.fidelity.totals import nodes_of, ranks_of
from tests.unit.seldom import some
from tests.unit.test_routing import (
    BATCH,
    EXPERTS,
    FP32,
    LAYERS,
    SENT,
    SEQUENCE,
    WIDTH,
    mesh_plan,
    text,
)

WEIGHTS = st.lists(st.integers(0, 10**6), min_size=EXPERTS, max_size=EXPERTS).filter(any)
HISTOGRAMS = st.lists(WEIGHTS, min_size=1, max_size=LAYERS).filter(lambda h: len(h) in (1, LAYERS))
MESHES = [(1, 2), (2, 2), (1, 8), (2, 4)]


# Dealing out tokens


@given(WEIGHTS, st.integers(0, 10**6), st.integers(1, EXPERTS))
def test_shares_become_whole_tokens_that_add_up(weights: list[int], tokens: int, chosen: int):
    total = tokens * chosen
    counts = apportion(weights, total, tokens)
    assert sum(counts) == total
    assert all(0 <= count <= tokens for count in counts)


@given(WEIGHTS, st.integers(1, 10**6))
def test_no_expert_gets_more_than_one_token_off_its_share(weights: list[int], total: int):
    for weight, count in zip(weights, apportion(weights, total, total), strict=True):
        assert abs(count - Fraction(weight * total, sum(weights))) < 1


def test_what_an_expert_cannot_take_goes_to_the_others_by_their_shares():
    """12 tokens to two experts each: the first wants 20 of 24 and gets 12; 12 are left at 2 : 1 : 1."""
    assert apportion([20, 2, 1, 1], 24, 12) == [12, 6, 3, 3]
    assert apportion([1, 0, 0], 6, 3) == [3, 2, 1]


def test_an_exponent_by_hand():
    """Shares 1, 1/2, 1/3, 1/4 of 25/12, dealt out by a seed: others in another layer, the same ones each time."""
    zipf = dist.Distribution("1", 7)
    found = apportion(sorted(shares(zipf, 4, 0), reverse=True), 100, 100)
    assert found == [48, 24, 16, 12]
    assert shares(zipf, 64, 1) == shares(zipf, 64, 1) != shares(zipf, 64, 2)
    assert shares(zipf, 64, 1) != shares(dist.Distribution("1", 8), 64, 1)
    assert len(set(shares(dist.Distribution("0", 7), 64, 1))) == 1


# Traces


def uneven(
    edp: int, ep: int, histograms: list[list[int]], folder: Path, more: str = ""
) -> Compiled:
    """The model of test_routing.py under a file of loads, a line for each layer."""
    lines = [", ".join(map(str, row)) for row in histograms]
    (folder / "load.csv").write_text("# counts\n" + "\n".join(lines) + "\n")
    plan = mesh_plan(edp, ep, f'load {{ file = "load.csv" }}\n{more}')
    return compile_text(text(plan), str(folder / "net.stg"), "p")


def expert_flops(each: RankClass, layer: int) -> int:
    """Of the products with an expert's weights, forward."""
    return sum(
        node.action.num_ops * count
        for node, count in nodes_of(each, layer)
        if isinstance(node.action, Compute) and node.op == "contract" and node.phase == "fwd"
    )


@pytest.mark.seldom
@settings(deadline=None, max_examples=6)
@given(histograms=HISTOGRAMS, mesh=st.sampled_from(MESHES))
def test_tokens_are_conserved(
    histograms: list[list[int]], mesh: tuple[int, int], tmp_path_factory: pytest.TempPathFactory
):
    """All that is dispatched in a layer reaches some expert, and comes back: what experts compute adds up."""
    compiled = uneven(*mesh, histograms, tmp_path_factory.mktemp("load"))
    traces = compiled.trace_set
    router = 2 * BATCH * SEQUENCE * WIDTH * EXPERTS
    per_token = 2 * 2 * WIDTH * 48
    for layer in range(LAYERS):
        done = sum(expert_flops(each, layer) * ranks_of(traces, each) for each in traces.classes)
        assert done == router + SENT * per_token


@pytest.mark.parametrize("seed", some(range(8), 8))
def test_tokens_are_those_that_are_sent_whatever_their_dim_rounds_up(seed: int, tmp_path: Path):
    """Tokens of an expert are no whole number: their dim is an average, or rounded up in the text or by the plan."""
    rng = Random(seed)
    (edp, ep), chosen, sequence = rng.choice(MESHES), rng.choice((2, 3)), rng.choice((5, 7, 11))
    experts = 3 * EXPERTS if chosen == 2 else 5 * EXPERTS
    tokens, pad = rng.choice(("{}", "ceildiv({}, 1)", "{}")), rng.choice(("", "{ pad = 1 }"))
    microbatch = rng.choice((BATCH // (edp * ep), 1))
    load = f"load {{ zipf = {rng.choice((0, 0.7, 1.3))}, seed = {seed} }}"
    plan = mesh_plan(
        edp, ep, f"{load} microbatch {microbatch}\nset S = {sequence}, X = {experts}, A = {chosen}"
    )
    plan = plan.replace("shard N over dp", f"shard N over dp {pad}")
    model = text(plan, tokens.format("B * S * A / X"))
    traces = compile_text(model, str(tmp_path / "net.stg"), "p").trace_set
    router = 2 * BATCH * sequence * WIDTH * experts
    for layer in range(LAYERS):
        done = sum(expert_flops(each, layer) * ranks_of(traces, each) for each in traces.classes)
        assert done == router + BATCH * sequence * chosen * 2 * 2 * WIDTH * 48


@pytest.mark.seldom
@pytest.mark.parametrize("seed", range(4))
def test_layers_of_which_the_first_is_peeled_have_the_loads_of_their_numbers(
    seed: int, tmp_path: Path
):
    """Nothing is trained before the layers, so that the first is a repeat of its own: forward, all is as if something were."""
    rng = Random(seed)
    histograms = [[rng.randint(1, 50) for _ in range(EXPERTS)] for _ in range(LAYERS)]
    (tmp_path / "load.csv").write_text("\n".join(", ".join(map(str, row)) for row in histograms))
    edp, ep = rng.choice(MESHES)
    stages = rng.choice((1, 3))
    plan = mesh_plan(edp, ep, 'load { file = "load.csv" }')
    if stages > 1:
        plan = f"{plan}\npipeline L over pp {{ }}".replace("mesh ", f"mesh pp = {stages}, ", 1)
    found: list[list[dict[int, int]]] = []
    for frozen in (False, True):
        more = "\nfreeze first" if frozen else ""
        done = compile_text(text(plan + more), str(tmp_path / "net.stg"), "p")
        assert ("Experts_2.up" in str(done.module)) == frozen
        found.append(
            sorted(
                [
                    {layer: expert_flops(each, layer) for layer in range(-1, LAYERS)}
                    for each in done.trace_set.classes
                    for _ in range(ranks_of(done.trace_set, each))
                ],
                key=str,
            )
        )
    assert found[0] == found[1]


@pytest.mark.seldom
@settings(deadline=None, max_examples=10)
@given(histograms=HISTOGRAMS, mesh=st.sampled_from(MESHES))
def test_members_of_a_group_agree(
    histograms: list[list[int]], mesh: tuple[int, int], tmp_path_factory: pytest.TempPathFactory
):
    """Each exchange of a layer has one size: that of the device which gets most of its group's tokens."""
    edp, _ = mesh
    compiled = uneven(*mesh, histograms, tmp_path_factory.mktemp("load"))
    values = size_values(compiled.module)
    (load,) = Loads.of(compiled.module).loads
    for layer in range(LAYERS):
        counts = load.of_devices(layer, values)
        assert sum(counts) == SENT // edp
        sizes = {
            node.action.operand_bytes
            for each in compiled.trace_set.classes
            for node, count in nodes_of(each, layer)
            if isinstance(node.action, Collective)
            and count
            and node.op == "all_to_all"
            and node.made_by != "exchange-counts"
        }
        assert sizes == {max(counts) * WIDTH * FP32}


@pytest.mark.parametrize(
    "more", some(["", "recompute full", "zero 3 over dp\nunit Experts", "microbatch 1"], 4)
)
def test_uneven_ranks_run(more: str, tmp_path: Path):
    """Ranks with other loads are classes of their own; together they run."""
    histograms = [[8, 4, 4, 1, 1, 1, 1, 1], [1] * 8, [0, 0, 0, 0, 0, 0, 1, 1]]
    compiled = uneven(2, 4, histograms, tmp_path, more)
    assert len(compiled.trace_set.classes) == 4
    write_traces(encode_traces(compiled.trace_set), str(tmp_path / "set"))
    report = check_traces(tmp_path / "set", jobs=1)
    assert not report.findings, report.text()
    assert sum(1 for _ in compiled.module.walk()) < 1.1 * sum(1 for _ in even(2, 4, more).walk())


def even(edp: int, ep: int, more: str):
    return compile_text(text(mesh_plan(edp, ep, more)), "net.stg", "p").module


def test_equal_shares_are_the_uniform_load(tmp_path: Path):
    """One class, with the numbers of a plan that says nothing."""
    (each,) = uneven(2, 4, [[5] * EXPERTS], tmp_path).trace_set.classes
    plain = compile_text(text(mesh_plan(2, 4)), "net.stg", "p").trace_set.classes[0]
    for layer in range(LAYERS):
        assert expert_flops(each, layer) == expert_flops(plain, layer)
        assert bytes_of(each, layer) == bytes_of(plain, layer)


def bytes_of(each: RankClass, layer: int) -> list[int]:
    return [
        node.action.operand_bytes
        for node, count in nodes_of(each, layer)
        if isinstance(node.action, Collective) and count
    ]


@pytest.mark.seldom
@settings(deadline=None, max_examples=6)
@given(histograms=HISTOGRAMS, mesh=st.sampled_from(MESHES))
def test_forms_of_memory_come_to_its_bytes(
    histograms: list[list[int]], mesh: tuple[int, int], tmp_path_factory: pytest.TempPathFactory
):
    """Of each class, though what it saves is as large in no two layers."""
    job = NamedJob(uneven(*mesh, histograms, tmp_path_factory.mktemp("load")))
    for what in ("memory.peak", "memory.activations", "memory.in_flight"):
        for each, own in zip(ask(job, what).classes, job.classes, strict=True):
            values = {**job.names.values, **own.run.stages[0].values}
            assert each.at_its_place.evaluate(values) == each.value


def test_memory_follows_the_load(tmp_path: Path):
    """A rank whose experts get everything saves more than one whose experts get nothing."""
    compiled = uneven(1, 2, [[1, 1, 1, 1, 0, 0, 0, 0]], tmp_path)
    busy, idle = compiled.memory
    assert (busy.name, idle.name) == ("ep0", "ep1")
    assert busy.saved_bytes[0] > 2 * idle.saved_bytes[0]
