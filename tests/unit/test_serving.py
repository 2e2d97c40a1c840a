"""An iteration of serving against what one counts by hand, token by token; and a text with caches against one without."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from stagec.analysis.sizes import size_values
from stagec.diagnostics import CompileError
from stagec.dialects import stg
from stagec.dialects.sched.actions import Compute
from stagec.dialects.types import ValueType
from stagec.driver import Compiled, compile_text
from stagec.frontend import check, parse_text
from stagec.memory import Kind
from stagec.summary import ClassSummary, summarize
from tests.unit.seldom import some

D, H, K, E, F, V, L = 64, 8, 4, 8, 96, 100, 3

MODEL = f"""
dim B = 8
dim S = 64
dim T = S
dim V = {V}
dim D = {D}
dim H = {H}
dim K = {K}
dim E = {E}
dim F = {F}
dim L = {L}
dim W = 24

module Attention(x[B, S, D]) -> [B, S, D] {{
  weight wq[D, H, E], wk[D, K, E], wv[D, K, E], wo[H, E, D]
  CACHE
  return attention(rope(x @ wq), KEYS, VALUES, causal = true WINDOW) @ wo
}}

module Block(x[B, S, D]) -> [B, S, D] {{
  weight norm[D], up[D, F], down[F, D]
  h = x + Attention(x)
  return h + gelu(rms_norm(h, norm) @ up) @ down
}}

model Net(tokens[B, S]: i32, targets[B, S]: i32) {{
  weight embed[V, D], head[D, V]
  x = embedding(tokens, embed)
  repeat L {{ x = Block(x) }}
  loss = cross_entropy(x @ head, targets)
}}
"""


def text(window: bool = False, cached: bool = True) -> str:
    option = ", window = W" if window else ""
    keys, values = "rope(x @ wk)", "x @ wv"
    if cached:
        keys, values = f"append(k, {keys}{option})", f"append(v, {values}{option})"
    return (
        MODEL.replace("CACHE", "cache k[B, T, K, E], v[B, T, K, E]" if cached else "")
        .replace("KEYS", keys)
        .replace("VALUES", values)
        .replace("WINDOW", option)
    )


@dataclass(frozen=True)
class Group:
    count: int
    new: int
    context: int

    @property
    def clause(self) -> str:
        if self.context and self.new == 1:
            return f"decode {self.count} at {self.context}"
        return f"prefill {self.count} x {self.new} at {self.context}"


def drawn(seed: int) -> tuple[list[Group], int, int, bool, int]:
    """Groups of sequences, dp, tp, whether there is a window, positions of a block."""
    rng = random.Random(seed)
    dp, tp = rng.choice([1, 2]), rng.choice([1, 2, 4])
    groups = [
        Group(
            dp * rng.randint(1, 5),
            rng.choice([1, 1, rng.randint(2, 40)]),
            rng.choice([0, rng.randint(1, 90)]),
        )
        for _ in range(rng.randint(1, 3))
    ]
    return groups, dp, tp, rng.random() < 0.4, rng.choice([1, 16])


def compiled(groups: list[Group], dp: int, tp: int, window: bool, block: int) -> Compiled:
    served = ", ".join([*(g.clause for g in groups), f"block = {block}"])
    plan = f"""
