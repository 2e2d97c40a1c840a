"""Context parallelism, from text to traces: what moves, what is computed, and on which rank."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest

from stagec.analysis.contexts import share_of_mask
from stagec.analysis.coordinates import coordinate_classes, joint_index
from stagec.backend.encode import encode_traces
from stagec.backend.program import Node, RankClass
from stagec.backend.writer import write_traces
from stagec.checking import check_traces
from stagec.diagnostics import CompileError
from stagec.dialects import stg
from stagec.dialects.attributes import Dim
from stagec.dialects.sched.actions import Collective, Compute, Transfer
from stagec.driver import Compiled, Stops, compile_text
from stagec.rewriting import programs
from stagec.symbolic import ONE, size
from tests.fidelity.totals import nodes_of
from tests.unit.seldom import some

MODEL = """
dim B = 2
dim S = 96
dim D = 64
dim H = 8
dim K = 4
dim E = D / H
dim L = 2
dim V = 16

module Attention(x[B, S, D]) -> [B, S, D] {{
  weight wq[D, H, E], wk[D, K, E], wv[D, K, E], wo[H, E, D]
  q = rope(x @ wq)
  k = rope(x @ wk)
  v = x @ wv
  return attention(q, k, v, {options}) @ wo
}}

module Block(x[B, S, D]) -> [B, S, D] {{
  weight norm[D]
  return x + Attention(rms_norm(x, norm))
}}

model Net(x[B, S, D], targets[B, S]: i32) {{
  weight first[D], head[D, V]
  h = x * first
  repeat L {{ h = Block(h) }}
  loss = cross_entropy(h @ head, targets)
}}

