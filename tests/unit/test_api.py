"""`stagec.traces` yields what the command line writes."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stagec
from stagec.backend.bundle import Bundle, write_bundle
from stagec.backend.encode import encode_traces
from stagec.backend.writer import write_traces
from stagec.cli import main
from stagec.diagnostics import CompileError
from stagec.driver import compile_model
from stagec.shipped_models import shipped

MODEL = Path(__file__).parents[2] / "examples" / "gpt.stg"
SMALL = {"L": 2, "dp": 2, "tp": 2, "B": 8}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("traces") / "set"
    overrides = {k: str(v) for k, v in SMALL.items()}
    write_traces(encode_traces(compile_model(MODEL, None, overrides).trace_set), str(out))
    return out


def test_bytes_are_those_of_the_files(written: Path) -> None:
    made = dict(stagec.traces(MODEL, set=SMALL))
    assert sorted(made) == [0, 1, 2, 3]
    for rank, data in made.items():
        assert data == (written / f"Gpt.{rank}.et").read_bytes()


def test_some_ranks(written: Path) -> None:
    made = dict(stagec.traces(MODEL, set=SMALL, ranks="1,3"))
    assert sorted(made) == [1, 3]
    assert made[3] == (written / "Gpt.3.et").read_bytes()


def test_a_bundle_is_a_source(written: Path, tmp_path: Path) -> None:
    overrides = {k: str(v) for k, v in SMALL.items()}
    encoded = encode_traces(compile_model(MODEL, None, overrides).trace_set)
    write_bundle(tmp_path / "job.bundle", Bundle(encoded))
    ((rank, data),) = stagec.traces(tmp_path / "job.bundle", ranks="2")
    assert (rank, data) == (2, (written / "Gpt.2.et").read_bytes())


def test_what_a_bundle_fixed_is_not_asked_for_again(tmp_path: Path) -> None:
    overrides = {k: str(v) for k, v in SMALL.items()}
    encoded = encode_traces(compile_model(MODEL, None, overrides).trace_set)
    write_bundle(tmp_path / "job.bundle", Bundle(encoded))
    with pytest.raises(CompileError, match=r"`set` changes nothing: `.*` is a bundle"):
        stagec.traces(tmp_path / "job.bundle", set=SMALL)


def test_a_model_that_ships_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command line takes for a model: its file's name comes first."""
    monkeypatch.chdir(tmp_path)
    named = stagec.compile("gpt2", set={"L": 2})
    assert named.ir == stagec.compile(shipped("gpt2"), set={"L": 2}).ir
    assert [rank for rank, _ in stagec.traces("gpt2", set={"L": 2}, ranks="1")] == [1]
    assert "18" in repr(stagec.compile_pools("llava1_5_13b", "towers", set={"B": 16}))
    for name, told in {
        "gpt22": "did you mean `gpt2`, which ships",
        "gpt2.stg": "did you mean `gpt2`, which ships",
        "gpt2:ddp8": "`--plan ddp8`, in Python `plan='ddp8'`",
    }.items():
        with pytest.raises(CompileError, match=told) as error:
            stagec.compile(name)
        assert error.value.diagnostics[0].code == "E0701"
        assert main([name]) == 1
    (tmp_path / "gpt2").write_text("dim B = 2\nmodel M(x[B]) { loss = mean(x, over = B) }\n")
    assert stagec.compile("gpt2").model == "M"


def test_ir_is_compiled_to_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = [f"--set={name}={size}" for name, size in SMALL.items()]
    assert main([str(MODEL), "--stop-after", "build-backward", *sizes]) == 0
    file = tmp_path / "gpt.mlir"
    file.write_text(capsys.readouterr().out)
    of_ir, of_text = stagec.compile(file), stagec.compile(MODEL, set=SMALL)
    assert dict(of_ir.summary) == dict(of_text.summary)
    assert of_ir.explain("flops").value == of_text.explain("flops").value
    assert of_ir.warnings == ()
    assert len(dict(stagec.traces(file))) == 4
    for asks in (
        lambda: of_ir.sweep("flops", L=[1, 2]),
        lambda: stagec.compile(file, plan="dp4_tp8"),
        lambda: stagec.compile_pools(file),
    ):
        with pytest.raises(CompileError) as error:
            asks()
        assert error.value.diagnostics[0].code == "E0711"


