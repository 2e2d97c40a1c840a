"""Reads a `serve` clause: the sequences of an iteration, and how they are served."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from stagec.diagnostics import Diagnostic, Diagnostics, suggestion
from stagec.frontend import syntax
from stagec.frontend.numbers import Sizes, as_read, whole
from stagec.frontend.plans.lengths import LengthsReader
from stagec.frontend.plans.settings import SettingsReader
from stagec.frontend.serving.batch import known_size
from stagec.plans.clauses import Sequences, Serve
from stagec.symbolic import conditions
from stagec.symbolic.quantity import Quantity

MOST_SEQUENCES = 1_000_000
"""Sequences that are not alike."""


NEW, CONTEXT, SHARED, SOURCE = "x", "at", "sharing", "from"
"""The words before the numbers of a sequence's new tokens, of those before them, of the first of these that all sequences share, and before the pool that
computes them."""


def together(sequences: Iterable[Sequences], in_order: bool) -> Iterable[Sequences]:
    """Those that are alike as one, also of several entries: it is the same batch. What each entry shares is its own.

    If it matters what stands first (`in_order`), those are one that nothing stands between.
    """
    found: dict[tuple[object, ...], Sequences] = {}
    run, last = 0, None
    for number, each in enumerate(sequences):
        own = number if each.shared is not None else None
        kind = each.new, each.context, each.source, each.is_verified, own
        run, last = run + (in_order and kind != last), kind
        before = found.get((run, kind))
        if before is not None:
            size, value = before.count.size + each.count.size, before.count.value + each.count.value
            named = before.named | each.named
            each = replace(before, count=Quantity(size, value), named=named)
        found[run, kind] = each
    return found.values()


class ServeReader:
    """Reads a `serve` clause under known sizes."""

    def __init__(self, clause: syntax.Serve, sizes: Sizes, findings: Diagnostics) -> None:
        self.clause, self.sizes, self.findings = clause, sizes, findings

    def read(self) -> Serve | None:
        what = self.clause.what
        if isinstance(what, syntax.Reference):
            if what.name.text != "none":
                help_ = "write `serve { decode 128 at 1500 }`, or `serve none`"
                message = "`serve` says what is served"
                self.findings.say("E0401", message, what.span, help=help_)
            return None
        entries = [e for e in what.entries if not isinstance(e, syntax.Setting)]
        found = [self.sequences(e) for e in entries]
        said = tuple(e for e in what.entries if isinstance(e, syntax.Setting))
        settings = syntax.Settings(said, span=what.span) if said else None
        read = SettingsReader(self.sizes, self.findings).read(settings, Serve, "`serve`")
        sequences = [each for kinds in found for each in kinds]
        if not found:
            help_ = "write `serve { prefill 4 x 2048 }`, or `serve { decode 128 at 1500 }`"
            message = "`serve` has no sequences"
            self.findings.say("E0401", message, self.clause.span, help=help_)
        if not all(found) or not sequences:
            return None
        # The first microbatch has what stands first.
        in_order = read.get("microbatches", 1) > 1
        kinds = tuple(together(sequences, in_order))
        return Serve(sequences=kinds, span=self.clause.span, **read)

    def sequences(self, entry: syntax.Prefill | syntax.Decode) -> list[Sequences]:
        """The sequences of an entry, those that are alike together; nothing after a finding."""
        is_prefill = isinstance(entry, syntax.Prefill)
        given = {measure.word.text: measure for measure in entry.measures}
        needed = NEW if is_prefill else CONTEXT
        words = {NEW, CONTEXT, SHARED} if is_prefill else {NEW, CONTEXT, SHARED, SOURCE}
        if wrong := self.measures(entry, words):
            self.findings.add(wrong)
            return []
        if needed not in given:
            help_ = "write `prefill 4 x 2048`, and `at 512` for what is cached before"
            if not is_prefill:
                help_ = "write `decode 128 at 1500`, and `x 4` for so many new tokens of each"
            message = "sequences have new tokens (`x`), and tokens before them (`at`)"
            self.findings.say("E0401", message, entry.span, help=help_)
            return []
        count = self.number(entry.count, "the number of sequences")
        source = self.source(given.pop(SOURCE)) if SOURCE in given else ""
        sharing = given.pop(SHARED, None)
        if count is None or source is None:
            return []
        kinds = self.kinds(entry, given, count)
        if sharing is not None and kinds:
            shared = self.shared(sharing, kinds)
            at = sharing.span
            kinds = [replace(s, shared=shared, shared_at=at) for s in kinds]
            kinds = kinds if shared is not None else []
        is_verified = not is_prefill and NEW in given
        return [replace(s, source=source, is_verified=is_verified) for s in kinds]

    def measures(
        self, entry: syntax.Prefill | syntax.Decode, words: Collection[str]
    ) -> Diagnostic | None:
        """E0401 for a word that is none of an entry's, or stands there twice."""
        kind = "prefill" if isinstance(entry, syntax.Prefill) else "decode"
        said: set[str] = set()
        for measure in entry.measures:
            word = measure.word.text
            message, help_ = f"`{word}` is said twice", "leave out one of the two"
            if word == SOURCE and word not in words:
                message = (
                    f"`{word}` is of `decode`: what a pool goes on with, another one has begun"
                )
                help_ = f"write `decode` instead of `{kind}`"
            elif word not in words:
                message, help_ = f"`{kind}` has no `{word}`", suggestion(word, sorted(words))
            elif word not in said:
                said.add(word)
                continue
            return Diagnostic("E0401", message, measure.word.span, help=help_)
        return None

    def shared(self, measure: syntax.Measure, kinds: list[Sequences]) -> Quantity | None:
        """The positions that sequences share. E0401 if they do not all have as many before their new ones."""
        least = min((s.context for s in kinds), key=lambda each: each.value)
        if isinstance(measure.number, syntax.ListValue | syntax.Lengths):
            message = "sequences of one entry share as many positions"
            help_ = "write a number, and an entry for each prefix"
            self.findings.say("E0401", message, measure.span, help=help_)
            return None
        found = self.number(measure.number, "the number of tokens that are shared")
        reason = "more positions are shared than a sequence has before its new ones"
        if found is not None and not conditions.note(
            ">=", least.size, found.size, holds=least.value >= found.value, reason=reason
        ):
            message = f"{found.value} positions are shared, and a sequence has {least.value} before its new ones"
            help_ = "share no more than `at` says"
            self.findings.say("E0401", message, measure.span, help=help_)
            return None
        return found

    def kinds(
        self,
        entry: syntax.Prefill | syntax.Decode,
        given: Mapping[str, syntax.Measure],
        count: Quantity,
    ) -> list[Sequences]:
        """The sequences of an entry by their lengths."""
        sizes: dict[str, syntax.Value] = {}
        for word, measure in given.items():
            if isinstance(measure.number, syntax.ListValue | syntax.Lengths):
                return self.ragged(entry, given, count)
            sizes[word] = measure.number
        new = context = None
        if NEW in sizes:
            new = self.number(sizes[NEW], "the number of new tokens")
        if CONTEXT in sizes:
            context = self.number(sizes[CONTEXT], "the number of tokens before", 0)
        if (NEW in given and new is None) or (CONTEXT in given and not context):
            return []
        return [Sequences(count, new or known_size(1), context or known_size(0), entry.span)]

    def source(self, measure: syntax.Measure) -> str | None:
        """The pool that sequences come from. E0401 if that is no name."""
        if isinstance(measure.number, syntax.Reference):
            return measure.number.name.text
        message = "sequences come from a pool"
        help_ = "write `decode 4 at 2048 from prefill`"
        self.findings.say("E0401", message, measure.span, help=help_)
        return None

    def ragged(
        self,
        entry: syntax.Prefill | syntax.Decode,
        given: Mapping[str, syntax.Measure],
        count: Quantity,
    ) -> list[Sequences]:
        """Sequences of different lengths: the first has the first length of each measure, and so on."""
        number = as_read(count)
        if number > MOST_SEQUENCES:
            message = f"{number:,} sequences, each of its own length"
            help_ = f"serve {MOST_SEQUENCES:,} at most"
            self.findings.say("E0401", message, entry.span, help=help_)
            return []
        lengths = {NEW: [1] * number, CONTEXT: [0] * number}
        for word, measure in given.items():
            found = self.lengths(measure, word, number)
            if found is None:
                return []
            lengths[word] = found
        alike = Counter(zip(lengths[NEW], lengths[CONTEXT], strict=True))
        return [
            Sequences(
                known_size(times),
                known_size(new),
                known_size(context),
                entry.span,
                named=frozenset(count.size.names),
            )
            for (new, context), times in alike.items()
        ]

    def lengths(self, measure: syntax.Measure, word: str, count: int) -> list[int] | None:
        what = measure.number
        if isinstance(what, syntax.ListValue | syntax.Lengths):
            return LengthsReader(self.sizes, self.findings, count, word).read(what)
        least = 0 if word == CONTEXT else 1
        found = self.number(what, "the number of tokens", least)
        return None if found is None else [as_read(found)] * count

    def number(self, expr: syntax.Value, what: str, least: int = 1) -> Quantity | None:
        return whole(expr, self.sizes, self.findings, what, least)
