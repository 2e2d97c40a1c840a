"""Tokens that go to a node once, and there to a device once: how many copies that is, and that none is lost."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import cache
from itertools import combinations, product
from math import comb, prod
from pathlib import Path

import pytest
from hypothesis import assume, given, settings, strategies as st
from xdsl.dialects.builtin import ModuleOp

from stagec.analysis.apportioning import apportion
from stagec.analysis.copy_loads import copy_load
from stagec.analysis.expert_loads import Loads
from stagec.analysis.sizes import size_values
from stagec.analysis.token_copies import Routing, likely_parts, num_copies, parts_reached
from stagec.backend.encode import encode_traces
from stagec.backend.writer import write_traces
from stagec.checking import check_traces
from stagec.diagnostics import CompileError
from stagec.dialects import dist, stg
from stagec.dialects.sched.actions import Collective
from stagec.dialects.types import tensor_of
from stagec.driver import Compiled, Stops, compile_model, compile_text
from stagec.frontend import parse_text
from stagec.summary import summarize
from stagec.sweeping.grid import grid
from stagec.sweeping.plans import SweepRequest
from stagec.sweeping.run import sweep
from tests.fidelity.totals import model_flops, nodes_of
from tests.unit.seldom import some
from tests.unit.test_loads import WEIGHTS
from tests.unit.test_routing import (
    BATCH,
    CHOSEN,
    EXPERTS,
    FP32,
    LAYERS,
    SENT,
    SEQUENCE,
    WIDTH,
    text,
)

TOKENS = BATCH * SEQUENCE
DEEPSEEK = Path(__file__).parents[2] / "examples" / "deepseek_v3.stg"
MESHES = [(1, 2, 2), (2, 2, 2), (1, 4, 2), (1, 2, 4), (1, 8, 1), (1, 1, 4)]


# How many copies


@st.composite
def routings(draw: st.DrawFn) -> Routing:
    groups, size = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    assume(groups * size <= 12)
    limit = draw(st.integers(1, groups))
    return Routing(groups * size, draw(st.integers(1, min(limit * size, 5))), groups, limit)


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


@settings(max_examples=60, deadline=None)
@given(routing=routings(), data=st.data())
def test_parts_reached_are_those_of_all_choices(routing: Routing, data: st.DataObject):
    """Every choice of experts that uses as many groups as it may, written out."""
    parts = data.draw(st.sampled_from(divisors(routing.experts)))
    group, own = routing.experts // routing.groups, routing.experts // parts
    choices = [
        choice
        for choice in combinations(range(routing.experts), routing.chosen)
        if len({x // group for x in choice}) == min(routing.limit, routing.chosen)
    ]
    reached = sum(len({x // own for x in choice}) for choice in choices)
    assert parts_reached(routing, parts) == Fraction(reached, len(choices))


@given(routing=routings(), tokens=st.integers(1, 10**6), data=st.data())
def test_a_node_has_no_more_copies_than_its_devices(
    routing: Routing, tokens: int, data: st.DataObject
):
    """A token goes somewhere; to a device in each of its nodes; to no more devices than it has experts."""
    devices = data.draw(st.sampled_from(divisors(routing.experts)))
    nodes = data.draw(st.sampled_from(divisors(devices)))
    outer, inner = (num_copies(routing, parts, tokens) for parts in (nodes, devices))
    assert tokens <= outer <= inner <= tokens * routing.chosen


def test_without_a_limit_the_closed_form_holds():
    """X experts in N parts, A of them: N (1 - C(X - X/N, A) / C(X, A))."""
    for parts in (2, 8, 64, 256):
        missed = Fraction(comb(256 - 256 // parts, 8), comb(256, 8))
        assert parts_reached(Routing(256, 8), parts) == parts * (1 - missed)
    assert round(float(parts_reached(Routing(256, 8), 8)), 3) == 5.295


def test_deepseek_v3_by_hand():
    """4 of 8 nodes exactly. On devices: of the ways to have all of 4 groups of 32, those that miss 4 experts of one."""
    routing = Routing(256, 8, 8, 4)
    assert parts_reached(routing, 8) == 4
    ways = sum((-1) ** j * comb(4, j) * comb(128 - 32 * j, 8) for j in range(4))
    # All four groups of which one has 28 experts left: without j of the other three, less those without that one.
    miss = sum(
        (-1) ** j * comb(3, j) * (comb(124 - 32 * j, 8) - comb(96 - 32 * j, 8)) for j in range(4)
    )
    assert parts_reached(routing, 64) == 32 * (1 - Fraction(miss, ways))
    assert num_copies(routing, 8, 4096) == 16384
    assert num_copies(routing, 64, 4096) == 30557


# Volumes


@cache
def deepseek() -> Compiled:
    return compile_model(DEEPSEEK)


@pytest.mark.seldom
def test_volumes_of_deepseek_v3():
    """4,096 tokens of a microbatch: fp8 there, bf16 back; 4 copies over InfiniBand instead of 8, forward and backward."""
    middle = next(c for c in deepseek().trace_set.classes if c.where["pp"] == (1,))
    found: Counter[tuple[str, tuple[str, ...], int]] = Counter()
    for node, count in nodes_of(middle):
        if isinstance(node.action, Collective) and node.op == "all_to_all":
            found[node.phase, node.action.axes, node.action.operand_bytes] += count
    nodes, devices, width = 4096 * 4, 30557, 7168
    # Stages 1 and 14 under DualPipe: 4 layers each, with 16 microbatches.
    runs = (4 + 4) * 16
    there_and_back = {
        (phase, axes, copies * size): runs
        for phase in ("fwd", "bwd")
        for axes, copies in ((("en",), nodes), (("el",), devices))
        # fp8 has a scale of 4 bytes for 128 elements.
        for size in (width + width // 128 * 4, 2 * width)
    }
    counts = {("fwd", (axis,), 8 * 8): runs for axis in ("en", "el")}
    assert found == there_and_back | counts


@pytest.mark.seldom
def test_direct_exchanges_of_deepseek_v3_are_twice_as_large():
    """Without the forwarding each of 8 copies crosses the network, as one exchange over all 64 GPUs."""
    plan = "plan direct extends h800_2048 {\n  collectives { exchange = direct }\n  recompute none\n}\n"
    source = DEEPSEEK.read_text() + plan
    compiled = compile_text(source, "deepseek.stg", "direct")
    assert sent(compiled, ("en", "el")) == 2 * sent(deepseek(), ("en",))
    assert model_flops(compiled.trace_set) == model_flops(deepseek().trace_set)


def sent(compiled: Compiled, axes: tuple[str, ...]) -> int:
    """Bytes of tokens that a rank in the middle exchanges over some axes in a step."""
    middle = next(c for c in compiled.trace_set.classes if c.where["pp"] == (1,))
    return sum(
        count * node.action.operand_bytes
        for node, count in nodes_of(middle)
        if isinstance(node.action, Collective)
        and node.op == "all_to_all"
        and node.action.axes == axes
        and node.made_by != "exchange-counts"
    )


# Tokens


def plan_text(edp: int, en: int, el: int, more: str = "", exchange: str = "hierarchical") -> str:
    return (
        f"mesh edp = {edp}, en = {en}, el = {el}, ep = en * el, dp = edp * ep\n"
        f"shard B over dp\nshard X over ep\nshard N over dp\n"
        f"collectives {{ exchange = {exchange} }}\n{more}"
    )


def model_text(plan: str, groups: str = "") -> str:
    return text(plan).replace("normalise = true", f"normalise = true{groups}")


@cache
def compiled(
    edp: int, en: int, el: int, more: str = "", groups: str = "", exchange: str = "hierarchical"
) -> Compiled:
    return compile_text(model_text(plan_text(edp, en, el, more, exchange), groups), "net.stg", "p")


@cache
def ir(edp: int, en: int, el: int, more: str = "", groups: str = "") -> ModuleOp:
    source = model_text(plan_text(edp, en, el, more), groups)
    return compile_text(source, "net.stg", "p", stops=Stops(after="exchange-counts")).module


def rows(value: object, sizes: dict[str, int]) -> int:
    """Tokens that a device has of a value [parts, copies, width]: a whole number."""
    found = Fraction(1)
    for dim in tensor_of(value).dims[:2]:  # pyright: ignore[reportArgumentType]
        found *= dim.size.evaluate(sizes)
    assert found.denominator == 1, value
    return found.numerator


GROUPS = ("", ", groups = 4, limit = 1", ", groups = 2, limit = 2")


@pytest.mark.parametrize(
    ("mesh", "groups", "more"), some(product(MESHES, GROUPS, ("", "microbatch 1")), 10)
)
def test_no_copy_is_lost(mesh: tuple[int, int, int], groups: str, more: str):
    """What leaves a device in an exchange is as much as arrives, and every step adds copies until there is one for each expert."""
    edp, en, el = mesh
    module = ir(*mesh, more, groups)
    sizes = size_values(module)
    here = TOKENS // (edp * en * el) // sizes["mb"]
    limits = {"": (1, 1), ", groups = 4, limit = 1": (4, 1), ", groups = 2, limit = 2": (2, 2)}
    routing = Routing(EXPERTS, CHOSEN, *limits[groups])
    copies = {
        "outer": num_copies(routing, en, here),
        "inner": num_copies(routing, en * el, here),
        "": here * CHOSEN,
    }
    seen: set[str] = set()
    for op in module.walk():
        if isinstance(op, dist.AllToAllOp):
            assert rows(op.operand.type, sizes) == rows(op.result.type, sizes)
        for result in op.results:
            if isinstance(result.type, stg.TensorType) and len(result.type.names) == 3:
                experts, tokens, _ = (name.partition(".") for name in result.type.names)
                if experts[0] == "X" and tokens[0] == "N":
                    assert rows(result.type, sizes) == copies[tokens[2]]
                    seen.add(tokens[2])
    assert seen == copies.keys()


@pytest.mark.parametrize("mesh", MESHES)
def test_experts_compute_what_they_did(mesh: tuple[int, int, int]):
    own, direct = compiled(*mesh), compiled(*mesh, exchange="direct")
    assert model_flops(own.trace_set) == model_flops(direct.trace_set)


def test_exchanges_of_a_layer():
    """One group of four has both experts, and is half a node of two devices: one copy for the node, for one of its devices."""
    (each,) = compiled(1, 2, 4, groups=", groups = 2, limit = 1").trace_set.classes
    here = TOKENS // 8
    # Two of a node's four experts, on two of its four devices.
    sizes = {("en",): here, ("el",): 2 * here}
    found = Counter(
        (node.phase, node.action.axes, node.action.operand_bytes)
        for node, count in nodes_of(each)
        if isinstance(node.action, Collective) and node.op == "all_to_all"
        for _ in range(count)
    )
    expected = {
        (phase, axes, copies * WIDTH * FP32): 2 * LAYERS
        for phase in ("fwd", "bwd")
        for axes, copies in sizes.items()
    }
    assert found == expected | {("fwd", ("en",), 2 * 8): LAYERS, ("fwd", ("el",), 4 * 8): LAYERS}
    assert 2 * here == SENT // 8


# The whole


@pytest.mark.parametrize(
    "more",
    some(
        [
            "",
            "microbatch 1",
            "zero 1 over dp",
            "zero 3 over dp\nunit Experts",
            "recompute full",
            "recompute dispatch",
            "precision { weights = bf16, dispatch = fp8, combine = fp8 }",
            "overlap { ep = true }",
            "offload { activations = all }",
        ],
        8,
    ),
)
def test_traces_run(more: str, tmp_path: Path):
    compiled_ = compiled(2, 2, 2, more)
    write_traces(encode_traces(compiled_.tracked), str(tmp_path / "set"))
    report = check_traces(tmp_path / "set", jobs=1)
    assert not report.findings, report.text()
    assert compiled_.memory


@pytest.mark.seldom
def test_sweeps_count_copies_for_each_plan():
    """Each row is what a compilation of its plan says."""
    source = parse_text(model_text(plan_text(1, 2, 2)), "net.stg")
    varied = grid(["en=1,2,4", "el=1,2"], ["en", "el"])
    asked = SweepRequest(source, "p", {}, varied, ("comm.all_to_all", "bytes", "memory.peak"))
    table = sweep(asked)
    assert table.num_rows == 6
    for row in table.rows():
        each = compiled(1, int(row["en"]), int(row["el"]))
        (found,) = summarize(each.module, each.counts).classes
        exchanged = sum(t.operand_bytes for t in found.traffic if t.kind == "all_to_all")
        assert row["comm.all_to_all"] == exchanged
        assert row["bytes"] == found.bytes_moved
        assert row["memory.peak"] == max(m.peak_bytes for m in each.memory)


# Experts that are not equally busy

ROUTINGS = st.sampled_from([(1, 1), (4, 1), (4, 2), (2, 1), (2, 2)])


def sums(rows_: list[list[int]]) -> list[int]:
    return [sum(row) for row in rows_]


def columns(rows_: list[list[int]]) -> list[list[int]]:
    return [list(column) for column in zip(*rows_, strict=True)]


@settings(deadline=None, max_examples=80)
@given(
    weights=WEIGHTS,
    tokens=st.integers(1, 400),
    grouping=ROUTINGS,
    mesh=st.sampled_from([(2, 2), (4, 2), (2, 4), (1, 4), (8, 1)]),
)
def test_copies_are_conserved_and_are_enough(
    weights: list[int], tokens: int, grouping: tuple[int, int], mesh: tuple[int, int]
):
    """What arrives in a step is what was sent; a device gets as many copies as its experts need, and no more."""
    nodes, local = mesh
    every = tokens * nodes * local
    counts = apportion(weights, every * CHOSEN, every)
    load = copy_load(Routing(EXPERTS, CHOSEN, *grouping), counts, nodes, local)
    assert sums(columns(load.to_nodes)) == sums(columns(load.in_nodes))
    assert sums(load.to_devices) == sums(load.on_devices)
    for node in range(nodes):
        arrived = sum(load.in_nodes[node])
        assert max(load.on_devices[node]) <= arrived <= sum(load.on_devices[node])
        assert arrived <= every
    own = EXPERTS // (nodes * local)
    for device, copies in enumerate(n for row in load.on_devices for n in row):
        experts = counts[own * device : own * (device + 1)]
        assert max(experts) <= copies <= min(every, sum(experts))


@given(tokens=st.integers(1, 5000), grouping=ROUTINGS)
def test_an_even_load_has_the_copies_of_a_plan_without_one(tokens: int, grouping: tuple[int, int]):
    routing = Routing(EXPERTS, CHOSEN, *grouping)
    each = tokens * 4 * CHOSEN // EXPERTS
    assume(each * EXPERTS == tokens * 4 * CHOSEN)
    load = copy_load(routing, [each] * EXPERTS, 2, 2)
    outer, inner = (num_copies(routing, parts, tokens) for parts in (2, 4))
    assert load.to_nodes == load.in_nodes == [[outer] * 2] * 2
    assert load.to_devices == load.on_devices == [[inner] * 2] * 2


def test_probabilities_are_those_of_all_choices():
    """Each choice as likely as the product of its experts' odds."""
    routing, chances = Routing(8, 3, 4, 2), [0.9, 0.1, 0.5, 0.3, 0.25, 0.35, 0.2, 0.4]
    odds = [p / (1 - p) for p in chances]
    choices = [c for c in combinations(range(8), 3) if len({x // 2 for x in c}) == 2]
    weight = {c: prod(odds[x] for x in c) for c in choices}
    for parts in (2, 4, 8):
        own = 8 // parts
        expected = [
            sum(w for c, w in weight.items() if part in {x // own for x in c})
            / sum(weight.values())
            for part in range(parts)
        ]
        assert likely_parts(routing, parts, chances) == pytest.approx(expected)


def uneven(mesh: tuple[int, int, int], rows_: list[list[int]], folder: Path, more: str) -> Compiled:
    lines = [", ".join(map(str, row)) for row in rows_]
    (folder / "load.csv").write_text("\n".join(lines) + "\n")
    plan = plan_text(*mesh, f'load {{ file = "load.csv" }}\n{more}')
    source = model_text(plan, ", groups = 2, limit = 2")
    return compile_text(source, str(folder / "net.stg"), "p")


HISTOGRAM = [[8, 4, 4, 1, 1, 1, 1, 1], [1] * 8, [0, 0, 0, 0, 0, 0, 1, 1]]


@pytest.mark.seldom
@pytest.mark.parametrize(
    "more",
    [
        "",
        "recompute full",
        "zero 3 over dp\nunit Experts",
        "precision { dispatch = fp8 }",
        "microbatch 1",
    ],
)
def test_uneven_ranks_run(more: str, tmp_path: Path):
    """One exchange has one size on all ranks; a node without tokens takes part."""
    compiled_ = uneven((2, 2, 2), HISTOGRAM, tmp_path, more)
    assert len(compiled_.trace_set.classes) == 4
    write_traces(encode_traces(compiled_.tracked), str(tmp_path / "set"))
    report = check_traces(tmp_path / "set", jobs=1)
    assert not report.findings, report.text()


def test_uneven_exchanges_of_a_layer(tmp_path: Path):
    """Of the last layer all tokens go to both experts of one device: nothing but the way there."""
    compiled_ = uneven((1, 2, 2), HISTOGRAM, tmp_path, "")
    values = size_values(compiled_.module)
    (load,) = Loads.of(compiled_.module).loads
    copies = load.of_copies(2, values)
    assert copies.in_nodes == [[0, 0], [TOKENS // 2] * 2]
    assert copies.on_devices == [[0, 0], [0, TOKENS]]
    for each in compiled_.trace_set.classes:
        last = each.where["en"] == (1,)
        found = {
            (node.action.axes, node.action.operand_bytes)
            for node, count in nodes_of(each, 2)
            if isinstance(node.action, Collective)
            and count
            and node.op == "all_to_all"
            and node.made_by != "exchange-counts"
        }
        row = WIDTH * FP32
        assert found == {(("en",), TOKENS // 2 * row), (("el",), (TOKENS if last else 1) * row)}


def test_equal_shares_are_the_uniform_load(tmp_path: Path):
    (each,) = uneven((2, 2, 2), [[5] * EXPERTS], tmp_path, "").trace_set.classes
    plain = compiled(2, 2, 2, groups=", groups = 2, limit = 2").trace_set.classes[0]
    actions = [[node.action for node, count in nodes_of(c, 1) if count] for c in (each, plain)]
    assert actions[0] == actions[1]


def test_two_routers_of_one_dim_under_a_load():
    """Their copies are not as many, so that one dim has no one load."""
    plan = plan_text(1, 2, 2, "load { zipf = 1.0 }")
    router = (
        "gates, chosen = topk(softmax(x @ router, over = X), over = X, to = A, normalise = true)"
    )
    second = (
        "  gates, chosen = topk(softmax(x @ router, over = X), over = X, to = A, groups = 2, limit = 1)\n"
        "  again = dispatch(x, chosen, experts = X, tokens = N)\n"
        "  z[X, N, F] = silu(again @ up)\n  y[X, N, D] = (h + z) @ down\n"
    )
    source = text(plan).replace("  y[X, N, D] = h @ down\n", second)
    assert router in source
    with pytest.raises(CompileError, match=r"E0311\]: two routers share `N`"):
        compile_text(source, "net.stg", "p")
