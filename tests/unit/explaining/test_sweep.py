"""`--sweep`: each row equals a full compilation of its plan, and what is left out does not compile."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from stagec.arrays import Floats, Ints
from stagec.diagnostics import CompileError
from stagec.dialects.attributes import SizeAttr
from stagec.dialects.sched.tasks import Order
from stagec.driver import Compiled, Stops, compile_program
from stagec.estimate.interference import slowdown
from stagec.estimate.step import estimate
from stagec.explaining.job import NamedJob
from stagec.frontend import check, parse_file, parse_text
from stagec.sweeping import step_times
from stagec.sweeping.grid import grid
from stagec.sweeping.plans import SweepRequest
from stagec.sweeping.run import SweepTable, sweep
from stagec.sweeping.step_times import StepTimes, batch_of, loses_behind
from stagec.sweeping.structures import Begun, Structure
from stagec.symbolic import constant, parse
from stagec.symbolic.columns import Columns
from stagec.symbolic.conditions import recording
from tests.differential import random_serving
from tests.differential.further_plans import draw_further
from tests.differential.of_examples import draw_example
from tests.differential.random_plans import Drawn, draw
from tests.differential.random_serving import draw_serving
from tests.differential.sweeps import QUANTITIES, differences, request, whole
from tests.unit.seldom import mostly
from tests.unit.test_serving import text as served_text

EXAMPLES = Path(__file__).parents[3] / "examples"

TINY = """
dim B = 16
dim S = 24
dim D = 12
dim F = 4 * D
dim H = 6
dim E = D / H
dim L = 12
dim V = 40
require S >= 2 * H

module Block(x[B, S, D]) -> [B, S, D] {
  weight norm[D], wq[D, H, E], wk[D, H, E], wv[D, H, E], wo[H, E, D], up[D, F], down[F, D]
  n = rms_norm(x, norm)
  h = x + attention(n @ wq, n @ wk, n @ wv, causal = true) @ wo
  return h + gelu(h @ up) @ down
}

model Net(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[V, D], head[D, V]
  x = embedding(tokens, embed)
  repeat L { x = Block(x) }
  loss = cross_entropy(x @ head, targets)
}

