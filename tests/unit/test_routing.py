"""Mixture of experts, from text to traces: no token is lost, and what moves is what experts need."""

from __future__ import annotations

from collections import Counter
from functools import cache
from math import prod
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from stagec.analysis.sizes import size_values
from stagec.backend.encode import encode_traces
from stagec.backend.writer import write_traces
from stagec.checking import check_traces
from stagec.diagnostics import CompileError
from stagec.dialects import dist, stg
from stagec.dialects.sched.actions import Collective
from stagec.dialects.types import tensor_of
from stagec.driver import Compiled, Stops, compile_text
from stagec.memory import Kind
from tests.fidelity.totals import model_flops, nodes_of
from tests.unit.seldom import some

LAYERS, BATCH, SEQUENCE, WIDTH, EXPERTS, CHOSEN = 3, 16, 8, 32, 8, 2
SENT = BATCH * SEQUENCE * CHOSEN
FP32 = 4

MODEL = """
dim B = {batch}
dim S = {sequence}
dim D = {width}
dim F = 48
dim X = {experts}
dim A = {chosen}
dim N = {tokens}
dim L = {layers}

module Experts(x[B, S, D]) -> [B, S, D] {{
  weight router[D, X], up[X, D, F], down[X, F, D]
  gates, chosen = topk(softmax(x @ router, over = X), over = X, to = A, normalise = true)
  routed = dispatch(x, chosen, experts = X, tokens = N{drops})
  h[X, N, F] = silu(routed @ up)
  y[X, N, D] = h @ down
  return combine(y, gates, chosen)
}}

model Net(x[B, S, D]) {{
  weight first[D]
  h = x * first
  repeat L {{ h = h + Experts(h) }}
  loss = mean(h, over = [B, S, D])
}}

plan p {{
{plan}
}}
"""
EXPERT_WEIGHTS = {"Experts.up", "Experts.down"}


def text(plan: str, tokens: str = "B * S * A / X", drops: str = "") -> str:
    return MODEL.format(
        batch=BATCH,
        sequence=SEQUENCE,
        width=WIDTH,
        experts=EXPERTS,
        chosen=CHOSEN,
        layers=LAYERS,
        plan=plan,
        tokens=tokens,
        drops=drops,
    )


def mesh_plan(edp: int, ep: int, more: str = "") -> str:
    return (
        f"mesh edp = {edp}, ep = {ep}, dp = edp * ep\n"
        f"shard B over dp\nshard X over ep\nshard N over dp\n{more}"
    )


@cache
def compiled(edp: int, ep: int, more: str = "", drops: str = "") -> Compiled:
    return compile_text(text(mesh_plan(edp, ep, more), drops=drops), "net.stg", "p")


@cache
def ir(edp: int, ep: int, more: str = "") -> ModuleOp:
    plan = mesh_plan(edp, ep, more)
    return compile_text(text(plan), "net.stg", "p", stops=Stops(after="exchange-counts")).module


def collectives(compilation: Compiled, op: str = "all_to_all") -> Counter[tuple[str, int]]:
    """Phase and operand bytes of a rank's collectives of a kind, and how many there are."""
    found: Counter[tuple[str, int]] = Counter()
    (rank_class,) = compilation.trace_set.classes
    for node, count in nodes_of(rank_class):
        if isinstance(node.action, Collective) and node.op == op:
            found[node.phase, node.action.operand_bytes] += count
    return found


def local_size(value: SSAValue, sizes: dict[str, int], dims: slice = slice(None)) -> int:
    """The elements that a device has of some dims of a value."""
    found = 1
    for dim in tensor_of(value.type).dims[dims]:
        size, rest = divmod(sizes[dim.name], prod(sizes[a] for a in dim.split))
        assert not rest, dim
        found *= size
    return found


