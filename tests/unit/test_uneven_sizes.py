"""Dims that their axes do not divide: a padded one is a larger one, ranks that share heads have what heads of their own would be, and uneven parts
are those of a model whose dims are as many times the part."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings, strategies as st

from stagec import summary
from stagec.dialects.sched.actions import Compute
from stagec.driver import Compiled, compile_text
from stagec.memory import plan_memory
from tests.fidelity.totals import nodes_of
from tests.unit.seldom import some

MODEL = """
dim B = 8
dim S = 16
dim T = S
dim D = 12
dim E = 4

module Attention(x[B, S, D]) -> [B, S, D] {
  weight wq[D, H, E], wk[D, K, E], wv[D, K, E], wo[H, E, D]
  cache keys[B, T, K, E], values[B, T, K, E]
  k = append(keys, rope(x @ wk))
  v = append(values, x @ wv)
  return attention(rope(x @ wq), k, v, causal = true) @ wo
}

model M(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[V, D]
  x = embedding(tokens, embed)
  repeat 2 { x = x + Attention(x) }
  loss = cross_entropy(x @ embed, targets)
}
"""


def compiled(sizes: dict[str, int], plan: str) -> Compiled:
    dims = "\n".join(f"dim {name} = {size}" for name, size in sizes.items())
    return compile_text(f"{MODEL}{dims}\nplan p {{\n{plan}\n}}")


def totals(job: Compiled) -> object:
    found = summary.summarize(job.module, job.counts)
    return found.num_parameters, found.classes


@pytest.mark.seldom
@settings(max_examples=8, deadline=None, database=None)
@given(
    st.integers(1, 40),
    st.integers(1, 5),
    st.sampled_from((1, 2, 4)),
    st.integers(1, 8),
    st.sampled_from(("", "zero 1 over dp", "zero 3 over dp", "serve { decode 8 at 3 }")),
)
def test_what_is_padded_is_larger(words: int, heads: int, tp: int, multiple: int, clause: str):
    mesh = f"mesh dp = 2, tp = {tp}\nshard B over dp\n{clause}"
    padded = {"V": -(-words // (tp * multiple)) * tp * multiple, "H": -(-heads // tp) * tp}
    rules = f"shard V over tp {{ pad = {multiple} }}\nshard H, K over tp {{ pad = 1 }}"
    asked = compiled({"V": words, "H": heads, "K": heads}, f"{mesh}\n{rules}")
    sizes = {"V": padded["V"], "H": padded["H"], "K": padded["H"]}
    assert totals(asked) == totals(compiled(sizes, f"{mesh}\nshard V, H, K over tp"))
    found = summary.summarize(asked.module, asked.counts)
    extra = (padded["V"] - words) * 12 + 2 * 4 * 12 * 4 * (padded["H"] - heads)
    assert found.num_padding == extra


@pytest.mark.seldom
@settings(max_examples=5, deadline=None, database=None)
@given(st.sampled_from((1, 2, 4)), st.sampled_from((2, 4, 8)), st.booleans())
def test_ranks_that_share_heads(heads: int, tp: int, is_served: bool):
    """Each has what it would have of as many heads of its own; only training adds up what they share."""
    mesh = f"mesh dp = 2, tp = {tp}\nshard B over dp\nshard H over tp"
    if is_served:
        mesh += "\nserve { decode 8 at 3 }"
    own = max(heads, tp)
    asked = compiled(
        {"V": 8, "H": 8, "K": heads}, f"{mesh}\nshard K over tp {{ replicate = true }}"
    )
    written = compiled({"V": 8, "H": 8, "K": own}, f"{mesh}\nshard K over tp")
    ours, theirs = (summary.summarize(job.module, job.counts).classes for job in (asked, written))
    assert [c.parameters for c in ours] == [c.parameters for c in theirs]
    assert [c.matrix_flops for c in ours] == [c.matrix_flops for c in theirs]
    if heads == 1:
        return  # All of `tp` has copies: they add up other things too.
    shared = {t for c in ours for t in c.traffic if t.axes == ("tp.copies",)}
    assert bool(shared) == (not is_served and tp > heads)
    # wk and wv of two layers, one head of four columns of 12 each, in fp32.
    assert sum(t.operand_bytes for t in shared) in (0, 2 * 2 * 4 * 12 * 4)


EXPERTS = """
module Experts(x[B, S, D]) -> [B, S, D] {
  weight router[D, X], up[X, D, F], down[X, F, D]
  gates, chosen = topk(x @ router, over = X, to = A)
  r = dispatch(x, chosen, experts = X, tokens = T, dropless = false)
  u[X, T, F] = silu(r @ up)
  y[X, T, D] = u @ down
  return combine(y, gates, chosen)
}

