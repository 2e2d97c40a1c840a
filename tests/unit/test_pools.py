"""Pools of random meshes: what each computes is what it computes alone, and what is handed over is each byte that a device is to have, once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import lcm, prod
from pathlib import Path

import numpy as np
import pytest

from stagec.backend.encode import encode_traces
from stagec.backend.errors import TraceError
from stagec.backend.program import Mesh, PooledTraces, TraceSet
from stagec.backend.ranks import coordinate, ranks_where
from stagec.backend.writer import write_traces
from stagec.checking import check_traces
from stagec.compiled import Compiled
from stagec.diagnostics import CompileError
from stagec.dialects.sched.actions import Transfer
from stagec.driver import compile_program
from stagec.frontend import check, parse_file, parse_text
from stagec.frontend.files import Source
from stagec.pools import CompiledPools, compile_pools
from tests.replay.machine import replay
from tests.replay.models import traces_of
from tests.unit.examples import FOLDER
from tests.unit.seldom import some

MODEL = """
dim B = 8
dim S = 16
dim T = S
dim V = 64
dim D = 4096
dim H = 8
dim K = 4
dim E = 8
dim R = 16
dim L = 4
module Attention(x[B, S, D]) -> [B, S, D] {
  weight wq[D, H, E], wk[D, K, E], wr[D, R], wo[H, E, D], wb[R, D]
  cache keys[B, T, K, E], shared[B, T, R]
  k = append(keys, x @ wk)
  r[B, T, R] = append(shared, x @ wr)
  y = attention(x @ wq, k, k, causal = true) @ wo
  return y + (x @ wr) @ wb
}
model Net(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[V, D], head[D, V]
  x = embedding(tokens, embed)
  repeat L { x = x + Attention(x) }
  loss = cross_entropy(x @ head, targets)
}
"""
LAYERS, HEADS = 4, 4
WIDTHS = {"keys": 8, "shared": 16}
"""Elements of a position, and of a head where there are heads."""
BYTES = 2


@dataclass(frozen=True)
class Drawn:
    """A pool's mesh."""

    dp: int
    tp: int
    pp: int
    rest: int
    microbatch: int
    """Sequences of one; all that a device has without stages."""

    @property
    def mesh(self) -> Mesh:
        return Mesh(("pp", "dp", "cc", "tp"), (self.pp, self.dp, self.rest, self.tp))

    def clauses(self, serve: str) -> str:
        pipeline = (
            f"pipeline L over pp {{ schedule = forward_only, microbatch = {self.microbatch} }}"
            if self.pp > 1
            else ""
        )
        mesh = f"pp = {self.pp}, dp = {self.dp}, cc = {self.rest}, tp = {self.tp}"
        return f"mesh {mesh}\nshard B over dp\nshard H, K over tp\n{pipeline}\nserve {{ {serve} }}"


def drawn(seed: int) -> tuple[Drawn, Drawn, int, int]:
    """Two pools; how many sequences go from the one to the other, and of how many positions."""
    rng = random.Random(seed)

    def pool() -> Drawn:
        dp, tp = rng.choice([1, 1, 2, 3]), rng.choice([1, 2, 4])
        return Drawn(dp, tp, rng.choice([1, 1, 2]), rng.choice([1, 1, 2]), 1)

    one, other = pool(), pool()
    count = lcm(one.dp, other.dp) * rng.choice([1, 2])
    positions = 16 * 3 * rng.choice([1, 2])
    return one, other, count, positions


def text_of(one: Drawn, other: Drawn, count: int, positions: int) -> str:
    first = one.clauses(f"prefill {count} x {positions}")
    second = other.clauses(f"decode {count} at {positions} from prefill")
    return f"{MODEL}\nplan p {{\nprecision {{ weights = bf16 }}\npool prefill {{\n{first}\n}}\npool decode {{\n{second}\n}}\n}}\n"


def work(traces: TraceSet) -> Counter[object]:
    """What ranks of each class do by themselves and with each other."""
    found: Counter[object] = Counter()
    for each in traces.classes:
        for index, segment in enumerate(each.program.segments):
            runs = int((each.program.segment == index).sum())
            for node in segment.nodes:
                if not (isinstance(node.action, Transfer) and node.action.peer is not None):
                    found[each.name, node.op, node.scope, node.action] += runs
    return found


Message = tuple[int, int, str, int]
"""Source, destination, cache, layer."""


