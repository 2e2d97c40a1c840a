"""The device that a command or a program asks for, as a plan says it: a name, a file, or one with settings, `h100 { node = 4 }`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from itertools import accumulate

from stagec.devices.file import is_path
from stagec.diagnostics import CompileError, Diagnostics, Span, quoted, refused
from stagec.frontend import syntax
from stagec.frontend.files import parse_text
from stagec.frontend.plans.merge import merge
from stagec.frontend.plans.resolve import resolve_plan
from stagec.frontend.sizes import SizeTable
from stagec.plans.clauses import Device

FLAG = "--device"
SETTINGS = re.compile(r'\s*(?P<name>"[^"{}]*"|[^"{}]*?)\s*(?P<settings>\{[^{}]*\})\s*')
"""What a plan's `device` says: a name, or the path of a file with or without quotes, and settings."""
ALONE = ("flops_per_s", "memory_bytes_per_s", "memory")
"""Settings of which a device without a name says one. Others are of how a plan uses its device, which this one replaces."""


def device_said(text: str, word: str = FLAG) -> str | Device:
    """A name or a file, or what a plan's `device` says of one. E0710 for what no plan can say. `word` is the flag or the argument that asks for it."""
    if not {*"{}"} & {*text}:
        return text
    match = SETTINGS.fullmatch(text)
    if match is None:
        message = "a device is a name, a file, or a name with settings"
        raise refused("E0710", message, origin=f"{word} {text}", help="write `h100 { node = 4 }`")
    name = match["name"].strip('"')
    said = f"{name if name.isidentifier() or not name else json.dumps(name, ensure_ascii=False)} {match['settings']}"
    whole = f"plan any {{ device {said} }}"
    flag = InText(text, match.start("settings"), whole, whole.index(match["settings"]), word)
    findings = Diagnostics()
    try:
        (plan,) = parse_text(whole, "").files[""].items
        assert isinstance(plan, syntax.Plan)
        device = resolve_plan(merge(plan, {}, findings), SizeTable(), findings).device
        findings.raise_errors({})
    except CompileError as error:
        raise of_flag(error, flag) from None
    if not name and all(getattr(device, each) is None for each in ALONE):
        message = f"a device without a name says {quoted(ALONE, 'or')}"
        help_ = f"write a name in front of settings: `h100 {match['settings']}`"
        raise refused("E0710", message, origin=f"{word} {text}", help=help_)
    if device.captured:
        message = "`captured` names modules of a model"
        help_ = "say it in the plan: `device h100 { captured = [Attention] }`"
        raise refused("E0710", message, origin=f"{word} {text}", help=help_)
    return replace(device, given={name: flag.place(span) for name, span in device.given.items()})


@dataclass(frozen=True)
class InText:
    """What is asked for, from a character on, and where that stands in a text that was parsed."""

    said: str
    first: int
    whole: str
    begins: int
    word: str = FLAG

    @property
    def typed(self) -> str:
        return re.sub(r"\s", " ", f"{self.word} {self.said}")

    def place(self, span: Span) -> Span:
        """Where in the flag stands what stands there in the text; the flag, for what is not all of it."""
        starts = [0, *accumulate(len(line) + 1 for line in self.whole.split("\n"))]
        further = len(self.typed) - len(self.said) + self.first - self.begins
        ends = (span.line, span.column), (span.end_line, span.end_column)
        first, last = (starts[line - 1] + column - 1 + further for line, column in ends)
        is_inside = len(self.typed) - len(self.said) + self.first <= first < len(self.typed)
        return Span.flag(self.typed, *((first, min(last, len(self.typed))) if is_inside else ()))


def of_flag(error: CompileError, flag: InText) -> CompileError:
    """What is wrong with a device that is asked for: E0417 in the file that it names, else E0710, where it was typed."""
    if error.diagnostics[0].code == "E0417":
        return of_file(error, flag.said, flag.word)
    return CompileError(
        replace(
            each,
            code="E0710",
            span=flag.place(each.span) if each.span else Span.flag(flag.typed),
            secondary=[(flag.place(span), label) for span, label in each.secondary],
        )
        for each in error.diagnostics
    )


def of_file(error: CompileError, said: str, word: str = FLAG) -> CompileError:
    """What is wrong with a device that has no settings: its place is in its file, if it is one, beside what was asked for."""
    found = (
        replace(
            each,
            span=each.span if each.span and is_path(each.span.file) else None,
            secondary=(),
            origin=f"{word} {said}",
        )
        for each in error.diagnostics
    )
    return CompileError(found, error.sources)
