"""`python -m stagec` is the command line."""

import subprocess
import sys

import pytest

from stagec import __version__
from stagec.cli import main
from stagec.cli.names import COMMANDS


def test_the_package_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stagec", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"stagec {__version__}\n"


def test_a_mistake_is_its_exit_status() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stagec", "--nonsense"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr[:12]) == (1, "error[E0707]")


def run(flags: str, redirect: str, shell: str = "/bin/sh") -> tuple[int, str]:
    command = f'"{sys.executable}" -m stagec {flags} {redirect}'
    done = subprocess.run([shell, "-c", command], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.seldom
def test_streams_that_nobody_reads() -> None:
    """The work is done and said to be; a disk that is full is no bug."""
    assert run("ops", ">&-") == (0, "")
    assert run("--nonsense", ">&- 2>/dev/full") == (1, "")
    status, errors = run("ops", ">/dev/full")
    assert status == 1
    assert errors == "stagec: cannot write to standard output: no space left on device\n"


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_a_terminal(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([*([command] if command else []), "--help"])
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: stagec {command}".rstrip())
    assert [line for line in shown.splitlines() if len(line) > 80] == []