def test_mistakes_are_errors() -> None:
    with pytest.raises(CompileError):
        stagec.traces(MODEL, plan="nope")
    with pytest.raises(stagec.TraceError):
        list(stagec.traces(MODEL, set=SMALL, ranks="99"))


def test_a_time_has_no_closed_form() -> None:
    job = stagec.compile("dim B = 2\nmodel M(x[B]) { loss = mean(x, over = B) }\n")
    with pytest.raises(CompileError, match=r"no sum of costs(.|\n)*`Job\.step_time`"):
        job.explain("step_time")


def test_tracked_tensors(written: Path) -> None:
    ((_, tracked),) = stagec.traces(MODEL, set=SMALL, ranks="1", track_memory=True)
    assert b"init/resident" in tracked
    assert b"parameter/Block.wq/L001" in tracked
    assert b"init/resident" not in (written / "Gpt.1.et").read_bytes()


POOLS = """
dim B = 8
dim D = 16
dim K = 2
dim L = 2
module Layer(x[B, D]) -> [B, D] {
  weight w[D]
  return x * w
}
model Net(a[B, D], t[B, D]) {
  weight stem[D], embed[D]
  v = a * stem
  repeat K { v = Layer(v) }
  x = v + t * embed
  repeat L { x = Layer(x) }
  loss = mean(x, over = [B, D])
}
plan one { device h100 }
plan p {
  device h100
  pool vision { mesh dp = 2, pp = 1 shard B over dp pipeline K over pp { microbatch = 1 } }
  pool text { mesh pp = 2 pipeline L over pp { microbatch = 2 } }
}
"""


def test_pools_are_one_job(tmp_path: Path) -> None:
    job = stagec.compile_pools(POOLS, "p", set={"text.pp": 1, "B": 16})
    assert (job.plan, job.num_ranks, list(job.pools)) == ("p", 3, ["vision", "text"])
    assert job.step_time >= max(pool.step_time for pool in job.pools.values())
    assert job.pools["vision"].explain("params").value == 16 * 3
    made = dict(job.traces(ranks="0,2"))
    job.write(tmp_path / "set")
    assert made[2] == (tmp_path / "set" / "Net.2.et").read_bytes()
    assert "plan p.text, 1 ranks" in repr(job)


OWN_ORDER = """
def order(p, v, m):
    return [[f"{kind}{i}" for kind in "FB" for i in range(m)] for _ in range(p)]
"""


@pytest.mark.seldom
def test_python_of_a_model_runs_where_it_is_trusted(tmp_path: Path) -> None:
    """Also for what is computed later, when a job is asked for it."""
    (tmp_path / "mine.py").write_text(OWN_ORDER)
    file = tmp_path / "net.stg"
    said = 'pipeline L over pp { schedule = "mine.py:order", microbatch = 2 }'
    file.write_text(POOLS.replace("plan one { ", f"plan one {{ mesh pp = 2 {said} "))
    mistakes: list[tuple[dict[str, Any], str, str]] = [
        ({}, "E0722", "if you trust it, add `allow_code=True`, or `trust` with its folder"),
        ({"trust": file}, "E0710", "leave it out, or make it"),
    ]
    for denied, code, help_ in mistakes:
        with pytest.raises(CompileError, match=re.escape(help_)) as error:
            stagec.compile(file, **denied)
        assert error.value.diagnostics[0].code == code
    asked: list[Callable[[Any], object]] = [
        lambda job: job.explain("flops"),
        lambda job: job.explain("bubble"),
        lambda job: job.step_time,
        lambda job: job.headline,
        lambda job: job.timeline,
        lambda job: job.memory._repr_html_(),
        lambda job: job.warnings,
        lambda job: job.sweep("step_time", B=[8, 16])["step_time"],
        lambda job: dict(job.traces(track_memory=True)),
        lambda job: job.report(tmp_path / "page.html"),
        lambda job: job.write(tmp_path / "traces"),
    ]
    for number, question in enumerate(asked):
        allowed: Any = ({"allow_code": True}, {"trust": tmp_path}, {"trust": [str(tmp_path)]})[
            number % 3
        ]
        question(stagec.compile(file, **allowed))
    assert list(stagec.traces(file, allow_code=True, track_memory=True, ranks="1"))
    assert main([str(file), "-q"]) == 1, "nothing is trusted any more"


