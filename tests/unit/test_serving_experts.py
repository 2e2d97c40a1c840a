"""Experts of an iteration: the tokens that are sent to them, or the next whole number of them."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import product
from math import ceil

import pytest

from stagec.backend.encode import encode_traces
from stagec.diagnostics import CompileError
from stagec.dialects.sched.actions import Collective, Compute
from stagec.driver import compile_text
from stagec.estimate.step import step_summary
from stagec.frontend import parse_text
from stagec.step_count import matrix_flops
from stagec.sweeping.grid import Grid
from stagec.sweeping.plans import SweepRequest
from stagec.sweeping.pools import table_of
from tests.unit.seldom import some
from tests.unit.test_serving import unrolled

D, F, X, A = 32, 48, 8, 2

MODEL = f"""
dim B = 8
dim S = 8
dim P = S
dim D = {D}
dim F = {F}
dim X = {X}
dim A = {A}
dim T = B * S * A / X

module Experts(x[B, S, D]) -> [B, S, D] {{
  weight router[D, X], up[X, D, F], down[X, F, D]
  gates, chosen = topk(softmax(x @ router, over = X), over = X, to = A)
  r = dispatch(x, chosen, experts = X, tokens = T)
  h[X, T, F] = r @ up
  y[X, T, D] = silu(h) @ down
  return combine(y, gates, chosen)
}}