plan p {{
  mesh dp = {dp}, tp = {tp}
  shard B over dp
  shard H, K, F over tp
  precision {{ weights = bf16, cache = fp8 }}
  serve {{ {served} }}
}}
"""
    return compile_text(text(window) + plan)


@pytest.mark.parametrize("seed", some(range(4), 2))
def test_names_of_dims_that_serving_sizes_are_their_numbers_in_the_text(seed: int):
    """`decode B at S, prefill 2 x 30` makes `B` rows and `S` tokens of a row; the clause means what they were."""
    rng = random.Random(seed)
    dp = rng.choice([1, 2, 3])
    numbers = {"B": dp * rng.randint(1, 4) + rng.randint(0, 1), "S": rng.randint(2, 30)}
    entries = ["decode B at S", "decode B x 2 at S + 1", "prefill 6 x S", "prefill B x 5 at B"]
    served = ", ".join(rng.sample(entries, rng.randint(1, 3)))
    plan = f"plan p {{\n mesh dp = {dp}\n shard B over dp\n serve {{ SERVED }}\n}}\n"
    named = text() + plan.replace("SERVED", served)
    in_numbers = served.replace("B", str(numbers["B"])).replace("S", str(numbers["S"]))
    by_name, by_number = (
        compile_text(each, overrides=over)
        for each, over in (
            (named, {n: str(number) for n, number in numbers.items() if n in served}),
            (text() + plan.replace("SERVED", in_numbers), {}),
        )
    )
    assert summarize(by_name.module, by_name.counts) == summarize(
        by_number.module, by_number.counts
    )
    assert [m.peak_bytes for m in by_name.memory] == [m.peak_bytes for m in by_number.memory]


@pytest.mark.parametrize("seed", some(range(12), 3))
def test_an_iteration_is_its_tokens_one_by_one(seed: int):
    groups, dp, tp, window, block = drawn(seed)
    done = compiled(groups, dp, tp, window, block)
    reach = 24 if window else 10**9
    tokens = pairs = stored = read = sequences = 0
    for group in groups:
        for _ in range(group.count // dp):
            sequences += 1
            first = max(0, group.context - (reach - 1))
            read += group.context + group.new - first
            kept = min(group.context + group.new, reach)
            stored += -(-kept // block) * block
            for position in range(group.context, group.context + group.new):
                tokens += 1
                pairs += min(position + 1, reach)
    per_token = 2 * (D * H * E + 2 * D * K * E + H * E * D + 2 * D * F) // tp
    matrix = L * (tokens * per_token + 4 * pairs * H * E // tp) + 2 * sequences * D * V
    nodes = [node for c in done.trace_set.classes for node in unrolled(c.program)]
    counted = sum(
        n.action.num_ops
        for n in nodes
        if isinstance(n.action, Compute) and n.op in ("contract", "attention")
    )
    assert counted == matrix
    (plan,) = done.memory
    assert plan.static.num_bytes[Kind.CACHE] == L * 2 * stored * K * E // tp
    appended = [n for n in nodes if n.op == "append"]
    assert [n.action.num_bytes for n in appended] == [tokens * K * E // tp * (2 + 1)] * (2 * L)
    attended = [n.action.num_bytes for n in nodes if n.op == "attention"]
    queries = tokens * H * E // tp
    # q and the output in bf16, keys and values in fp8, the log-sum-exp in fp32
    expected = 2 * queries * 2 + 2 * read * K * E // tp + 4 * tokens * H // tp
    assert attended == [expected] * L


@pytest.mark.parametrize("seed", some(range(8), 2))
def test_queries_of_chunks_see_their_own_part_of_a_sequence(seed: int):
    groups, dp, tp, _, block = drawn(seed)
    served = ", ".join([*(g.clause for g in groups), f"block = {block}"])
    rules = f"mesh dp = {dp}, tp = {tp}\n shard B over dp\n shard H, K over tp"
    cached = text(True).replace("causal = true , window = W", "causal = true, chunk = W")
    assert "chunk" in cached
    done = compile_text(cached + f"plan p {{\n {rules}\n serve {{ {served} }}\n}}\n")
    tokens = [
        position
        for g in groups
        for position in range(g.context, g.context + g.new)
        for _ in range(g.count // dp)
    ]
    nodes = [node for c in done.trace_set.classes for node in unrolled(c.program)]
    counted = [n.action.num_ops for n in nodes if n.op == "attention"]
    assert counted == [4 * H * E // tp * sum(p % 24 + 1 for p in tokens)] * L


def unrolled(program):
    """Each node as often as it runs."""
    for segment in program.segment:
        yield from program.segments[segment].nodes


def test_kinds_apart_are_kinds_together():
    """Two halves of a batch, named apart, cost what the whole does."""
    together = compiled([Group(8, 1, 50)], 2, 2, False, 1)
    apart = compiled([Group(4, 1, 50), Group(4, 1, 50)], 2, 2, False, 1)

    def costs(done: Compiled) -> list[tuple[str, object]]:
        nodes = [n for c in done.trace_set.classes for n in unrolled(c.program)]
        works = [(n.op, n.action) for n in nodes if isinstance(n.action, Compute)]
        return [(op, (action.num_ops, action.num_bytes)) for op, action in works]

    assert costs(together) == costs(apart)


@pytest.mark.parametrize(
    "plan",
    some(
        [
            "mesh dp = 2, tp = 2 shard B over dp shard H, K, F, V over tp shard S over tp",
            "mesh cp = 2, tp = 2 shard H, K over tp shard S over cp, tp context cp { method = ulysses }",
            "mesh cp = 4 shard S over cp context cp { method = all_gather, balance = none }",
            "mesh dp = 4 shard B over dp zero 3 over dp recompute full",
            "mesh pp = 3, dp = 2 shard B over dp pipeline L over pp",
        ],
        12,
    ),
)
@pytest.mark.parametrize("window", [False, True])
def test_training_knows_no_caches(plan: str, window: bool):
    """Traces of a text with caches are those of one without, whatever the plan."""
    with_caches, without = (
        compile_text(text(window, cached) + f"\nplan p {{ {plan} }}") for cached in (True, False)
    )

    def shown(done: Compiled) -> list[object]:
        return [
            (
                c.name,
                [(n.op, n.phase, n.action, n.data_deps, n.ctrl_deps) for n in unrolled(c.program)],
            )
            for c in done.trace_set.classes
        ]

    assert shown(with_caches) == shown(without)


def test_rings_know_no_caches():
    plan = "plan p { mesh cp = 2, tp = 2 shard H, K over tp shard S over cp, tp context cp }"
    counts = [
        [
            n.action
            for c in compile_text(text(cached=cached) + plan).trace_set.classes
            for n in unrolled(c.program)
        ]
        for cached in (True, False)
    ]
    assert counts[0] == counts[1]


def test_microbatches_keep_their_caches():
    """Under a pipeline the sequences of all microbatches stay."""
    plan = """
