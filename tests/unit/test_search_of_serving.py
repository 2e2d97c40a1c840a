"""`stagec search` among plans that serve: the best of a space whose plans are all compiled whole, and what a user may get wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from stagec.cli.search_command import run
from stagec.cli.search_question import names_of_counts
from stagec.diagnostics import CompileError
from stagec.driver import compile_text
from stagec.estimate.step import batch_of, estimate

MODEL = """
dim B = 4
dim S = 64
dim T = S
dim D = 1024
dim H = 8
dim K = 2
dim E = 128
dim F = 2048
dim V = 4096
dim L = 4
dim X = 8
dim A = 2
dim N = B * S * A / X

module Experts(x[B, S, D]) -> [B, S, D] {
  weight router[D, X], up[X, D, F], down[X, F, D]
  gates, chosen = topk(softmax(x @ router, over = X), over = X, to = A)
  r = dispatch(x, chosen, experts = X, tokens = N)
  h[X, N, F] = r @ up
  y[X, N, D] = silu(h) @ down
  return combine(y, gates, chosen)
}

module Block(x[B, S, D]) -> [B, S, D] {
  weight wq[D, H, E], wk[D, K, E], wv[D, K, E], wo[H, E, D]
  cache k[B, T, K, E], v[B, T, K, E]
  keys = append(k, rope(x @ wk))
  values = append(v, x @ wv)
  h = x + attention(rope(x @ wq), keys, values, causal = true) @ wo
  return h + Experts(h)
}

model Net(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[V, D], head[D, V]
  x = embedding(tokens, embed)
  repeat L { x = Block(x) }
  loss = cross_entropy(x @ head, targets)
}
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "net.stg"
    path.write_text(MODEL)
    return str(path)


def searched(
    model: str, capsys: pytest.CaptureFixture[str], serve: str, *flags: str
) -> dict[str, object]:
    devices = [] if "--devices" in flags else ["--devices", "4"]
    asked = [model, *devices, "--device", "h100", "--executor", "serial", "-q"]
    run([*asked, "--clause", f"serve {{ {serve} }}", "--format", "json", *flags])
    return json.loads(capsys.readouterr().out)


def compiled(plan: str) -> tuple[float, int, int]:
    """Seconds, bytes and tokens of a plan."""
    done = compile_text(f"{MODEL}\n{plan}")
    found = estimate(done)
    return found.step_time_us / 1e6, max(m.peak_bytes for m in done.memory), batch_of(done)[1] or 0


SMALL = ("--fix", "batch=8,24", "--top", "1000")