def test_files_elsewhere_are_read_where_they_are_trusted(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "net.stg").write_text(POOLS)
    file = tmp_path / "models" / "mine.stg"
    file.write_text('import "../net.stg"\n')
    with pytest.raises(CompileError, match="outside of the model's folder") as error:
        stagec.compile_pools(file, "p")
    assert "add `trust='" in str(error.value)
    assert stagec.compile_pools(file, "p", trust=tmp_path).num_ranks == 4
    assert stagec.compile(file, trust=[tmp_path]).num_ranks == 1


@pytest.mark.seldom
def test_pools_are_swept_together_and_on_the_device_that_is_asked_for() -> None:
    slow, fast = (
        stagec.compile_pools(POOLS, "p", device=device).sweep("step_time", **{"text.pp": [1, 2]})
        for device in ("a100", "b200")
    )
    assert [row["ranks"] for row in slow.rows()] == [3, 4]
    assert slow["step_time"] != fast["step_time"]
    with pytest.raises(CompileError, match="has a part of a model"):
        stagec.compile_pools(POOLS, "p").pools["text"].sweep("flops", pp=[1, 2])


def test_a_plan_of_one_mesh_has_no_pools() -> None:
    with pytest.raises(CompileError, match="the plan `one` has no pools") as error:
        stagec.compile_pools(POOLS, "one")
    assert error.value.diagnostics[0].code == "E0422"
    with pytest.raises(CompileError, match="has pools, each with a mesh of its own"):
        stagec.compile(POOLS, "p")


@pytest.mark.seldom
def test_a_sweep_is_on_the_device_that_is_asked_for() -> None:
    slow, fast = (
        stagec.compile(MODEL, set=SMALL, device=device).sweep("step_time", tp=[1, 2])
        for device in ("a100", "b200")
    )
    assert all(a > b for a, b in zip(slow["step_time"], fast["step_time"], strict=True))