def test_a_bias_is_a_parameter_that_no_gradient_trains() -> None:
    """It has no gradient and no optimizer state, and chooses from as many as there are."""
    biased = text(mesh_plan(1, 2)).replace(
        "over = X, to = A, normalise = true", "over = X, to = A, groups = 4, limit = 2"
    )
    biased = biased.replace("router[D, X]", "router[D, X], bias[X]")
    biased = biased.replace("softmax(x @ router, over = X)", "sigmoid(x @ router), bias")
    module = compile_text(biased, "net.stg", "p").module
    weights = {op.path.data for op in module.walk() if isinstance(op, stg.WeightOp)}
    assert "Experts.bias" in weights
    (plain,) = compiled(1, 2).memory
    (with_bias,) = compile_text(biased, "net.stg", "p").memory
    more = {
        kind: size - plain.static.num_bytes[kind]
        for kind, size in with_bias.static.num_bytes.items()
        if size != plain.static.num_bytes[kind]
    }
    assert more == {Kind.PARAMETERS: LAYERS * EXPERTS * FP32}


def test_dispatch_and_combine_have_dtypes_of_their_own() -> None:
    """A byte for each element on the way there, forward and backward; the way back as before."""
    plain = collectives(compiled(1, 4))
    cast = collectives(compiled(1, 4, "precision { dispatch = fp8 }"))
    tokens = SENT * WIDTH // 4
    for phase in ("fwd", "bwd"):
        assert plain[phase, tokens * FP32] == 2 * LAYERS
        assert cast[phase, tokens * FP32] == cast[phase, tokens] == LAYERS
    both = collectives(compiled(1, 4, "precision { dispatch = fp8, combine = bf16 }"))
    assert both["fwd", tokens * 2] == both["bwd", tokens * 2] == LAYERS


