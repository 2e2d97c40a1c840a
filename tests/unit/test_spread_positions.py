"""Decode context parallelism, and that of prompts, against what one counts by hand: who has which position, which pairs that makes, and what travels."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from stagec.diagnostics import CompileError
from stagec.dialects.sched.actions import Collective, Compute
from stagec.driver import Compiled, compile_program, compile_text
from stagec.frontend import check, parse_file, parse_text
from stagec.frontend.serving.spreads import Spread
from stagec.memory import Kind
from stagec.pools import compile_pools
from stagec.symbolic import constant
from stagec.trust import examples
from tests.unit.seldom import some
from tests.unit.test_pools import messages
from tests.unit.test_serving import E, Group, H, K, L, text, unrolled

LATENT = """
dim B = 8
dim S = 64
dim T = S
dim D = 64
dim H = 8
dim C = 16
dim R = 4
dim V = 96

module Attention(x[B, S, D]) -> [B, S, D] {
  weight near[D, H, C], far[D, H, R], kv[D, C], shared[D, R], wo[H, C, D]
  cache latents[B, T, C], rotated[B, T, R]
  y = latent_attention(x @ near, rope(x @ far), append(latents, x @ kv), append(rotated, rope(x @ shared)), causal = true)
  return y @ wo
}

model Net(x[B, S, D]) {
  return Attention(x)
}
"""


def plan(mesh: str, rules: str, context: str, served: str) -> str:
    return f"""