def messages(compiled: CompiledPools, pool: str, kind: str) -> Counter[Message]:
    """The bytes of each."""
    traces = compiled.traces
    mine = dict(traces.pools)[pool]
    first = traces.firsts[pool]
    encoded = encode_traces(traces)
    number = [name for name, _ in traces.pools].index(pool)
    formulas = encoded.pools[number].formulas
    found: Counter[Message] = Counter()
    for each in mine.classes:
        ranks = ranks_where(mine.mesh, each.where)
        for index, segment in enumerate(each.program.segments):
            at = np.flatnonzero(each.program.segment == index)
            for node in segment.nodes:
                action = node.action
                if not isinstance(action, Transfer) or action.peer is None or action.kind != kind:
                    continue
                peers = formulas.at(action.peer.rank, ranks)
                cache = ("keys", "shared")[action.channel]
                for rank, peer in zip((ranks + first).tolist(), peers.tolist(), strict=True):
                    ends = (rank, peer) if kind == "send" else (peer, rank)
                    for row in at.tolist():
                        layer = int(each.program.layer[row])
                        assert layer == int(each.program.tag[row])
                        found[(*ends, cache, layer)] += action.num_bytes
    return found


def boxes(pool: Drawn, first: int, count: int) -> Iterator[tuple[int, Mapping[str, object]]]:
    """Of each rank: the sequences, heads and layers that it has."""
    mesh = pool.mesh
    for rank in range(mesh.num_ranks):
        at = {a: int(coordinate(mesh, a, np.array([rank]))[0]) for a in mesh.axes}
        each, heads, layers = count // pool.dp, HEADS // pool.tp, LAYERS // pool.pp
        yield (
            first + rank,
            {
                "sequences": frozenset(range(at["dp"] * each, (at["dp"] + 1) * each)),
                "heads": frozenset(range(at["tp"] * heads, (at["tp"] + 1) * heads)),
                "layers": frozenset(range(at["pp"] * layers, (at["pp"] + 1) * layers)),
            },
        )


def shared_bytes(
    one: Mapping[str, object], other: Mapping[str, object], cache: str, positions: int
) -> int:
    """Of what both of two ranks have of a layer."""
    common = {name: len(one[name] & other[name]) for name in ("sequences", "heads")}  # pyright: ignore
    heads = common["heads"] if cache == "keys" else 1
    return common["sequences"] * heads * positions * WIDTHS[cache] * BYTES


@pytest.mark.parametrize("seed", some(range(5), 5))
def test_each_byte_is_handed_over_once(seed: int, tmp_path: Path) -> None:
    one, other, count, positions = drawn(seed)
    source = parse_text(text_of(one, other, count, positions))
    compiled = compile_pools(source, "p", {})
    sent, got = messages(compiled, "prefill", "send"), messages(compiled, "decode", "recv")
    assert sent == got
    givers = dict(boxes(one, 0, count))
    takers = dict(boxes(other, one.mesh.num_ranks, count))
    for (rank, box), cache, layer in product(takers.items(), WIDTHS, range(LAYERS)):
        if layer not in box["layers"]:  # pyright: ignore
            continue
        # From those that have the same sequences and heads together: what they share with this rank.
        wanted: Counter[object] = Counter()
        came: Counter[object] = Counter()
        for giver, theirs in givers.items():
            if layer in theirs["layers"]:  # pyright: ignore
                heads = theirs["heads"] if cache == "keys" else 0
                key = theirs["sequences"], heads
                wanted[key] = shared_bytes(theirs, box, cache, positions)
                came[key] += sent[giver, rank, cache, layer]
        assert +wanted == +came, (rank, cache, layer)
    # In all: the bytes of a sequence, for each copy of it.
    for cache, width in WIDTHS.items():
        of_one = positions * width * BYTES * LAYERS * (HEADS if cache == "keys" else 1)
        copies = other.rest * (1 if cache == "keys" else other.tp)
        total = sum(n for (_, _, which, _), n in sent.items() if which == cache)
        assert total == count * of_one * copies
    for name in ("prefill", "decode"):
        assert work(compiled.pools[name].trace_set) == work(alone(source, f"p.{name}").trace_set)
    encoded = encode_traces(compiled.traces)
    assert not replay(*traces_of(encoded)).missing
    write_traces(encoded, str(tmp_path / "set"))
    report = check_traces(tmp_path / "set", jobs=1)
    assert not report.findings, report.text()


