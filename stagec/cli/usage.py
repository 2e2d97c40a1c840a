"""Command lines: argparse whose mistakes are diagnostics, and the values of flags."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, Protocol

from stagec.diagnostics import CompileError, TypedWord, closest, did_you_mean, quoted, refused
from stagec.trust import Trust, allow, trusted


def usage_error(
    origin: str, message: str, code: str = "E0707", help: str = "", note: str = ""
) -> CompileError:
    """One mistake. `origin` is what was written: `--set tp`."""
    notes = (note,) if note else ()
    return refused(code, message, origin=origin, notes=notes, help=help)


class StoreOnce(argparse.Action):
    """A flag with a value. Two values for it are a contradiction, not an order: E0711."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        given: dict[str, object] = vars(namespace).setdefault("given", {})
        if option_string is not None and given.setdefault(self.dest, values) != values:
            first, second = (shown_value(v) for v in (given[self.dest], values))
            message = f"`{option_string}` is given twice, as {first} and as {second}"
            help_ = "leave out one"
            if together := self.together(given[self.dest], values):
                help_ += f", or write all behind one: `{option_string} {together}`"
            raise usage_error(f"{option_string} {second}", message, "E0711", help_)
        setattr(namespace, self.dest, values)

    def together(self, first: object, second: object) -> str:
        """How both values are written behind one flag, where it takes several."""
        several = isinstance(second, list)
        return f"{shown_value(first)} {shown_value(second)}" if several else ""


def store_once(parser: argparse.ArgumentParser, action: type[StoreOnce] = StoreOnce) -> None:
    """Let flags with a value be given once."""
    # Actions without a name are found by None, whatever argparse's stub says.
    parser.register("action", None, action)  # pyright: ignore[reportArgumentType]


