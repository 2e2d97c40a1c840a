"""What a model may not do unless its user says so: run code, and show files that it was not given."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stagec.cli import main
from stagec.reading import read_file

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
