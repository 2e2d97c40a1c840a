"""What a model may not do unless its user says so: run code, and show files that it was not given."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stagec.cli import main
from stagec.reading import read_file
from tests.unit.seldom import some

MODEL = """
dim B = 4
dim D = 8
dim L = 2
module Layer(x[B, D]) -> [B, D] {
  weight w[D]
  return x * w
}
model Net(x[B, D]) {
  repeat L { x = Layer(x) }
  loss = sum(x * x, over = [B, D])
}
plan p {
  mesh pp = 2
  pipeline L over pp { schedule = "mine.py:order", microbatch = 1 }
}
"""
SCHEDULE = """
open("ran", "a").write("x")

def order(p, v, m):
    return [[f"{kind}{i}" for kind in "FB" for i in range(m)] for _ in range(p)]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.stg").write_text(MODEL)
    (tmp_path / "mine.py").write_text(SCHEDULE)
    return tmp_path


def test_code_that_a_text_names_wants_consent(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["net.stg", "-q"]) == 1
    assert "error[E0722]: the schedule is Python" in capsys.readouterr().err
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("flags", [["--allow-code"], ["--trust", "."]])
def test_code_runs_once(folder: Path, flags: list[str]):
    assert main(["net.stg", "-q", *flags]) == 0
    assert main(["explain", "net.stg", "flops", *flags]) == 0
    # A run of the file for each text that is compiled, or fewer.
    assert len((folder / "ran").read_text()) <= 2


def test_consent_does_not_outlive_a_command(folder: Path):
    assert main(["net.stg", "-q", "--allow-code"]) == 0
    assert main(["net.stg", "-q"]) == 1


SERVING = """
dim B = 4
dim S = 8
dim T = S
dim H = 2
dim E = 8
dim L = 2
module Layer(x[B, S, H, E]) -> [B, S, H, E] {
  cache k[B, T, H, E], v[B, T, H, E]
  return attention(x, append(k, x), append(v, x), causal = true)
}
model Net(x[B, S, H, E]) {
  repeat L { x = Layer(x) }
  return x
}
plan p {
  mesh pp = 2
  serve { decode 4 at 1 }
  pipeline L over pp { schedule = "mine.py:order", microbatch = 4 }
}
"""
REQUESTS = "arrival,prompt,output\n0,3,2\n"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["net.stg", "-q"], True),
        (["explain", "net.stg", "flops"], True),
        (["diff", "net.stg", "net.stg"], True),
        (["report", "net.stg"], True),
        (["batch", "requests.csv", "net.stg"], True),
        (["import", "--micro-batch-size 1", "--gpus", "2", "--model", "net.stg"], False),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_a_help_names_is_a_flag_there(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    code: bool,
):
    """Each command that reads a model of anyone's."""
    inner = folder / "inner"
    inner.mkdir()
    (inner / "net.stg").write_text(
        'import "../dims.stg"\n' + MODEL.replace("mine.py:order", "../mine.py:order")
    )
    (folder / "dims.stg").write_text("dim Q = 4\n")
    (inner / "requests.csv").write_text(REQUESTS)
    monkeypatch.chdir(inner)
    assert main(command) == 1
    assert "add `--trust ..`" in capsys.readouterr().err
    main([*command, "--trust", ".."])
    assert "E0721" not in (said := capsys.readouterr().err)
    assert "E0722" not in said
    if code:
        (inner / "net.stg").write_text(SERVING if command[0] == "batch" else MODEL)
        (inner / "mine.py").write_text(SCHEDULE)
        main(command)
        assert "add `--allow-code`" in capsys.readouterr().err
        main([*command, "--allow-code"])
        assert "E0722" not in capsys.readouterr().err