plan p {
  mesh dp = 2, pp = 2, tp = 2
  shard B over dp
  shard H, F, V over tp
  CLAUSES
  precision { weights = bf16, gradients = fp32, optimizer = fp32 }
}
"""

CLAUSES = {
    "1f1b": "shard S over tp\n  pipeline L over pp { schedule = 1f1b }",
    "gpipe": "pipeline L over pp { schedule = gpipe }\n  zero 1 over dp",
    "interleaved": "pipeline L over pp { schedule = interleaved_1f1b, virtual_stages = 2 }\n  recompute full in Block\n"
    "  optimizer adamw { clip = 1 }",
    "zero_bubble": "pipeline L over pp { schedule = zb_h1, first = -1, last = 1 }",
    "v": "pipeline L over pp { schedule = zb_v }\n  zero 2 over dp\n  optimizer adamw { clip = 1, loss_scale = dynamic }",
    "dualpipe": "pipeline L over pp { schedule = dualpipe }",
    "as_sent": "pipeline L over pp { schedule = dualpipe_v, transfers = as_sent }",
    "listed": "pipeline L over pp { schedule = 1f1b, layers = [5, 7] }",
    "listed_virtual": "pipeline L over pp { schedule = interleaved_1f1b, virtual_stages = 2, layers = [4, 5, 3, 0] }",
    "zero_3": "zero 3 over dp\n  unit Block\n  microbatch 1",
    "buckets": "gradients { bucket_bytes = 4KiB }\n  microbatch 1",
    "offloaded": "microbatch 1\n  offload { activations = inputs, optimizer = true }\n  recompute full in Block",
    "offloaded_stages": "pipeline L over pp { schedule = 1f1b }\n  offload { activations = all, optimizer = true, parameters = true }",
    "context": "shard S over pp\n  context pp { method = ring, balance = none }\n  microbatch B / dp / 2",
}
OFTEN = ("interleaved", "v", "buckets")
"""Of which each run has some points."""
COMPILED_EACH = ("buckets", "context")
"""Whose plans are compiled one by one, at least for their peaks."""


def same_rows(asked: SweepRequest, table: SweepTable, chosen: list[int]) -> None:
    for number in chosen:
        row = table.row(number)
        found = whole(compile_program(asked.checked_at({n: int(row[n]) for n in asked.grid.names})))
        assert {n: v for n, v in found.items() if n in row} == {
            n: row[n] for n in found if n in row
        }


@pytest.mark.parametrize("seed", mostly((11).__eq__, [0, 3, 11]))
def test_random_models_and_plans(seed: int) -> None:
    """A few of what `python -m tests.differential` tries: each point is a row as compiled, or does not compile (11: two that do).

    Seeds 1 and 2 draw up to 72 points, each a structure of its own, which takes 25 s.
    """
    rng = random.Random(seed)
    drawn = draw(rng)
    assert not differences(drawn, rng, most=2), drawn.text


@pytest.mark.seldom
@pytest.mark.parametrize("seed", [2, 11, 12, 17, 20, 27])
def test_random_plans_of_rarer_clauses(seed: int) -> None:
    """As above: masks and nested layers (27), documents (11, 17), replicas of shards (2, 12, 20), optimizers of matrices (2)."""
    rng = random.Random(seed)
    drawn = draw_further(rng)
    assert not differences(drawn, rng, most=2, num_names=6), drawn.text


@pytest.mark.parametrize("seed", mostly((29).__eq__, [13, 29]))
def test_random_iterations_of_serving(seed: int) -> None:
    """As above, of plans that serve: sequences that divide and that do not, in pipelines."""
    rng = random.Random(seed)
    drawn = draw_serving(rng)
    assert not differences(drawn, rng, most=2, num_names=6), drawn.text


@pytest.mark.parametrize("seed", mostly((0).__eq__, [0, 2, 8, 15]))
def test_random_plans_of_examples(seed: int) -> None:
    """As above, of what the repository's models have and random ones lack."""
    rng = random.Random(seed)
    drawn = draw_example(rng)
    assert not differences(drawn, rng, most=2, num_names=6), (drawn.file, drawn.plan)


@pytest.mark.seldom
def test_one_expert_on_a_device_and_several() -> None:
    """What is done around several is in their kernels, and of one it is not."""
    numbers = {"heads": 8, "kv": 4, "layers": 2, "decoded": 8, "prefilled": 2, "new": 8}
    text = random_serving.MODEL.format(
        **numbers,
        context=31,
        shared=8,
        attention=random_serving.GROUPED.replace("WINDOW", ""),
        mlp=random_serving.EXPERTS,
        model=random_serving.PLAIN,
        clauses="mesh ep = 2 shard X, B, R over ep precision { weights = bf16, dispatch = fp8 } "
        "serve { decode N at C, logits = all, experts = average }",
    )
    assert not differences(Drawn(text, ("ep=2,4",), "p"))


@pytest.mark.seldom
def test_one_microbatch_and_several() -> None:
    """One alone has no sum of gradients, so it is another structure (issue 20: 42.46 GB was said to be 10.71)."""
    asked = request(
        parse_file(EXAMPLES / "llama3_8b.stg"),
        "fsdp64",
        ("memory.peak",),
        "B=256",
        "microbatch=4,1,2",
    )
    same_rows(asked, sweep(asked), [0, 1, 2])


def test_a_structure_is_where_a_compilation_comes_to_the_same_answers() -> None:
    """Not only where examples happen to differ: an axis of one rank, what an axis divides, a schedule's own demands."""
    text = TINY.replace("CLAUSES", "pipeline L over pp { schedule = dualpipe }")
    with recording({"microbatch": "microbatch"}) as asked:
        compile_program(check(parse_text(text, "tiny.stg")), stops=Stops(after="lower-to-tasks"))
    said = {str(condition): condition.is_demand for condition in asked.found}
    assert said["tp > 1"] is False
    assert said["H/tp is a whole number"] is True
    assert said["B/(dp*microbatch) is a whole number"] is True
    assert said["`dualpipe` does not run so few or so many microbatches"] is True


