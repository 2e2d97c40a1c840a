"""Random models whose experts are served by a pool of their own: both pools together are the model on one device."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import stagec
from stagec.backend.encode import encode_traces
from stagec.backend.program import TraceSet
from stagec.backend.ranks import at_coordinates, ranks_where
from stagec.backend.writer import write_traces
from stagec.checking import check_traces
from stagec.compiled import Compiled
from stagec.diagnostics import CompileError
from stagec.dialects.sched.actions import Compute, Transfer
from stagec.driver import compile_program
from stagec.estimate.pools import estimate_pools
from stagec.frontend import check, parse_text
from stagec.memory import Kind
from stagec.pools import CompiledPools, compile_pools
from stagec.step_count import matrix_flops
from stagec.summary import summarize
from tests.replay.machine import replay
from tests.replay.models import traces_of
from tests.unit.estimate.test_pools_on_one_axis import ends
from tests.unit.seldom import some

WIDTH, HEADS, VOCABULARY = 32, 4, 96


@dataclass(frozen=True)
class Drawn:
    """A model and the meshes of both pools."""

    layers: int
    experts: int
    chosen: int
    hidden: int
    has_shared: bool
    """Beside the experts that are chosen there is one for all tokens."""
    has_bias: bool
    blocks: int
    """With experts, in each layer."""
    alone: bool
    """One more stands behind the layers."""
    sequences: int
    new: int
    context: int
    dp: int
    tp: int
    ep: int
    etp: int
    edp: int
    microbatches: int
    takes_turns: bool
    dispatch: str
    experts_first: bool

    @property
    def tokens(self) -> int:
        return self.sequences * self.new

    @property
    def calls(self) -> int:
        """Of a module with experts, in an iteration."""
        return self.layers * self.blocks + self.alone

    @property
    def text(self) -> str:
        shared = " + Shared(x)" if self.has_shared else ""
        bias = ", bias[X, F]" if self.has_bias else ""
        hidden = "h + bias" if self.has_bias else "h"
        blocks = "\n".join("  x = x + Experts(rms_norm(x, norm))" for _ in range(self.blocks))
        behind = "\n  x = x + Experts(x)" if self.alone else ""
        serve = f"prefill {self.sequences} x {self.new} at {self.context}, experts = average"
        pools = {
            "attention": f"""pool attention {{
    mesh dp = {self.dp}, tp = {self.tp}
    shard B over dp
    shard H over tp
    microbatch {self.sequences // self.dp // self.microbatches}
    serve {{ {serve}, part = attention }}
  }}""",
            "experts": f"""pool experts {{
    mesh edp = {self.edp}, ep = {self.ep}, etp = {self.etp}
    shard X over ep
    shard F over etp
    shard T over edp
    microbatch {self.sequences // self.microbatches}
    serve {{ {serve}, part = experts }}
  }}""",
        }
        both = [pools["attention"], pools["experts"]]
        dispatch = f", dispatch = {self.dispatch}" if self.dispatch else ""
        return f"""
dim B = {self.sequences}
dim S = {self.new}
dim P = S
dim V = {VOCABULARY}
dim D = {WIDTH}
dim F = {self.hidden}
dim FS = 40
dim H = {HEADS}
dim E = D / H
dim X = {self.experts}
dim A = {self.chosen}
dim T = B * S * A / X
dim L = {self.layers}
module Attention(x[B, S, D]) -> [B, S, D] {{
  weight wq[D, H, E], wk[D, H, E], wv[D, H, E], wo[H, E, D]
  cache keys[B, P, H, E], values[B, P, H, E]
  q[B, S, H, E] = x @ wq
  k[B, P, H, E] = append(keys, x @ wk)
  v[B, P, H, E] = append(values, x @ wv)
  return attention(q, k, v, causal = true) @ wo
}}
module Shared(x[B, S, D]) -> [B, S, D] {{
  weight up[D, FS], down[FS, D]
  return silu(x @ up) @ down
}}
module Experts(x[B, S, D]) -> [B, S, D] {{
  weight router[D, X], up[X, D, F]{bias}, down[X, F, D]
  gates, chosen = topk(softmax(x @ router, over = X), over = X, to = A)
  r = dispatch(x, chosen, experts = X, tokens = T)
  h[X, T, F] = r @ up
  y[X, T, D] = silu({hidden}) @ down
  return combine(y, gates, chosen){shared}
}}
module Block(x[B, S, D]) -> [B, S, D] {{
  weight norm[D]
  x = x + Attention(rms_norm(x, norm))
{blocks}
  return x
}}
model Net(tokens[B, S]: i32) {{
  weight embed[V, D], head[D, V]
  x = embedding(tokens, embed)
  repeat L {{ x = Block(x) }}{behind}
  return x @ head
}}
plan p {{
  precision {{ weights = bf16, activations = bf16{dispatch} }}
  device h100
  overlap {{ ep = {str(self.takes_turns).lower()} }}
  {chr(10).join(reversed(both) if self.experts_first else both)}
}}
plan one {{
  precision {{ weights = bf16, activations = bf16 }}
  serve {{ {serve} }}
}}
"""


def drawn(seed: int) -> Drawn:
    rng = random.Random(seed)
    microbatches = rng.choice([1, 2, 3])
    dp, edp = rng.choice([1, 2, 3]), rng.choice([1, 2])
    return Drawn(
        layers=rng.choice([1, 2, 3]),
        experts=rng.choice([4, 8]),
        chosen=rng.choice([1, 2, 3]),
        hidden=rng.choice([16, 24]),
        has_shared=rng.random() < 0.5,
        has_bias=rng.random() < 0.5,
        blocks=rng.choice([1, 1, 2]),
        alone=rng.random() < 0.3,
        sequences=dp * microbatches * rng.choice([2, 4]),
        new=rng.choice([1, 2, 5]),
        context=rng.choice([7, 40]),
        dp=dp,
        tp=rng.choice([1, 2, 4]),
        ep=rng.choice([1, 2, 4]),
        etp=rng.choice([1, 2]),
        edp=edp,
        microbatches=microbatches,
        takes_turns=rng.random() < 0.7,
        dispatch=rng.choice(["", "fp8"]),
        experts_first=rng.random() < 0.5,
    )


def made(seed: int) -> tuple[Drawn, CompiledPools, Compiled]:
    case = drawn(seed)
    source = parse_text(case.text)
    return case, compile_pools(source, "p", {}), compile_program(check(source, "one"))


@pytest.mark.parametrize("seed", some(range(8), 8))
def test_both_pools_are_the_model_in_parts(seed: int, tmp_path: Path) -> None:
    case, compiled, one = made(seed)
    pools = compiled.pools
    assert sum(map(parameters, pools.values())) == parameters(one)
    of_one = case.experts * (2 * WIDTH * case.hidden + case.hidden * case.has_bias)
    # What is called outside of the layers has weights of its own; both of a layer's calls too.
    assert parameters(pools["experts"]) == of_one * case.calls
    flops = {name: matrix_flops(each.module, each.counts).model for name, each in pools.items()}
    assert sum(flops.values()) == matrix_flops(one.module, one.counts).model
    assert flops["experts"] == 4 * case.tokens * case.chosen * WIDTH * case.hidden * case.calls
    # Routers, shared experts and the head, of each sequence's last position, are whole on each tensor-parallel rank of attention.
    whole = case.tokens * case.calls * WIDTH * (case.experts + 2 * 40 * case.has_shared)
    whole += case.sequences * WIDTH * VOCABULARY
    done = {name: done_by(each.trace_set) for name, each in pools.items()}
    expected = done_by(one.trace_set) + 2 * whole * (case.tp - 1)
    assert sum(done.values()) == expected
    assert done["experts"] == flops["experts"]
    caches = {name: cache_bytes(each) for name, each in pools.items()}
    assert caches == {"attention": cache_bytes(one), "experts": 0}
    check_messages(case, compiled)
    encoded = encode_traces(compiled.traces)
    assert not replay(*traces_of(encoded)).missing
    write_traces(encoded, str(tmp_path / "set"))
    report = check_traces(tmp_path / "set", jobs=1)
    assert all(finding.code.startswith("W") for finding in report.findings), report.text()
    assert "whatever the run times" in report.text()


def check_messages(case: Drawn, compiled: CompiledPools) -> None:
    """A copy of each token for each of its experts goes to all devices that have a part of that, and comes back to all that have the token."""
    copies = case.tokens * case.chosen * WIDTH * case.calls
    element = {"": 2, "fp8": 1}[case.dispatch]
    attention, experts = compiled.traces.pools[:: -1 if case.experts_first else 1]
    ways = {"attention": moved(compiled, *attention), "experts": moved(compiled, *experts)}
    assert sum(ways["attention"]["send"].values()) == copies * element * case.etp
    assert sum(ways["experts"]["send"].values()) == copies * 2 * case.tp
    assert ways["attention"]["send"] == ways["experts"]["recv"]
    assert ways["experts"]["send"] == ways["attention"]["recv"]
    firsts = compiled.traces.firsts
    there: Counter[tuple[int, int]] = Counter()
    back: Counter[tuple[int, int]] = Counter()
    for (source, destination), num_bytes in ways["attention"]["send"].items():
        there[(source - firsts["attention"]) // case.tp, destination - firsts["experts"]] += (
            num_bytes
        )
    for (source, destination), num_bytes in ways["experts"]["send"].items():
        back[(source - firsts["experts"]) // case.etp, destination - firsts["attention"]] += (
            num_bytes
        )
    for i in range(case.dp):
        for k in range(case.edp):
            both = max(
                0.0, min((i + 1) / case.dp, (k + 1) / case.edp) - max(i / case.dp, k / case.edp)
            )
            for part in range(case.ep):
                share = both / case.ep * copies
                for m in range(case.etp):
                    rank = (k * case.ep + part) * case.etp + m
                    assert there[i, rank] == pytest.approx(share * element)
                for j in range(case.tp):
                    assert back[k * case.ep + part, i * case.tp + j] == pytest.approx(share * 2)


def moved(
    compiled: CompiledPools, name: str, traces: TraceSet
) -> dict[str, Counter[tuple[int, int]]]:
    """Bytes from rank to rank, as one pool sends or takes them."""
    found: dict[str, Counter[tuple[int, int]]] = {"send": Counter(), "recv": Counter()}
    for each in traces.classes:
        ranks = ranks_where(traces.mesh, each.where)
        for index, segment in enumerate(each.program.segments):
            runs = int((each.program.segment == index).sum())
            for action in (node.action for node in segment.nodes):
                if isinstance(action, Transfer) and action.peer:
                    peers = at_coordinates(traces.mesh, action.peer.rank, ranks)
                    for own, peer in zip(ranks + compiled.traces.firsts[name], peers, strict=True):
                        way = (own, peer) if action.kind == "send" else (peer, own)
                        found[action.kind][int(way[0]), int(way[1])] += runs * action.num_bytes
    return found


def done_by(traces: TraceSet) -> int:
    """FLOPs of products that all ranks do."""
    return sum(
        len(ranks_where(traces.mesh, each.where))
        * int((each.program.segment == index).sum())
        * node.action.num_ops
        for each in traces.classes
        for index, segment in enumerate(each.program.segments)
        for node in segment.nodes
        if isinstance(node.action, Compute) and node.action.work.on_matrix_units
    )


def parameters(compiled: Compiled) -> int:
    return summarize(compiled.module, compiled.counts, "").num_parameters


def cache_bytes(compiled: Compiled) -> int:
    """Of all ranks."""
    (plan,) = compiled.memory
    return plan.static.num_bytes.get(Kind.CACHE, 0) * compiled.trace_set.mesh.num_ranks


@pytest.mark.parametrize("seed", some(range(3), 3))
def test_on_one_time_axis_nothing_comes_before_it_is_sent(seed: int) -> None:
    _, compiled, _ = made(seed)
    found = estimate_pools(compiled.pools)
    sent, got = ({}, {})
    for name in compiled.pools:
        sent |= ends(compiled.traces, found, name, "send")
        got |= ends(compiled.traces, found, name, "recv")
    assert sent.keys() == got.keys()
    for key, rows in got.items():
        for (when, _, _), (end, _, before) in zip(sent[key], rows, strict=True):
            assert end >= max([when, *before]) - 1e-6


@pytest.mark.seldom
def test_microbatches_take_turns() -> None:
    """Both pools go on with another microbatch while the tokens of one are away; with three of them less is waited for than with one after the other."""
    case = replace(drawn(0), sequences=12, dp=2, microbatches=3, layers=3, tp=1, takes_turns=True)
    turns, alone = (
        compile_pools(parse_text(replace(case, takes_turns=t).text), "p", {}) for t in (True, False)
    )
    for each in turns.pools.values():
        program = each.trace_set.classes[0].program
        rows = zip(program.layer.tolist(), program.microbatch.tolist(), strict=True)
        order = [microbatch for layer, microbatch in rows if layer == 1]
        assert order[:3] == [0, 1, 2]
    for each in alone.pools.values():
        program = each.trace_set.classes[0].program
        assert sorted(program.microbatch.tolist()) == program.microbatch.tolist()
    one, other = (estimate_pools(each.pools).end_us for each in (turns, alone))
    assert one < other


def test_experts_that_a_microbatch_has_an_average_of() -> None:
    """6 tokens of 2 experts each for 8 experts, in 3 microbatches: half a token for each, of which nothing is lost."""
    case = replace(
        drawn(0),
        sequences=6,
        new=1,
        chosen=2,
        experts=8,
        microbatches=3,
        dp=2,
        tp=1,
        ep=4,
        etp=1,
        edp=1,
    )
    check_messages(case, compile_pools(parse_text(case.text), "p", {}))


@pytest.mark.parametrize("modules", some(["Shared", "Experts"], 4))
@pytest.mark.parametrize("dispatch", ["", "fp8"])
def test_modules_beside_experts(modules: str, dispatch: str) -> None:
    """What all tokens go to on the other pool, or all of it with its router: each token goes there once, and comes back once."""
    case = replace(
        drawn(0),
        sequences=24,
        dp=2,
        tp=2,
        ep=2,
        etp=1,
        edp=2,
        microbatches=3,
        has_shared=True,
        dispatch=dispatch,
    )
    text = case.text.replace("shard X over ep", "shard B over edp, ep\n    shard X over ep")
    text = text.replace("microbatch 8\n", "microbatch 2\n")
    text = text.replace("part = experts }", f"part = experts, modules = [{modules}] }}")
    compiled, one = (
        compile_pools(parse_text(text), "p", {}),
        compile_program(check(parse_text(text), "one")),
    )
    pools = compiled.pools
    assert sum(map(parameters, pools.values())) == parameters(one)
    flops = {name: matrix_flops(each.module, each.counts).model for name, each in pools.items()}
    assert sum(flops.values()) == matrix_flops(one.module, one.counts).model
    routed = 2 * case.chosen * case.hidden
    shared, router = 2 * 40, case.experts
    here = routed + shared + router * (modules == "Experts")
    assert flops["experts"] == 2 * case.tokens * WIDTH * here * case.calls
    assert done_by(pools["experts"].trace_set) == flops["experts"]
    ways = {name: moved(compiled, name, each) for name, each in compiled.traces.pools}
    copies = 1 if modules == "Experts" else 1 + case.chosen
    one_way = case.tokens * WIDTH * case.calls * copies
    assert sum(ways["attention"]["send"].values()) == one_way * {"": 2, "fp8": 1}[dispatch]
    assert sum(ways["experts"]["send"].values()) == one_way * 2 * case.tp
    assert ways["attention"]["send"] == ways["experts"]["recv"]
    assert ways["experts"]["send"] == ways["attention"]["recv"]
    encoded = encode_traces(compiled.traces)
    assert not replay(*traces_of(encoded)).missing


def test_bytes_of_step_3() -> None:
    """Two attention nodes and one of experts, 128 tokens of each attention GPU in each of three microbatches: for each GPU of experts 2 x 128 x 7168 bytes
    in fp8 there, and twice as many in bf16 back (`stepfun-ai/StepMesh`, `Introduction.md`, table 1)."""
    case = replace(
        drawn(0),
        sequences=16 * 3 * 128,
        new=1,
        layers=2,
        blocks=1,
        alone=False,
        dp=16,
        tp=1,
        ep=8,
        etp=1,
        edp=1,
        microbatches=3,
        experts=8,
        dispatch="fp8",
    )
    text = case.text.replace("dim D = 32", "dim D = 7168").replace(
        "shard X over ep", "shard B over ep"
    )
    text = text.replace(f"microbatch {case.sequences // 3}\n", "microbatch 256\n")
    text = text.replace("part = experts }", "part = experts, modules = [Experts] }")
    compiled = compile_pools(parse_text(text), "p", {})
    traces = dict(compiled.traces.pools)["experts"]
    ways = moved(compiled, "experts", traces)
    of_rank = {kind: Counter[int]() for kind in ways}
    for kind, place in (("recv", 1), ("send", 0)):
        for way, num_bytes in ways[kind].items():
            of_rank[kind][way[place]] += num_bytes
    each = 3 * case.layers
    assert set(of_rank["recv"].values()) == {each * 2 * 128 * 7168}
    assert set(of_rank["send"].values()) == {each * 2 * 128 * 7168 * 2}


@pytest.mark.parametrize("seed", some(range(4), 4))
def test_busy_experts_get_more(seed: int) -> None:
    """Messages are of the tokens of the experts of a device, in each layer, from all that dispatch alike; each device multiplies what it got."""
    ep = (2, 4)[seed % 2]
    case = replace(drawn(seed), edp=1, ep=ep, experts=8, sequences=24, dp=2, microbatches=3)
    text = case.text.replace("device h100", "device h100\n  load { zipf = 1, seed = 3 }")
    compiled = compile_pools(parse_text(text), "p", {})
    traces = dict(compiled.traces.pools)
    ways = {name: moved(compiled, name, each) for name, each in traces.items()}
    assert ways["attention"]["send"] == ways["experts"]["recv"]
    assert ways["experts"]["send"] == ways["attention"]["recv"]
    copies = case.tokens * case.chosen * case.calls
    assert done_by(traces["experts"]) == 4 * copies * WIDTH * case.hidden
    element, first = {"": 2, "fp8": 1}[case.dispatch], compiled.traces.firsts["experts"]
    messages = case.calls * case.microbatches * case.dp * case.tp
    tokens: list[int] = []
    for each in traces["experts"].classes:
        ranks = ranks_where(traces["experts"].mesh, each.where)
        flops = sum(
            node.action.num_ops * int((each.program.segment == index).sum())
            for index, segment in enumerate(each.program.segments)
            for node in segment.nodes
            if isinstance(node.action, Compute) and node.action.work.on_matrix_units
        )
        mine = flops * case.etp // (4 * WIDTH * case.hidden)
        for rank in (ranks + first).tolist():
            tokens.append(mine)
            got = sum(n for (_, there), n in ways["experts"]["recv"].items() if there == rank)
            # A message that is no whole number of bytes is rounded up.
            assert 0 <= got - mine * WIDTH * element < messages
    assert sum(tokens) == copies * case.etp
    assert len(set(tokens)) > 1
    assert not replay(*traces_of(encode_traces(compiled.traces))).missing


@pytest.mark.seldom
def test_loads_that_pools_cannot_share() -> None:
    case = replace(drawn(0), edp=2, ep=2, etp=1, sequences=24, dp=2, microbatches=3)
    loaded = case.text.replace("device h100", "device h100\n  load { zipf = 1 }")
    with pytest.raises(CompileError, match="split again where they arrive"):
        compile_pools(parse_text(loaded), "p", {})
    case = replace(case, edp=1)
    alone = case.text.replace("mesh edp", "load { zipf = 1 }\n    mesh edp")
    with pytest.raises(CompileError, match="`load` is not the same in"):
        compile_pools(parse_text(alone), "p", {})
    whole = replace(case, ep=1).text.replace("shard X over ep", "shard F over etp")
    whole = whole.replace("device h100", "device h100\n  load { zipf = 1 }")
    with pytest.raises(CompileError, match="no tokens go to experts on other devices"):
        compile_pools(parse_text(whole), "p", {})


@pytest.mark.seldom
def test_the_plan_that_ships_takes_what_its_page_says() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "serving.md").read_text("utf-8")
    (said,) = re.findall(r"The plan above takes (\S+) ms for the next token", page)
    job = stagec.compile_pools(str(root / "examples/mixtral_8x22b.stg"), plan="experts_apart")
    assert job.step_time * 1e3 == pytest.approx(float(said), rel=1e-3)