plan p {
  mesh pp = 3
  pipeline L over pp { schedule = forward_only, microbatch = 2 }
  serve { decode 8 at 31 }
}
"""
    done = compile_text(text() + plan)
    for each in done.memory:
        assert each.static.num_bytes[Kind.CACHE] == 2 * 8 * 32 * K * E * 4


def shown(clauses: str, served: str, head: str = "plan p") -> list[object]:
    """The nodes and the memory of a plan."""
    done = compile_text(f"{text()}\n{head} {{ {clauses} serve {{ {served} }} }}", plan="p")
    nodes = [
        (c.name, [(n.op, n.action, n.data_deps, n.ctrl_deps) for n in unrolled(c.program)])
        for c in done.trace_set.classes
    ]
    return [nodes, [each.peak_bytes for each in done.memory]]


@pytest.mark.seldom
def test_a_pipeline_serves_a_batch_as_one_however_it_is_written():
    """One entry or two of the same sequences: an iteration goes through the stages at once."""

    def of(served: str, settings: str = "") -> list[object]:
        return shown(f"mesh pp = 3 pipeline L over pp {settings}", served)

    together = of("decode 8 at 31")
    assert together == of("decode 3 at 31, decode 5 at 31")
    assert together == of("decode 8 at 31", "{ schedule = forward_only, microbatch = 8 }")
    assert together != of("decode 8 at 31", "{ microbatch = 2 }")
    mixed, apart = "decode 4 at 31, prefill 1 x 9", "decode 2 at 31, prefill 1 x 9, decode 2 at 31"
    assert of(mixed) == of(apart)
    # The first microbatch has what stands first.
    cut = ", microbatches = 2, split = sequences"
    assert of(mixed + cut) != of(apart + cut)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb_h1", "zb_h2"])
def test_schedules_of_one_stage_are_alike_where_a_plan_serves(schedule: str):
    """Also that of a plan that trains, which one that serves extends: forward passes alone have one order. One of its own is said to change nothing."""
    trained = f"plan trained {{ mesh pp = 3 pipeline L over pp {{ schedule = {schedule} }} }}"
    inherited = shown("", "decode 8 at 31", f"{trained}\nplan p extends trained")
    assert inherited == shown("mesh pp = 3 pipeline L over pp", "decode 8 at 31")
    own = f"plan p {{ mesh pp = 3 pipeline L over pp {{ schedule = {schedule} }} serve {{ decode 8 at 31 }} }}"
    (told,) = (w for w in check(parse_text(f"{text()}\n{own}"), None).warnings if w.code == "W0304")
    assert told.message == "`schedule` of `pipeline` changes nothing here"


IN_STAGES = "plan trained { mesh dp = 2, pp = 3 shard B over dp pipeline L over pp { microbatch = B / dp / 4 } }"


def told_of(plan: str) -> list[str]:
    source = parse_text(f"{text()}\n{IN_STAGES}\n{plan}")
    return [w.message for w in check(source, "p").warnings if w.code == "W0304"]


@pytest.mark.parametrize(
    "clause", ["", "microbatch B / dp / 3", "pipeline L over pp { microbatch = B / dp / 3 }"]
)
def test_a_microbatch_of_rows_that_are_no_sequences_is_told_so(clause: str):
    """The size of a plan that trains is not one of the tokens of a device, of which nobody wrote what they are."""
    plan = f"plan p extends trained {{ {clause} serve {{ decode 9 at 31 }} }}"
    with pytest.raises(CompileError) as error:
        check(parse_text(f"{text()}\n{IN_STAGES}\n{plan}"), "p")
    for found in error.value.diagnostics:
        assert found.code == "E0308"
        assert "goes through as one" in found.message
    # Where `serve` says how many there are nobody asks for it, and one of the plan's own changes nothing.
    cut = plan.replace("at 31", "at 31, microbatches = 2")
    assert told_of(cut) == ["`microbatch` changes nothing here"] * bool(clause)


@pytest.mark.parametrize("served", ["decode 9 at 31", "decode 9 at 31, microbatches = 2"])
def test_a_size_that_is_not_there_is_told_whatever_rows_are(served: str):
    plan = f"plan p {{ mesh dp = 2 shard B over dp microbatch Q / 2 serve {{ {served} }} }}"
    with pytest.raises(CompileError) as error:
        check(parse_text(f"{text()}\n{plan}"), "p")
    assert [each.code for each in error.value.diagnostics] == ["E0201"]


def test_microbatches_of_one_change_nothing_where_a_device_has_one_row():
    one = "pipeline L over pp { microbatch = 1 }"
    assert told_of(f"plan p extends trained {{ {one} serve {{ decode 9 at 31 }} }}") == [
        "`microbatch` changes nothing here"
    ]
    assert not told_of(f"plan p extends trained {{ {one} serve {{ decode 8 at 31 }} }}")
    both = told_of(f"plan p extends trained {{ microbatch 2 {one} serve {{ decode 9 at 31 }} }}")
    assert both == ["`microbatch` changes nothing here"] * 2, "one of each place"
    base = f"plan one extends trained {{ {one} }}"
    assert not told_of(f"{base} plan p extends one {{ serve {{ decode 9 at 31 }} }}")


def test_parameters_are_gathered_beside_the_next_pass_where_a_plan_trains():
    base = "plan split extends trained { zero 1 over dp }"
    plan = "plan p extends split { overlap { param_gather = true } serve { decode 8 at 31 } }"
    assert told_of(f"{base} {plan}") == ["`param_gather` of `overlap` changes nothing here"]


@pytest.mark.parametrize("seed", some(range(12), 6))
def test_a_batch_is_what_it_has(seed: int):
    """Entries in parts, in any order behind the first ones, are the same batch."""
    groups, dp, tp, _, block = drawn(seed)
    rng = random.Random(seed)
    kinds = {(each.new, each.context): each for each in groups}
    first, rest = list[Group](), list[Group]()
    for each in kinds.values():
        ends = sorted({*rng.choices(range(1, each.count + 1), k=2), each.count})
        parts = [replace(each, count=end - at) for at, end in pairwise([0, *ends])]
        first += parts[:1]
        rest += parts[1:]
    rng.shuffle(rest)
    clauses = f"""
      mesh dp = {dp}, pp = {rng.choice([1, 3])}, tp = {tp}
      shard B over dp shard H, K, F over tp pipeline L over pp
    """
    whole, parts = (
        ", ".join([*(each.clause for each in listed), f"block = {block}"])
        for listed in (kinds.values(), [*first, *rest])
    )
    assert shown(clauses, whole) == shown(clauses, parts)


def test_a_cache_is_no_parameter():
    done = compiled([Group(2, 1, 10)], 1, 1, False, 1)
    values = size_values(done.module)
    count = 0
    for op in done.module.walk():
        if isinstance(op, stg.WeightOp):
            assert isinstance(op.weight.type, ValueType)
            count += op.weight.type.num_elements.integer(values)
    assert count == 2 * V * D + L * (D + 2 * D * F + 2 * D * H * E + 2 * D * K * E)


LATENT = """
dim B = 8
dim S = 64
dim T = S
dim D = 64
dim H = 4
dim N = 8
dim R = 4
dim G = 8
dim C = 16
dim E = N + R