@pytest.mark.seldom
def test_whether_ranks_get_through_their_batches_is_asked_of_each_point() -> None:
    """With few microbatches they do, under this schedule."""
    clauses = "pipeline L over pp { schedule = zb_h2, transfers = batched }"
    asked = request(
        parse_text(TINY.replace("CLAUSES", clauses), "tiny.stg"), "p", ("flops",), "B=2,4,8,16"
    )
    table = sweep(asked)
    assert [row["B"] for row in table.rows()] == [2, 4]
    assert sum(table.reasons.values()) == 2


@pytest.mark.seldom
def test_whether_documents_fill_a_sequence_is_asked_of_each_point() -> None:
    """One that is longer says nothing of others that are programs of their own."""
    text = TINY.replace("CLAUSES", "documents S [5, 4, 7, 8]\n  microbatch B / dp / 2")
    asked = request(parse_text(text, "tiny.stg"), "p", ("flops",), "dp=1,2", "S=12,36,24")
    table = sweep(asked)
    assert [(row["dp"], row["S"]) for row in table.rows()] == [(1, 12), (1, 24), (2, 12), (2, 24)]
    assert [*table.reasons.values()] == [2]


@pytest.mark.seldom
def test_a_sweep_of_an_option_that_follows_from_sizes() -> None:
    """`loss_chunks`, a setting that is a formula: its chunks have a size of their own."""
    text = TINY.replace("CLAUSES", "loss_chunks S / 6\n  microbatch B / dp / 2")
    drawn = Drawn(text, ("S=12,13,18,24", "dp=1,2"))
    assert not differences(drawn, random.Random(0), most=4)


@pytest.mark.seldom
@pytest.mark.parametrize(
    "clauses",
    ["microbatch B / dp / 4", "pipeline L over pp { schedule = 1f1b, microbatch = B / dp / 4 }"],
)
def test_a_microbatch_that_follows_from_sizes_is_no_structure_of_its_own(clauses: str) -> None:
    """Each plan has the size that its formula makes, in its numbers of microbatches, its peaks and its times."""
    pp = "4" if "pp" in clauses else "1"
    text = TINY.replace("CLAUSES", clauses)
    if pp == "1":
        text = text.replace("pp = 2", "pp = 1")
    drawn = Drawn(text, ("B=16,24,32,48,64", "dp=1,2,4", f"pp={pp}"))
    assert not differences(drawn, random.Random(clauses), most=4)
    varied = ("B=" + ",".join(str(8 * n) for n in range(2, 40)), "dp=2", f"pp={pp}")
    table = sweep(request(parse_text(text, "tiny.stg"), "p", ("memory.peak", "comm"), *varied))
    assert (table.num_rows, table.num_compiled) == (38, 1)


RULES = {
    "padded": ("shard V over tp { pad = 3 }\n  shard H over tp { pad = 1 }", "V=39,40,41"),
    "shared": ("shard H over tp\n  shard K over tp { replicate = true }", "K=1,2,3,6"),
}


@pytest.mark.seldom
@pytest.mark.parametrize("rules", RULES)
def test_dims_that_axes_do_not_divide(rules: str) -> None:
    """What a name that is varied is in the plan depends on the others, and so does what axes there are."""
    written, varied = RULES[rules]
    text = TINY.replace("CLAUSES", "shard S over tp\n  microbatch 1")
    text = text.replace("shard H, F, V over tp", written)
    text = text.replace("wk[D, H, E], wv[D, H, E]", "wk[D, K, E], wv[D, K, E]")
    text = f"dim K = {'H' if rules == 'padded' else 2}\n{text}"
    if rules == "padded":
        text = text.replace("H over tp {", "H, K over tp {")
    drawn = Drawn(text, (varied, "tp=1,2,3,6", "dp=2"))
    assert not differences(drawn, random.Random(rules), most=3)