def test_threads_do_not_move_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of two folders, asked from a third one."""
    jobs: list[stagec.Job] = []
    for name, rate in (("a", "3350e9"), ("b", "800e9")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "mine.toml").write_text(f'base = "h100"\n[device]\nmemory_bytes_per_s = {rate}\n')
        monkeypatch.chdir(folder)
        jobs.append(stagec.compile(MODEL, set=SMALL, device="mine.toml"))
    monkeypatch.chdir(tmp_path)
    alone = [job.sweep("step_time", tp=[1])["step_time"] for job in jobs]
    assert alone[0] < alone[1]
    with ThreadPoolExecutor(4) as pool:
        tables = pool.map(lambda job: job.sweep("step_time", tp=[1])["step_time"], jobs * 2)
        assert list(tables) == alone * 2
    assert Path.cwd() == tmp_path


def test_a_device_is_said_as_plans_say_it() -> None:
    """What is wrong with it stands where it was asked for."""
    half = "h100 { memory_bytes_per_s = 1600GB }"
    slow, fast = (stagec.compile(MODEL, set=SMALL, device=d).step_time for d in (half, "h100"))
    assert slow > fast
    with pytest.raises(CompileError) as error:
        stagec.compile(MODEL, set=SMALL, device="h100 { nod = 4 }")
    (found,) = error.value.diagnostics
    assert (found.code, found.message) == ("E0710", "`device` has no setting `nod`")
    assert "--> device = h100 { nod = 4 }" in str(error.value)


def test_a_network_is_said_in_the_words_of_python() -> None:
    with pytest.raises(CompileError) as error:
        stagec.compile(MODEL, set=SMALL, device="h100", network="nix.json")
    assert error.value.diagnostics[0].code == "E0419"
    assert "--> network = nix.json" in str(error.value)


DOUBTFUL = """
dim B = 4
dim D = 8
dim L = 1
dim LT = 1
dim X = 4
dim A = 2
dim N = B * A / X
module Tower(x[B, D]) -> [B, D] {
  weight wt[D]
  return x * wt
}
model Net(x[B, D]) {
  weight r[D, X], w[X, D]
  repeat LT { x = Tower(x) }
  repeat L { x = Tower(x) }
  gates, chosen = topk(x @ r, over = X, to = A)
  t = dispatch(x, chosen, experts = X, tokens = N)
  y[X, N, D] = t * w
  loss = mean(combine(y, gates, chosen), over = [B, D])
}
plan alone { mesh dp = 2 shard B over dp shard X over dp shard D over dp }
plan pools {
  pool tower { mesh dp = 2, pp = 1 shard B over dp shard D over dp pipeline LT over pp }
  pool rest { mesh dp = 2, pp = 1 shard B over dp shard X over dp pipeline L over pp }
}
"""


@pytest.mark.seldom
def test_warnings_are_those_of_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also those about rules, and about work that is done several times."""
    file = tmp_path / "net.stg"
    file.write_text(DOUBTFUL)
    alone = stagec.compile(file, plan="alone").warnings
    pools = stagec.compile_pools(file, plan="pools").pools.values()
    found = {"alone": alone, "pools": [each for pool in pools for each in pool.warnings]}
    for plan, warnings in found.items():
        main([str(file), "--plan", plan])
        printed = re.findall(r"^warning\[(.*?)\]: (.*)", capsys.readouterr().err, re.MULTILINE)
        assert printed
        assert printed == [(each.code, each.message) for each in warnings]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda s: s.compile(3),
            "`source` of `stagec.compile` is a string or a path; this is int: 3",
        ),
        (lambda s: s.compile(MODEL, plan=3), "`plan` of `stagec.compile`"),
        (
            lambda s: s.compile(MODEL, set=["S=4"]),
            "`set` of `stagec.compile` is a mapping of names",
        ),
        (lambda s: s.compile(MODEL, set={"S": 4.5}), "`set` of `stagec.compile`"),
        (lambda s: s.compile(MODEL, wrong=3), "stagec.compile: got an unexpected keyword"),
        (lambda s: s.compile_pools(MODEL, device=3), "`device` of `stagec.compile_pools`"),
        (lambda s: s.traces(MODEL, ranks=[0]), "`ranks` of `stagec.traces` is a string"),
        (lambda s: s.traces(MODEL, trust=3), "`trust` of `stagec.traces` is a string or a path"),
        (lambda s: s.traces(MODEL, names="all"), "`names` of `stagec.traces` is 'full' or"),
        (lambda s: s.Job.explain(None, 3), "`what` of `Job.explain`"),
        (lambda s: s.Job.sweep(None, ["flops"], S=8), "`quantities[0]` of `Job.sweep`"),
        (lambda s: s.Job.sweep(None, "flops", S=[2.5]), "`S` of `Job.sweep`"),
        (lambda s: s.PoolsJob.sweep(None, 3), "`quantities[0]` of `PoolsJob.sweep`"),
        (lambda s: s.Job.write(None, 3), "`directory` of `Job.write`"),
    ],
)
def test_arguments_of_another_kind_are_one_error(call: Callable[[Any], object], told: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(told)}"):
        call(stagec)


def test_a_sweep_says_why_plans_do_not_compile() -> None:
    """As the command does; also where none is left."""
    job: Any = stagec.compile(MODEL, set={"dp": 2})
    some, none = (job.sweep("flops", B=values) for values in ([3, 64], [3]))
    assert some.num_plans == 2 and some["B"] == [64]
    assert some.infeasible == none.infeasible == {"`B/dp` is not a whole number": 1}
    told = ["0 of 1 plans can be compiled", "  1: `B/dp` is not a whole number"]
    assert none.num_rows == 0 and repr(none).splitlines()[-2:] == told
    assert "1 of 2 plans can be compiled" in some._repr_html_()


