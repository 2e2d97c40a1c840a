"""The command line where lit cannot see it: exit statuses, interruptions, terminals, crashes."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from stagec import __version__
from stagec.cli import main, opt_main, outcome
from stagec.cli.tables import label
from stagec.pictures.scales import amount
from stagec.summary import ClassSummary, Parameters

ROOT = Path(__file__).parents[2]
INPUTS = ROOT / "tests" / "lit" / "cli" / "inputs"
TINY = str(INPUTS / "tiny.stg")
STAGEC = [sys.executable, "-c", "import sys; from stagec.cli import main; sys.exit(main())"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*STAGEC, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_version(capsys: pytest.CaptureFixture[str]):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"stagec {__version__}\n"


def test_version_loads_nothing():
    code = (
        "import sys; from stagec.cli import main; main(['--version'])\n"
        "print(sorted({'xdsl', 'lark', 'numpy', 'sympy', 'rich', 'argparse'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == f"stagec {__version__}\n[]\n"


@pytest.mark.seldom
def test_what_is_asked_of_ir_loads_no_frontend():
    """What a compilation needs, costs and consists of is asked of IR: the text is parsed by whoever compiles it."""
    code = (
        "import sys, stagec.estimate.step, stagec.explaining.questions, stagec.memory, stagec.tracking;"
        "print([name for name in sys.modules if name == 'lark' or name.startswith('stagec.frontend')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_compilation_that_shows_nothing_loads_no_pages_and_prices(tmp_path: Path):
    """Nor what writes, nor how ops are written; and one that writes traces loads just that."""
    never = ("stagec.estimate.step", "stagec.pools", "rich", "numpy.ma", "email")
    never += ("xdsl.irdl.declarative_assembly_format_parser",)
    for_pages = ("stagec.backend.encode", "stagec.reports", "stagec.step_count", "statistics")
    for_other_writers = ("stagec.simulators", "google", "asyncio", "multiprocessing")
    code = (
        "import sys; from stagec.cli import main\n"
        "main(['examples/mlp.stg', '-q'])\n"
        f"print(sorted({{*{never + for_pages}}} & sys.modules.keys()))\n"
        f"main(['examples/mlp.stg', '-q', '-o', {str(tmp_path / 'x')!r}])\n"
        f"print(sorted({{*{never + for_other_writers}}} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n[]\n"


@pytest.mark.parametrize("command", [[], ["check"], ["expand"], ["ops"], ["passes"]])
def test_help(command: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        main([*command, "--help"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(" ".join(["usage: stagec", *command]))


def test_opt_version(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        opt_main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"stagec-opt {__version__}, on xDSL 0.")


def test_quiet_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main([TINY, "-q", "-o", str(tmp_path / "traces")]) == 0
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", "")
    assert sorted(p.name for p in (tmp_path / "traces").iterdir()) == [
        "Tiny.0.et",
        "Tiny.1.et",
        "comm_group.json",
        "manifest.json",
    ]


def test_manifest_says_what_it_was_made_of(tmp_path: Path):
    """By name and hash, and without a path of this machine."""
    out = tmp_path / "traces"
    flags = ["--set", "B=16", "--load-pass", str(INPUTS / "passes.py")]
    assert main([TINY, "-q", "-o", str(out), *flags]) == 0
    text = (out / "manifest.json").read_text()
    about = json.loads(text)["about"]
    assert about["inputs"] == {
        name: hashlib.sha256((INPUTS / name).read_bytes()).hexdigest()
        for name in ("tiny.stg", "passes.py")
    }
    assert (about["plan"], about["set"]) == ("two", {"B": "16"})
    assert about["versions"] == {"stagec": __version__, "chakra": "0.0.4"}
    assert str(ROOT) not in text


@pytest.mark.seldom
def test_same_input_same_bytes(tmp_path: Path):
    """Under any hash seed, from any directory."""
    model = str(ROOT / "examples" / "gpt2.stg")
    for seed, folder in (("1", ROOT), ("2", tmp_path)):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        command = [*STAGEC, model, "--set", "L=2", "-q", "-o", str(tmp_path / seed)]
        subprocess.run(command, cwd=folder, env=environment, check=True)
    for path in (tmp_path / "1").iterdir():
        assert path.read_bytes() == (tmp_path / "2" / path.name).read_bytes()


def test_interrupted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("stagec.backend.writer.write_traces", interrupt)
    assert main([TINY, "-q", "-o", "traces"]) == 130
    assert capsys.readouterr().err == (
        "\nnote: what is written is kept; `--resume` completes it\nstagec: interrupted\n"
    )


WRAPPED = """\
def make():
  try:
    time.sleep(60)
  except KeyboardInterrupt as error:
    raise RuntimeError("calling __set_name__") from error