def shown_value(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


class Folded(argparse.RawDescriptionHelpFormatter):
    """Lines as they are written, and folded where the terminal is narrower."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(part for line in text.splitlines() for part in fold(line, width))


def fold(line: str, width: int) -> list[str]:
    """A line of help: a command with what it does keeps its column, or has that below; a long command goes on behind a backslash."""
    if len(line) <= width:
        return [line]
    match = COLUMNS.fullmatch(line.rstrip())
    if match is None:
        return textwrap.wrap(line, width)
    head, gap, tail = match.groups()
    indent = len(head) - len(head.lstrip())
    if gap:
        column = len(head) + len(gap)
        if width - column >= LEAST_COLUMN:
            return textwrap.wrap(
                tail, width, initial_indent=head + gap, subsequent_indent=" " * column
            )
        below = " " * (indent + 6)
        told = textwrap.wrap(tail, width, initial_indent=below, subsequent_indent=below)
        return [*fold(head, width), *told]
    if head.lstrip().startswith("stagec "):
        parts = textwrap.wrap(
            head, width - 2, subsequent_indent=" " * (indent + 4), break_on_hyphens=False
        )
        return [f"{part} \\" for part in parts[:-1]] + parts[-1:]
    return textwrap.wrap(head, width, subsequent_indent=" " * indent, break_on_hyphens=False)


COLUMNS = re.compile(r"( *\S+(?: \S+)*)(?:( {2,})(.*))?")
LEAST_COLUMN = 30
"""Columns that the second column of a help text needs beside the first."""


class Flags(Protocol):
    """A parser, or a group of its flags."""

    def add_argument(self, *names: str, **said: Any) -> argparse.Action: ...


def add_flag(
    parser: Flags,
    flag: str,
    metavar: str,
    help: str,
    read: Callable[[str, str], object] | None = None,
    **said: Any,
) -> None:
    """A flag with a value, which `read` makes of the flag and what is written behind it."""
    kind = {} if read is None else {"type": partial(read, flag)}
    parser.add_argument(flag, metavar=metavar, help=help, **kind, **said)


def add_switch(parser: Flags, *names: str, help: str, default: bool | None = False) -> None:
    """A flag without a value. With None for its default it is known whether it was given."""
    parser.add_argument(*names, action="store_true", default=default, help=help)


def add_repeated(parser: Flags, flag: str, metavar: str, help: str) -> None:
    """A flag with a value that may be given several times."""
    parser.add_argument(flag, action="append", default=[], metavar=metavar, help=help)


def add_load_pass(parser: Flags) -> None:
    """The flag for passes and ops of the user's own."""
    add_repeated(
        parser,
        "--load-pass",
        "FILE.py",
        "passes of your own, which a plan runs with `pass NAME { ... }`, and ops that models call; may be repeated",
    )


class CommandParser(argparse.ArgumentParser):
    """A command's flags. Whatever is wrong with a line is a `CompileError`."""

    def __init__(self, name: str, summary: str, epilog: str = "") -> None:
        super().__init__(
            name,
            description=summary,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=Folded,
        )
        store_once(self)

    def error(self, message: str) -> NoReturn:
        raise mistake(self, message)

    def read(self, arguments: Sequence[str], mixed: bool = False) -> argparse.Namespace:
        """The flags of a line. One that does not exist is E0707, with the one that may be meant.

        `mixed`: flags may stand between the names of a command that takes several.
        """
        add_switch(self, "--debug", help="show tracebacks")
        parse = self.parse_known_intermixed_args if mixed else self.parse_known_args
        found, rest = parse(arguments)
        if rest:
            raise unknown(self, rest[0])
        allow(trust_of(found))
        return found


def mistake(parser: argparse.ArgumentParser, message: str) -> CompileError:
    """What argparse says, in our words."""
    about = f"`{parser.prog} --help` explains the command line"
    match = re.fullmatch(r"argument (?:\S+/)?(\S+): (.*)", message)
    if match:
        flag, what = match.groups()
        if what.startswith("expected"):
            return usage_error(flag, f"`{flag}` wants a value", help=about)
        if what.startswith("ignored explicit argument"):
            return usage_error(flag, f"`{flag}` takes no value", help=about)
        if choice := re.fullmatch(r"invalid choice: '(.*)' \(choose from (.*)\)", what):
            return not_a_choice(flag, choice[1], re.findall(r"[\w-]+", choice[2]))
    if rest := re.fullmatch(r"unrecognized arguments: (\S+).*", message):
        return unknown(parser, rest[1])
    if names := re.fullmatch(r"the following arguments are required: (.*)", message):
        return usage_error("", f"{names[1]} is missing", help=about)
    return usage_error("", message, help=about)


def unknown(parser: argparse.ArgumentParser, text: str) -> CompileError:
    """A flag that there is not, or a name too many."""
    flag, _, _ = text.partition("=")
    if not flag.startswith("-"):
        help_ = f"`{parser.prog} --help` explains the command line"
        return usage_error("", f"`{text}` is one name too many", help=help_)
    known = re.findall(r"(?<![\w-])--?[a-z][\w-]*", parser.format_help())
    bare = {name.lstrip("-"): name for name in known}
    meant = closest(flag.lstrip("-"), bare)  # dashes, which all flags have, make none alike
    help_ = f"`{parser.prog} --help` lists the flags"
    if meant is not None:
        help_ = f"did you mean `{bare[meant]}`?"
    return usage_error("", f"there is no flag `{flag}`", help=help_)


def not_a_choice(flag: str, text: str, choices: Sequence[str]) -> CompileError:
    help_ = did_you_mean(text, choices) or f"it can be {quoted(choices, 'or')}"
    return usage_error(f"{flag} {text}", f"`{flag}` cannot be `{text}`", "E0710", help_)


def one_of(*choices: str) -> Callable[[str, str], str]:
    """A flag with a few values."""

    def read(flag: str, text: str) -> str:
        if text not in choices:
            raise not_a_choice(flag, text, choices)
        return text

    return read


def add_trust_flags(parser: argparse.ArgumentParser, runs_code: bool = True) -> None:
    """What a model may do besides saying what is computed; `trust_of` reads it."""
    group = parser.add_argument_group("what a model may do")
    about = "a folder whose files models may import and read"
    if runs_code:
        code = "run the Python that a model names: a schedule of its own"
        add_switch(group, "--allow-code", help=code, default=None)
        about += ", and whose Python they may run"
    add_repeated(group, "--trust", "DIR", about)


def trust_of(options: argparse.Namespace) -> Trust:
    """What the flags of a line allow."""
    code, folders = getattr(options, "allow_code", None), getattr(options, "trust", [])
    return trusted(bool(code), folders)


def add_format_flag(parser: CommandParser) -> None:
    about = "for people (the default) or for machines"
    add_flag(parser, "--format", "text|json", about, one_of("text", "json"), default="text")


def some_text(flag: str, text: str) -> str:
    """A flag whose value is not empty."""
    if not text.strip():
        help_ = f"write one, or leave out `{flag}`"
        raise usage_error(f"{flag} '{text}'", f"`{flag}` wants a value", "E0710", help_)
    return text


def a_file(flag: str, text: str) -> str:
    """A flag with a file to write. E0603 for a place that takes none, before anything is computed."""
    from stagec.backend.files import check_place

    check_place(some_text(flag, text))
    return text


def a_directory(flag: str, text: str) -> str:
    """Likewise with a directory to write traces in, or a URL."""
    from stagec.backend.files import check_directory

    if "://" not in some_text(flag, text):
        check_directory(text)
    return text


def file_like(name: str, may_be_bare: bool = False) -> Callable[[str, str], str]:
    """A flag with the name of a page, or of events, as in `name`; one that `may_be_bare` has none where it shows them.

    E0603 for a place that takes no file, before anything is computed.
    """
    ending = name[name.index(".") :]
    what = {".html": "a page", ".json": "events"}[ending]

    def read(flag: str, text: str) -> str:
        if not text.endswith(ending) and not (may_be_bare and not text):
            message = f"`{flag}` writes {what}, and `{text}` does not end in `{ending}`"
            help_ = f"name a file like `{name}`"
            help_ += f", or put `{flag}` after the model" if may_be_bare else ""
            raise usage_error(f"{flag} {text}", message, "E0710", help_)
        return a_file(flag, text) if text else text

    return read


def whole_number(flag: str, text: str) -> int:
    """A flag with a number from 1."""
    if not re.fullmatch(r"0*[1-9]\d{0,8}", text, flags=re.ASCII):
        message = f"`{flag}` wants a whole number from 1"
        raise usage_error(f"{flag} {text}", message, "E0710", f"for example `{flag} 4`")
    return int(text)


def overrides(settings: Iterable[str]) -> dict[str, str]:
    """`--set NAME=SIZE`, each. E0710 for one without a size, E0711 for two sizes of a name."""
    return said_by({"--set": settings})


def said_by(flags: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Likewise of several flags, each with what it says."""
    found: dict[str, str] = {}
    for flag, setting in ((flag, each) for flag, settings in flags.items() for each in settings):
        name, equals, size = setting.partition("=")
        name, size = name.strip(), size.strip()
        origin = f"{flag} {setting}"
        if not (name and equals and size):
            message = f"`{flag}` wants a name and a size"
            raise usage_error(origin, message, "E0710", f"for example `{flag} tp=4`")
        if found.setdefault(name, TypedWord(size, origin)) != size:
            message = f"`{name}` is set twice, to {found[name]} and to {size}"
            raise usage_error(origin, message, "E0711", "leave out one")
    return found
