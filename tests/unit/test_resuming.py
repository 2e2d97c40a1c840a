"""The IR after any pass is the whole program. `python -m tests.resuming` does this for every example, plan and pass."""

import random
import re
from pathlib import Path

import pytest
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue

from stagec.backend.encoded import TraceOptions
from stagec.cli import main
from stagec.cli.inputs import SEPARATOR, compile_iterations
from stagec.diagnostics import CompileError
from stagec.driver import Compiled, Stops, compile_ir, compile_model, compile_text
from stagec.estimate.step import estimate, on_device
from stagec.ir_text import print_ir
from stagec.summary import summarize
from tests.differential.random_serving import draw_serving
from tests.resuming.cuts import differences, digest, outcome, random_cuts, texts_after_passes
from tests.resuming.mutations import exceptions, silent
from tests.resuming.texts import TEXT, random_text
from tests.unit.seldom import mostly, some
from tests.unit.test_odd_plans import MODEL, PLANS
from tests.unit.test_pools import drawn as drawn_pools, text_of as text_of_pools
from tests.unit.test_serving_state import text as text_of_state
from tests.unit.test_towers import drawn as drawn_towers, text_of as text_of_towers

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.seldom
@pytest.mark.parametrize("seed", range(3))
def test_random_plans_go_on_from_any_pass(seed: int) -> None:
    texts, whole = random_cuts(seed)
    assert list(texts)[-1].endswith("order-communication")
    chance = random.Random(seed)
    chosen = {*chance.sample(sorted(texts), 2), list(texts)[-1]}
    assert not list(differences({name: texts[name] for name in chosen}, whole))


@pytest.mark.seldom
def test_what_each_microbatch_of_a_stage_reduces_keeps_its_lines() -> None:
    """Reductions inside the loop over microbatches have the line of what ends it."""
    clauses = "pipeline L over pp { schedule = 1f1b }\n  gradients { reduce = microbatch }"
    text = TEXT.format(pp=2, tp=1, clauses=f"{clauses}\n  zero 2 over dp")
    texts, whole = texts_after_passes(lambda stops: compile_text(text, "net.stg", stops=stops))
    last = list(texts)[-1]
    assert not list(differences({last: texts[last]}, whole))


@pytest.mark.seldom
@pytest.mark.parametrize("seed", [2, 12, 25])
def test_random_serving_plans_go_on_from_tasks(seed: int) -> None:
    """Where sequences share what comes first, their positions are more than memory is set aside for."""
    drawn = draw_serving(random.Random(seed))
    assert " sharing " in drawn.text
    cut = texts_after_passes(
        lambda stops: compile_text(drawn.text, "net.stg", plan=drawn.plan, stops=stops),
        "lower-to-tasks",
    )
    assert not list(differences(*cut))


@pytest.mark.seldom
@pytest.mark.parametrize("name", PLANS)
def test_odd_plans_go_on_from_tasks(name: str) -> None:
    """Where blocks of a ring are gathered at once, a rank has as many of them as its coordinate says; ranks may not divide what is in a padded bucket."""
    assert not list(differences(*cuts_of(MODEL % PLANS[name], "lower-to-tasks", "build-programs")))


@pytest.mark.seldom
@pytest.mark.parametrize(
    ("mesh", "clauses"),
    [
        ("cp = 2", "shard S over cp context cp { balance = none }"),
        ("pp = 2, cp = 2", "shard S over cp context cp { balance = none } pipeline L over pp"),
        (
            "pp = 2, dp = 2",
            "shard B over dp pipeline L over pp zero 3 over dp unit Block offload { parameters = true }",
        ),
    ],
)
def test_programs_of_ranks_go_on(mesh: str, clauses: str) -> None:
    """Tasks may be of a rank's place, and weights may be loaded anew for each gather of a unit."""
    text = (EXAMPLES / "gpt.stg").read_text()
    plan = f"plan p {{ set L = 4 set B = 8 mesh {mesh} {clauses} }}"
    assert not list(
        differences(*cuts_of(f"{text[: text.index('plan ')]}\n{plan}", "build-programs"))
    )


def cuts_of(text: str, *passes: str) -> tuple[dict[str, str], Compiled]:
    """The IR of a text after some passes, and the whole compilation."""
    return texts_after_passes(lambda stops: compile_text(text, "net.stg", stops=stops), *passes)