plan p {{
  mesh {mesh}
  {rules}
  context cp {{ method = partial, {context} }}
  precision {{ weights = bf16, cache = fp8 }}
  serve {{ {served} }}
}}
"""


def by_coordinate(done: Compiled, axis: str, count: int) -> Iterator[tuple[int, list]]:
    """The nodes of a rank at each place along an axis."""
    for place in range(count):
        for each in done.trace_set.classes:
            if place in each.where.get(axis, range(count)):
                yield place, list(unrolled(each.program))


def mine(position: int, interleave: int, ways: int, place: int) -> bool:
    return position // interleave % ways == place


@pytest.mark.parametrize("seed", some(range(12), 4))
def test_a_rank_attends_to_its_own_positions_one_by_one(seed: int):
    rng = random.Random(seed)
    dp, (tp, cp) = rng.choice([1, 2]), rng.choice([(1, 2), (1, 8), (2, 2), (2, 4), (4, 2)])
    heads_of_keys = rng.choice([1, 2, K]) if seed % 3 == 0 else K
    keys = max(1, heads_of_keys // tp)
    interleave, block = rng.choice([1, 1, 2, 16]), rng.choice([1, 16])
    by = rng.choice(["reduce_scatter", "all_to_all"])
    groups = [
        Group(
            dp * rng.randint(1, 5),
            rng.choice([1, 1, rng.randint(2, 40)]),
            rng.choice([0, rng.randint(1, 90)]),
        )
        for _ in range(rng.randint(1, 3))
    ]
    served = ", ".join([*(g.clause for g in groups), f"block = {block}"])
    copies = " { replicate = true }" if heads_of_keys < tp else ""
    rules = f"shard B over dp shard H, F over tp, cp shard K over tp{copies} shard T over cp"
    context = f"interleave = {interleave}, combine = {by}"
    model = text().replace(f"dim K = {K}", f"dim K = {heads_of_keys}")
    done = compile_text(model + plan(f"dp = {dp}, tp = {tp}, cp = {cp}", rules, context, served))
    sequences = [g for g in groups for _ in range(g.count // dp)]
    tokens = sum(g.new for g in sequences)
    seen = 0
    for place, nodes in by_coordinate(done, "cp", cp):
        seen += 1
        pairs = read = written = 0
        for g in sequences:
            own = [p for p in range(g.context + g.new) if mine(p, interleave, cp, place)]
            read += len(own)
            written += sum(p >= g.context for p in own)
            pairs += sum(p <= query for p in own for query in range(g.context, g.context + g.new))
        attention = [n.action for n in nodes if n.op == "attention"]
        heads = H // tp
        assert [a.num_ops for a in attention] == [4 * pairs * heads * E] * L
        # All queries and their outputs in bf16, own keys and values in fp8, the log-sum-exp in fp32.
        moved = 2 * tokens * heads * E * 2 + 2 * read * keys * E + 4 * tokens * heads
        assert [a.num_bytes for a in attention] == [moved] * L
        appended = [n.action.num_bytes for n in nodes if n.op == "append"]
        assert appended == [written * keys * E * (2 + 1)] * (2 * L)
        combined = [n.action for n in nodes if n.op == "combine_attention"]
        parts = 1 if by == "reduce_scatter" else cp
        queries = tokens * heads // (1 if by == "reduce_scatter" else cp)
        known = queries * cp
        each = 1 if by == "reduce_scatter" else 2
        ops = 4 * known + 2 * queries + 2 * queries * parts + each * queries * parts * E
        assert [a.num_ops for a in combined] == [ops] * L
        moved = 2 * queries * E * (parts + 1) + 4 * known
        assert [a.num_bytes for a in combined] == [moved] * L
        sent = [
            (a.kind, a.operand_bytes, a.result_bytes)
            for n in nodes
            if isinstance(a := n.action, Collective) and a.axes == ("cp",)
            if a.kind
            != "all_reduce"  # of products that tp and cp split, over cp alone where tp is 1
        ]
        outputs, lse = 2 * tokens * heads * E, 4 * tokens * heads
        queries_gathered = ("all_gather", outputs // cp, outputs)
        exchanged = [("all_gather", lse, lse * cp), ("reduce_scatter", outputs, outputs // cp)]
        if by == "all_to_all":
            exchanged = [("all_to_all", outputs, outputs), ("all_to_all", lse, lse)]
        assert sorted(sent) == sorted([queries_gathered, *exchanged] * L)
    assert seen == cp
    stored = sum(-(-(g.context + g.new) // (block * cp)) * block for g in sequences)
    for each in done.memory:
        assert each.static.num_bytes[Kind.CACHE] == L * 2 * stored * keys * E


@pytest.mark.parametrize("by", ["reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("served", ["decode 6 at 61", "decode 5 at 61, prefill 1 x 7 at 3"])
def test_latents_that_all_ranks_had_are_shared_by_them(by: str, served: str):
    """DeepSeek's cache under tensor parallelism: the same ranks split heads outside of attention and positions within."""
    done = compile_text(
        LATENT + plan("cp = 4", "shard H over cp shard T over cp", f"combine = {by}", served)
    )
    groups = [(6, 1, 61)] if "prefill" not in served else [(5, 1, 61), (1, 7, 3)]
    tokens = sum(n * s for n, s, _ in groups)
    for place, nodes in by_coordinate(done, "cp", 4):
        pairs = sum(
            n * sum(p <= q for q in range(c, c + s) for p in range(place, c + s, 4))
            for n, s, c in groups
        )
        (attention,) = [n.action for n in nodes if n.op == "latent_attention"]
        assert attention.num_ops == 2 * pairs * 8 * (16 + 4 + 16)
        sent = {
            (a.kind, a.operand_bytes, a.result_bytes)
            for n in nodes
            if isinstance(a := n.action, Collective)
        }
        near, far, out, lse = (tokens * 8 * width for width in (2 * 16, 2 * 4, 2 * 16, 4))
        gathered = {("all_gather", (near + far) // 4, near + far)}
        exchanged = {("all_gather", lse, 4 * lse), ("reduce_scatter", out, out // 4)}
        if by == "all_to_all":
            exchanged = {("all_to_all", out, out), ("all_to_all", lse, lse)}
        assert gathered | exchanged <= sent
    stored = sum(n * -(-(s + c) // 4) for n, s, c in groups)
    assert {m.static.num_bytes[Kind.CACHE] for m in done.memory} == {stored * (16 + 4)}


def test_as_many_positions_on_all_devices_are_the_whole():
    """What devices compute and keep of positions that divide is what they do of heads that divide."""
    served = "decode 16 at 63"
    spread = compile_text(
        text() + plan("cp = 4", "shard H over cp shard T over cp", "interleave = 1", served)
    )
    heads = compile_text(
        text()
        + "plan p { mesh tp = 4 shard H, K over tp precision { weights = bf16, cache = fp8 } serve { decode 16 at 63 } }"
    )

    def attended(done: Compiled) -> set[float]:
        nodes = [n for c in done.trace_set.classes for n in unrolled(c.program)]
        return {n.action.num_ops for n in nodes if n.op == "attention"}

    assert attended(spread) == attended(heads)
    kept = [{m.static.num_bytes[Kind.CACHE] for m in each.memory} for each in (spread, heads)]
    assert kept[0] == kept[1]


def test_one_rank_shares_with_nobody():
    served = "decode 6 at 61"
    one = compile_text(
        text()
        + plan("cp = 1, tp = 2", "shard H, K over tp shard T over cp", "interleave = 16", served)
    )
    nodes = [n for c in one.trace_set.classes for n in unrolled(c.program)]
    assert not [n for n in nodes if n.op == "combine_attention"]
    assert all(isinstance(n.action, Compute | Collective) for n in nodes)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("mesh cp = 2 shard H over cp shard T over cp", "E0309"),
        ("mesh cp = 2 shard H over cp shard T over cp context cp { method = ring }", "E0309"),
        (
            "mesh a = 2, b = 2 shard T over a, b context a { method = partial } context b { method = partial, interleave = 2 }",
            "E0402",
        ),
        (
            "mesh a = 2, b = 2 shard B over a shard T over a, b context a { method = partial } context b { method = partial }",
            "E0303",
        ),
        (
            "mesh cp = 2 shard T over cp context cp { method = partial, combine = all_to_all }",
            "E0309",
        ),
    ],
)
def test_what_cannot_be_spread_is_said(body: str, code: str):
    with pytest.raises(CompileError) as error:
        compile_text(text() + f"plan p {{ {body} serve {{ decode 8 at 31 }} }}")
    assert [d.code for d in error.value.diagnostics] == [code]


def test_a_window_is_not_spread():
    with pytest.raises(CompileError) as error:
        compile_text(
            text(window=True)
            + plan("cp = 2", "shard H over cp shard T over cp", "interleave = 1", "decode 8 at 31")
        )
    assert [d.code for d in error.value.diagnostics] == ["E0309"]


def in_chunks(new: int, ways: int, balanced: bool, place: int) -> list[int]:
    """The new positions of a sequence that a rank has."""
    if not balanced:
        return list(range(place * new // ways, (place + 1) * new // ways))
    chunk = new // (2 * ways)
    starts = [place * chunk, (2 * ways - 1 - place) * chunk]
    return [position for start in starts for position in range(start, start + chunk)]


@pytest.mark.parametrize("seed", some(range(10), 4))
def test_ranks_share_prompts_position_by_position(seed: int):
    """Prefill context parallelism: each rank has its queries, gathers what is new of keys and values, and writes all of it."""
    rng = random.Random(f"prompts {seed}")
    dp, tp, cp = rng.choice([1, 2]), rng.choice([1, 2]), rng.choice([2, 4])
    balanced, window, block = rng.random() < 0.5, rng.random() < 0.4, rng.choice([1, 16])
    groups = [
        Group(dp * rng.randint(1, 4), 2 * cp * rng.randint(1, 6), rng.choice([0, 0, 13, 40]))
        for _ in range(rng.randint(1, 3))
    ]
    context = f"method = all_gather, balance = {'head_tail' if balanced else 'none'}"
    served = ", ".join([*(g.clause for g in groups), f"block = {block}"])
    clauses = f"mesh dp = {dp}, tp = {tp}, cp = {cp} shard B over dp shard S over cp shard H, K, F over tp"
    precision = "precision { weights = bf16, cache = fp8 }"
    done = compile_text(
        text(window)
        + f"plan p {{ {clauses} context cp {{ {context} }} {precision} serve {{ {served} }} }}"
    )
    sequences = [g for g in groups for _ in range(g.count // dp)]
    tokens, heads, seen = sum(g.new for g in sequences), H // tp, 0
    far = 24 if window else 10**9
    for place, nodes in by_coordinate(done, "cp", cp):
        seen += 1
        pairs = sum(
            min(g.context + query + 1, far)
            for g in sequences
            for query in in_chunks(g.new, cp, balanced, place)
        )
        attention = [n.action.num_ops for n in nodes if n.op == "attention"]
        assert attention == [4 * pairs * heads * E] * L
        appended = [n.action.num_bytes for n in nodes if n.op == "append"]
        assert appended == [tokens * K // tp * E * (2 + 1)] * (2 * L)
        gathered = Counter(
            (a.operand_bytes, a.result_bytes)
            for n in nodes
            if isinstance(a := n.action, Collective) and a.kind == "all_gather"
        )
        keys, hidden = 2 * tokens * K // tp * E, 2 * tokens * 64
        assert gathered == Counter({(keys // cp, keys): 2 * L}) + Counter(
            {(hidden // cp, hidden): 1}
        )
    assert seen == cp
    whole = [min(g.context + g.new, far) for g in sequences]
    stored = sum(-(-each // block) * block for each in whole)
    for each in done.memory:
        assert each.static.num_bytes[Kind.CACHE] == L * 2 * stored * K // tp * E


def test_heads_are_exchanged_for_positions():
    """Ulysses: a rank has all new positions of its heads, and of its heads alone in the cache."""
    clauses = "mesh cp = 4 shard S over cp shard H, K over cp context cp { method = ulysses }"
    done = compile_text(text() + f"plan p {{ {clauses} serve {{ prefill 2 x 32 at 9 }} }}")
    (each,) = done.trace_set.classes
    nodes = list(unrolled(each.program))
    pairs = 2 * sum(9 + n + 1 for n in range(32))
    attended = [n.action.num_ops for n in nodes if n.op == "attention"]
    assert attended == [4 * pairs * H // 4 * E] * L
    sent = [a for n in nodes if isinstance(a := n.action, Collective) and a.kind == "all_to_all"]
    sizes = [4 * 2 * 32 * heads * E // 4 for heads in (H, K, K, H)]
    assert Counter(a.operand_bytes for a in sent) == Counter(sizes * L)
    assert {m.static.num_bytes[Kind.CACHE] for m in done.memory} == {
        4 * L * 2 * 2 * 41 * K // 4 * E
    }


@pytest.mark.parametrize(
    ("context", "served", "code"),
    [
        ("", "prefill 2 x 32", "E0309"),
        ("context cp { method = ring }", "prefill 2 x 32", "E0309"),
        ("context cp { method = all_gather }", "prefill 2 x 36", "E0301"),
        ("context cp { method = all_gather }", "prefill 2 x 32, decode 4 at 9", "E0301"),
        ("context cp { method = ulysses }", "decode 4 at 9", "E0301"),
    ],
)
def test_what_of_prompts_cannot_be_shared_is_said(context: str, served: str, code: str):
    with pytest.raises(CompileError) as error:
        compile_text(
            text() + f"plan p {{ mesh cp = 4 shard S over cp {context} serve {{ {served} }} }}"
        )
    assert [d.code for d in error.value.diagnostics] == [code]


def test_pairs_by_their_closed_form():
    """`Spread.pairs` of any lengths, ranks and runs."""
    for ways, run, context, new in product((1, 2, 3, 8), (1, 2, 5), (0, 1, 7, 40), (1, 2, 9, 33)):
        spread = Spread(("cp",), run, "reduce_scatter")
        for place in range(ways):
            known = {"cp": ways, "cp.index": place}
            exact = sum(
                mine(p, run, ways, place)
                for query in range(context, context + new)
                for p in range(query + 1)
            )
            size = spread.pairs(constant(new), constant(context), True)
            assert size.evaluate(known) == exact, (ways, run, context, new, place)


@pytest.mark.parametrize("split", some(["", ", microbatches = 2"], 2))
def test_devices_that_have_other_sequences_share_those(split: str):
    """13 sequences over 2 devices are 7 and 6, of which each is on 4 ranks; the new position 61 of all is on the second."""
    rules = "shard B over dp shard H over tp, cp shard K over tp shard T over cp"
    done = compile_text(
        text() + plan("dp = 2, tp = 2, cp = 4", rules, "interleave = 1", f"decode 13 at 61{split}")
    )
    for place, device in product(range(4), range(2)):
        (each,) = [
            c for c in done.trace_set.classes if place in c.where["cp"] and device in c.where["dp"]
        ]
        nodes = list(unrolled(each.program))
        count, own = 7 - device, len([p for p in range(62) if p % 4 == place])
        attended = sum(n.action.num_ops for n in nodes if n.op == "attention")
        assert attended == L * 4 * count * own * (H // 2) * E
        appended = sum(n.action.num_bytes for n in nodes if n.op == "append")
        assert appended == L * 2 * count * (place == 1) * K * E // 2 * (2 + 1)


POOLS = """
plan p {
  precision { cache = fp8 }
  pool prefill { mesh tp = 2 shard H, K over tp serve { prefill 6 x POSITIONS } }
  pool decode {
    mesh tp = 2, cp = 4
    shard H over tp, cp
    shard K over tp
    shard T over cp
    context cp { method = partial, interleave = 2 }
    serve { decode 6 at POSITIONS from prefill }
  }
}
"""


def test_a_prompt_is_handed_over_to_those_who_share_it():
    """Each device of a pool that shares positions is sent its part of them, of its heads."""
    done = compile_pools(parse_text(text() + POOLS.replace("POSITIONS", "64")), "p", {})
    sent, got = messages(done, "prefill", "send"), messages(done, "decode", "recv")
    assert sent == got
    # Ranks 2 to 9 decode, four for each of the two that prefill the same heads.
    pairs = {(source, target) for source, target, *_ in sent}
    assert pairs == {(0, n) for n in range(2, 6)} | {(1, n) for n in range(6, 10)}
    assert set(sent.values()) == {6 * 64 // 4 * (K // 2) * E}
    assert len(sent) == 2 * 4 * 2 * L


def test_positions_that_are_handed_over_are_as_many_on_each_device():
    with pytest.raises(CompileError, match="a multiple of 8") as error:
        compile_pools(parse_text(text() + POOLS.replace("POSITIONS", "60")), "p", {})
    assert {d.code for d in error.value.diagnostics} == {"E0423"}


def test_devices_of_both_pools_share_positions_alike():
    shared = "mesh tp = 2, cp = 2 shard H over tp, cp shard K over tp shard T over cp context cp { method = partial }"
    both = POOLS.replace("mesh tp = 2 shard H, K over tp", shared).replace("POSITIONS", "64")
    with pytest.raises(CompileError, match="differently") as error:
        compile_pools(parse_text(text() + both), "p", {})
    assert {d.code for d in error.value.diagnostics} == {"E0423"}
    alike = both.replace("cp = 2", "cp = 4").replace(
        "method = partial }", "method = partial, interleave = 2 }"
    )
    done = compile_pools(parse_text(text() + alike), "p", {})
    sent = messages(done, "prefill", "send")
    assert {(source, target) for source, target, *_ in sent} == {(n, n + 8) for n in range(8)}


def test_deepseek_on_a_node_by_hand():
    """`decode_tp8_dcp8`: 64 sequences of 32,768 positions and a new one, which the first of 8 GPUs keeps; 61 layers, 128 heads, latent vectors of 512 + 64."""
    done = compile_program(
        check(parse_file(Path(examples()) / "deepseek_v3.stg"), "decode_tp8_dcp8")
    )
    for place, nodes in by_coordinate(done, "tp", 8):
        attention = [n.action for n in nodes if n.op == "latent_attention"]
        positions = 64 * (4096 + (place == 0))
        assert [a.num_ops for a in attention] == [2 * positions * 128 * (512 + 64 + 512)] * 61
        queries, found = 64 * 128 * (512 + 64), 64 * 128 * 512
        moved = 2 * (queries + found) + 4 * 64 * 128 + 2 * positions * (512 + 64)
        assert [a.num_bytes for a in attention] == [moved] * 61
        sent = Counter(
            (a.kind, a.operand_bytes, a.result_bytes)
            for n in nodes
            if isinstance(a := n.action, Collective) and n.scope.endswith("Attention")
        )
        del sent["all_reduce", 2 * 64 * 7168, 2 * 64 * 7168]
        assert sent == {
            ("all_gather", 2 * queries // 8, 2 * queries): 61,
            ("all_gather", 4 * 64 * 128, 4 * 64 * 128 * 8): 61,
            ("reduce_scatter", 2 * found, 2 * found // 8): 61,
        }
    # 70,272 bytes of a position are shared by 8, in blocks of 64 on each.
    blocks = -(-32769 // (64 * 8))
    for each in done.memory:
        assert each.static.num_bytes[Kind.CACHE] == 64 * blocks * 64 * 70272


def test_positions_that_other_dims_leave_whole_are_not_shared():
    """An axis that splits sequences has none left: as without the rule."""
    rules = "shard B over cp"
    shared, whole = (
        compile_text(text() + plan("cp = 4", each, "interleave = 2", "decode 8 at 61, block = 16"))
        for each in (f"{rules} shard T over cp", rules)
    )
    kept = [[m.static.num_bytes[Kind.CACHE] for m in each.memory] for each in (shared, whole)]
    assert kept[0] == kept[1]
    nodes = [n for c in shared.trace_set.classes for n in unrolled(c.program)]
    assert not [n for n in nodes if n.op == "combine_attention"]