module Attention(x[B, S, D]) -> [B, S, D] {
  weight q[D, H, E], down[D, C], turned[D, R], k[C, H, N], v[C, H, G], o[H, G, D]
  cache latents[B, T, C], keys[B, T, R]
  near, far = split(x @ q, over = E, to = [N, R])
  seen = append(latents, x @ down)
  key = concat(seen @ k, append(keys, rope(x @ turned)), to = E)
  return attention(concat(near, rope(far), to = E), key, seen @ v, causal = true) @ o
}

module Absorbed(x[B, S, D]) -> [B, S, D] {
  weight q[D, H, E], down[D, C], turned[D, R], k[C, H, N], v[C, H, G], o[H, G, D]
  cache latents[B, T, C], keys[B, T, R]
  near, far = split(x @ q, over = E, to = [N, R])
  seen = append(latents, x @ down)
  query[B, S, H, C] = near @ k
  y = latent_attention(query, rope(far), seen, append(keys, rope(x @ turned)), causal = true)
  z[B, S, H, G] = y @ v
  return z @ o
}

model Net(x[B, S, D]) {
  repeat 3 { x = x + Attention(x) }
  return x
}
"""


@pytest.mark.parametrize("seed", some(range(4), 2))
def test_absorbed_products_are_counted_by_token(seed: int):
    """Latent attention with and without keys and values made: the same caches, products as each writes them."""
    groups, dp, tp, _, block = drawn(seed + 50)
    d, h, n, r, g, c = 64, 4 // tp, 8, 4, 8, 16
    tokens = pairs = positions = 0
    for group in groups:
        for _ in range(group.count // dp):
            tokens += group.new
            positions += group.context + group.new
            pairs += sum(group.context + i + 1 for i in range(group.new))
    shared = tokens * (d * h * (n + r) + d * c + d * r + h * g * d)
    wanted = {
        "none": shared + positions * h * c * (n + g) + pairs * h * (n + r + g),
        "Absorbed for Attention": shared + tokens * h * c * (n + g) + pairs * h * (2 * c + r),
    }
    caches = []
    for use, products in wanted.items():
        served = ", ".join([*(each.clause for each in groups), f"block = {block}", "logits = all"])
        plan = f"plan p {{ mesh dp = {dp}, tp = {tp} shard B over dp shard H over tp use {use} serve {{ {served} }} }}"
        done = compile_text(LATENT + plan)
        nodes = [n for each in done.trace_set.classes for n in unrolled(each.program)]
        matrix = [n.action for n in nodes if n.op in ("contract", "attention", "latent_attention")]
        assert sum(a.num_ops for a in matrix if isinstance(a, Compute)) == 2 * 3 * products
        caches.append(done.memory[0].static.num_bytes[Kind.CACHE])
    assert caches[0] == caches[1]


ENCODED = """
dim B = 8
dim S = 32
dim C = 48
dim T = S
dim D = 64
dim H = 4
dim E = 16

