"""Command lines: argparse whose mistakes are diagnostics, and the values of flags."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

from stagec.diagnostics import CompileError, Diagnostic, did_you_mean, quoted


def usage_error(
    origin: str, message: str, code: str = "E0707", help: str = "", note: str = ""
) -> CompileError:
    """One mistake. `origin` is what was written: `--set tp`."""
    notes = (note,) if note else ()
    return CompileError([Diagnostic(code, message, origin=origin, notes=notes, help=help)])


class CommandParser(argparse.ArgumentParser):
    """A command's flags. Whatever is wrong with a line is a `CompileError`."""

    def __init__(self, name: str, summary: str, epilog: str = "") -> None:
        super().__init__(
            name,
            description=summary,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        raise self.mistake(message)

    def mistake(self, message: str) -> CompileError:
        """What argparse says, in our words."""
        help_ = f"`{self.prog} --help` explains the command line"
        if match := re.fullmatch(
            r"argument (\S+?)(?:/\S+)?: expected (?:one|at .*) argument", message
        ):
            return usage_error(match[1], f"`{match[1]}` wants a value", help=help_)
        if match := re.fullmatch(
            r"argument (\S+?)(?:/\S+)?: ignored explicit argument .*", message
        ):
            return usage_error(match[1], f"`{match[1]}` takes no value", help=help_)
        if match := re.fullmatch(r"the following arguments are required: (.*)", message):
            return usage_error("", f"{match[1]} is missing", help=help_)
        return usage_error("", message, help=help_)

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The flags of a line. One that does not exist is E0707, with the one that may be meant."""
        found, rest = self.parse_known_args(arguments)
        if rest:
            flag, _, _ = rest[0].partition("=")
            if not flag.startswith("-"):
                raise usage_error("", f"`{rest[0]}` is one name too many", help=self.usage_line())
            help_ = did_you_mean(flag, self.flags())
            message = f"there is no flag `{flag}`"
            raise usage_error("", message, help=help_ or f"`{self.prog} --help` lists the flags")
        return found

    def flags(self) -> list[str]:
        return re.findall(r"(?<![\w-])--?[a-z][\w-]*", self.format_help())

    def usage_line(self) -> str:
        return " ".join(self.format_usage().split())


def one_of(flag: str, *choices: str) -> Callable[[str], str]:
    """A flag with a few values."""

    def read(text: str) -> str:
        if text not in choices:
            help_ = did_you_mean(text, choices) or f"it can be {quoted(choices, 'or')}"
            raise usage_error(f"{flag} {text}", f"`{flag}` cannot be `{text}`", "E0710", help_)
        return text

    return read


def some_text(flag: str) -> Callable[[str], str]:
    """A flag whose value is not empty."""

    def read(text: str) -> str:
        if not text.strip():
            raise usage_error(f"{flag} '{text}'", f"`{flag}` wants a value", "E0710")
        return text

    return read


def whole_number(flag: str) -> Callable[[str], int]:
    """A flag with a number from 1."""

    def read(text: str) -> int:
        if not re.fullmatch(r"0*[1-9]\d{0,8}", text, flags=re.ASCII):
            message = f"`{flag}` wants a whole number from 1"
            raise usage_error(f"{flag} {text}", message, "E0710")
        return int(text)

    return read


def overrides(settings: Iterable[str]) -> dict[str, str]:
    """`--set NAME=SIZE`, each. E0710 for one without a size, E0711 for two sizes of a name."""
    found: dict[str, str] = {}
    for setting in settings:
        name, equals, size = setting.partition("=")
        name, size = name.strip(), size.strip()
        origin = f"--set {setting}"
        if not (name and equals and size):
            message = "`--set` wants a name and a size"
            raise usage_error(origin, message, "E0710", "for example `--set tp=4`")
        if found.setdefault(name, size) != size:
            message = f"`{name}` is set twice, to {found[name]} and to {size}"
            raise usage_error(origin, message, "E0711", "leave out one")
    return found