FEW = ("tp=2", "pp=1,4", "B=16", "microbatch=2")
MORE = ("tp=1,2", "pp=1,2,4", "B=16", "microbatch=1,2")
OF_LENGTHS = ("tp=1,2,4", "pp=2", "S=11,24")


def grids_of(clauses: str) -> tuple[tuple[str, ...], ...]:
    if clauses in COMPILED_EACH:
        return (OF_LENGTHS,)
    return (FEW, MORE) if clauses in OFTEN else (FEW,)


@pytest.mark.parametrize(
    ("clauses", "varied"),
    mostly(
        lambda case: case[0] in OFTEN and case[1] is not MORE,
        [(clauses, grid) for clauses in CLAUSES for grid in grids_of(clauses)],
        3,
    ),
)
def test_every_row_is_a_compilation(clauses: str, varied: tuple[str, ...]) -> None:
    """All feasible points of a small grid, and that all others are refused."""
    source = parse_text(TINY.replace("CLAUSES", CLAUSES[clauses]), "tiny.stg")
    asked = request(source, "p", QUANTITIES, *varied)
    table = sweep(asked)
    assert table.num_points == np.prod([len(v) for v in asked.grid.values.values()])
    assert table.num_rows + sum(table.reasons.values()) == table.num_points
    rng = random.Random(clauses)
    if table.num_rows:
        same_rows(asked, table, rng.sample(range(table.num_rows), min(2, table.num_rows)))
    listed = {tuple(int(row[name]) for name in asked.grid.names) for row in table.rows()}
    every = list(product(*asked.grid.values.values()))
    for point in rng.sample(
        [p for p in every if p not in listed], min(2, len(every) - len(listed))
    ):
        with pytest.raises(CompileError):
            compile_program(asked.checked_at(dict(zip(asked.grid.names, point, strict=True))))