"""
"""So Python has it of an interrupt while a class is made."""
PROCESSES = """\
from stagec.backend.executors import open_executor
def work():
  with open_executor("processes:2") as pool:
    print(pool.submit(int, 3).result(), flush=True)
    pool.submit(time.sleep, 60).result()
"""
SLOW = """\
import signal, sys, time
from stagec.cli.outcome import guarded
signal.signal(signal.SIGINT, signal.default_int_handler)  # which those in the background ignore
{before}
def run():
    print("ready", flush=True)
    {at}
    return 0
sys.exit(guarded(run))
"""


@pytest.mark.parametrize(
    ("before", "at", "number", "status", "said"),
    [
        ("", "time.sleep(60)", signal.SIGINT, 130, "interrupted"),
        ("", "time.sleep(60)", signal.SIGTERM, 143, "terminated"),
        (
            WRAPPED,
            "make()",
            signal.SIGINT,
            130,
            "interrupted",
        ),
        (
            PROCESSES,
            "work()",
            signal.SIGTERM,
            143,
            "terminated",
        ),
    ],
)
def test_a_signal_ends_the_command_with_one_line(
    before: str, at: str, number: int, status: int, said: str, tmp_path: Path
):
    """Whatever becomes of the interrupt on its way, and with all that it started."""
    script = tmp_path / "run.py"
    text = SLOW.format(before=before, at=at)
    script.write_text(text.replace("sys.exit(", 'if __name__ == "__main__": sys.exit('))
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    if "processes" in before:
        assert process.stdout.readline() == "3\n"
    else:
        time.sleep(0.1)
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (status, f"\nstagec: {said}\n")
    end = time.monotonic() + 10
    while left := living(process.pid):
        assert time.monotonic() < end, left
        time.sleep(0.05)


def living(session: int) -> list[str]:
    """The processes of a session that are not over."""
    said = subprocess.run(["ps", "-eo", "sid,stat,args"], capture_output=True, text=True).stdout
    lines = [line.split(None, 2) for line in said.splitlines()[1:]]
    return [args for sid, state, args in lines if int(sid) == session and state[0] != "Z"]


def test_a_directory_that_is_gone(tmp_path: Path):
    """Python imports nothing there, so it is said before."""
    command = (
        f"cd {tmp_path} && mkdir gone && cd gone && rmdir ../gone && {shlex.join([*STAGEC, 'ops'])}"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    made = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment)
    said = "stagec: the directory that the command runs in is not there any more\n"
    assert (made.returncode, made.stderr) == (1, said)


def test_no_memory_left(capsys: pytest.CaptureFixture[str]):
    def run() -> int:
        raise MemoryError

    assert outcome.guarded(run) == 1
    assert capsys.readouterr().err.startswith("error[E0717]: stagec needs more memory")


def test_bug_of_ours(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("two and two")

    monkeypatch.setattr("stagec.cli.inputs.compile_checked", fail)
    assert main([TINY]) == 2
    message = capsys.readouterr().err
    assert message.startswith(
        "stagec: this is a bug in stagec, not a mistake of yours: AssertionError: two and two\n"
        "  = note: in `fail`, test_cli.py:"
    )
    assert "Traceback" not in message
    assert main([TINY, "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_reader_that_goes_away():
    process = subprocess.Popen(
        [*STAGEC, "ops"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 0
    assert errors == b""


@pytest.mark.seldom
def test_terminal_without_letters():
    """A summary has lines that are no ASCII."""
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*STAGEC, TINY], cwd=ROOT, env=environment, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"all   |     2 |" in done.stdout


@pytest.mark.seldom
def test_progress_is_for_terminals(tmp_path: Path):
    """On standard error, and gone in the end."""
    primary, secondary = pty.openpty()
    done = subprocess.run(
        [*STAGEC, TINY, "-o", str(tmp_path / "traces")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=secondary,
        check=True,
    )
    os.close(secondary)
    shown = os.read(primary, 100_000).decode()
    os.close(primary)
    assert "compiling" in shown
    assert "writing" in shown
    assert "compiling" not in done.stdout.decode()


def test_check_reports_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main([TINY, "-q", "-o", str(tmp_path), "--ranks", "0"]) == 0
    capsys.readouterr()
    assert main(["check", str(tmp_path), "-q"]) == 1
    assert "error[E06" in capsys.readouterr().out


def test_directory_named_like_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A model may be called like a command if its path says so."""
    (tmp_path / "check").write_text(Path(TINY).read_text())
    monkeypatch.chdir(tmp_path)
    assert main(["./check", "-q"]) == 0


