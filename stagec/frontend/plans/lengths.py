"""Lengths of sequences that are not all the same: a list, a file of lengths or of a histogram, or drawn by a seed.

at [100, 250, 4000]
at file "lengths.csv"
at uniform { least = 100, most = 4000, seed = 1 }
at zipf { exponent = 1.2, most = 4000, seed = 1 }
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from stagec.diagnostics import Diagnostics, Span, did_you_mean, quoted
from stagec.frontend import syntax
from stagec.frontend.numbers import Sizes, as_read, whole
from stagec.frontend.plans.settings import SettingsReader
from stagec.plans.clauses import Clause, setting
from stagec.reading import read_whole_text
from stagec.text_places import csv_place

SCALE = 2**40
"""Shares by an exponent are rounded to this part of the largest: the same on every machine."""
MOST_LENGTHS = 10_000_000
"""Lengths to choose from."""
MOST_DOCUMENTS = 10_000
"""The most documents that are packed into sequences. Of a file with more, as many are taken, evenly spaced over it."""
LINES = "write a line for each length: `1500`, or `1500, 12` for twelve sequences of it"
FORMS = ("file", "uniform", "zipf")


@dataclass(frozen=True, kw_only=True)
class Drawn(Clause):
    """`{ least = 100, most = 4000, seed = 1 }`: each length from the least to the most, as likely as the other or by an exponent."""

    least: int = setting("whole", 1, least=1)
    most: int | None = setting("whole", None, least=1)
    exponent: float = setting("number", 1)
    """Under `zipf` a length n has a share of n^-exponent."""
    seed: int = setting("whole", 0)


class WrongLine(Exception):
    """A line of a file that says no length."""

    def __init__(self, number: int, message: str, cell: int, word: str) -> None:
        super().__init__(message)
        self.number, self.cell, self.word = number, cell, word


class LengthsReader:
    """Reads what stands for a length of each of `count` sequences. Mistakes are findings."""

    def __init__(self, sizes: Sizes, findings: Diagnostics, count: int, word: str) -> None:
        self.sizes, self.findings = sizes, findings
        self.count, self.word = count, word

    @property
    def least(self) -> int:
        """What a sequence has before it may be none; what it adds, and a document, is not."""
        return 0 if self.word == "at" else 1

    def read(self, node: syntax.ListValue | syntax.Lengths) -> list[int] | None:
        if isinstance(node, syntax.ListValue):
            return self.listed(node)
        form, what = node.form.text, node.what
        if form not in FORMS:
            help_ = (
                did_you_mean(form, FORMS) or f"there are {quoted(FORMS)}, and lists: `[100, 250]`"
            )
            return self.refuse(f"there are no lengths by `{form}`", node.form.span, help_)
        if isinstance(what, syntax.Text) != (form == "file"):
            example = 'file "lengths.csv"' if form == "file" else f"{form} {{ most = 4000 }}"
            return self.refuse(f"`{form}` wants other words", node.span, f"write `{example}`")
        if isinstance(what, syntax.Text):
            return self.from_file(what)
        return self.drawn(form, what)

    def refuse(self, message: str, span: Span, help_: str = "") -> None:
        self.findings.say("E0401", message, span, help=help_)

    def listed(self, node: syntax.ListValue) -> list[int] | None:
        found = [
            whole(value, self.sizes, self.findings, "a length", self.least) for value in node.values
        ]
        known = [as_read(each) for each in found if each is not None]
        if len(known) < len(found):
            return None
        if len(known) != self.count:
            message = f"{self.count} sequences, and a list of {len(known)} lengths"
            return self.refuse(message, node.span, f"write `{len(known)}` before `{self.word}`")
        return known

    def drawn(self, form: str, settings: syntax.Settings) -> list[int] | None:
        read = SettingsReader(self.sizes, self.findings).read(settings, Drawn, f"`{form}`")
        drawn = Drawn(**read)
        if "exponent" in drawn.given and form == "uniform":
            message = "`uniform` has no exponent: all lengths are as likely"
            return self.refuse(message, drawn.given["exponent"], "leave it out, or write `zipf`")
        if drawn.most is None or drawn.most < drawn.least:
            said = (
                "no `most`" if drawn.most is None else f"`most = {drawn.most}`, less than `least`"
            )
            help_ = f"write `{form} {{ least = 100, most = 4000, seed = 1 }}`"
            return self.refuse(
                f"`{form}` draws lengths between two numbers, but has {said}", settings.span, help_
            )
        number = drawn.most - drawn.least + 1
        random = Random(f"{self.word} {drawn.seed}")
        if form == "uniform":
            return [drawn.least + random.randrange(number) for _ in range(self.count)]
        if number > MOST_LENGTHS:
            message = f"`zipf` over {number:,} lengths"
            return self.refuse(message, settings.span, f"let it be {MOST_LENGTHS:,} at most")
        shares = [
            round(SCALE * (n / drawn.least) ** -float(drawn.exponent))
            for n in range(drawn.least, drawn.most + 1)
        ]
        below = list(accumulate(shares))
        draws = (random.randrange(below[-1]) for _ in range(self.count))
        return [drawn.least + bisect_right(below, draw) for draw in draws]

    def from_file(self, name: syntax.Text) -> list[int] | None:
        """The lengths of a file beside the plan; of a histogram as many as are asked for, evenly spaced over it."""
        path = os.path.join(os.path.dirname(name.span.file), name.text)
        try:
            text = read_whole_text(path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            message = f"cannot read `{name.text}`: {reason}"
            self.findings.say("E0421", message, name.span, help=LINES)
            return None
        try:
            rows = lengths_of(text, self.least)
        except WrongLine as error:
            place = csv_place(text, path, error.number, error.cell, error.word)
            named = [(name.span, "the plan names it")]
            self.findings.say("E0421", str(error), place, secondary=named, help=LINES)
            return None
        except ValueError as error:
            message = f"cannot read `{name.text}`: {error}"
            self.findings.say("E0421", message, name.span, help=LINES)
            return None
        return self.chosen(rows)

    def chosen(self, rows: Sequence[tuple[int, int]]) -> list[int]:
        """What a file has for them."""
        return picked(rows, self.count)


class DocumentsReader(LengthsReader):
    """Reads the lengths of documents: all of a list, or of a file as many as are read."""

    def __init__(self, sizes: Sizes, findings: Diagnostics) -> None:
        super().__init__(sizes, findings, MOST_DOCUMENTS, "documents")

    def listed(self, node: syntax.ListValue) -> list[int] | None:
        self.count = len(node.values)
        return super().listed(node)

    def chosen(self, rows: Sequence[tuple[int, int]]) -> list[int]:
        return picked(rows, min(self.count, sum(times for _, times in rows)))


def lengths_of(text: str, least: int) -> list[tuple[int, int]]:
    """Lengths and how many sequences have each, a line for each. The first line may be words; what follows `#` says nothing."""
    rows: list[tuple[int, int]] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = [word.strip() for word in line.partition("#")[0].split(",")]
        if words == [""]:
            continue
        if not rows and not any(word[:1].isdigit() for word in words):
            continue
        for at, word in enumerate(words):
            if at > 1 or not (word.isascii() and word.isdecimal() and len(word) < 16):
                message = "this is neither a length nor a length and a number"
                raise WrongLine(number, message, at, word)
        length, times = int(words[0]), int(words[1]) if len(words) > 1 else 1
        if length < least:
            message = f"a length of {length}, and {least} is the least"
            raise WrongLine(number, message, 0, words[0])
        rows.append((length, times))
    if not any(times for _, times in rows):
        raise ValueError("it has no lengths")
    return rows


def picked(rows: Sequence[tuple[int, int]], count: int) -> list[int]:
    """`count` lengths of a histogram: those in the middle of as many equal parts of it. As many as there are, are these."""
    below = list(accumulate(times for _, times in rows))
    total = below[-1]
    return [rows[bisect_right(below, (2 * i + 1) * total // (2 * count))][0] for i in range(count)]