@pytest.mark.parametrize("text", ['import "../secret.stg"\n', 'import "link.stg"\n'])
def test_imports_stay_in_the_folder(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str, monkeypatch: pytest.MonkeyPatch
):
    (folder / "secret.stg").write_text("root:x:0:0")
    inner = folder / "inner"
    inner.mkdir()
    (inner / "link.stg").symlink_to(folder / "secret.stg")
    (inner / "net.stg").write_text(text + MODEL.replace("mine.py:order", "1f1b"))
    monkeypatch.chdir(inner)
    assert main(["net.stg", "-q"]) == 1
    printed = capsys.readouterr().err
    assert "error[E0721]" in printed
    assert "root:x" not in printed
    (folder / "secret.stg").write_text("dim Q = 4\n")
    assert main(["net.stg", "-q", "--trust", str(folder)]) == 0


@pytest.mark.parametrize(
    ("clause", "file"),
    [('pipeline L over pp { schedule = "../a.csv", microbatch = 1 }', "a.csv")],
)
def test_files_of_numbers_stay_in_the_folder(
    folder: Path, capsys: pytest.CaptureFixture[str], clause: str, file: str
):
    inner = folder / "inner"
    inner.mkdir()
    (folder / file).write_text("secret,1\n")
    text = MODEL.replace(
        'pipeline L over pp { schedule = "mine.py:order", microbatch = 1 }', clause
    )
    (inner / "net.stg").write_text(text)
    assert main(["inner/net.stg", "-q"]) == 1
    printed = capsys.readouterr().err
    assert "error[E0721]" in printed
    assert "secret" not in printed


NAMED = """
dim B = 4
dim S = 8
dim D = 8
dim F = 4
dim H = 2
dim E = 4
dim L = 2
dim X = 2
dim A = 1
dim N = B * S * A / X
module Layer(x[B, S, D]) -> [B, S, D] {
  weight wq[D, H, E], wo[H, E, D], router[D, X], up[X, D, F], down[X, F, D]
  q = x @ wq
  h = x + attention(q, q, q, causal = true) @ wo
  gates, chosen = topk(softmax(h @ router, over = X), over = X, to = A)
  wide[X, N, F] = dispatch(h, chosen, experts = X, tokens = N) @ up
  y[X, N, D] = wide @ down
  return h + combine(y, gates, chosen)
}
model Net(x[B, S, D]) {
  repeat L { x = Layer(x) }
  loss = sum(x * x, over = [B, S, D])
}
"""
NAMING = {
    "schedule": (
        'mesh pp = 2 pipeline L over pp { schedule = "FILE", microbatch = 4 }',
        "F0,B0\nF0,B0\n",
    ),
    "documents": ('mesh pp = 2 pipeline L over pp documents S file "FILE"', "5\n3\n"),
    "load": ('mesh ep = 2 shard B, X, N over ep load { file = "FILE" }', "1,2\n"),
}
"""Clauses that name a file, and what such a file says."""


@pytest.mark.parametrize("kind", NAMING)
@pytest.mark.parametrize("beyond", some(["", "a:b/../"]))
@pytest.mark.parametrize("is_lent", [False, True])
def test_files_of_an_imported_plan_are_those_of_the_folder_of_the_model(
    folder: Path, capsys: pytest.CaptureFixture[str], kind: str, beyond: str, is_lent: bool
):
    """Wherever the plan stands that names them, and a file that another one lends has its own folder."""
    clause, content = NAMING[kind]
    for each in (folder / "plans", folder / "data" / "a:b", folder.parent / "a:b"):
        each.mkdir(parents=True, exist_ok=True)
    (folder / "data" / "numbers.csv").write_text(content)
    (folder.parent / "secret.csv").write_text("secret\n")
    (folder / "net.stg").write_text(NAMED if is_lent else 'import "plans/plan.stg"\n' + NAMED)
    asked = ["net.stg", "-q", *(["--plan", "plans/plan.stg:p"] if is_lent else [])]

    def compiled(file: str) -> int:
        text = f"plan p {{ {clause.replace('FILE', file)} }}"
        (folder / "plans" / "plan.stg").write_text(text)
        return main(asked)

    assert compiled(f"../data/{beyond}numbers.csv") == 0, capsys.readouterr().err
    assert compiled(f"../../{beyond}secret.csv") == 1
    printed = capsys.readouterr().err
    assert "error[E0721]" in printed
    assert "secret.csv` is outside of the model's folder" in printed
    assert "secret\n" not in printed


