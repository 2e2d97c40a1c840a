"""Runs the `RUN:` lines of a lit test in this process.

lit's own parser reads the shell commands, so that both runs see the same ones. What is a function
here (`stagec`, `stagec-opt`, `filecheck`, ...) is called; anything else becomes a process.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lit.ShCommands import Command, GlobItem, Pipeline, Seq
from lit.ShUtil import ShParser

from stagec.cli.diff_command import DIFFERENT
from tests.lit.tools.commands import COMMANDS, NEEDS_PROCESS

RUN = re.compile(r"RUN:[ \t]*(.*)")


class Failure(Exception):
    """A command that did not end as it should, and what it wrote."""


@dataclass
class Streams:
    """Standard output and error of a command. `2>&1` makes them one."""

    out: io.BytesIO = field(default_factory=io.BytesIO)
    err: io.BytesIO = field(default_factory=io.BytesIO)


def run_test(path: Path) -> None:
    """Raises `Failure` if a command of the test fails."""
    commands = run_lines(path.read_text("utf-8"))
    if not commands:
        raise Failure(f"{path} has no `RUN:` line")
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        for command in commands:
            script = substitute(command, path, scratch)
            status, log = Shell().run(ShParser(script, pipefail=True).parse())
            if status != 0:
                raise Failure(f"RUN: {command}\nexit status {status}\n{log}")


def run_lines(text: str) -> list[str]:
    """The commands of a test; a line that ends in a backslash goes on in the next."""
    commands: list[str] = []
    continued = False
    for line in RUN.findall(text):
        line = line.rstrip()
        if continued:
            commands[-1] = commands[-1][:-1] + line
        else:
            commands.append(line)
        continued = line.endswith("\\")
    return commands


def substitute(command: str, path: Path, scratch: str) -> str:
    """`%s` is the test, `%S` its folder, `%t` a name for what the test writes, `%%` a percent sign."""
    names = {
        "s": str(path),
        "S": str(path.parent),
        "p": str(path.parent),
        "t": os.path.join(scratch, f"{path.name}.tmp"),
        "T": scratch,
        "%": "%",
    }
    return re.sub(r"%([sSptT%])", lambda match: names[match[1]], command)


class Shell:
    """Runs what lit's parser made."""

    def __init__(self) -> None:
        self.log = ""

    def run(self, script: Pipeline | Seq) -> tuple[int, str]:
        return self.status(script), self.log

    def status(self, script: Pipeline | Seq) -> int:
        if isinstance(script, Pipeline):
            return self.pipeline(script)
        left = self.status(script.lhs)
        if (script.op == "&&" and left != 0) or (script.op == "||" and left == 0):
            return left
        return self.status(script.rhs)

    def pipeline(self, script: Pipeline) -> int:
        """With `pipefail`: the status of the last command that fails."""
        status = 0
        given = b""
        for command in script.commands:
            streams, one = self.command(command, given)
            given = streams.out.getvalue()
            errors = b"" if streams.err is streams.out else streams.err.getvalue()
            self.log += errors.decode("utf-8", errors="replace")
            status = one or status
        self.log += given.decode("utf-8", errors="replace")
        return int(not status) if script.negate else status

    def command(self, command: Command, given: bytes) -> tuple[Streams, int]:
        arguments: list[str] = []
        for argument in command.args:
            arguments += (
                argument.resolve(os.getcwd()) if isinstance(argument, GlobItem) else [argument]
            )
        negations = 0
        while arguments[0] == "not":
            arguments.pop(0)
            negations += 1
        streams, given, files = redirected(command.redirects, given)
        is_function = arguments[0] in COMMANDS and not NEEDS_PROCESS & set(arguments)
        status = (call if is_function else start)(arguments, given, streams)
        for path, mode, stream in files:
            with open(path, mode) as file:
                file.write(stream.getvalue())
            stream.seek(0)
            stream.truncate()
        return streams, int(not status) if negations % 2 else status


def redirected(
    redirects: list[tuple[tuple[str, ...], str]], given: bytes
) -> tuple[Streams, bytes, list[tuple[str, str, io.BytesIO]]]:
    """The streams of a command, its input, and the files that its output goes to in the end."""
    streams = Streams()
    files: list[tuple[str, str, io.BytesIO]] = []
    for operator, target in redirects:
        match operator:
            case (">",) | (">>",) | (">", 1) | (">>", 1):
                streams.out = io.BytesIO()
                files.append((str(target), "wb" if operator[0] == ">" else "ab", streams.out))
            case (">", 2) | (">>", 2):
                streams.err = io.BytesIO()
                files.append((str(target), "wb" if operator[0] == ">" else "ab", streams.err))
            case (">&", 2):
                assert target == "1", f"2>&{target}"
                streams.err = streams.out
            case ("&>",):
                streams.err = streams.out
                files.append((str(target), "wb", streams.out))
            case ("<",):
                given = Path(target).read_bytes()
            case _:
                raise AssertionError(f"a redirection that this runner does not know: {operator}")
    return streams, given, files


def call(arguments: list[str], given: bytes, streams: Streams) -> int:
    """Run a command that is a function. A crash is no way of failing, not even under `not`."""
    with standard_streams(given, streams):
        try:
            status = COMMANDS[arguments[0]](arguments[1:])
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
    if status not in (0, 1, DIFFERENT):
        errors = streams.err.getvalue().decode("utf-8", errors="replace")
        raise Failure(f"`{' '.join(arguments)}` crashed with status {status}\n{errors}")
    return status


def start(arguments: list[str], given: bytes, streams: Streams) -> int:
    """Run a command that is a program, one that comes with Python's environment first."""
    beside = os.path.dirname(sys.executable)
    program = shutil.which(arguments[0], path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if program is None:
        raise Failure(f"there is no command `{arguments[0]}`")
    together = streams.err is streams.out
    done = subprocess.run(
        [program, *arguments[1:]],
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if together else subprocess.PIPE,
        check=False,
    )
    streams.out.write(done.stdout)
    if not together:
        streams.err.write(done.stderr)
    return done.returncode


@contextlib.contextmanager
def standard_streams(given: bytes, streams: Streams) -> Iterator[None]:
    """`sys.stdin`, `sys.stdout` and `sys.stderr` for a function that is a command."""
    saved = sys.stdin, sys.stdout, sys.stderr
    out = io.TextIOWrapper(streams.out, "utf-8", write_through=True)
    err = out
    if streams.err is not streams.out:
        err = io.TextIOWrapper(streams.err, "utf-8", write_through=True)
    sys.stdin, sys.stdout, sys.stderr = io.TextIOWrapper(io.BytesIO(given), "utf-8"), out, err
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = saved
        for wrapper in {id(out): out, id(err): err}.values():
            wrapper.detach()