@pytest.mark.seldom
@pytest.mark.parametrize(
    "serve",
    [
        "decode B at 100, experts = average",
        "prefill 4 x 32, decode B at 100, experts = average",
    ],
)
def test_every_plan_is_what_its_compilation_says(
    model: str, capsys: pytest.CaptureFixture[str], serve: str
) -> None:
    fixed = ("--fix", "pp=1,2", "--fix", "tp=1,2", "--fix", "batch=8")
    found = searched(model, capsys, serve, "--top", "1000", *fixed)
    assert not found["mismatches"]
    best = found["best"]
    assert isinstance(best, list)
    choices = [each["choices"] for each in best]
    assert {(c["tp"], c["pp"], c["dp"], c["ep"]) for c in choices} >= {
        (2, 2, 1, 1), (2, 2, 1, 2), (1, 1, 4, 4), (2, 1, 2, 4), (2, 1, 2, 2), (1, 2, 2, 2)
    }  # fmt: skip
    assert {c["microbatches"] for c in choices} == {1, 2}
    for each in best[:: max(1, len(best) // 4)]:
        step, peak, tokens = compiled(each["plan"])
        own = each["choices"]
        assert each["step_time"] == pytest.approx(step)
        assert each["memory_peak"] == peak
        assert own["tokens"] == tokens == own["batch"] + (128 if "prefill" in serve else 0)
        assert each["value"] == pytest.approx(step * 4 / tokens)
        assert each["outline"]["step"] == pytest.approx(step)
    values = [each["value"] for each in best]
    assert values == sorted(values)


COPIES = "shard H, F, V over tp shard K over tp { replicate = true }"
BY_KEYS = "shard H, F, V over tp shard K over kv"
SHARED_KEYS = {
    2: {
        (4, 1): ("tp = 4", COPIES, ""),
        (4, 2): ("kv = 2, dcp = 2, tp = kv * dcp", BY_KEYS, "dcp"),
        (8, 1): ("tp = 8", COPIES, ""),
        (8, 4): ("kv = 2, dcp = 4, tp = kv * dcp", BY_KEYS, "dcp"),
    },
    1: {
        (4, 1): ("tp = 4", COPIES, ""),
        (4, 4): ("tp = 4", "shard H, F, V over tp", "tp"),
        (8, 1): ("tp = 8", COPIES, ""),
        (8, 8): ("tp = 8", "shard H, F, V over tp", "tp"),
    },
}
"""By heads of keys, then tp and dcp: the mesh, what is cut, and the axis that splits positions."""


@pytest.mark.seldom
@pytest.mark.parametrize(
    ("keys", "serve", "batches"),
    [
        (2, "decode B at 1001, experts = average", (8,)),
        (1, "decode B at 1001, experts = average", (8, 16)),
        (2, "prefill 4 x 32, decode B at 1001, experts = average", (16,)),
    ],
)
def test_shared_positions_are_searched_as_if_each_plan_were_compiled(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    keys: int,
    serve: str,
    batches: Sequence[int],
) -> None:
    text = MODEL.replace("dim K = 2", f"dim K = {keys}")
    path = tmp_path / "net.stg"
    path.write_text(text)
    some = (
        "--devices",
        "8",
        "--fix",
        "tp=4,8",
        "--fix",
        "pp=1",
        "--fix",
        "ep=1",
        "--fix",
        "dcp=1,2,4,8",
    )
    found = searched(
        str(path),
        capsys,
        serve,
        *some,
        "--fix",
        f"batch={','.join(map(str, batches))}",
        "--top",
        "99",
        "--fix",
        "combine=reduce_scatter,all_to_all",
    )
    best = found["best"]
    assert isinstance(best, list) and not found["mismatches"]
    expected: dict[tuple[object, ...], tuple[float, int]] = {}
    for (tp, dcp), (mesh, rules, axis) in SHARED_KEYS[keys].items():
        data = ("dp = 2, ", "shard B, N over dp") if tp == 4 else ("", "")
        for combine in ("reduce_scatter", "all_to_all") if axis else ("none",):
            shared = (
                f"shard T over {axis} context {axis} {{ method = partial, combine = {combine} }}"
            )
            for batch in batches:
                done = compile_text(
                    f"{text}\nplan p {{ set B = {batch} mesh {data[0]}{mesh} {data[1]} {rules} {shared if axis else ''} "
                    f"precision {{ weights = bf16, activations = bf16 }} serve {{ {serve} }} device h100 }}"
                )
                step, peak = (
                    estimate(done).step_time_us / 1e6,
                    max(m.peak_bytes for m in done.memory),
                )
                expected[tp, dcp, combine, batch] = step, peak
    names = ("tp", "dcp", "combine", "batch")
    own = {tuple(e["choices"][n] for n in names): (e["step_time"], e["memory_peak"]) for e in best}
    assert len(own) == len(best)
    assert {*own} == {*expected}
    for key, (step, peak) in expected.items():
        assert own[key] == (pytest.approx(step), peak)
    assert best[0]["value"] == pytest.approx(
        min(
            8 * step / (batch + (128 if "prefill" in serve else 0))
            for (_, _, _, batch), (step, _) in expected.items()
        )
    )


@pytest.mark.seldom
def test_copies_of_experts(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    serve = "decode B at 100, experts = average, redundant = 4"
    best = searched(model, capsys, serve, *SMALL, "--fix", "ep=4", "--fix", "tp=1")["best"]
    assert isinstance(best, list)
    assert len({each["choices"]["batch"] for each in best}) == 2
    for each in best[:2]:
        step, peak, _ = compiled(each["plan"])
        assert (each["step_time"], each["memory_peak"]) == (pytest.approx(step), peak)


@pytest.mark.seldom
def test_the_batch_of_the_text_need_not_divide(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "net.stg"
    path.write_text(MODEL.replace("dim B = 4", "dim B = 3"))
    some = ("--fix", "batch=3,8", "--fix", "tp=1", "--fix", "ep=1", "--fix", "pp=2", "--top", "9")
    found = searched(str(path), capsys, "decode B at 100", *some)
    best, why = found["best"], found["left_out"]
    assert isinstance(best, list) and isinstance(why, dict)
    assert {each["choices"]["batch"] for each in best} == {8}
    assert "the size of `N` is 0.75, not a whole number" in why


@pytest.mark.seldom
def test_limits_are_kept(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    serve = "decode B at 100, experts = average"
    some = (*SMALL, "--fix", "pp=1", "--fix", "tp=1,2", "--fix", "ep=1,2")
    every = searched(model, capsys, serve, *some)["best"]
    assert isinstance(every, list)
    times = sorted(each["step_time"] for each in every)
    peaks = sorted(each["memory_peak"] for each in every)
    time, peak = times[len(times) // 2], peaks[2 * len(peaks) // 3]
    limits = (
        "--within",
        f"step_time <= {time * 1e6 + 0.001:.3f}us",
        "--within",
        f"memory.peak < {peak}",
    )
    few = searched(model, capsys, serve, *some, *limits)["best"]
    assert isinstance(few, list)
    own = [e["plan"] for e in every if e["step_time"] <= time and e["memory_peak"] < peak]
    assert 0 < len(own) < len(every)
    assert sorted(each["plan"].partition("{")[2] for each in few) == sorted(
        plan.partition("{")[2] for plan in own
    )


@pytest.mark.seldom
def test_more_sequences_are_chosen_until_one_takes_too_much(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where sequences are not alike not every plan is compiled; the best of those that are is the best of all."""
    serve = "prefill 4 x 32, decode B at 100, experts = average"
    some = ("--fix", "pp=1", "--fix", "tp=2", "--fix", "ep=1", "--top", "1")
    sizes = [f"{n}" for n in range(4, 200, 4)]
    late = ("--within", "step_time < 420us", *some, "--fix", f"batch={','.join(sizes)}")
    found = searched(model, capsys, serve, *late)
    asked, best = found["by_closed_forms"], found["best"]
    assert isinstance(asked, int) and isinstance(best, list)
    assert asked < len(sizes) // 2
    (one,) = best
    more = one["plan"].replace(
        f"set B = {one['choices']['batch']}", f"set B = {one['choices']['batch'] + 4}"
    )
    assert compiled(one["plan"])[0] < 420e-6 <= compiled(more)[0]


WRONG = [
    (("--fix", "zero=1"), "E0710", "a space has no `zero`"),
    (("--fix", "batch=0"), "E0710", "`batch` is a whole number from 1 on, and `0` is none"),
    (("--within", "step_time < 5"), "E0710", "`step_time < 5` is no limit"),
    (("--within", "step_time > 5ms"), "E0710", "`step_time > 5ms` is no limit"),
    (("--clause", "serve { decode 4 at 10 }"), "E0711", "`serve` is said twice"),
    (("--clause", "zero 1 over dp"), "E0710", "says what a search chooses"),
    (("--clause", "nothing"), "E0710", "is no clause of a plan"),
    (("--batch", "4", "--set", "B=4"), "E0711", "the batch is said twice"),
    (("--batch", "1Mtokens"), "E0710", "a number of sequences"),
    (("--minimise", "token"), "E0710", "there is no `token` to minimise"),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "code", "message"), WRONG)
def test_mistakes(model: str, flags: Sequence[str], code: str, message: str) -> None:
    asked = [model, "--devices", "4", "--device", "h100", "-q", *flags]
    with pytest.raises(CompileError) as raised:
        run([*asked, "--clause", "serve { decode B at 100, experts = average }"])
    (found,) = raised.value.diagnostics
    assert found.code == code
    assert message in found.message


@pytest.mark.parametrize(
    ("serve", "flags", "message"),
    [
        ("decode 0 at 10", (), "the number of sequences"),
        ("decode 4 at 10", ("--batch", "8"), "`serve` says how many sequences there are"),
        ("decode B ta 10", (), "`decode` has no `ta`"),
    ],
)
def test_mistakes_of_what_is_served(
    model: str, serve: str, flags: Sequence[str], message: str
) -> None:
    asked = [model, "--devices", "4", "--device", "h100", "-q", *flags]
    with pytest.raises(CompileError, match=re.escape(message)):
        run([*asked, "--clause", f"serve {{ {serve} }}"])


@pytest.mark.seldom
def test_all_that_fit_are_drawn_and_the_best_are_written(model: str, tmp_path: Path) -> None:
    page, plans = tmp_path / "plans.html", tmp_path / "plans.stg"
    asked = [
        model,
        "--devices",
        "4",
        "--device",
        "h100",
        "--executor",
        "serial",
        "-q",
        "--top",
        "1",
    ]
    served = "serve { decode B at 100, experts = average }"
    few = ("--fix", "batch=8", "--fix", "pp=1", "--fix", "ep=1")
    run([*asked, "--clause", served, *few, "--plot", str(page), "-o", str(plans)])
    assert "token_cost against step_time" in page.read_text()
    found = compile_text(plans.read_text(), plan="best1")
    assert batch_of(found)[0] == 8


@pytest.mark.seldom
def test_a_number_of_sequences_stays(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    best = searched(
        model,
        capsys,
        "decode 16 at 100, experts = average",
        "--fix",
        "pp=2",
        "--fix",
        "tp=2",
        "--top",
        "50",
    )["best"]
    assert isinstance(best, list)
    assert {each["choices"]["batch"] for each in best} == {16}
    assert all("set B" not in each["plan"] for each in best)


@pytest.mark.parametrize(
    ("serve", "counts"),
    [
        ("decode B at 1500", ["B"]),
        ("decode 128 at B", []),
        ("prefill 2 * (N + B) x B, decode 4 at 8", ["N", "B"]),
        ('prefill 4 x 32, decode 8 at uniform { most = B, file = "B.csv" } # B', []),
        ("decode 8 at 1500, microbatches = B, logits = last", []),
    ],
)
def test_numbers_of_sequences_are_what_counts_name(serve: str, counts: list[str]) -> None:
    """A dim that says how long sequences are is none that a search may choose."""
    assert names_of_counts(f"serve {{ {serve}\n}}") == counts


@pytest.mark.seldom
def test_parts_of_an_iteration_are_a_searchs_to_choose(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever comments a clause has; and one that says how many they are leaves nothing to choose."""
    fixed = ("--fix", "pp=2", "--fix", "tp=1", "--fix", "ep=1", "--devices", "2")
    serve = "prefill 1 x 8, decode 7 at 100, experts = average"
    found = searched(model, capsys, f"{serve} # of an engine\n", *fixed)["best"]
    assert isinstance(found, list)
    assert {each["choices"]["microbatches"] for each in found} == {1, 2}
    with pytest.raises(CompileError) as raised:
        searched(model, capsys, f"{serve}, microbatches = 2", *fixed)
    (refused,) = raised.value.diagnostics
    assert refused.code == "E0711"
    assert "`--fix microbatches=2`" in refused.helps[0]


@pytest.mark.seldom
def test_a_length_stays(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    fixed = ("--fix", "pp=1", "--fix", "tp=1", "--fix", "ep=1", "--devices", "1")
    found = searched(model, capsys, "decode 16 at B, experts = average", *fixed)
    same = searched(model, capsys, "decode 16 at 4, experts = average", *fixed)
    assert isinstance(found["best"], list) and isinstance(same["best"], list)
    (best,), (other,) = found["best"], same["best"]
    assert best["choices"] == other["choices"]
    assert (best["step_time"], best["memory_peak"]) == (other["step_time"], other["memory_peak"])


def test_sequences_of_several_lengths_are_as_many_as_a_dim_says() -> None:
    """`serve` gives `B` another size, which a plan may give it first."""
    plan = "plan p { set B = 9 serve { decode B at uniform { least = 5, most = 50, seed = 1 }, experts = average } }"
    assert batch_of(compile_text(f"{MODEL}\n{plan}"))[0] == 9


@pytest.mark.seldom
def test_numbers_of_sequences_that_ranks_do_not_divide_say_nothing_of_others(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of sequences that are not alike the best is found where the first numbers are none of a plan, and the last ones make it too large."""
    serve, numbers = "decode B at uniform { most = 2000, seed = 3 }", (4, 12, 16, 20, 24, 28, 40)
    some = ("--devices", "2", "--fix", "pp=1", "--fix", "tp=1", "--fix", "ep=2", "--top", "1")
    some += ("--fix", "microbatches=1", "--fix", f"batch={','.join(map(str, numbers))}")
    first = searched(model, capsys, serve, *some)["best"]
    assert isinstance(first, list)
    (best,), known = first, dict[int, tuple[float, int]]()
    for number in numbers:
        plan = best["plan"].replace(f"set B = {best['choices']['batch']}", f"set B = {number}")
        if number % 8 == 0:
            seconds, peak, tokens = compiled(plan)
            known[number] = seconds / tokens, peak
        else:
            with pytest.raises(CompileError):
                compiled(plan)
    limit = known[24][1] + 1
    (one,) = searched(model, capsys, serve, *some, "--within", f"memory.peak < {limit}")["best"]
    assert (best["choices"]["batch"], one["choices"]["batch"]) == (40, 24)
    assert known[40] < known[24] < known[16]


@pytest.mark.seldom
def test_a_link_stands_in_the_plans_that_have_its_axis(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    link = "link tp { bytes_per_s = 1GB }"
    some = ("--devices", "2", "--fix", "batch=8", "--fix", "ep=1", "--fix", "pp=1")
    flags = ("--clause", link, *some, "--top", "9")
    best = searched(model, capsys, "decode B at 9, experts = average", *flags)["best"]
    assert isinstance(best, list)
    assert {each["choices"]["tp"]: link in each["plan"] for each in best} == {1: False, 2: True}
    for each in best:
        assert each["step_time"] == pytest.approx(compiled(each["plan"])[0])
    with pytest.raises(CompileError, match="`tpp` is no axis that plans of a search have links"):
        searched(model, capsys, "decode B at 9", *some, "--clause", link.replace("tp", "tpp"))