module Self(x[B, S, D]) -> [B, S, D] {
  weight q[D, H, E], k[D, H, E], v[D, H, E], o[H, E, D]
  cache keys[B, T, H, E], values[B, T, H, E]
  return attention(x @ q, append(keys, x @ k), append(values, x @ v), causal = true) @ o
}

module Cross(x[B, S, D], source[B, C, D]) -> [B, S, D] {
  weight q[D, H, E], k[D, H, E], v[D, H, E], o[H, E, D]
  CACHE
  return attention(x @ q, KEYS, VALUES) @ o
}

model Net(x[B, S, D], source[B, C, D]) {

  repeat 2 { source = source + gelu(source) }
  repeat 3 { x = x + Self(x) + Cross(x, source) }
  return x
}
"""


@pytest.mark.parametrize("context", [0, 10])
def test_an_encoder_runs_once(context: int):
    """Where sequences go on, nothing of their sources is computed; what is attended to is the same."""
    model = ENCODED.replace("  weight up[D, D -> D]\n", "").replace(
        "KEYS", "once(seen, source @ k)"
    )
    model = model.replace("VALUES", "once(read, source @ v)")
    model = model.replace("CACHE", "cache seen[B, C, H, E], read[B, C, H, E]")
    at = f" at {context}" if context else ""
    plan = f"plan p {{ mesh tp = 2 shard H over tp precision {{ weights = bf16, activations = bf16 }} serve {{ prefill 6 x 4{at}, logits = all }} }}"
    done = compile_text(model + plan)
    nodes = [n for each in done.trace_set.classes for n in unrolled(each.program)]
    d, h, e, c, b, s = 64, 2, 16, 48, 6, 4
    position = b * s * d * h * e
    pairs = sum(context + i + 1 for i in range(s))
    products = 6 * position + b * (pairs + s * c) * h * e * 2
    if not context:
        products += 2 * b * c * d * h * e
    matrix = [n.action for n in nodes if n.op in ("contract", "attention")]
    assert sum(a.num_ops for a in matrix if isinstance(a, Compute)) == 3 * 2 * products
    assert len([n for n in nodes if n.op == "unary"]) == (0 if context else 2)
    assert len([n for n in nodes if n.op == "fill"]) == (0 if context else 6)
    kept = 3 * 2 * b * (c + context + s) * h * e * 2
    assert done.memory[0].static.num_bytes[Kind.CACHE] == kept


def test_training_knows_nothing_of_once():
    written = ENCODED.replace("  weight up[D, D -> D]\n", "")
    with_caches = written.replace("KEYS", "once(seen, source @ k)").replace(
        "VALUES", "once(read, source @ v)"
    )
    with_caches = with_caches.replace("CACHE", "cache seen[B, C, H, E], read[B, C, H, E]")
    without = written.replace("KEYS", "source @ k").replace("VALUES", "source @ v")
    without = without.replace("CACHE", "")
    shown = []
    for model in (with_caches, without):
        done = compile_text(model + "plan p { mesh dp = 2 shard B over dp }")
        nodes = [n for each in done.trace_set.classes for n in unrolled(each.program)]
        shown.append([(n.op, n.phase, n.action) for n in nodes])
    assert shown[0] == shown[1]


@pytest.mark.parametrize("seed", some(range(4), 4))
def test_logits_are_made_of_all_that_is_verified(seed: int):
    """Of sequences with drafted tokens all new positions, of others the last; dealt out or not."""
    rng = random.Random(f"verified {seed}")
    ways = rng.choice([1, 2])
    verified = [(rng.randint(2, 5), rng.randint(1, 4), rng.randint(1, 40)) for _ in range(2)]
    prompts = [(rng.randint(2, 5), rng.randint(1, 9))][: rng.randint(0, 1)]
    served = [f"decode {n} x {new} at {before}" for n, new, before in verified]
    served += [f"prefill {n} x {new}" for n, new in prompts]

    def flops(logits: str) -> int:
        serve = ", ".join([*served, *([f"logits = {logits}"] if logits else [])])
        plan = f"plan p {{ mesh dp = {ways} shard B over dp serve {{ {serve} }} }}"
        classes = summarized(text() + plan)
        return sum(each.num_ranks * each.matrix_flops for each in classes)

    last = sum(n for n, *_ in (*verified, *prompts))
    sampled = sum(n * new for n, new, _ in verified) + sum(n for n, _ in prompts)
    everything = sum(n * new for n, new, *_ in (*verified, *prompts))
    assert flops("") - flops("last") == 2 * D * V * (sampled - last)
    assert flops("all") - flops("last") == 2 * D * V * (everything - last)


def summarized(model: str) -> tuple[ClassSummary, ...]:
    found = compile_text(model)
    return tuple(summarize(found.module, found.counts).classes)