def test_every_flag_is_obeyed_or_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Each flag about writing does something, and without `-o` is an error."""
    flags = ["--ranks=0", "--format=json", "--compress=gzip", "--links=never", "--executor=serial"]
    flags += ["--force", "--resume", "--names=none", "--provenance"]
    for flag in flags:
        assert main([TINY, "-q", flag]) == 1
        assert "[E0711]" in capsys.readouterr().err
        assert main([TINY, "-q", flag, "-o", str(tmp_path / flag)]) == 0
    plain = tmp_path / "plain"
    assert main([TINY, "-q", "-o", str(plain)]) == 0
    texts = {p.name: p.read_bytes() for p in plain.iterdir()}
    changed = {
        flag
        for flag in flags
        if {p.name: p.read_bytes() for p in (tmp_path / flag).iterdir()} != texts
    }
    assert changed == set(flags) - {"--links=never", "--executor=serial", "--force", "--resume"}
    linked = {p.name: p.stat().st_nlink for p in plain.iterdir()}
    unlinked = {p.stat().st_nlink for p in (tmp_path / "--links=never").iterdir()}
    assert (linked["Tiny.0.et"], unlinked) == (2, {1})


WORDS = [
    *(
        "--plan",
        "two",
        "--set",
        "B=4",
        "--set=B=0",
        "dp=3",
        "--set=dp=4",
        "=",
        "--stop-after=lower",
    ),
    *("--print-ir", "--load-pass", "-o", "traces", "-otraces", "--ranks", "0", "--ranks=7-3"),
    *("--format=json", "--compress=gzip", "--links=never", "--force", "--resume", "--quiet", "-q"),
    *("--executor", "serial", "--names=none", "--provenance", "--bundle", "job", "--", "-", ""),
    *("check", "expand", "passes", "--jobs=2", "--target=none", "--debug", "-x", "\N{SNOWMAN}"),
]


@settings(max_examples=60, deadline=None)
@given(words=st.lists(st.sampled_from(WORDS), max_size=6), at=st.integers(0, 6))
def test_any_command_line_ends_well(words: list[str], at: int):
    """Status 0 or 1, and with 1 something to read."""
    words.insert(at, TINY)
    output, errors = io.StringIO(), io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        status = main(words)
    assert status in (0, 1), errors.getvalue()
    assert status == 0 or "error[" in errors.getvalue() + output.getvalue()


def test_output_that_cannot_be_encoded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))

    def command() -> int:
        sys.stdout.write("\N{BOX DRAWINGS LIGHT HORIZONTAL}")
        return 0

    assert outcome.guarded(command) == 0


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 "),
        (999, "999 "),
        (1000, "1.000 k"),
        (12345, "12.35 k"),
        (999_949, "999.9 k"),
        (999_999, "1.000 M"),
        (70_553_706_496, "70.55 G"),
        (10**27, "1000 Y"),
    ],
)
def test_amount(number: int, text: str):
    assert amount(number) == text


@pytest.mark.parametrize(
    ("members", "text"),
    [([0], "pp0"), ([0, 1], "pp0, pp1"), ([0, 2, 3, 4], "pp0, pp2-pp4"), ([1, 3], "pp1, pp3")],
)
def test_label_of_classes_that_are_alike(members: list[int], text: str):
    classes = [ClassSummary(f"pp{i}", {}, 1, 0, 0, 0, 0, (), Parameters(0, 0)) for i in range(5)]
    assert label(classes, members) == text


@pytest.mark.seldom
def test_a_device_with_settings_on_the_command_line(tmp_path: Path, capsys) -> None:
    """As the plan would say it, in place of what the plan says; a clause behind it is no device."""
    text = (ROOT / "examples" / "gpt.stg").read_text()
    model = tmp_path / "gpt.stg"
    assert "  device h100\n" in text
    model.write_text(text.replace("  device h100\n", "  device h100 { node = 4 }\n"))
    times = []
    for flags in ([], ["--device", "h100"], ["--device", "h100 { node = 4 }"]):
        assert main(["explain", str(model), "step_time", *flags]) == 0
        times.append(capsys.readouterr().out)
    assert times[0] == times[2] != times[1]
    for wrong in ("h100 { nod = 4 }", "h100 { } zero 3 over dp", "h100 { node = 4"):
        assert main(["explain", str(model), "step_time", "--device", wrong]) == 1
        assert capsys.readouterr().err.startswith("error[E0710]")
    own = tmp_path / "an own.toml"
    own.write_text('base = "h100"\n')
    for said in (f"{own} {{ node = 4 }}", f'"{own}" {{node=4}}'):
        assert main(["explain", str(model), "step_time", "--device", said]) == 0
        assert capsys.readouterr().out == times[0].replace("on h100", "on an own")
    assert main(["explain", str(model), "step_time", "--device", f"{own}x {{ node = 4 }}"]) == 1
    assert capsys.readouterr().err.startswith("error[E0417]: the device file `an own.tomlx`")


def test_modules_of_a_device_stand_in_the_plan(capsys) -> None:
    """On the command line there is no model that has them."""
    flag = "h100 { graphs = false, captured = [Attention] }"
    assert main([str(ROOT / "examples" / "gpt.stg"), "-q", "--device", flag]) == 1
    assert "help: say it in the plan" in capsys.readouterr().err


def test_a_limit_of_memory_on_the_command_line_is_where_it_is_missed(capsys) -> None:
    flag = "h100 { memory = 1MiB }"
    assert main([str(ROOT / "examples" / "mlp.stg"), "-q", "--device", flag]) == 1
    first, place, *_ = capsys.readouterr().err.splitlines()
    assert first.startswith("error[E0501]")
    assert place == f" --> --device {flag}"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["tp=0"], "a speed must be more than 0"),
        (["tp=9GB", "tp=8GB"], "`tp` has two links, `tp=9GB` and `tp=8GB`"),
    ],
)
def test_links_that_are_none(flags: list[str], says: str, capsys) -> None:
    links = [f"--link={flag}" for flag in flags]
    assert main([str(ROOT / "examples" / "gpt.stg"), "-q", *links]) == 1
    first, place, *_ = capsys.readouterr().err.splitlines()
    assert first.endswith(says)
    assert place == f" --> --link {flags[-1]}"