@pytest.mark.parametrize("seed", mostly((0).__eq__, range(3)))
def test_a_second_cut_prints_what_the_first_compilation_does(seed: int) -> None:
    """With the lines of the model, of which the text in between is none."""
    chance, (texts, _) = random.Random(seed), random_cuts(seed)
    first, last = sorted(chance.sample(sorted(texts), 2))
    stops = Stops(after=last.partition(" ")[2])
    assert (
        print_ir(compile_ir(texts[first], "cut.mlir", stops=stops).module, "cut.mlir")
        == texts[last]
    )


LIT = Path(__file__).parents[1] / "lit" / "passes"
REFUSED = [path for path in LIT.rglob("*.stg") if "RUN: not stagec %s 2>&1" in path.read_text()]


@pytest.mark.seldom
def test_mistakes_are_shown_in_the_model() -> None:
    """What a pass has to say of a model, it says of IR that was printed before it, in the same words."""
    assert len(REFUSED) > 10
    for path in REFUSED:
        passes: list[str] = []
        with pytest.raises(CompileError) as wanted:
            compile_model(path, stops=Stops(on_pass=lambda name, _, to=passes: to.append(name)))
        for after in {*passes[:1], *passes[-1:]}:
            text = print_ir(compile_model(path, stops=Stops(after=after, verify=False)).module)
            with pytest.raises(CompileError) as found:
                compile_ir(text, "cut.mlir")
            assert str(found.value) == str(wanted.value)


@pytest.mark.seldom
def test_another_stream_is_another_stream_in_traces() -> None:
    """Whoever changes the last IR changes the traces, and nothing else is to be told."""
    texts, whole = random_cuts(0)
    last = list(texts.values())[-1]
    assert 'on "compute" in ' in last
    moved = last.replace('on "compute" in step', 'on "compute.update" in step')
    assert moved != last
    (other,) = {
        node.stream
        for ranks in compile_ir(moved, "cut.mlir").trace_set.classes
        for segment in ranks.program.segments
        for node in segment.nodes
        if node.stream not in streams(whole)
    }
    assert other == "compute.update"
    assert outcome(compile_ir(moved, "cut.mlir"))["traces"] != outcome(whole)["traces"]


NAME = re.compile(r'(?<=sched\.compute )"\w+"')


@pytest.mark.parametrize("seed", some(range(2), 2))
def test_names_of_ops_decide_nothing(seed: int) -> None:
    """With every op of the last IR called something else: the same sums, the same plan of memory, the same times."""
    texts, whole = random_cuts(seed)
    renamed = compile_ir(NAME.sub('"f"', list(texts.values())[-1]), "cut.mlir")
    classes = [summarize(job.module, job.counts).classes for job in (whole, renamed)]
    assert classes[0] == classes[1]
    assert any(each.matrix_flops for each in classes[0])
    peaks = [[(m.peak_bytes, m.saved_bytes) for m in job.memory] for job in (whole, renamed)]
    assert peaks[0] == peaks[1]
    device = on_device(whole.plan, "h100")
    times = [estimate(job, device) for job in (whole, renamed)]
    assert times[0].step_time_us == times[1].step_time_us
    assert times[0].mfu == times[1].mfu


def streams(job: Compiled) -> set[str]:
    segments = (s for ranks in job.trace_set.classes for s in ranks.program.segments)
    return {node.stream for segment in segments for node in segment.nodes}


@pytest.mark.seldom
def test_a_mistake_in_the_last_ir_is_a_diagnostic() -> None:
    """Whatever is changed in it: other traces, or a diagnostic. `python -m tests.resuming.mutations` does more of them."""
    assert not list(exceptions(random_cuts(0)[0], seed=1, number=6))


@pytest.mark.seldom
@pytest.mark.parametrize("seed", range(2))
def test_no_mark_is_lost_without_a_word(seed: int) -> None:
    """Misspelled, or where it means nothing: a diagnostic. What is noted for others changes nothing."""
    texts, _ = random_cuts(seed)
    assert not list(silent(texts, seed, number=6))


CHUNKED = "zero 3 over dp { like = fsdp2 }\n  loss_chunks 2\n  microbatch 2\n  unit Mlp"