@pytest.mark.parametrize("inner", ["", 'base = "../../secret.toml"\n'])
def test_what_is_wrong_with_a_device_elsewhere_is_not_shown(
    folder: Path, capsys: pytest.CaptureFixture[str], inner: str
):
    """One that reads may be anywhere, and its base too; of one that the command names mistakes are told."""
    (folder / "secret.toml").write_text('base = "h100"\npassword = 1\n')
    (folder / "models" / "devices").mkdir(parents=True)
    (folder / "models" / "devices" / "mine.toml").write_text(inner)
    device = "devices/mine.toml" if inner else "../secret.toml"
    text = MODEL.replace('schedule = "mine.py:order", ', "")
    named = text.removesuffix("}\n") + f'  device "{device}"\n}}\n'
    (folder / "models" / "net.stg").write_text(named)
    for command in (["models/net.stg", "-q"], ["explain", "models/net.stg", "flops"]):
        assert main(command) == 1
        printed = capsys.readouterr().err
        assert "error[E0721]" in printed
        assert "secret.toml` is outside of the model's folder" in printed
        assert "password" not in printed
        assert ("`devices/mine.toml` is built upon it" in printed) == bool(inner)
    assert main(["models/net.stg", "-q", "--trust", "."]) == 1
    assert "password" in capsys.readouterr().err
    (folder / "secret.toml").write_text('base = "h100"\n')
    assert main(["models/net.stg", "-q"]) == 0
    (folder / "models" / "net.stg").write_text(text)
    typed = str(Path("models", device))
    assert main(["models/net.stg", "-q", "--device", typed]) == 0
    capsys.readouterr()
    search = ["search", "models/net.stg", "--devices", "2", "-q", "--executor", "processes:1"]
    main([*search, "--device", f"{typed} {{ nod = 4 }}"])
    assert "`device` has no setting `nod`" in capsys.readouterr().err


def test_a_lent_plan_has_the_files_of_its_own_folder(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    model, plan = MODEL.split("plan p")
    (folder / "models").mkdir()
    (folder / "plans").mkdir()
    (folder / "models" / "net.stg").write_text(model)
    (folder / "plans" / "own.stg").write_text("plan p" + plan.replace("mine.py:order", "own.csv"))
    (folder / "plans" / "own.csv").write_text("F0,F1,F2,F3,B0,B1,B2,B3\n" * 2)
    assert main(["models/net.stg", "-q", "--plan", "plans/own.stg:p"]) == 0
    assert not capsys.readouterr().err


def test_an_import_goes_over_the_links_to_folders(folder: Path, capsys: pytest.CaptureFixture[str]):
    """From the folder that a link leads to, `..` is not where the link is."""
    (folder / "far" / "deep").mkdir(parents=True)
    (folder / "link").symlink_to("far/deep")
    (folder / "far" / "dims.stg").write_text("dim Q = 4\n")
    (folder / "dims.stg").write_text("dim D = 4\n")
    (folder / "far" / "deep" / "more.stg").write_text('import "../dims.stg"\n')
    text = MODEL.replace("mine.py:order", "1f1b")
    for imported in ("link/../dims.stg", "link/more.stg", "far/../link/more.stg"):
        (folder / "net.stg").write_text(f'import "{imported}"\n{text}')
        assert main(["net.stg", "-q", "--set", "Q=8"]) == 0, capsys.readouterr().err
    (folder / "net.stg").write_text('import "far/../nothing.stg"\n' + text)
    assert main(["net.stg", "-q"]) == 1
    assert "cannot read `nothing.stg`" in capsys.readouterr().err


def test_what_never_ends_is_not_read(tmp_path: Path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="no regular file"):
        read_file(tmp_path / "fifo")
    with pytest.raises(OSError, match="no regular file"):
        read_file("/dev/zero")
    with pytest.raises(OSError, match="a directory"):
        read_file(tmp_path)
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(20 << 30)
    with pytest.raises(OSError, match="more than 64 MiB"):
        read_file(tmp_path / "sparse")