@pytest.mark.seldom
def test_a_table_of_a_sweep_always_has_the_ranks() -> None:
    """So that asking for them, as on the command line, is no mistake."""
    job: Any = stagec.compile(MODEL)
    asked = job.sweep("ranks", "flops", S=np.array([512, 1024]))
    plain = job.sweep("flops", S=[512, np.int64(1024)])
    assert list(asked) == ["S", "ranks", "flops"]
    assert [list(asked[name]) for name in asked] == [list(plain[name]) for name in plain]
    assert list(job.sweep("ranks", "S", S=512)) == ["S", "ranks"]


FROM_FILES = """
import "parts/embedding.stg"
dim B = 8
dim D = 16
dim H = 32
dim L = 2
module Layer(x[B, D]) -> [B, D] {
  weight up[D, H], down[H, D]
  return x + relu(x @ up) @ down
}
model Net(x[B, D], y[B, D]) {
  repeat L { x = Layer(x) }
  loss = mean(mean(x * y, over = D), over = B)
}
plan p {
  mesh pp = 2
  pipeline L over pp { microbatch = 4, schedule = "../schedules/mine.py:order" }
  device "dev.toml"
}
"""
"""A model that names other files, and a schedule in a folder that is not its own."""
ORDER = """
def order(ranks, stages, microbatches):
    return [[word for m in range(microbatches) for word in (f"F{m}", f"B{m}")] for _ in range(ranks)]
"""


def asked_of(job: stagec.Job) -> list[Any]:
    """Everything that a job computes when it is first asked."""
    return [
        job.step_time,
        job.mfu,
        job.peak_bytes,
        job.peak_bytes_along_time,
        [*job.memory.rows()],
        [*job.communication.rows()],
        [*job.timeline.rows()],
        job.explain("flops").value,
        [*job.sweep("step_time", "memory.peak", B=[8, 16]).rows()],
        [each.code for each in job.warnings],
        repr(job),
        dict(job.traces(track_memory=True)),
    ]


@pytest.mark.seldom
@pytest.mark.parametrize("given", [{}, {"device": "own.toml"}])
def test_files_are_those_of_where_a_job_was_compiled(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program goes to another folder, where files of the same names say something else."""
    for name, speed in (("a", "450e9"), ("b", "10e9")):
        folder = tmp_path / name / "models"
        (folder / "parts").mkdir(parents=True)
        (tmp_path / name / "schedules").mkdir()
        (folder / "net.stg").write_text(FROM_FILES)
        (folder / "parts" / "embedding.stg").write_text("dim V = 8\n")
        for device in (folder / "dev.toml", tmp_path / name / "own.toml"):
            device.write_text(f'base = "h100"\n[device]\nlink_bytes_per_s = {speed}\n')
        (tmp_path / name / "schedules" / "mine.py").write_text(ORDER)

    def compiled() -> stagec.Job:
        return stagec.compile("models/net.stg", trust="schedules", **given)

    monkeypatch.chdir(tmp_path / "b")
    slow = asked_of(compiled())
    monkeypatch.chdir(tmp_path / "a")
    fast, job, report = asked_of(compiled()), compiled(), compiled()
    monkeypatch.chdir(tmp_path / "b")
    assert asked_of(job) == fast != slow
    report.report("page.html")
    report.write("traces")
    assert (tmp_path / "b" / "page.html").is_file(), "what it writes is where it is then"
    assert (tmp_path / "b" / "traces" / "Net.1.et").is_file()
    assert Path.cwd() == tmp_path / "b"
    (tmp_path / "a" / "models" / "dev.toml").write_text('base = "h101"\n')
    with pytest.raises(CompileError) as error:
        job.sweep("step_time", B=[8, 16])
    assert 'base = "h101"' in str(error.value), "as it was read, whatever is there now"


def test_a_job_says_that_its_folder_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    job = stagec.compile(MODEL, set=SMALL, device="h100")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").rmdir()
    with pytest.raises(CompileError, match="where the program compiled: no such file") as error:
        job.sweep("step_time", tp=[1, 2])
    assert error.value.diagnostics[0].code == "E0701"