model M(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[V, D], norm[D], wq[D, H, E], wk[D, H, E], wv[D, H, E], wo[H, E, D]
  x = embedding(tokens, embed)
  n = rms_norm(x, norm)
  h = x + attention(n @ wq, n @ wk, n @ wv, causal = true) @ wo
  repeat 1 { h = h + Experts(h) }
  loss = cross_entropy(h @ embed, targets)
}
"""
DIMS = {"B": 8, "S": 13, "D": 12, "E": 4, "A": 2, "T": 48}


def parts(how: str, size: int, ways: int) -> list[int]:
    """As `torch.tensor_split` and `torch.chunk` cut, one element at a time."""
    if how == "balanced":
        return [len(range(rank, size, ways)) for rank in range(ways)]
    each = -(-size // ways)
    return [max(0, min(each, size - rank * each)) for rank in range(ways)]


def unequal(sizes: dict[str, int], plan: str) -> Compiled:
    dims = "\n".join(f"dim {name} = {size}" for name, size in {**DIMS, **sizes}.items())
    return compile_text(f"{EXPERTS}{dims}\nplan p {{\n{plan}\n}}")


def by_place(job: Compiled, axis: str) -> dict[int, tuple[Compiled, int]]:
    """The number of the class that has each coordinate along an axis."""
    found: dict[int, tuple[Compiled, int]] = {}
    for number, each in enumerate(job.counts):
        for at in each.run.where.get(axis, range(8)):
            found[at] = job, number
    return found


CLAUSES = (
    "",
    "zero 1 over dp",
    "zero 3 over dp\nrecompute silu",
    "zero 1 over dp { like = megatron }\ngradients { bucket_bytes = 2000 }",
    "optimizer adamw { clip = 1 }\nmicrobatch 1",
    "offload { activations = all, optimizer = true }",
)


@pytest.mark.seldom
@settings(max_examples=4, deadline=None, database=None)
@given(
    st.integers(3, 40),
    st.integers(3, 7),
    st.integers(3, 11),
    st.sampled_from((2, 3)),
    st.sampled_from(("balanced", "chunk")),
    st.sampled_from(CLAUSES),
)
def test_each_rank_is_one_of_an_even_model(
    words: int, heads: int, width: int, tp: int, how: str, clauses: str
):
    """Numbers, traffic and memory of a rank with a part are those of a model with as many times that part."""
    sizes = {"V": words, "H": heads, "F": width}
    cut = {name: parts(how, size, tp) for name, size in sizes.items()}
    assume(all(min(each) > 0 for each in cut.values()))
    mesh = f"mesh dp = 2, tp = {tp}\nshard B over dp\n{clauses}\n"
    asked = unequal({**sizes, "X": 4}, f"{mesh}shard V, H, F over tp {{ uneven = {how} }}")
    ours, plans = (
        summary.summarize(asked.module, asked.counts),
        plan_memory([each.run for each in asked.counts]),
    )
    assert ours.num_parameters == whole(sizes, 4)
    places = by_place(asked, "tp")
    for rank in range(tp):
        own = {name: each[rank] * tp for name, each in cut.items()}
        even = unequal({**own, "X": 4}, f"{mesh}shard V, H, F over tp")
        (theirs,) = summary.summarize(even.module, even.counts).classes
        _, number = places[rank]
        mine = ours.classes[number]
        assert mine.parameters == theirs.parameters
        assert (mine.matrix_flops, mine.other_flops) == (theirs.matrix_flops, theirs.other_flops)
        assert (mine.bytes_moved, mine.traffic) == (theirs.bytes_moved, theirs.traffic)
        (needed,) = plan_memory([each.run for each in even.counts])
        more = plans[number].peak_bytes - needed.peak_bytes
        # What buffers have at their ends is stored as of the class that has most.
        assert more == 0 or (0 < more < 1024 and "megatron" in clauses)


def whole(sizes: dict[str, int], experts: int) -> int:
    """Parameters of the model."""
    width, heads = DIMS["D"], 4 * DIMS["E"] * sizes["H"]
    return width * (sizes["V"] + 1 + heads + experts * (1 + 2 * sizes["F"]))


@settings(max_examples=3, deadline=None, database=None)
@given(st.integers(4, 9), st.sampled_from((1, 1, 3)), st.sampled_from((2, 3, 4)), st.booleans())
def test_heads_of_queries_go_with_those_of_keys(heads: int, share: int, tp: int, is_served: bool):
    """Heads of queries are where the heads of keys are that they share; a cache has those of its rank."""
    mesh = f"mesh dp = 2, tp = {tp}\nshard B over dp\n{'serve { decode 8 at 3 }' if is_served else ''}\n"
    asked = compiled(
        {"V": 12, "H": share * heads, "K": heads},
        f"{mesh}shard H, K over tp {{ uneven = balanced }}",
    )
    places, plans = by_place(asked, "tp"), plan_memory([each.run for each in asked.counts])
    for rank, part in enumerate(parts("balanced", heads, tp)):
        sizes = {"V": 12, "H": share * part * tp, "K": part * tp}
        even = compiled(sizes, f"{mesh}shard H, K over tp")
        (needed,) = plan_memory([each.run for each in even.counts])
        assert plans[places[rank][1]].peak_bytes == needed.peak_bytes


@pytest.mark.parametrize(("how", "share"), [("balanced", 7), ("chunk", 11)])
def test_heads_that_share_a_copied_head_are_where_its_copies_are(how: str, share: int):
    """Two heads of keys on 6 devices: each is on three, which share out the heads of its queries."""
    rules = f"shard H over tp {{ uneven = {how} }}\nshard K over tp {{ replicate = true }}"
    asked = compiled({"V": 12, "H": 2 * share, "K": 2}, f"mesh tp = 6\n{rules}")
    classes = summary.summarize(asked.module, asked.counts).classes
    a_head = 2 * 2 * 12 * 4  # two matrices in two layers, of queries as of keys
    heads = {
        (head, copy): (found.parameters.count - 12 * 12) / a_head - 1
        for each, found in zip(asked.counts, classes, strict=True)
        for head in each.run.where.get("tp.K", range(2))
        for copy in each.run.where.get("tp.copies", range(3))
    }
    cut = parts(how, share, 3)
    assert heads == {(head, copy): cut[copy] for head in range(2) for copy in range(3)}


@pytest.mark.parametrize("dim", some(["R", "E", "N"], 3))
@pytest.mark.parametrize("how", ["balanced", "chunk"])
def test_rows_of_tables_that_ranks_do_not_share_evenly(dim: str, how: str):
    """A rank updates rows as that of a model with as many times its part."""
    text = """
