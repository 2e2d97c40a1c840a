"""The settings of a clause, `{ schedule = gpipe, microbatch = 1 }`, as the fields of its class."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import Field, fields
from enum import Enum
from typing import Any

from stagec.analysis.sequences import GOES_AS_ONE, ONE_ROW, SAY_HOW_MANY
from stagec.diagnostics import Diagnostics, Span, did_you_mean, quoted, suggestion
from stagec.frontend import syntax
from stagec.frontend.numbers import (
    LARGEST,
    Sizes,
    as_read,
    as_varied,
    byte_count,
    names_in,
    not_whole,
    note_whole,
    quantity,
    shown,
    whole,
)
from stagec.frontend.printing import text_of
from stagec.plans.clauses import ALL, Argument, Clause, Device, Link, SettingKind
from stagec.symbolic import conditions

NUMBERS = ("whole", "wholes", "number", "rate", "bytes")
"""The kinds of settings that are numbers, which a plan may write as a formula of sizes. In closed forms the size of a microbatch is a name."""

ABOVE = "choose a number above 0"
WITH_UNIT = "choose a number above 0, and its unit, as in `80GiB`"


class BatchRows(Enum):
    """What a row of the batch is, of which a microbatch has some."""

    SEQUENCES = "sequences"
    ONE = "one"
    """All that a device serves in an iteration is one row."""
    SAID_BY_SERVE = "said by serve"
    """Likewise, in as many microbatches as `serve` says: no size of these is asked for."""


class SettingsReader:
    """Reads settings against a class of `plan.py`. Mistakes are findings and leave the default."""

    def __init__(
        self, sizes: Sizes, findings: Diagnostics, rows: BatchRows = BatchRows.SEQUENCES
    ) -> None:
        self.sizes, self.findings, self.rows = sizes, findings, rows
        self.formulas: dict[str, str] = {}
        """The numbers that were read as formulas of sizes, by the name of the setting."""

    def read(
        self,
        settings: syntax.Settings | None,
        clause: type[Clause],
        title: str,
        hidden: Collection[str] = (),
    ) -> dict[str, Any]:
        """Keyword arguments for `clause`. `title` is what a user calls it: "`pipeline`"; what is `hidden` is read, but not offered in place of another."""
        kinds: dict[str, SettingKind] = {
            f.name: _kind(f) for f in fields(clause) if "kind" in f.metadata
        }
        values: dict[str, Any] = {}
        given: dict[str, Span] = {}
        if settings is not None and not settings.entries:
            self.add("W0304", f"these braces of {title} say nothing", settings, "leave them out")
        for entry in self.once(settings):
            name = entry.name.text
            if name not in kinds:
                offered = sorted({*kinds} - {*hidden})
                help_ = suggestion(name, offered)
                if not name.endswith("_us"):
                    help_ = help_.replace("_us`?", "_us`, in microseconds?")
                message = f"{title} has no setting `{name}`"
                self.add("E0402", message, entry.name, help_)
                continue
            value = self.value(entry, kinds[name])
            if value is not None:
                values[name] = value
                given[name] = entry.span
                if kinds[name].name == "words" and isinstance(entry.value, syntax.ListValue):
                    given |= {f"{name}.{word_of(v)}": v.span for v in entry.value.values}
                if kinds[name].name in NUMBERS and not issubclass(clause, Device | Link):
                    self.note(name, entry.value)
        return {**values, "given": given}

    def note(self, name: str, value: syntax.Value) -> None:
        """Keep a number in mind that another size may change."""
        if any(each in self.sizes for each in names_in(value)):
            self.formulas[name] = text_of(value)

    def once(self, settings: syntax.Settings | None) -> list[syntax.Setting]:
        """The entries; a name that stands twice is a finding."""
        found: dict[str, syntax.Setting] = {}
        for entry in settings.entries if settings else ():
            first = found.setdefault(entry.name.text, entry)
            if first is not entry:
                self.findings.say(
                    "E0402",
                    f"`{entry.name}` is set twice",
                    entry.name.span,
                    secondary=[(first.name.span, "first here")],
                    help="leave one of them out",
                )
        return list(found.values())

    def add(self, code: str, message: str, node: syntax.SyntaxNode, help_: str = "") -> None:
        self.findings.say(code, message, node.span, help=help_)

    def value(self, entry: syntax.Setting, kind: SettingKind) -> Any:
        """The value, or None after a finding."""
        name, value = entry.name.text, entry.value
        if kind.name == "bool":
            if isinstance(value, syntax.Boolean):
                return value.text == "true"
            help_ = did_you_mean(text_of(value), ("true", "false")) or "write `true` or `false`"
            return self.refuse(entry, "must be `true` or `false`", help_)
        if kind.name in ("choice", "schedule"):
            return self.choice(entry, kind)
        if kind.name in ("bytes", "bandwidth") and isinstance(
            value, syntax.ByteSize | syntax.Number
        ):
            return self.byte_count(entry, value, kind)
        if kind.name == "bytes" and not self.is_size(value):
            help_ = f"write `{name} = 25MiB`"
            return self.refuse(entry, "must be a number of bytes, such as `25MiB`", help_)
        if (
            kind.name == "bandwidth"
            and isinstance(value, syntax.Binary)
            and isinstance(value.left, syntax.ByteSize)
        ):
            help_ = f"write `{name} = {text_of(value.left)}`"
            return self.refuse(entry, "is in bytes per second, without more", help_)
        if kind.name in ("number", "rate", "bandwidth"):
            above = WITH_UNIT if kind.name == "bandwidth" else ABOVE
            return self.number(entry, positive=kind.name != "number", above=above)
        if kind.name == "words":
            return self.words_among(entry, kind.choices) if kind.choices else self.words(entry)
        if kind.name == "text":
            if isinstance(value, syntax.Text):
                return value.text
            help_ = f'write `{name} = "{text_of(value)}"`'
            return self.refuse(entry, "must be the name of a file, in quotes", help_)
        if kind.name == "wholes":
            if not isinstance(value, syntax.ListValue):
                help_ = f"write `{name} = [{text_of(value)}]`"
                what = "must be a list of whole numbers, such as `[2, 3, 3]`"
                return self.refuse(entry, what, help_)
            found = [self.whole(v, name, kind) for v in value.values]
            return None if None in found else tuple(found)
        if kind.name == "microbatch":
            return self.microbatch(value, "`microbatch`")
        return self.whole(value, name, kind)

    def byte_count(
        self, entry: syntax.Setting, value: syntax.ByteSize | syntax.Number, kind: SettingKind
    ) -> int | float | None:
        """Bytes, or bytes per second. Fewer than the smallest unit has are told by one: who writes 450 for a link means gigabytes."""
        if isinstance(value, syntax.ByteSize):
            found = byte_count(value, self.findings)
        elif kind.name == "bandwidth":
            found = self.number(entry, positive=True, above=WITH_UNIT)
        else:
            found = self.whole(value, entry.name.text, kind)
        if found is None:
            return None
        least = kind.least if kind.name == "bytes" else 1
        if found < least and isinstance(value, syntax.ByteSize):
            return self.refuse(entry, "must be more than 0", WITH_UNIT)
        if 0 < found < 1000 and isinstance(value, syntax.Number):
            help_ = f"write a unit, as in `80GiB`, or `{value.text}B` for single bytes"
            return self.refuse(entry, "is in bytes, and this has no unit", help_)
        return found

    def is_size(self, value: syntax.Value) -> bool:
        """Whether a value can be meant as a number."""
        if isinstance(value, syntax.Reference):
            return value.name.text in self.sizes
        return isinstance(value, syntax.Number | syntax.Binary | syntax.Call | syntax.Negate)

    def whole(self, value: syntax.Value, name: str, kind: SettingKind) -> int | None:
        help_ = WITH_UNIT if kind.name == "bytes" else ""
        found = whole(value, self.sizes, self.findings, f"`{name}`", kind.least, help_)
        return None if found is None else as_read(found)

    def microbatch(self, value: syntax.Value, what: str) -> int | None:
        """The size of a microbatch, which sweeps vary without another program. E0308 for a formula of sequences where all of a device's are one row."""
        if self.rows is BatchRows.SEQUENCES:
            found = whole(value, self.sizes, self.findings, what)
            return None if found is None else as_varied(found, "microbatch")
        found = quantity(value, self.sizes, self.findings)
        if found is None or self.rows is BatchRows.SAID_BY_SERVE:
            return None
        note_whole(found, what, 1)
        if not_whole(found.value, 1) is not None:
            message = f"there are no such microbatches: {GOES_AS_ONE}"
            notes, help_ = [ONE_ROW], SAY_HOW_MANY
            self.findings.say("E0308", message, value.span, notes=notes, help=help_)
            return None
        return as_varied(found, "microbatch")

    def number(
        self, entry: syntax.Setting, positive: bool, above: str = ABOVE
    ) -> int | float | None:
        found = quantity(entry.value, self.sizes, self.findings)
        if found is None:
            return None
        if positive and found.value <= 0:
            what = f"must be more than 0, but this is {shown(found.value)}"
            return self.refuse(entry, what, above)
        if found.value < 0:
            what = f"must not be negative, but this is {shown(found.value)}"
            return self.refuse(entry, what, "choose 0, or a number above it")
        value = found.value
        conditions.read(found.size, value)
        is_whole = value.denominator == 1 and value <= LARGEST
        return value.numerator if is_whole else float(value)

    def choice(self, entry: syntax.Setting, kind: SettingKind) -> str | None:
        value = entry.value
        word = value.name.text if isinstance(value, syntax.Reference) else None
        if kind.name == "schedule" and isinstance(value, syntax.Text):
            return value.text
        if word in kind.choices:
            return word
        help_ = did_you_mean(word, kind.choices) if word else ""
        if kind.name == "schedule" and not help_:
            help_ = 'a schedule of your own is a file: `"mine.csv"` or `"mine.py:function"`'
        help_ = help_ or f"write one of these, such as `{entry.name} = {kind.choices[0]}`"
        return self.refuse(entry, f"must be {quoted(kind.choices, last='or')}", help_)

    def words(self, entry: syntax.Setting) -> tuple[str, ...] | None:
        """Names, a dotted one as a string; one alone needs no brackets, and `none` is no name."""
        value = entry.value
        values = value.values if isinstance(value, syntax.ListValue) else (value,)
        found: list[str] = []
        for each in values:
            if isinstance(each, syntax.Reference):
                found.append(each.name.text)
            elif isinstance(each, syntax.Text):
                found.append(each.text)
            else:
                what = 'must be a list of names, such as `[inputs, "Block.h"]`'
                return self.refuse(entry, what, "write names, and one with a dot in quotes")
        return () if found == ["none"] else tuple(found)

    def words_among(
        self, entry: syntax.Setting, choices: tuple[str, ...]
    ) -> tuple[str, ...] | None:
        """Some of the choices, in their order; `true` is all of them that there are, `false` none."""
        if isinstance(entry.value, syntax.Boolean):
            return (ALL,) if entry.value.text == "true" else ()
        found = self.words(entry)
        if found is None:
            return None
        for word in found:
            if word not in choices:
                what = f"must be `true`, or a list of {quoted(choices)}"
                return self.refuse(entry, what, suggestion(word, choices))
        return tuple(choice for choice in choices if choice in found)

    def refuse(self, entry: syntax.Setting, what: str, help_: str = "") -> None:
        """A finding about a value of the wrong kind."""
        message = f"`{entry.name}` {what}"
        label = f"not `{text_of(entry.value)}`"
        self.findings.say("E0403", message, entry.value.span, label, help=help_)

    def arguments(self, settings: syntax.Settings | None) -> dict[str, Argument]:
        """The arguments of a third party's pass: any names, any plain values."""
        found = {e.name.text: self.argument(e.value) for e in self.once(settings)}
        for entry in self.once(settings):
            self.note(entry.name.text, entry.value)
        return {name: value for name, value in found.items() if value is not None}

    def argument(self, value: syntax.Value) -> Argument | None:
        if isinstance(value, syntax.Boolean):
            return value.text == "true"
        if isinstance(value, syntax.Text):
            return value.text
        if isinstance(value, syntax.ByteSize):
            return byte_count(value, self.findings)
        if isinstance(value, syntax.ListValue):
            found = [self.argument(v) for v in value.values]
            return tuple(v for v in found if v is not None and not isinstance(v, tuple))
        if isinstance(value, syntax.Reference) and value.name.text not in self.sizes:
            return value.name.text
        found = quantity(value, self.sizes, self.findings)
        if found is None:
            return None
        conditions.read(found.size, found.value)
        whole_ = found.value.denominator == 1
        return found.value.numerator if whole_ else float(found.value)


def word_of(value: syntax.Value) -> str:
    """A name of a list: a dotted one is a string."""
    return value.text if isinstance(value, syntax.Text) else text_of(value)


def _kind(setting: Field[Any]) -> SettingKind:
    return setting.metadata["kind"]