model Net(x[B, S, D]) {{
  cache past[B, P, D]
  x = Experts(x)
  return x, append(past, x)
}}
"""


@pytest.mark.parametrize("seed", some(range(5), 1))
def test_experts_have_whole_tokens(seed: int):
    rng = random.Random(seed)
    tp = rng.choice([1, 2, 4])
    groups = [(rng.randint(1, 9), rng.randint(1, 9)) for _ in range(rng.choice([1, 2]))]
    kinds = ", ".join(f"prefill {n} x {s} at {10 + s}" for n, s in groups)
    plan = "plan p {{ mesh tp = {tp} shard X over tp precision {{ weights = bf16 }} serve {{ {kinds}, logits = all{how} }} }}"
    tokens = sum(n * s for n, s in groups)
    divides = tokens * A % X == 0
    how = ", experts = padded"
    done = compile_text(MODEL + plan.format(tp=tp, kinds=kinds, how=how))
    each = ceil(tokens * A / X)
    nodes = [n for c in done.trace_set.classes for n in unrolled(c.program)]
    products = [
        n.action.num_ops for n in nodes if n.op == "contract" and isinstance(n.action, Compute)
    ]
    router = 2 * tokens * D * X // tp
    assert sum(products) == router + 2 * 2 * (X // tp) * each * D * F
    if divides:
        exact = compile_text(MODEL + plan.format(tp=tp, kinds=kinds, how=""))
        same = [n for c in exact.trace_set.classes for n in unrolled(c.program)]
        assert [(n.op, n.action) for n in same] == [(n.op, n.action) for n in nodes]
    else:
        with pytest.raises(CompileError, match="experts = average"):
            compile_text(MODEL + plan.format(tp=tp, kinds=kinds, how=""))


@pytest.mark.parametrize("how", ["", "{ uneven = balanced }", "{ uneven = chunk }"])
@pytest.mark.parametrize("seed", some(range(3), 3))
def test_experts_have_what_devices_send_on_average(seed: int, how: str):
    """Devices have other sequences: products of all tokens, of as many experts as a device has, and an exchange as large as the most that one sends or gets."""
    rng = random.Random(f"average {seed}{how}")
    edp, ep = rng.choice([(1, 3), (1, 5), (2, 3)] if how else [(1, 2), (1, 4), (2, 2)])
    if "chunk" in how:
        ep = 3
    own = [X // ep + (at < X % ep) for at in range(ep)]
    if "chunk" in how:
        own = [3, 3, 2]
    spread = rng.choice([3, 30])
    counts = [rng.randint(1, spread) for _ in range(edp * ep)]
    kinds = ", ".join(f"prefill 1 x {n} at {7 + 3 * at}" for at, n in enumerate(counts))
    plan = f"plan p {{ mesh edp = {edp}, ep = {ep}, dp = edp * ep shard B over dp shard X over ep {how} shard T over dp "
    plan += (
        f"precision {{ weights = bf16 }} serve {{ {kinds}, logits = all, experts = average }} }}"
    )
    done = compile_text(MODEL + plan)
    encode_traces(done.trace_set)
    found = set[tuple[int, int]]()
    for each in done.trace_set.classes:
        where = [each.where.get(a, tuple(range(k))) for a, k in (("edp", edp), ("ep", ep))]
        actions = [n.action for n in unrolled(each.program) if n.op in ("contract", "all_to_all")]
        products = sorted(a.num_ops for a in actions if isinstance(a, Compute))
        sent = sorted(a.operand_bytes for a in actions if isinstance(a, Collective))
        for replica, at in product(*where):
            found.add((replica, at))
            # One sequence is dealt to each device.
            group = counts[replica * ep : (replica + 1) * ep]
            each_has = Fraction(sum(group) * A, X)
            by_experts = ceil(own[at] * each_has * 2 * D * F)
            assert products == sorted([2 * group[at] * D * X, by_experts, by_experts])
            tokens = ceil(max(max(group) * A, max(own) * each_has) * D * 2)
            assert sent == sorted([tokens, tokens, X * 8])
    assert len(found) == edp * ep


@pytest.mark.parametrize("seed", range(6))
def test_what_experts_make_is_added_up_once(seed: int):
    """Experts whole on a rank of their own, or each cut over all: ranks that have all tokens all-reduce one term of each, and no copy travels."""
    rng = random.Random(seed)
    tp, ep = rng.choice([2, 4]), rng.choice([1, 2])
    how = rng.choice(["shard X over tp", "shard F over tp", "shard X over ep shard F over tp"])
    n, s = rng.randint(1, 4) * 4, rng.randint(1, 5)
    plan = f"plan p {{ mesh ep = {ep}, tp = {tp} {how} shard Experts.router[X] over none shard Experts.scores[X] over none"
    plan += f" precision {{ weights = bf16 }} serve {{ prefill {n} x {s}, logits = all }} }}"
    text = MODEL.replace("topk(softmax(x @ router, over = X)", "topk(scores")
    text = text.replace("  gates,", "  scores[B, S, X] = x @ router\n  gates,")
    done = compile_text(text + plan)
    nodes = [node for c in done.trace_set.classes for node in unrolled(c.program)]
    sent = [node.action for node in nodes if isinstance(node.action, Collective)]
    over = {
        axis for axis in ("ep", "tp") if f"over {axis}" in how and {"ep": ep, "tp": tp}[axis] > 1
    }
    assert {axis for each in sent for axis in each.axes} == over
    assert [(each.kind, each.operand_bytes) for each in sent] == [
        ("all_reduce", 2 * n * s * D)
    ] * len(sent)
    assert len(sent) == len({each.axes for each in sent}) <= len(over)


@pytest.mark.parametrize("seed", range(4))
def test_experts_over_tensor_ranks_and_over_devices_with_tokens_of_their_own(seed: int):
    """The ranks that have the same tokens send those of their own experts alone, and add up what these made of them."""
    rng = random.Random(f"both {seed}")
    ed, tp = rng.choice([(2, 2), (2, 4), (4, 2)])
    n, s = rng.randint(1, 4) * 8, rng.randint(1, 3)
    plan = f"plan p {{ mesh ed = {ed}, tp = {tp} shard B over ed shard X over tp, ed shard T over ed precision {{ weights = bf16 }} "
    plan += f"serve {{ prefill {n} x {s}, logits = all, experts = average }} }}"
    done = compile_text(MODEL + plan)
    nodes = [node for c in done.trace_set.classes for node in unrolled(c.program)]
    sent = [node.action for node in nodes if isinstance(node.action, Collective)]
    tokens = n * s // ed
    routed = 2 * tokens * A // tp * D
    assert [each.operand_bytes for each in sent if each.axes == ("ed",)][-2:] == [routed] * 2
    assert [(each.kind, each.operand_bytes) for each in sent if each.axes == ("tp",)][-1] == (
        "all_reduce",
        2 * tokens * D,
    )
    assert {each.axes for each in sent} == {("ed",), ("tp",)}


@pytest.mark.parametrize("seed", some(range(4), 2))
def test_copies_are_experts_that_no_router_knows(seed: int):
    """A plan with copies is a text with more experts than its router chooses among."""
    rng = random.Random(f"copies {seed}")
    ep, copies = rng.choice([(2, 2), (4, 4), (3, 1), (5, 2)])
    kinds = ", ".join(f"prefill {rng.randint(1, 4)} x {rng.randint(1, 9)}" for _ in range(3))
    batch = rng.choice(["", "shard B over ep"]) if ep < 4 else ""
    plan = f"plan p {{ mesh ep = {ep} {batch} shard NAME over ep precision {{ weights = bf16 }} serve {{ {kinds}, logits = all, experts = average HOW }} }}"
    repeated = MODEL.replace("  x = Experts(x)", "  repeat 2 { x = Experts(x) }")
    said = plan.replace("NAME", "X").replace("HOW", f", redundant = {copies}")
    with_copies = compile_text(repeated + said)
    text = repeated.replace("dim T = B * S * A / X", f"dim Y = X + {copies} dim T = B * S * A / Y")
    text = text.replace("[X, D, F]", "[Y, D, F]").replace("[X, F, D]", "[Y, F, D]")
    text = text.replace("experts = X", "experts = Y").replace("[X, T,", "[Y, T,")
    as_text = compile_text(text + plan.replace("NAME", "Y").replace("HOW", ""))
    done, known = (
        [
            (c.where, [(n.op, n.scope, n.action) for n in unrolled(c.program)])
            for c in each.trace_set.classes
        ]
        for each in (with_copies, as_text)
    )
    assert done == known
    assert [m.peak_bytes for m in with_copies.memory] == [m.peak_bytes for m in as_text.memory]


@pytest.mark.parametrize("kinds", ["prefill 8 x 3", "prefill 3 x 4, prefill 4 x 2"])
def test_a_sweep_varies_experts_that_have_copies(kinds: str):
    """Their tokens are divided by both: a sum."""
    plan = "plan p { mesh ep = 2 shard B over ep shard X over ep precision { weights = bf16 } device h100 "
    plan += f"serve {{ {kinds}, experts = average, redundant = 2 }} }}"
    sizes = {"X": (4, 8), "ep": (1, 2)}
    asked = SweepRequest(parse_text(MODEL + plan), None, {}, Grid(sizes, {}), ("step_time",))
    table = table_of(asked)
    for number, point in enumerate(product(*sizes.values())):
        said = dict(zip(sizes, map(str, point), strict=True))
        alone = step_summary(compile_text(MODEL + plan, overrides=said))
        assert table.row(number)["step_time"] == pytest.approx(alone.step_s)


WRONG_COPIES = {
    "E0402": "serve { decode 2 at 9, redundant = 2 }",
    "E0301": "mesh ep = 4 shard X over ep serve { decode 2 at 9, experts = average, redundant = 1 }",
}


@pytest.mark.parametrize("code", WRONG_COPIES)
def test_copies_that_cannot_be(code: str):
    with pytest.raises(CompileError, match=code):
        compile_text(f"{MODEL} plan p {{ {WRONG_COPIES[code]} }}")


@pytest.mark.parametrize("how", ["exact", "average", "padded"])
def test_a_load_is_of_experts_that_are_not_padded(how: str):
    """These have as many tokens as each other, whatever is sent: the mistake is shown at `experts`, whose other values go with a load."""
    plan = f"plan p {{ mesh ep = 2 shard X over ep load {{ zipf = 1 }} serve {{ decode 8 at 9, experts = {how} }} }}"
    if how != "padded":
        compile_text(f"{MODEL} {plan}")
        return
    with pytest.raises(CompileError, match="padded") as raised:
        compile_text(f"{MODEL} {plan}")
    (found,) = raised.value.diagnostics
    assert found.code == "E0402"
    assert found.span is not None
    assert plan.endswith("experts = padded } }")
    assert found.span.end_column == len(plan) - len(" } }") + 2


def test_a_model_without_experts_pads_none():
    text = "dim B = 2 dim S = 4 dim P = S dim D = 8 model N(x[B, S, D]) { cache c[B, P, D] return append(c, x) }"
    with pytest.raises(CompileError, match="no experts"):
        compile_text(text + " plan p { serve { decode 2 at 9, experts = padded } }")
    with pytest.raises(CompileError, match="no experts"):
        compile_text(text + " plan p { serve { decode 2 at 9, redundant = 1 } }")


def nodes_of(text: str) -> list[object]:
    done = compile_text(text)
    encode_traces(done.trace_set)
    return [
        (c.where, [(n.op, n.scope, n.action) for n in unrolled(c.program)])
        for c in done.trace_set.classes
    ]


@pytest.mark.parametrize("how", ["average", "average, redundant = 3", "padded"])
@pytest.mark.parametrize("seed", range(2))
def test_rules_pad_tokens_of_experts(seed: int, how: str):
    """Each expert has the next multiple of what it is sent, whole or not; experts and their copies are padded together."""
    rng = random.Random(f"pad {seed} {how}")
    ep, pad = 2, rng.choice([1, 2, 3])
    experts = X + 3 if "redundant" in how else X
    number, length = rng.choice(
        [(n, s) for n in range(ep, 20, ep) for s in range(1, 6) if n * s * A % experts]
    )
    plan = f"plan p {{ mesh ep = {ep} shard B over ep shard X over ep {{ pad = 1 }} shard T over ep {{ pad = {pad} }} "
    plan += f"precision {{ weights = bf16 }} serve {{ prefill {number} x {length}, logits = all, experts = {how} }} }}"
    done = compile_text(MODEL + plan)
    encode_traces(done.trace_set)
    each = ceil(Fraction(number * length * A, experts * ep * pad)) * ep * pad
    own = -(-experts // ep)
    actions = [n.action for c in done.trace_set.classes for n in unrolled(c.program)]
    products = [a.num_ops for a in actions if isinstance(a, Compute)]
    assert products.count(2 * own * each * D * F) == 2 * len(done.trace_set.classes)
    assert max(a.operand_bytes for a in actions if isinstance(a, Collective)) == own * each * D * 2
    if "average" in how:
        # Padding is no work of the model's.
        tokens = number * length
        found = matrix_flops(done.module, done.counts).model
        assert found == 2 * tokens * D * X + 2 * 2 * A * tokens * D * F


@pytest.mark.parametrize("rule", some(["", "shard T over ep { pad = 3 }"], 2))
@pytest.mark.parametrize(
    "kinds", ["decode 6 at 3", "prefill 2 x 3, decode 4 at 5", "decode 7 at 3"]
)
def test_an_average_is_not_rounded_up(kinds: str, rule: str):
    """A text may round the tokens of an expert up, for its training: what is served on average is the quotient."""
    plan = f"plan p {{ mesh ep = 2 shard B over ep shard X over ep {rule} precision {{ weights = bf16 }} serve {{ {kinds}, experts = average }} }}"
    rounded = MODEL.replace("dim T = B * S * A / X", "dim T = ceildiv(B * S * A, X)")
    assert rounded != MODEL
    assert nodes_of(rounded + plan) == nodes_of(MODEL + plan)


def test_rules_pad_the_average_that_devices_send():
    """Devices have other sequences: 12 and 20 copies are 4 for each expert on average, padded to 6; the busiest sends what 20 of each device would be."""
    plan = "plan p { mesh ep = 2 shard B over ep shard X over ep shard T over ep { pad = 3 } precision { weights = bf16 } "
    plan += "serve { prefill 1 x 6 at 3, prefill 1 x 10 at 2, logits = all, experts = average } }"
    done = compile_text(MODEL + plan)
    encode_traces(done.trace_set)
    for each in done.trace_set.classes:
        actions = [n.action for n in unrolled(each.program)]
        products = [a.num_ops for a in actions if isinstance(a, Compute)]
        assert products.count(2 * (X // 2) * 6 * D * F) == 2
        sent = max(a.operand_bytes for a in actions if isinstance(a, Collective))
        assert sent == (X // 2) * 6 * D * 2


@pytest.mark.parametrize("seed", some(range(4), 2))
def test_experts_of_a_padded_batch(seed: int):
    """They have the tokens that padding sends: the plan is that of a batch so large."""
    rng = random.Random(f"batch {seed}")
    dp, batch = rng.choice([3, 5, 6]), rng.randint(1, 20)
    plan = f"plan p {{ mesh dp = {dp} SET shard B over dp PAD shard X over dp {{ uneven = balanced }} shard T over dp {{ pad = 1 }} }}"
    text = MODEL.replace("  cache past[B, P, D]\n", "").replace("x, append(past, x)", "x")
    large = -(-batch // dp) * dp
    padded = plan.replace("SET", f"set B = {batch}").replace("PAD", "{ pad = 1 }")
    written = plan.replace("SET", f"set B = {large}").replace("PAD", "")
    assert nodes_of(text + padded) == nodes_of(text + written)
    asked, alone = (
        compile_text(text + plan.replace("SET", f"set B = {8 * n}").replace("PAD", how))
        for n, how in ((dp + 1, "{ pad = 8 }"), (dp, ""))
    )
    model, whole = (matrix_flops(done.module, done.counts).model for done in (asked, alone))
    # Each device's part of an operation counts as a whole one.
    assert 0 <= model * dp - whole * (dp + 1) < whole / 1000