@pytest.mark.seldom
@pytest.mark.parametrize("seed", range(4))
def test_where_objects_lie_decides_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets of ops and values are in another order in each run of Python: what passes make is the same."""
    text = random_text(seed) if seed else TEXT.format(pp=1, tp=1, clauses=CHUNKED)
    found: list[list[str]] = []
    for factor in (2654435761, -1):
        for kind in (Operation, SSAValue, OpResult, BlockArgument, Block):
            monkeypatch.setattr(kind, "__hash__", lambda self, by=factor: hash((id(self) * by, by)))
        texts, _ = texts_after_passes(lambda stops: compile_text(text, "net.stg", stops=stops))
        found.append(list(texts.values()))
    assert found[0] == found[1]


@pytest.mark.seldom
def test_both_ends_of_a_pipeline_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of DualPipe two ranks have each stage. What is asked of the text alone, IR says that it does not know."""
    clauses = "pipeline L over pp { schedule = dualpipe, microbatch = 1 }"
    text = TEXT.format(pp=2, tp=1, clauses=clauses)
    whole = compile_text(text, "net.stg")
    last = print_ir(whole.module)
    assert not list(differences({"order-communication": last}, whole))
    (cut := tmp_path / "cut.mlir").write_text(last)
    assert main(["explain", str(cut), "params"]) == 1
    assert "error[E0711]: this asks about the model as it is written" in capsys.readouterr().err


STATE = """
plan p {
  mesh dp = 2, tp = 2
  shard B over dp
  shard H, G over tp
  serve { decode 8 at 20 }
}
"""
ITERATIONS = ",8x1@31", "4x16@0,", "2x8@16,8x1@20"


@pytest.mark.parametrize("seed", mostly((0).__eq__, range(6)))
def test_a_series_goes_on_from_any_pass(seed: int, tmp_path: Path) -> None:
    """Also where the first iteration has nothing of what others compute: no scan, or nothing but scans."""
    chance = random.Random(seed)
    rows = chance.sample(ITERATIONS, 3) if seed else ITERATIONS
    model = text_of_state(4).replace("loss = mean(x, over = [B, S, D])", "return x")
    (tmp_path / "net.stg").write_text(model + STATE)
    (tmp_path / "rows.csv").write_text("\n".join(["prefill,decode", *rows, ""]))

    def compiled(stops: Stops) -> Compiled:
        model, served = (str(tmp_path / name) for name in ("net.stg", "rows.csv"))
        (found,) = compile_iterations(model, served, stops=stops).parts
        return found

    texts, whole = texts_after_passes(compiled)
    for cut in (chance.choice(list(texts.values())), list(texts.values())[-1]):
        again = compile_ir(cut, "cut.mlir")
        both = [digest(each.trace_set, "0-3", TraceOptions()) for each in (whole, again)]
        assert both[0] == both[1]
        peaks = [[plan.peak_bytes for plan in each.memory] for each in (whole, again)]
        assert peaks[0] == peaks[1]
        with pytest.raises(CompileError, match="E0711"):
            _ = again.tracked


@pytest.mark.seldom
def test_pools_go_on_as_one_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The modules of all pools, as they are printed: the traces of all, and what a step costs; two of no common plan are none."""
    model, cut = tmp_path / "net.stg", tmp_path / "cut.mlir"
    model.write_text(text_of_pools(*drawn_pools(1)))
    whole = run_in_process([str(model), "-o", str(tmp_path / "whole")], capsys)
    for name in ("lower", "order-communication"):
        cut.write_text(run_in_process([str(model), "--stop-after", name], capsys))
        again = run_in_process([str(cut), "-o", str(tmp_path / name)], capsys)
        assert again == whole.replace(str(tmp_path / "whole"), str(tmp_path / name))
        for trace in (tmp_path / "whole").glob("*.et"):
            assert (tmp_path / name / trace.name).read_bytes() == trace.read_bytes()
    first = cut.read_text().partition(SEPARATOR)[0]
    cut.write_text(first + SEPARATOR + first)
    assert main([str(cut)]) == 1
    assert "not those of the pools of one plan" in capsys.readouterr().err


@pytest.mark.seldom
@pytest.mark.parametrize("seed", [3])
def test_towers_go_on(seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pools that train parts of a model: transfers of their ends go to each other, and what clips gradients goes through all ranks."""
    model, cut = tmp_path / "net.stg", tmp_path / "cut.mlir"
    model.write_text(text_of_towers(*drawn_towers(seed), False, "adamw { clip = 1 }"))
    run_in_process([str(model), "--plan", "p", "-q", "-o", str(tmp_path / "whole")], capsys)
    for name in ("lower-to-tasks", "order-communication"):
        stopped = [str(model), "--plan", "p", "--stop-after", name, "--print-ir"]
        cut.write_text(run_in_process(stopped, capsys))
        run_in_process([str(cut), "-q", "-o", str(tmp_path / name)], capsys)
        for trace in (tmp_path / "whole").glob("*.et"):
            assert (tmp_path / name / trace.name).read_bytes() == trace.read_bytes()


def run_in_process(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out