@pytest.mark.seldom
@pytest.mark.parametrize("seed", range(40, 42))
def test_a_pool_between_two_others_passes_on_what_it_takes(seed: int, tmp_path: Path) -> None:
    """It hands over as much as a pool that computes all positions itself, and takes as much as if nobody went on with it."""
    (one, other, count, positions), last = drawn(seed), drawn(seed + 100)[0]
    count, more = lcm(count, other.dp * last.dp), 48
    clauses = {
        "prefill": one.clauses(f"prefill {count} x {positions}"),
        "decode": other.clauses(f"decode {count} x {more} at {positions} from prefill"),
        "last": last.clauses(f"decode {count} at {positions + more} from decode"),
    }
    whole = {
        "decode": other.clauses(f"prefill {count} x {positions + more}"),
        "last": clauses["last"],
    }
    first = {name: clauses[name] for name in ("prefill", "decode")}

    def compiled(pools: Mapping[str, str]) -> CompiledPools:
        texts = "".join(f"pool {name} {{\n{text}\n}}\n" for name, text in pools.items())
        plan = f"plan p {{\nprecision {{ weights = bf16 }}\n{texts}}}\n"
        return compile_pools(parse_text(f"{MODEL}\n{plan}"), "p", {})

    chain, taking, giving = map(compiled, (clauses, first, whole))
    assert messages(chain, "decode", "recv") == messages(taking, "decode", "recv")
    before = one.mesh.num_ranks
    given = messages(giving, "decode", "send")
    shifted = {(a + before, b + before, *rest): size for (a, b, *rest), size in given.items()}
    assert messages(chain, "decode", "send") == messages(chain, "last", "recv") == shifted
    encoded = encode_traces(chain.traces)
    assert not replay(*traces_of(encoded)).missing
    write_traces(encoded, str(tmp_path / "set"))
    report = check_traces(tmp_path / "set", jobs=1)
    assert not report.findings, report.text()


def alone(source: Source, plan: str) -> Compiled:
    return compile_program(check(source, plan))


def test_devices_of_a_pool_send_equally_much() -> None:
    for seed in range(6, 8):
        one, other, count, positions = drawn(seed)
        compiled = compile_pools(parse_text(text_of(one, other, count, positions)), "p", {})
        sent: Counter[int] = Counter()
        for (source, _, _, _), size in messages(compiled, "prefill", "send").items():
            sent[source] += size
        assert len(set(sent.values())) == 1
        assert len(sent) == one.mesh.num_ranks


def test_a_prefills_cache_is_as_large_as_its_tokens() -> None:
    """Llama 3 70B, 327,680 bytes a token in bf16: of 8 prompts of 2048 tokens."""
    source = parse_file(FOLDER / "llama3_70b.stg")
    compiled = compile_pools(source, "disaggregated", {})
    (_, prefill), (_, decode) = compiled.traces.pools
    assert (prefill.mesh.num_ranks, decode.mesh.num_ranks) == (8, 16)
    total = 0
    for each in prefill.classes:
        ranks = prod(len(each.where.get(a, range(prefill.mesh.size(a)))) for a in prefill.mesh.axes)
        for index, segment in enumerate(each.program.segments):
            runs = int((each.program.segment == index).sum())
            for node in segment.nodes:
                if isinstance(node.action, Transfer) and node.action.peer is not None:
                    total += ranks * runs * node.action.num_bytes
    assert total == 8 * 2048 * 327_680


def test_what_is_sent_must_be_waited_for() -> None:
    """A pool that was changed is found out."""
    source = parse_text(text_of(*drawn(0)))
    (one, prefill), (other, _) = compile_pools(source, "p", {}).traces.pools
    changed = PooledTraces(((one, prefill), (other, alone(source, "p.decode").trace_set)))
    with pytest.raises(TraceError, match="do not agree on what is handed over"):
        encode_traces(changed)


WRONG = {
    "which is no other pool": "decode 4 at 16 from elsewhere",
    "that `prefill` does not leave": "decode 4 at 17 from prefill",
    "go on in no pool": "decode 2 at 16 from prefill",
    "no pool goes on": "decode 4 at 16",
}


@pytest.mark.parametrize("message", WRONG)
def test_pools_agree_on_sequences(message: str) -> None:
    text = MODEL + (
        "plan p {\n pool prefill { serve { prefill 4 x 16 } }\n"
        f" pool decode {{ serve {{ {WRONG[message]} }} }}\n}}"
    )
    with pytest.raises(CompileError, match=message) as error:
        compile_pools(parse_text(text), None, {})
    assert error.value.diagnostics[0].code == "E0423"


def test_a_plan_of_pools_is_no_plan_of_one_mesh() -> None:
    source = parse_text(text_of(*drawn(0)), "pools.stg")
    with pytest.raises(CompileError) as error:
        check(source, "p")
    (found,) = error.value.diagnostics
    assert found.code == "E0422"
    assert found.message == "plan `p` has pools, each with a mesh of its own"
    assert found.help.startswith("ask about one of them: `--plan p.prefill` or `--plan p.decode`;")