@pytest.mark.seldom
@pytest.mark.parametrize(
    "clauses",
    [
        "zero 3 over dp\n  unit Block",
        "zero 3 over dp { reshard = false }\n  unit Block",
        "gradients { reduce = microbatch }\n  recompute full in Block",
        "offload { activations = inputs, optimizer = true }\n  recompute full in Block",
        *("interleaved", "zero_bubble", "v", "dualpipe", "offloaded_stages"),
        "pipeline L over pp { schedule = interleaved_1f1b, virtual_stages = 2 }\n  zero 3 over dp\n  unit Block",
    ],
)
def test_the_peak_of_many_microbatches_is_that_of_few(
    clauses: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step of many is unrolled whole where one of few has all its situations, and each row is what is compiled."""
    written = CLAUSES.get(clauses, clauses)
    text = TINY.replace("CLAUSES", f"{written}\n  microbatch 1")
    if "pipeline" not in written:
        text = text.replace("pp = 2, ", "")
    of_memory = [name for name in QUANTITIES if name.startswith("memory.")]
    asked = request(parse_text(text, "tiny.stg"), "p", of_memory, "B=8,40", "tp=2")
    unrolled: list[int] = []
    live = Structure.live

    def noted(self: Structure, axis: str, stages: object, order: Order, *rest: object) -> object:
        unrolled.append(order.num_microbatches)
        return live(self, axis, stages, order, *rest)  # pyright: ignore

    monkeypatch.setattr(Structure, "live", noted)
    table = sweep(asked)
    assert table.num_rows == 2
    assert 4 <= max(unrolled) < 17
    monkeypatch.undo()
    same_rows(asked, table, [0, 1])


@pytest.mark.seldom
def test_a_peak_needs_no_pass_behind_the_plan_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it unroll the microbatches of a whole step to see whether it can be asked for."""
    text = TINY.replace("CLAUSES", "microbatch 1").replace("pp = 2, ", "")
    asked = request(parse_text(text, "tiny.stg"), "p", ("memory.peak",), "B=8,64", "tp=2")
    last: list[str | None] = []
    compiled_from = SweepRequest.compiled_from

    def noted(self: SweepRequest, make: Any, verify: bool, until: str | None, *how: Any) -> object:
        last.append(until)
        return compiled_from(self, make, verify, until, *how)

    def unrolled(_: object) -> object:
        raise AssertionError("a whole step")

    monkeypatch.setattr(SweepRequest, "compiled_from", noted)
    monkeypatch.setattr(NamedJob, "memory", property(unrolled))
    table = sweep(asked)
    assert set(last) == {"plan-memory"}
    monkeypatch.undo()
    same_rows(asked, table, [0, 1])


@pytest.mark.seldom
def test_ten_thousand_plans() -> None:
    """A sample of the rows is compiled. What they cost is measured by `benchmarks/sweeps.py`."""
    source = parse_file(EXAMPLES / "llama3_8b.stg")
    asked = request(
        source,
        "dp8_tp8",
        ("flops", "comm", "memory.peak"),
        "tp=1,2,4,8",
        "dp=1,2,4,8,16,32,64,128",
        "microbatch=1,2,4,8",
        "B=128,256,512,1024,2048,4096",
        "S=1024..1036",
        "V=128256",
    )
    table = sweep(asked)
    assert table.num_points == 9984
    assert table.num_rows > 2_000
    same_rows(asked, table, random.Random(0).sample(range(table.num_rows), 2))


@pytest.mark.seldom
def test_buckets_that_only_some_plans_pad() -> None:
    """Those of `like = megatron` end at multiples of 128 elements: those of 12 layers do, 11 layers' are padded."""
    text = TINY.replace("CLAUSES", "zero 1 over dp { like = megatron }\n  microbatch 1")
    text = text.replace("dim D = 12", "dim D = 64").replace("dim H = 6", "dim H = 8")
    assert not differences(Drawn(text, ("L=12,11",)))


@pytest.mark.seldom
def test_what_a_setting_changes_is_no_condition_of_a_sweep() -> None:
    """The pass also runs without the setting, which says whether it has an effect, and of a plan that does not compile this is an error."""
    clauses = "pipeline L over pp { schedule = 1f1b, microbatch = 1, scatter_gather = true }"
    text = TINY.replace("CLAUSES", clauses)
    asked = request(parse_text(text, "tiny.stg"), "p", ("flops",), "L=1,2,4")
    assert [row["L"] for row in sweep(asked).rows()] == [2, 4]


def test_formulas_and_limits() -> None:
    text = TINY.replace("CLAUSES", "device { memory = 200KiB }\n  microbatch 1")
    asked = request(parse_text(text, "tiny.stg"), "p", ("memory.peak",), "tp=1,2,3", "dp=8/(tp*pp)")
    table = sweep(asked)
    assert all(row["dp"] * row["tp"] * 2 == 8 for row in table.rows())
    assert all(row["memory.peak"] <= 200 * 1024 for row in table.rows())
    assert table.num_rows + sum(table.reasons.values()) == 3


OVERLAPS = "shard S over tp\n  overlap { tp = true }\n  device h100"


@pytest.mark.seldom
@pytest.mark.parametrize(
    "clauses",
    ["device h100", f"{OVERLAPS} {{ kernels = eager, graphs = false }}"],
)
def test_step_time(clauses: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four microbatches, which share the two steps of others, and of as many as are reached from them, though each does a part of what a step does once."""
    reached: list[Sequence[int]] = []
    extended = StepTimes.extended

    def noted(self: StepTimes, rows: Ints, few: Sequence[int]) -> Floats:
        found = extended(self, rows, few)
        reached.extend([few] * int(np.isfinite(found).sum()))
        return found

    monkeypatch.setattr(StepTimes, "extended", noted)
    text = TINY.replace("CLAUSES", f"{clauses}\n  microbatch 1")
    asked = request(parse_text(text, "tiny.stg"), "p", ("step_time",), "tp=1,2", "B=8,256")
    table = sweep(asked)
    assert table.num_rows == 4
    for row in table.rows():
        sizes = {"tp": int(row["tp"]), "B": int(row["B"])}
        compiled = compile_program(asked.checked_at(sizes))
        assert row["step_time"] == pytest.approx(estimate(compiled).step_time_us / 1e6, rel=1e-12)
    assert reached == [(3, 4)] * 4


@pytest.mark.seldom
def test_a_plan_is_compiled_once_for_all_that_is_asked_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The plan as it is in the file, to say whether the quantities can be asked for, and that of the structure; of another grid the latter alone."""
    made: list[object] = []
    compiled_from = SweepRequest.compiled_from

    def noted(self: SweepRequest, make: Any, *how: Any) -> Compiled:
        made.append(make)
        return compiled_from(self, make, *how)

    monkeypatch.setattr(SweepRequest, "compiled_from", noted)
    clauses = "gradients { bucket_bytes = 4KiB }\n  microbatch 1\n  device h100"
    text = TINY.replace("CLAUSES", clauses)
    asked = request(parse_text(text, "tiny.stg"), "p", ("step_time", "memory.peak"), "tp=1")
    first = sweep(asked)
    assert len(made) == 2
    same_rows(asked, first, [0])
    made.clear()
    again = sweep(replace(asked, grid=grid(["tp=2"], ["tp"])))
    assert len(made) == 1
    assert again.row(0) == sweep(replace(asked, grid=grid(["tp=2"], ["tp"]), bases={})).row(0)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(
        [
            "B*S/(dp*tp) + 3",
            "ceildiv(S, tp)*B",
            "max(S/tp, B, 7)",
            "min(S, B/dp)*S**2/2",
            "mod(B, tp) + floordiv(S, dp)",
            "B**4*S**4/(tp*dp) - S/7",
            "B*S/W - tp/W",
        ]
    ),
    st.lists(st.tuples(*[st.integers(1, 2**20)] * 4), min_size=1, max_size=5),
)
def test_vectors_are_exact(text: str, points: list[tuple[int, ...]]) -> None:
    names = ("B", "S", "dp", "tp")
    # What is divided by may be a sum, if that has a name.
    made = {"W": parse("dp + U"), "U": parse("3*S/2")}
    columns = Columns(
        {n: np.array([p[i] for p in points], np.int64) for i, n in enumerate(names)},
        len(points),
        made,
    )
    size = parse(text)
    assert columns.has(size)
    for number, point in enumerate(points):
        known: dict[str, int | Fraction] = dict(zip(names, point, strict=True))
        known["U"] = made["U"].evaluate(known)
        known["W"] = made["W"].evaluate(known)
        exact = size.evaluate(known)
        assert int(columns.number(size)[number]) == -(-exact.numerator // exact.denominator)
        assert bool(columns.whole(size)[number]) == (exact.denominator == 1)


def test_experts_without_their_tokens_are_left_out() -> None:
    """E0310: `N` fits one batch only."""
    text = """
dim B = 4
dim S = 8
dim D = 16
dim X = 4
dim A = 2
dim N = 16
model Routed(x[B, S, D]) {
  weight router[D, X], w[X, D, D2]
  gates, chosen = topk(softmax(x @ router, over = X), over = X, to = A)
  routed = dispatch(x, chosen, experts = X, tokens = N)
  y[X, N, D2] = routed @ w
  loss = mean(combine(y, gates, chosen), over = [B, S, D2])
}
dim D2 = D
plan p {
  mesh dp = 1
  shard B over dp
}
"""
    asked = request(parse_text(text, "routed.stg"), "p", ("flops",), "B=2,4,8")
    table = sweep(asked)
    assert [row["B"] for row in table.rows()] == [4]
    assert sum(table.reasons.values()) == 2


@pytest.mark.seldom
def test_iterations_of_serving_are_one_structure() -> None:
    """Sequences, contexts and devices are numbers of one compilation; what does not divide is dealt out, and compiled by itself."""
    text = f"""{served_text(window=True)}
dim N = 8
dim C = 31
plan p {{
  mesh dp = 2, tp = 2
  shard B over dp
  shard H, K, F over tp
  precision {{ weights = bf16, cache = fp8 }}
  serve {{ decode N at C, prefill 2 x 16, block = 16 }}
}}
"""
    varied = ("N=6,7,8,16", "C=1,31,100", "tp=2,4")
    asked = request(parse_text(text, "served.stg"), "p", ("flops", "memory.peak", "comm"), *varied)
    with recording({"N": "N", "C": "C"}) as found:
        compile_program(asked.checked_at({"N": 8, "C": 31, "tp": 2}))
    assert not [c for c in found.found if not c.is_demand and {"N", "C"} & set(str(c).split())]
    table = sweep(asked)
    assert table.num_rows == 4 * 3 * 2
    uneven = [i for i, row in enumerate(table.rows()) if row["N"] == 7]
    same_rows(asked, table, [*random.Random(0).sample(range(table.num_rows), 3), uneven[0]])


SCHEDULES = {
    "1f1b": "zero 1 over dp\n  device h100 { tile_scheduler = static }",
    "interleaved_1f1b, virtual_stages = 2": "recompute full in Block\n  device h100",
    "zb_h1": "zero 2 over dp\n  device h100",
    "gpipe": "zero 3 over dp\n  unit Block\n  device h100 { graphs = false }",
}


@pytest.mark.seldom
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_step_times_of_pipelines(schedule: str) -> None:
    """Random points over ranks, microbatches, and lengths of which the longest hide what ranks send each other."""
    rng = random.Random(schedule)
    pipeline = f"pipeline L over pp {{ schedule = {schedule}, microbatch = 1 }}"
    clauses = f"{pipeline}\n  {SCHEDULES[schedule]}\n  shard S over tp"
    source = parse_text(TINY.replace("CLAUSES", clauses), "tiny.stg")
    asked = request(source, "p", ("step_time",), "pp=2,3", "B=12,24,96", "S=24,4800")
    rows = sweep(asked).rows()
    assert len(rows) == 12
    for row in rng.sample(rows, 2):
        compiled = compile_program(asked.checked_at({n: int(row[n]) for n in asked.grid.names}))
        step_s = estimate(compiled).step_time_us / 1e6
        assert row["step_time"] == pytest.approx(step_s, rel=1e-9), row


@pytest.mark.seldom
@pytest.mark.parametrize(
    ("level", "width", "length", "is_behind"), [(1, 3072, 480, True), (2, 384, 4800, False)]
)
def test_what_is_slowed_behind_the_blocks_is_slowed_alike(
    level: int, width: int, length: int, is_behind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs beside sums of gradients does so once, however many microbatches there are. Where each has sums of its own, what two steps lose tells."""
    seen: list[bool] = []
    factors: list[float] = []

    def noted(*given: Any) -> bool:
        seen.append(loses_behind(*given))
        return seen[-1]

    def slowed(*given: Any) -> Floats:
        found = slowdown(*given)
        factors.append(found.max())
        return found

    monkeypatch.setattr(step_times, "loses_behind", noted)
    monkeypatch.setattr(step_times, "slowdown", slowed)
    clauses = f"pipeline L over pp {{ schedule = 1f1b, microbatch = 1 }}\n  zero {level} over dp\n  device h100\n  shard S over tp"
    text = TINY.replace("CLAUSES", clauses).replace("dim L = 12", "dim L = 4")
    source = parse_text(text.replace("dim D = 12", f"dim D = {width}"), "tiny.stg")
    asked = request(source, "p", ("step_time",), "B=96", f"S={length}")
    (row,) = sweep(asked).rows()
    compiled = compile_program(asked.checked_at({"B": 96, "S": length}))
    assert row["step_time"] == pytest.approx(estimate(compiled).step_time_us / 1e6, rel=1e-9)
    assert seen == [is_behind]
    assert factors[0] > 1


@pytest.mark.seldom
@pytest.mark.parametrize("tells", [False, True])
def test_too_few_microbatches_for_two_steps_share_those_of_others(
    tells: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of 12 is no twice as long as one of 8: by itself it is timed whole, and so it is where the two steps of others do not tell."""
    tried: list[tuple[Sequence[int], list[int]]] = []
    extended = StepTimes.extended

    def noted(self: StepTimes, rows: Ints, few: Sequence[int]) -> Floats:
        tried.append((few, sorted(set(self.microbatches[rows].tolist()))))
        return extended(self, rows, few) if tells else np.full(len(rows), np.nan)

    monkeypatch.setattr(StepTimes, "extended", noted)
    clauses = "pipeline L over pp { schedule = 1f1b, microbatch = 1 }\n  device h100"
    text = TINY.replace("CLAUSES", clauses).replace("dim L = 12", "dim L = 2")
    asked = request(parse_text(text, "tiny.stg"), "p", ("step_time",), "B=12,16,24,96")
    for row in sweep(asked).rows():
        compiled = compile_program(asked.checked_at({"B": int(row["B"])}))
        step_s = estimate(compiled).step_time_us / 1e6
        assert row["step_time"] == pytest.approx(step_s, rel=1e-12 if not tells else 1e-9), row
    assert tried[0] == ((6, 8), [8, 12, 48])
    assert all(numbers == [48] for _, numbers in tried[1:])
    assert bool(tried[1:]) != tells


@pytest.mark.seldom
def test_ranks_that_agree_on_a_scale_do_so_over_their_own_mesh() -> None:
    """In fp8 a quantization of as many elements takes longer among eight ranks than among four, on as many devices."""
    sizes = {"S = 24": "S = 2048", "D = 12": "D = 1024", "H = 6": "H = 32", "V = 40": "V = 4096"}
    clauses = "shard S over tp\n  microbatch 1\n  device h100"
    text = TINY.replace("CLAUSES", clauses).replace("dp = 2, pp = 2,", "dp = 2,")
    text = text.replace("weights = bf16", "weights = bf16, products = fp8, scaling = current")
    for old, new in sizes.items():
        text = text.replace(f"dim {old}", f"dim {new}")
    source = parse_text(text.replace("dim L = 12", "dim L = 2"), "tiny.stg")
    asked = request(source, "p", ("step_time",), "dp=2,4", "tp=16/dp", "S=8192/dp")
    rows = sweep(asked).rows()
    assert [row["ranks"] for row in rows] == [16, 16]
    for row in rows:
        own = {name: int(row[name]) for name in asked.grid.names}
        step_s = estimate(compile_program(asked.checked_at(own))).step_time_us / 1e6
        assert row["step_time"] == pytest.approx(step_s, rel=1e-12), row


@pytest.mark.seldom
@pytest.mark.parametrize("clauses", [name for name in CLAUSES if name != "context"])
def test_other_numbers_of_microbatches_start_from_one_compilation(clauses: str) -> None:
    """Up to the order of tasks, their number is a size; what becomes of the IR behind that is what the whole compilation leaves."""
    source = parse_text(TINY.replace("CLAUSES", CLAUSES[clauses]), "tiny.stg")
    asked = request(source, "p", ("step_time",), "B=16,24")
    begun = Begun()
    compiled = asked.compiled_at({"B": 16}, seen=begun.see)
    assert begun.module is not None
    batch = batch_of(begun.module, "B")
    assert batch is not None
    batch.size = SizeAttr(constant(24))
    whole_way = asked.compiled_at({"B": 24}).module
    assert str(asked.resumed(compiled, begun.module).module) == str(whole_way)
    assert str(compiled.module) != str(whole_way)