plan p {{
{plan}
}}
"""
LAYERS, SEQUENCE = 2, 96
PER_PAIR = 4 * 2 * 64
"""FLOPs of a layer for each pair of a query and a key: two products of B * H * E multiply-adds."""


def compiled(plan: str, options: str = "causal = true", stops: Stops | None = None) -> Compiled:
    return compile_text(MODEL.format(plan=plan, options=options), "net.stg", "p", stops=stops)


def ring(
    devices: int, rotate: str, balance: str = "head_tail", options: str = "causal = true"
) -> Compiled:
    return compiled(
        f"mesh cp = {devices}\n shard S over cp\n"
        f" context cp {{ method = ring, rotate = {rotate}, balance = {balance} }}",
        options,
    )


def nodes(rank_class: RankClass) -> Iterator[Node]:
    """The nodes of a rank of a class, in issue order."""
    program = rank_class.program
    for segment in program.segment.tolist():
        yield from program.segments[segment].nodes


def class_of(compilation: Compiled, axis: str, coordinate: int) -> RankClass:
    for rank_class in compilation.trace_set.classes:
        if coordinate in rank_class.where.get(axis, (coordinate,)):
            return rank_class
    raise AssertionError(coordinate)


def attention_flops(rank_class: RankClass, op: str = "attention") -> int:
    return sum(
        n.action.num_ops for n in nodes(rank_class) if isinstance(n.action, Compute) and n.op == op
    )


def events(rank_class: RankClass) -> list[tuple[str, str, int]]:
    """What attention does: phase, transfer or computation, and how much of it."""
    found = []
    for node in nodes(rank_class):
        match node.action:
            case Compute(num_ops=flops) if node.op in ("attention", "attention_grad"):
                found.append((node.phase, node.op, flops))
            case Collective(operand_bytes=num_bytes) if node.phase != "grad_reduce":
                found.append((node.phase, node.op, num_bytes))
            case Transfer(num_bytes=num_bytes):
                found.append((node.phase, node.op, num_bytes))
            case _:
                pass
    return [e for e in found if e[1] != "all_reduce"]


def expected(rank: int, devices: int, rotate: str, balance: str) -> list[tuple[str, str, int]]:
    """The same from PyTorch's loops (`_templated_ring_attention` and its backward), written out.

    fp32, B = 2, K = 4, E = 8: keys and values of a block are 2 * 2 * 4 * 8 numbers per token.
    """
    tokens = SEQUENCE // devices
    buffer = 2 * 2 * 4 * 8 * tokens * 4
    first = {
        "all_gather": ["all_gather"],
        "all_to_all": ["all_to_all"],
        "send_recv": ["send", "recv"],
    }
    back = {"all_gather": ["all_to_all"]}.get(rotate, first[rotate])

    def share(step: int) -> int:
        """Pairs of a step, twice."""
        if step == 0:
            return 2 * tokens * tokens
        if balance == "head_tail":
            return tokens * tokens
        return 2 * tokens * tokens if step <= rank else 0

    found: list[tuple[str, str, int]] = []
    for _ in range(LAYERS):
        for step in range(devices):
            if step < devices - 1 and (rotate != "all_gather" or step == 0):
                found += [("fwd", kind, buffer) for kind in first[rotate]]
            if share(step):
                found.append(("fwd", "attention", PER_PAIR * share(step) // 2))
    for _ in range(LAYERS):
        for step in range(devices):
            if step < devices - 1 and (rotate != "all_gather" or step == 0):
                found += [("bwd", kind, buffer) for kind in first[rotate]]
            if share(step):
                found.append(("bwd", "attention_grad", PER_PAIR * share(step) * 5 // 4))
            found += [("bwd", kind, buffer) for kind in back]
    return found


@pytest.mark.parametrize("balance", ["head_tail", "none"])
@pytest.mark.parametrize("rotate", ["all_to_all", "all_gather", "send_recv"])
@pytest.mark.parametrize("devices", some([2, 3, 4, 8], 6))
def test_ring_is_that_of_pytorch(devices: int, rotate: str, balance: str):
    made = ring(devices, rotate, balance, "causal = true, count = full")
    assert len(made.trace_set.classes) == (1 if balance == "head_tail" else devices)
    for rank in range(devices):
        found = events(class_of(made, "cp", rank))
        assert found == expected(rank, devices, rotate, balance), rank


@pytest.mark.parametrize("devices", some([2, 4], 2))
@pytest.mark.parametrize("rotate", ["all_to_all", "send_recv"])
def test_transfers_do_not_wait_for_the_block_that_they_overlap(devices: int, rotate: str):
    """Each block of attention comes right after the transfer of the next one, and reads nothing of it."""
    program = class_of(ring(devices, rotate), "cp", 0).program
    first, num_met = program.first_node, 0
    for row, segment in enumerate(program.segment.tolist()):
        inner = program.segments[segment].nodes
        for position, node in enumerate(inner):
            if node.op != "attention" or not position:
                continue
            before = inner[position - 1]
            if before.op in ("all_to_all", "recv"):
                deps = {
                    int(first[row]) + d.node if d.slot < 0 else int(program.slots[row, d.slot])
                    for d in node.data_deps
                }
                assert int(first[row]) + position - 1 not in deps
                assert before.stream != node.stream
                num_met += 1
    assert num_met


@pytest.mark.parametrize("rotate", some(["all_to_all", "all_gather", "send_recv"], 6))
@pytest.mark.parametrize("balance", ["head_tail", "none"])
def test_traces_hold_together(tmp_path: Path, rotate: str, balance: str):
    """All ranks agree on groups and order, every send has its receive, nothing waits for ever."""
    write_traces(encode_traces(ring(4, rotate, balance).trace_set), str(tmp_path))
    report = check_traces(tmp_path)
    assert not report.findings, report.findings


ALONE = PER_PAIR * LAYERS * SEQUENCE * SEQUENCE // 2
"""FLOPs of all attention under a causal mask on one device."""


@pytest.mark.parametrize("method", some(["ring", "all_gather", "ulysses"], 3))
@pytest.mark.parametrize("balance", ["head_tail", "none"])
def test_ranks_together_compute_what_one_device_does(method: str, balance: str):
    plan = (
        f"mesh cp = 4\n shard S over cp\n context cp {{ method = {method}, balance = {balance} }}"
    )
    made = compiled(plan)
    per_rank = [attention_flops(class_of(made, "cp", rank)) for rank in range(4)]
    assert sum(per_rank) == ALONE
    backward = [attention_flops(class_of(made, "cp", r), "attention_grad") for r in range(4)]
    assert sum(backward) == ALONE * 5 // 2
    if method != "ulysses" and balance == "none":
        assert per_rank == [ALONE * (2 * rank + 1) // 16 for rank in range(4)]
    else:
        assert len(set(per_rank)) == 1 and len(made.trace_set.classes) == 1


@pytest.mark.parametrize("balance", ["head_tail", "none"])
def test_a_window_is_shared_out_exactly(balance: str):
    plan = (
        f"mesh cp = 4\n shard S over cp\n context cp {{ method = all_gather, balance = {balance} }}"
    )
    made = compiled(plan, "causal = true, window = 8")
    per_rank = [attention_flops(class_of(made, "cp", rank)) for rank in range(4)]
    assert sum(per_rank) == PER_PAIR * LAYERS * (SEQUENCE * 8 - 8 * 8 // 2)
    assert per_rank[0] < per_rank[1]
    # All ranks but that with the very first chunk do the same.
    assert len(set(per_rank[1:])) == 1 and len(made.trace_set.classes) == 2


@pytest.mark.parametrize("length", some([8, 20, 24, 200], 4))
@pytest.mark.parametrize("balance", ["head_tail", "none"])
def test_chunks_of_attention_are_shared_out_exactly(length: int, balance: str):
    """Llama 4's local layers: a query sees its own chunk alone. With other lengths ranks have other shares, whose sum is that of the sequence."""
    plan = (
        f"mesh cp = 4\n shard S over cp\n context cp {{ method = all_gather, balance = {balance} }}"
    )
    option = f"causal = true, chunk = {length}"
    whole, made = (compiled(each, option) for each in ("", plan))
    pairs = (SEQUENCE // length * length**2 + (SEQUENCE % length) ** 2) // 2
    (alone,) = whole.trace_set.classes
    assert attention_flops(alone) == PER_PAIR * LAYERS * pairs
    assert attention_flops(alone, "attention_grad") * 2 == PER_PAIR * LAYERS * pairs * 5
    per_rank = [attention_flops(class_of(made, "cp", rank)) for rank in range(4)]
    half = SEQUENCE // 8
    parts = [(2 * r, 2 * r + 1) if balance == "none" else (r, 7 - r) for r in range(4)]
    seen = [
        sum(i % length + 0.5 for c in two for i in range(c * half, c * half + half))
        for two in parts
    ]
    assert per_rank == [PER_PAIR * LAYERS * each for each in seen]


def seen_of(at: int, length: int, options: str) -> float:
    """What a query sees of its document, as an area: half of its own key."""
    kind, _, number = options.rpartition(", ")[2].partition(" = ")
    limit = int(number) if kind in ("window", "chunk") else length
    if kind == "chunk":
        return at % limit + 0.5
    if "true" in options:
        return min(at + 0.5, limit)
    if kind == "window":
        return min(at + 0.5, limit / 2) + min(length - at - 0.5, limit / 2)
    return length


def pairs_of(lengths: Sequence[int], options: str) -> list[list[tuple[float, Fraction]]]:
    """What each query of each full sequence sees of its document, and how far into that it is."""
    seen: list[tuple[float, Fraction]] = []
    left = SEQUENCE
    for length in lengths:
        while length:
            part = min(length, left)
            for at in range(part):
                seen.append((seen_of(at, part, options), Fraction(at, part)))
            length, left = length - part, (left - part) or SEQUENCE
    return [seen[i : i + SEQUENCE] for i in range(0, len(seen) - SEQUENCE + 1, SEQUENCE)]


@pytest.mark.seldom
@pytest.mark.parametrize(
    "options",
    [
        "causal = true",
        "causal = true, chunk = 8",
        "causal = true, window = 12",
        "causal = false",
        "causal = false, window = 16",
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", [0, 1])
def test_packed_documents_are_seen_from_within(seed: int, options: str):
    """Pairs of each rank, query by query: as chunks of the sequence hold documents, or as each document is shared out."""
    rng = random.Random(seed)
    lengths = [rng.choice([8, 16, 40, 120]) for _ in range(40)]
    if seed == 0:
        lengths = [SEQUENCE]
    full = pairs_of(lengths, options)
    mean = [sum(pairs for pairs, _ in each) / len(full) for each in zip(*full, strict=True)]
    packed = f" documents S {lengths}\n"
    once = cache(lambda plan: compiled(packed + plan, options))

    def flops(plan: str, op: str = "attention") -> list[int]:
        made = once(plan)
        if "cp" not in plan:
            return [attention_flops(made.trace_set.classes[0], op)]
        return [attention_flops(class_of(made, "cp", rank), op) for rank in range(4)]

    def about(pairs: float) -> object:
        # A mean of several sequences is one of half pairs.
        return pytest.approx(PER_PAIR * LAYERS * pairs, abs=PER_PAIR * LAYERS)

    assert flops("") == [about(sum(mean))]
    assert flops("", "attention_grad") == [
        pytest.approx(2.5 * PER_PAIR * LAYERS * sum(mean), abs=3 * PER_PAIR * LAYERS)
    ]
    context = " mesh cp = 4\n shard S over cp\n context cp { method = METHOD, balance = BALANCE }\n"
    by_documents = context.replace("BALANCE", "documents")
    limited = "chunk" in options or "window" in options
    for method in ["ulysses"] if limited else ["ulysses", "ring"]:
        assert flops(by_documents.replace("METHOD", method)) == [about(sum(mean) / 4)] * 4
    # An eighth of each document from its front and one from its end; all have a multiple of eight queries.
    own = [
        sum(pairs for each in full for pairs, at in each if int(at * 8) in (rank, 7 - rank))
        for rank in range(4)
    ]
    expected = [about(each / len(full)) for each in own]
    assert flops(by_documents.replace("METHOD", "all_gather")) == expected
    half = SEQUENCE // 8
    for balance in ("head_tail", "none"):
        parts = [(2 * r, 2 * r + 1) if balance == "none" else (r, 7 - r) for r in range(4)]
        own = [sum(sum(mean[c * half : c * half + half]) for c in two) for two in parts]
        plan = context.replace("METHOD", "all_gather").replace("BALANCE", balance)
        assert flops(plan) == [about(each) for each in own]


@pytest.mark.parametrize(
    ("options", "clauses"),
    some(
        [
            ("causal = true", "method = ring"),
            ("causal = true", "method = ring, balance = none"),
            ("causal = true, alibi = true", "method = all_gather, balance = none"),
            ("causal = false, window = 32", "method = all_gather, balance = none"),
        ],
        4,
    ),
)
def test_keys_under_a_name_of_their_own_are_masked_alike(options: str, clauses: str):
    packed = "" if "ring" in clauses else " documents S [32, 64]\n"
    plan = f"mesh cp = 4\n shard S, T over cp\n context cp {{ {clauses} }}\n{packed}"
    text = MODEL.format(plan=plan, options=options)
    renamed = text.replace("dim S = 96", "dim S = 96\ndim T = S").replace(
        "attention(q, k, v,", "attention(q, k[S -> T], v[S -> T],"
    )
    plain, other = (
        compile_text(each, "net.stg", "p")
        for each in (text.replace("S, T over", "S over"), renamed)
    )
    assert [attention_flops(each) for each in plain.trace_set.classes] == [
        attention_flops(each) for each in other.trace_set.classes
    ]


def test_gradients_travel_in_fp32():
    made = compiled(
        "mesh cp = 4\n shard S over cp\n"
        " context cp { method = ring, rotate = all_to_all }\n"
        " precision { weights = bf16, activations = bf16 }"
    )
    (rank_class,) = made.trace_set.classes
    travels = Counter(
        (n.phase, n.action.dtype)
        for n in nodes(rank_class)
        if isinstance(n.action, Collective) and n.op == "all_to_all"
    )
    assert travels == {
        ("fwd", "bf16"): 3 * LAYERS,
        ("bwd", "bf16"): 3 * LAYERS,
        ("bwd", "fp32"): 4 * LAYERS,
    }


def test_ulysses_exchanges_queries_keys_values_and_output():
    plan = "mesh cp = 2, tp = 2\n shard H, K over tp\n shard S over cp\n context cp { method = ulysses }"
    (rank_class,) = compiled(plan).trace_set.classes
    exchanged = Counter(
        (n.phase, n.action.axes, n.action.operand_bytes)
        for n in nodes(rank_class)
        if isinstance(n.action, Collective) and n.op == "all_to_all"
    )
    queries, keys = 2 * 48 * 4 * 8 * 4, 2 * 48 * 2 * 8 * 4
    assert exchanged == {
        (phase, ("cp",), num_bytes): 2 * LAYERS
        for phase in ("fwd", "bwd")
        for num_bytes in (queries, keys)
    }


def test_heads_and_sequence_over_two_axes():
    """A ring round `r`, heads over `u`: blocks of keys have a share of the heads."""
    plan = (
        "mesh r = 4, u = 2\n shard S over r, u\n"
        " context r { method = ring, rotate = all_to_all }\n context u { method = ulysses }"
    )
    made = compiled(plan)
    (rank_class,) = made.trace_set.classes
    assert attention_flops(rank_class) * 8 == ALONE
    forward = Counter(
        (n.action.axes, n.action.operand_bytes)
        for n in nodes(rank_class)
        if isinstance(n.action, Collective) and n.op == "all_to_all" and n.phase == "fwd"
    )
    rotated = 2 * 2 * 24 * 2 * 8 * 4
    assert forward == {
        (("r",), rotated): 3 * LAYERS,
        (("u",), 2 * 12 * 8 * 8 * 4): 2 * LAYERS,
        (("u",), 2 * 12 * 4 * 8 * 4): 2 * LAYERS,
    }


def test_a_ring_over_a_product_of_axes():
    """One ring of eight, whose ranks differ along two axes of the mesh."""
    plan = (
        "mesh a = 2, b = 4, cp = a * b\n shard S over cp\n"
        " context cp { method = ring, rotate = send_recv, balance = none }"
    )
    made = compiled(plan)
    assert len(made.trace_set.classes) == 8
    for rank_class in made.trace_set.classes:
        rank = rank_class.where["a"][0] * 4 + rank_class.where["b"][0]
        assert attention_flops(rank_class) == ALONE * (2 * rank + 1) // 64
        assert sum(n.op == "send" and n.phase == "fwd" for n in nodes(rank_class)) == 7 * LAYERS


def test_stages_and_coordinates_make_classes_together(tmp_path: Path):
    plan = (
        "mesh pp = 2, cp = 2\n shard S over cp\n"
        " context cp { method = ring, rotate = send_recv, balance = none }\n"
        " pipeline L over pp { schedule = 1f1b, microbatch = 1 }"
    )
    made = compiled(plan)
    found = {c.name: attention_flops(c) for c in made.trace_set.classes}
    assert found == {
        f"pp{stage} cp{rank}": ALONE // 2 * (2 * rank + 1) // 4
        for stage in range(2)
        for rank in range(2)
    }
    write_traces(encode_traces(made.trace_set), str(tmp_path))
    assert not check_traces(tmp_path).findings


def test_recomputed_attention_goes_round_again():
    plan = (
        "mesh cp = 4\n shard S over cp\n"
        " context cp { method = ring, rotate = all_to_all }\n recompute attention"
    )
    (rank_class,) = compiled(plan).trace_set.classes
    rounds = Counter(n.phase for n in nodes(rank_class) if n.op == "all_to_all")
    assert rounds == {"fwd": 3 * LAYERS, "recompute": 3 * LAYERS, "bwd": 7 * LAYERS}


def test_nothing_grows_with_the_ring():
    def num_ops(devices: int) -> int:
        (program,) = programs(ring(devices, "all_to_all", "none").module)
        return sum(1 for _ in program.walk())

    assert num_ops(4) == num_ops(8)


def test_one_rank_needs_no_context():
    made = compiled("mesh cp = 1\n shard S over cp")
    assert attention_flops(made.trace_set.classes[0]) == ALONE


# Coordinates


def classes(*sizes: str, mesh: dict[str, int]) -> list[tuple[dict[str, tuple[int, ...]], str]]:
    ops = [stg.DimOp(f"X{i}", size(text)) for i, text in enumerate(sizes)]
    return [(c.where, c.name) for c in coordinate_classes(ops, mesh, mesh)]


def test_ranks_with_equal_numbers_are_one_class():
    assert classes("min(cp.index, 2)", mesh={"dp": 2, "cp": 4}) == [
        ({"cp": (0,)}, "cp0"),
        ({"cp": (1,)}, "cp1"),
        ({"cp": (2, 3)}, "cp2,3"),
    ]


def test_sizes_without_coordinates_make_one_class():
    assert classes("cp*dp", mesh={"dp": 2, "cp": 4}) == [({}, "all")]


def test_classes_are_products_of_coordinates():
    """Three of four ranks share a number, but are no product of coordinates."""
    found = classes("a.index*b.index", mesh={"a": 2, "b": 2})
    assert [where for where, _ in found] == [
        {"a": (0,), "b": (0,)},
        {"a": (0,), "b": (1,)},
        {"a": (1,), "b": (0,)},
        {"a": (1,), "b": (1,)},
    ]
    assert len(classes("a.index", "0*b.index", mesh={"a": 2, "b": 2})) == 2


@pytest.mark.parametrize("length", [None, 5, 16, 40, 200])
@pytest.mark.parametrize("kind", ["window", "chunk", "around"])
@pytest.mark.parametrize("split", [("a",), ("a", "b")])
@pytest.mark.parametrize("balanced", [True, False])
def test_shares_of_a_mask_add_up(
    length: int | None, kind: str, split: Sequence[str], balanced: bool
):
    limit = size(length) if length is not None else None
    reach = stg.Reach(chunk=limit) if kind == "chunk" else stg.Reach(limit)
    if kind == "around":
        reach = stg.Reach(limit or size(200), both_ways=True)
    share = share_of_mask(Dim("S", tuple(split)), reach, balanced)
    sizes = {"S": 96, "a": 4, "b": 2 if "b" in split else 1}
    total = Fraction(0)
    for a in range(4):
        for b in range(sizes["b"]):
            total += share.evaluate({**sizes, "a.index": a, "b.index": b})
    most = min(96, length or 96)
    if kind == "around":
        half = Fraction(min(96 * 2, length or 200), 2)
        assert total == 2 * half * 96 - half * half
    elif kind == "window":
        assert total == 96 * most - Fraction(most * most, 2)
    else:
        assert total == Fraction(96 // most * most**2 + (96 % most) ** 2, 2)


def test_joint_index_counts_the_last_axis_fastest():
    index = joint_index(["a", "b"])
    assert index == size("a.index*b + b.index")
    assert joint_index([]) == ONE - 1


@pytest.mark.parametrize("method", some(["ring", "all_gather", "ulysses"], 2))
def test_without_overlap_computation_waits(tmp_path: Path, method: str):
    plan = f"mesh cp = 4\n shard S over cp\n context cp {{ method = {method} }}\n"
    waiting = compiled(plan + " overlap { cp = false }")
    free = compiled(plan)
    for made, expected_serial in ((waiting, {True}), (free, {False})):
        moves = [
            n
            for n in nodes(made.trace_set.classes[0])
            if isinstance(n.action, Collective | Transfer) and n.phase in ("fwd", "bwd")
        ]
        assert {n.serial for n in moves} == expected_serial
    write_traces(encode_traces(waiting.trace_set), str(tmp_path))
    assert not check_traces(tmp_path).findings


@pytest.mark.parametrize(
    "clauses",
    [
        "context cp { method = all_gather, balance = none }",
        "context cp { method = all_gather } documents S [100, 20, 8]",
        "context cp { method = ulysses }",
    ],
)
def test_a_bias_changes_no_pairs(clauses: str) -> None:
    """Its keys have a name of their own; ranks have the pairs that they have without it, and add a number to each."""
    text = """
dim B = 2
dim S = 128
dim T = S
dim D = 32
dim H = 4
dim E = D / H
model M(x[B, S, D], bias[S, T, H]) {
  weight wq[D, H, E], wk[D, H, E], wv[D, H, E], wo[H, E, D]
  y = attention(x @ wq, KEYS, causal = true) @ wo
  loss = mean(y, over = [B, S, D])
}
plan p { mesh cp = 4 shard S over cp CLAUSES }
"""
    found: list[list[int]] = []
    for keys in ("x @ wk, x @ wv", "(x @ wk)[S -> T], (x @ wv)[S -> T], bias"):
        job = compile_text(text.replace("KEYS", keys).replace("CLAUSES", clauses), "m.stg")
        found.append(
            [
                n.action.num_ops
                for ranks in job.trace_set.classes
                for n, _ in nodes_of(ranks)
                if n.op == "attention" and isinstance(n.action, Compute)
            ]
        )
    plain, biased = found
    assert len(plain) == len(biased)
    # 4 FLOPs for each of 8 elements of a head's width, and one more.
    assert [a * 33 for a in plain] == [b * 32 for b in biased]


@pytest.mark.parametrize(("balance", "size", "pad"), [("head_tail", 30, 2), ("none", 25, 1)])
def test_help_for_a_sequence_that_a_context_does_not_divide(
    balance: str, size: int, pad: int
) -> None:
    """What it says compiles: parts are alike, and two chunks each where there is a head and a tail."""
    text = """
dim B = 2
dim S = LENGTH
dim D = 8
dim H = 4
dim E = 2
model M(x[B, S, D]) {
  weight q[D, H, E], k[D, H, E], v[D, H, E], o[H, E, D]
  loss = mean(attention(x @ q, x @ k, x @ v, causal = true) @ o, over = [B, S, D])
}
plan p {
  mesh cp = 5
  shard S over cp SETTING
  context cp { balance = BALANCE }
}
""".replace("BALANCE", balance)
    with pytest.raises(CompileError) as caught:
        compile_text(text.replace("LENGTH", "24").replace("SETTING", ""), "m.stg")
    (found,) = caught.value.diagnostics
    assert found.help == f"choose `S = {size}`, or pad it: `{{ pad = {pad} }}` after the rule"
    for length, setting in ((size, ""), (24, f"{{ pad = {pad} }}")):
        compile_text(text.replace("LENGTH", str(length)).replace("SETTING", setting), "m.stg")