dim B = 12
dim J = 5
model Lookup(ids[B, N, J]: i32, wanted[B, N, E]) {
  weight tables[N, R, E]
  rows = embedding_bag(ids, tables, over = J)
  loss = mean(rows * wanted, over = [B, N, E])
}
plan p { mesh c = 3
CLAUSES
shard B over c
shard Lookup.rows[B] over c
optimizer sgd { tables = adam } }
"""
    sizes = {"R": 100, "E": 11, "N": 4} | ({"N": 5} if dim == "N" else {})

    def updates(change: dict[str, int], setting: str) -> list[tuple[int, int]]:
        dims = "".join(f"dim {name} = {size}\n" for name, size in (sizes | change).items())
        job = compile_text(dims + text.replace("CLAUSES", f"shard {dim} over c {setting}"))
        return [
            (n.action.num_ops, n.action.num_bytes)
            for each in job.trace_set.classes
            for n, _ in nodes_of(each)
            if n.op == "update_rows" and isinstance(n.action, Compute)
        ]

    cut = parts(how, sizes[dim], 3)
    found = updates({}, f"{{ uneven = {how} }}")
    assert found == [updates({dim: 3 * part}, "")[0] for part in dict.fromkeys(cut)]


@pytest.mark.seldom
@settings(max_examples=5, deadline=None, database=None)
@given(
    st.integers(5, 17),
    st.sampled_from((2, 4)),
    st.sampled_from(("balanced", "chunk")),
    st.sampled_from(("", "collectives { exchange = all_gather }", "zero 3 over dp, ep")),
    st.booleans(),
)
def test_all_ranks_together_do_what_one_does(
    experts: int, ep: int, how: str, clause: str, is_sequence: bool
):
    """Each expert is on one rank, each token's work is done once, and members of a group name one size."""
    assume(min(parts(how, experts, ep)) > 0)
    sizes = {"V": 12, "H": 4, "F": 8, "X": experts}
    uneven = f"{{ uneven = {how} }}"
    mesh = f"mesh dp = 2, ep = {ep}, tp = 2\nshard B over dp, ep\nshard X over ep {uneven}"
    rules = "shard T over dp, ep\nshard H, V, F over tp" + (
        f"\nshard S over tp {uneven}" if is_sequence else ""
    )
    job = unequal(sizes, f"{mesh}\n{rules}\n{clause}")
    found = summary.summarize(job.module, job.counts)
    (alone,) = summary.summarize(*(lambda j: (j.module, j.counts))(unequal(sizes, ""))).classes
    assert found.num_parameters == alone.parameters.count == whole(sizes, experts)
    total = sum(each.num_ranks * each.matrix_flops for each in found.classes)
    routed = 6 * DIMS["B"] * DIMS["S"] * DIMS["D"] * experts
    # A router is not split over `tp`, unless the sequence is.
    assert total == alone.matrix_flops + (0 if is_sequence else routed)
    exchanged = {t for each in found.classes for t in each.traffic if t.axes == ("ep",)}
    most = max(parts(how, experts, ep)) * ep * DIMS["T"] // (2 * ep) * DIMS["D"] * 4
    sizes_of = {t.operand_bytes // t.count for t in exchanged if t.kind == "all_to_all"}
    assert is_sequence or sizes_of <= {most}


@pytest.mark.seldom
@settings(max_examples=4, deadline=None, database=None)
@given(
    st.sampled_from((6, 13, 39)),
    st.sampled_from(("balanced", "chunk")),
    st.sampled_from(("", "collectives { exchange = all_gather }")),
    st.integers(0, 9),
)
def test_loads_of_uneven_experts(experts: int, how: str, clause: str, seed: int):
    """All tokens find their experts, however many a device has."""
    assume(min(parts(how, experts, 4)) > 0)
    text = EXPERTS.replace(", dropless = false", "")
    dims = {**DIMS, "T": "B * S * A / X", "B": 24, "V": 12, "H": 4, "F": 8, "X": experts}
    named = "\n".join(f"dim {name} = {size}" for name, size in dims.items())
    plan = f"mesh ep = 4\nshard B over ep\nshard X over ep {{ uneven = {how} }}\nshard T over ep"
    load = f"load {{ zipf = 1.1, seed = {seed} }}"
    loaded, same = (
        compile_text(f"{text}{named}\nplan p {{\n{plan}\n{clause}\n{more}\n}}")
        for more in (load, "")
    )
    totals = [
        sum(c.num_ranks * c.matrix_flops for c in summary.summarize(j.module, j.counts).classes)
        for j in (loaded, same)
    ]
    assert totals[0] == totals[1]
    found = summary.summarize(loaded.module, loaded.counts).classes
    exchanged = {
        t for c in found for t in c.traffic if t.axes == ("ep",) and t.kind == "all_to_all"
    }
    assert len({(t.count, t.operand_bytes) for t in exchanged}) <= 1