@pytest.mark.parametrize(
    ("dtype", "of_token"), [("fp8", WIDTH), ("nvfp4", WIDTH // 2 + WIDTH // 16)]
)
def test_gathered_tokens_have_the_dtype_of_the_dispatch_with_its_scales(
    dtype: str, of_token: int
) -> None:
    """So have gradients of results; numbers and weights of experts are gathered, and terms are reduced, as they are."""
    precision = f"precision {{ dispatch = {dtype} }}\ncollectives {{ exchange = all_gather }}"
    tokens, choices = BATCH * SEQUENCE, SENT * FP32
    gathered = {("fwd", choices // 4): 2, ("fwd", tokens // 4 * of_token): 1}
    gathered["bwd", tokens // 4 * of_token] = 1
    reduced = {(phase, tokens * WIDTH * FP32): 1 for phase in ("fwd", "bwd")}
    reduced["bwd", choices] = 1
    found = compiled(1, 4, precision)
    assert collectives(found, "all_gather") == {key: LAYERS * n for key, n in gathered.items()}
    assert collectives(found, "reduce_scatter") == {key: LAYERS * n for key, n in reduced.items()}


@pytest.mark.parametrize(
    "idle", ["shard F over tp", "shard S over cp", "shard F over tp shard S over cp"]
)
def test_axes_of_one_add_no_collective(idle: str) -> None:
    """Where ranks gather tokens for routers as for experts, the gradients of both are terms of one sum, and are reduced together."""
    plan = "mesh dp = 2, tp = 1, cp = 1 shard X over dp shard B over dp shard N over dp "
    plan += "collectives { exchange = all_gather } "
    without, having = (compile_text(text(plan + more), "net.stg", "p") for more in ("", idle))
    for kind in ("reduce_scatter", "all_gather", "all_reduce"):
        assert collectives(having, kind) == collectives(without, kind)


MESHES = [(1, 2), (2, 2), (1, 8), (4, 2), (2, 4)]


# Tokens


@pytest.mark.parametrize(("edp", "ep"), MESHES)
def test_no_token_is_lost(edp: int, ep: int):
    """Before and after each exchange all devices together have all tokens, once for each choice."""
    module = ir(edp, ep)
    sizes = size_values(module)
    devices = edp * ep
    seen = Counter[str]()
    for op in module.walk():
        if isinstance(op, stg.DispatchOp):
            assert local_size(op.experts, sizes) * devices == SENT
            assert local_size(op.routed, sizes, slice(2)) * devices == SENT
        elif isinstance(op, stg.CombineOp):
            assert local_size(op.routed, sizes, slice(2)) * devices == SENT
        elif isinstance(op, dist.AllToAllOp):
            assert local_size(op.operand, sizes) == local_size(op.result, sizes)
            assert local_size(op.operand, sizes, slice(2)) * devices == SENT
        else:
            continue
        seen[op.name] += 1
    assert seen == {"stg.dispatch": 2, "stg.combine": 2, "dist.all_to_all": 4}


def test_products_are_of_a_devices_own_experts():
    module = ir(2, 4)
    sizes = size_values(module)
    products = [
        op
        for op in module.walk()
        if isinstance(op, stg.ContractOp) and "N" in tensor_of(op.operands[0].type).names
    ]
    assert len(products) == 6
    for op in products:
        for value in (*op.operands, *op.results):
            dims = {d.name: d.split for d in tensor_of(value.type).dims}
            assert dims["X"] == ("ep",)
            assert "ep" not in dims.get("N", ())
    assert sizes["N"] * EXPERTS == SENT


@settings(max_examples=8, deadline=None)
@given(st.sampled_from(MESHES), st.sampled_from(["", "microbatch 1", "microbatch 2"]))
def test_ranks_together_compute_what_one_does(mesh: tuple[int, int], more: str):
    assert model_flops(compiled(*mesh, more).trace_set) == model_flops(compiled(1, 1).trace_set)


# Exchanges


@pytest.mark.parametrize(("edp", "ep"), MESHES)
def test_exchanges_of_a_layer(edp: int, ep: int):
    """There and back, forward and backward; counts once: the way back knows them from the way there."""
    tokens = SENT * WIDTH * FP32 // (edp * ep)
    counts = EXPERTS * 8
    assert collectives(compiled(edp, ep)) == {
        ("fwd", counts): LAYERS,
        ("fwd", tokens): 2 * LAYERS,
        ("bwd", tokens): 2 * LAYERS,
    }


def test_microbatches_exchange_as_many_bytes():
    tokens = SENT * WIDTH * FP32 // 4
    whole, split = collectives(compiled(2, 2)), collectives(compiled(2, 2, "microbatch 1"))
    assert whole["fwd", tokens] == 2 * LAYERS
    assert split["fwd", tokens // 4] == split["bwd", tokens // 4] == 4 * 2 * LAYERS
    assert split["fwd", EXPERTS * 8] == 4 * LAYERS


def test_a_capacity_needs_no_counts():
    found = collectives(compiled(2, 2, drops=", dropless = false"))
    assert sum(found.values()) == 4 * LAYERS
    assert ("fwd", EXPERTS * 8) not in found


def test_experts_everywhere_exchange_nothing():
    plan = "mesh dp = 4\nshard B over dp\nshard N over dp"
    assert not collectives(compile_text(text(plan), "net.stg", "p"))


# Gradients


@pytest.mark.parametrize(("edp", "ep"), [(2, 2), (2, 4), (4, 2)])
def test_gradients_of_experts_are_reduced_over_fewer_devices(edp: int, ep: int):
    axes = {
        stg.scope_of(op): op.axes.data
        for op in ir(edp, ep).walk()
        if isinstance(op, dist.AllReduceGradientOp)
    }
    assert axes.keys() == EXPERT_WEIGHTS | {"Experts.router", "first"}
    for weight, over in axes.items():
        assert set(over) == ({"edp"} if weight in EXPERT_WEIGHTS else {"edp", "ep"}), weight


def test_gradients_of_experts_of_one_group_stay():
    """Without a second group of the experts no gradient of theirs travels."""
    reduced = collectives(compiled(1, 8), "all_reduce")
    own = {FP32 * WIDTH * EXPERTS: LAYERS, FP32 * WIDTH: 1}
    assert {size: n for (phase, size), n in reduced.items() if phase == "grad_reduce"} == own


# The whole


@pytest.mark.parametrize(
    "more", some(["", "microbatch 1", "zero 1 over dp", "zero 3 over dp", "recompute full"], 2)
)
def test_traces_hold_together(tmp_path: Path, more: str):
    write_traces(encode_traces(compiled(2, 2, more).trace_set), str(tmp_path))
    report = check_traces(tmp_path)
    assert not report.findings, report.findings


@pytest.mark.parametrize("tokens", ["B * S * A / X + 1", "B * S / X", "B * S * A"])
def test_tokens_that_are_not_those_sent_are_an_error(tokens: str):
    with pytest.raises(CompileError) as raised:
        compile_text(text("mesh dp = 1", tokens), "net.stg", "p")
    assert {d.code for d in raised.value.diagnostics} == {"E0310"}
