"""The commands that lit tests run as functions: arguments to exit status."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from filecheck.main import main as filecheck_main

from stagec.cli import main, opt_main

NEEDS_PROCESS = {"--disable-verify", "--syntax-highlight"}
"""Flags with which xDSL changes its classes for good."""


def filecheck(arguments: list[str]) -> int:
    filecheck_main(["filecheck", *arguments])
    return 0


def cat(arguments: list[str]) -> int:
    for path in arguments:
        sys.stdout.write(Path(path).read_text("utf-8"))
    if not arguments:
        sys.stdout.write(sys.stdin.read())
    return 0


def rm(arguments: list[str]) -> int:
    for path in arguments:
        if path.startswith("-"):
            continue
        if Path(path).is_dir():
            shutil.rmtree(path)
        else:
            Path(path).unlink(missing_ok=True)
    return 0


def mkdir(arguments: list[str]) -> int:
    for path in arguments:
        if not path.startswith("-"):
            Path(path).mkdir(parents=True, exist_ok="-p" in arguments)
    return 0


def echo(arguments: list[str]) -> int:
    sys.stdout.write(" ".join(arguments) + "\n")
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "stagec": main,
    "stagec-opt": opt_main,
    "filecheck": filecheck,
    "cat": cat,
    "rm": rm,
    "mkdir": mkdir,
    "echo": echo,
}
