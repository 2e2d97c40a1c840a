"""What the disk refuses is said of the part of a path that is at fault."""

import errno
import os
from pathlib import Path

import pytest

from stagec.backend import files
from stagec.backend.errors import TraceError
from stagec.backend.files import disk_error, nearest
from stagec.cli import main


def refused(number: int, path: Path) -> str:
    return disk_error(OSError(number, "refused"), str(path)).message


def test_the_nearest_part_that_is_there(tmp_path: Path) -> None:
    there, missing = str(tmp_path), str(tmp_path / "a")
    assert nearest(str(tmp_path / "a" / "b" / "c")) == (there, missing)
    assert nearest(missing) == (there, missing)
    assert nearest("no/such/thing") == (".", "no")
    assert nearest("/nothing") == ("/", "/nothing")


def test_of_a_missing_parent(tmp_path: Path) -> None:
    assert refused(errno.ENOENT, tmp_path / "a" / "b") == f"there is no directory `{tmp_path}/a`"
    assert refused(errno.ENOENT, tmp_path / "a") == f"there is no `{tmp_path}/a`"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_of_a_parent_that_is_not_yours(number: int, tmp_path: Path) -> None:
    assert refused(number, tmp_path / "a" / "b") == f"`{tmp_path}` is not yours to write in"
    assert refused(number, tmp_path) == f"`{tmp_path}` is not yours to write or read"


def test_of_a_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    for number in (errno.ENOTDIR, errno.EEXIST):
        assert refused(number, tmp_path / "a" / "b") == f"`{tmp_path}/a` is a file, not a directory"


def test_a_pipe_that_nobody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not waited for without end; one that is read gets the bytes."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    monkeypatch.setattr(files, "WAIT_FOR_READER", 0.0)
    with pytest.raises(TraceError, match="nobody reads the pipe"):
        files.write_whole(str(path), b"some")
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    files.write_whole(str(path), b"some")
    assert os.read(reader, 10) == b"some"
    os.close(reader)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("batch none.csv none.stg -o {missing}/r.csv", "E0603"),
        ("batch none.csv none.stg -o {folder}", "E0603"),
        ("report none.stg -o {missing}/r.html", "E0603"),
        ("explain none.stg flops --sweep tp=1,2 --plot {missing}/r.html", "E0603"),
        ("search none.stg --devices 8 --device h100 -o {missing}/r.stg", "E0603"),
        ("search none.stg --devices 8 --device h100 --plot {missing}/r.html", "E0603"),
        ("import none.json -o {missing}/m.stg", "E0603"),
        ("calibrate none none.csv -o {missing}/d.toml", "E0603"),
        ("devices none --plot {missing}/r.html", "E0603"),
        ("none.stg --bundle {missing}/b", "E0603"),
        ("none.stg --report {missing}/r.html", "E0603"),
        ("none.stg -o {file}", "E0601"),
        ("none.stg -o {file}/traces", "E0603"),
        ("expand none -o {file}", "E0601"),
        ("{model} -o {folder}", "E0601"),
    ],
)
def test_a_bad_place_is_refused_before_anything_is_read(
    command: str, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a model that is not there, or does not compile, nothing is told."""
    file, model = tmp_path / "file", tmp_path / "model.stg"
    file.touch()
    model.write_text("dim B = 4\nmodel Net(x[B]) {\n  loss = nothing\n}\nplan p { }\n")
    places = {"missing": tmp_path / "none", "folder": tmp_path, "file": file, "model": model}
    assert main(command.format(**places).split()) == 1
    assert capsys.readouterr().err.startswith(f"error[{code}]")
