"""`python -m stagec` is the command line."""

import subprocess
import sys

from stagec import __version__


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
