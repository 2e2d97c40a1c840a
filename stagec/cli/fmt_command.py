"""`stagec fmt FILE...`: format models and plans, or say which are formatted otherwise."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from difflib import unified_diff
from pathlib import Path

from stagec.backend.files import write_whole
from stagec.cli.usage import CommandParser, add_switch, usage_error
from stagec.diagnostics import CompileError, refused
from stagec.formatting import format_text
from stagec.frontend.files import decode, read_text

STDIN = "-"

EPILOG = """\
Spaces, line breaks and the commas between settings change; what a text says, and its comments, do not.

examples:
  stagec fmt model.stg             format a file
  stagec fmt --check examples/     exit status 1 if a file of a directory is written otherwise
  stagec fmt --diff model.stg      show what would change
  stagec fmt - < in.stg > out.stg  from standard input to standard output
"""


def run(arguments: Sequence[str]) -> int:
    """Exit status 1 if `--check` or `--diff` finds something to change, or a file does not parse."""
    parser = CommandParser(
        "stagec fmt", "Format models and plans: there is one layout, without options.", EPILOG
    )
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="files, directories with `.stg` files, or `-`"
    )
    only_say = parser.add_mutually_exclusive_group()
    add_switch(only_say, "--check", help="change nothing; name the files that would change")
    add_switch(only_say, "--diff", help="change nothing; show what would change")
    add_switch(parser, "-q", "--quiet", help="print errors and nothing else")
    options = parser.read(arguments)
    if not options.files:
        raise usage_error("", "no file is given", help="`stagec fmt FILE...`, or `stagec fmt -`")
    changed = 0
    mistakes: list[CompileError] = []
    for name in files_of(options.files):
        try:
            before = decode(sys.stdin.buffer.read(), name) if name == STDIN else read_text(name)
            after = format_text(before, name)
        except CompileError as error:
            mistakes.append(error)
            continue
        changed += before != after
        if options.diff:
            show_difference(name, before, after)
        elif options.check:
            if before != after and not options.quiet:
                sys.stdout.write(f"{name}: not formatted\n")
        elif name == STDIN:
            sys.stdout.write(after)
        elif before != after:
            write_whole(name, after.encode())
            if not options.quiet:
                sys.stdout.write(f"{name}: formatted\n")
    if mistakes:
        raise together(mistakes)
    return int((options.check or options.diff) and changed > 0)


def files_of(names: Sequence[str]) -> Iterator[str]:
    """The files, and those of directories. E0701 for a directory without any."""
    for name in names:
        if name == STDIN or not Path(name).is_dir():
            yield name
            continue
        found = sorted(str(path) for path in Path(name).rglob("*.stg"))
        if not found:
            message = f"there is no `.stg` file in `{name}`"
            raise refused("E0701", message, origin=name, help="name a file, or another directory")
        yield from found


def show_difference(name: str, before: str, after: str) -> None:
    lines = unified_diff(before.splitlines(), after.splitlines(), name, name, lineterm="")
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def together(mistakes: Sequence[CompileError]) -> CompileError:
    """What is wrong with all files."""
    sources = {file: text for error in mistakes for file, text in error.sources.items()}
    return CompileError([d for error in mistakes for d in error.diagnostics], sources)
