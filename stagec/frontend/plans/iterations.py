"""A file of iterations: a line for each, with what is prefilled and what is decoded, in the words of `serve`.

    prefill,decode
    1x512@4096,63@1500
    1x512@4608,63@1501
    ,64@1502

`2x512` are two sequences of 512 new tokens, `@4096` those after 4096 others; under `decode` sequences have one new token each, or as many as in
`64x4@1500`, which are verified: logits are made of all of them. Of several the words stand side by side, with spaces between. Between bars are
those of one device and of the next that has sequences of its own: `63@1500|64@1500`; without bars they are dealt out.

A pool that goes on with what another has computed says so in a third column, `taken`: `2x2048@17` are two of its sequences, whose 2048 positions
iteration 17 of the other pool has completed. Iterations are counted from 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stagec.diagnostics import CompileError, Diagnostic, Span, refused_line
from stagec.dialects.dist.sequences import DealtSequences, Kind
from stagec.frontend.plans.merge import DOT
from stagec.reading import parse_csv, read_whole_text
from stagec.text_places import csv_place

COLUMNS = ("prefill", "decode")
TAKEN = "taken"
PREFILL = re.compile(r"([0-9]{1,12})x([0-9]{1,12})(?:@([0-9]{1,12}))?")
DECODE = re.compile(r"([0-9]{1,12})(?:x([0-9]{1,12}))?@([0-9]{1,12})")
FROM_POOL = re.compile(r"([0-9]{1,12})x([0-9]{1,12})@([0-9]{1,12})")
HELP = "write `2x512@4096` for two sequences of 512 new tokens after 4096 others, and `63@1500` for 63 that are decoded"


Words = dict[str, Kind]
"""What words of a column mean that were read before: most are read again and again."""
TakenSequences = tuple[int, int, int]
"""How many sequences, of how many positions, that which iteration of another pool completed."""


@dataclass
class Iterations:
    """What a series of iterations computes: of each, the sequences of each device, or of all where nobody says of which."""

    path: str
    rows: list[tuple[tuple[Kind, ...], ...]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    """Where in the file each stands."""
    taken: dict[int, list[TakenSequences]] = field(default_factory=dict)
    """What iterations go on with that another pool has computed, by their numbers."""
    numbers: Sequence[int] = ()
    """Which of the file's iterations these are, from 0; nothing for all."""
    in_rows: bool = False
    """Sequences are rows of the batch, which are of one kind on each device."""
    text: str = field(default="", repr=False)
    """What the file says, for what is wrong with it."""
    joined: DealtSequences | None = None
    """As another pool has dealt them to its devices: all are served here."""

    def only(self, numbers: Sequence[int]) -> Iterations:
        """Some of them."""
        rows, lines = ([own[at] for at in numbers] for own in (self.rows, self.lines))
        return replace(self, rows=rows, lines=lines, numbers=numbers)

    @property
    def could_be_rows(self) -> bool:
        """Whether no device has sequences of several kinds in an iteration."""
        return all(len(device) == 1 for row in self.rows for device in row)

    def dealt(self, devices: int) -> DealtSequences:
        """On so many devices. E0421 for a row that says it of another number."""
        if devices == 1 and all(len(row) == 1 for row in self.rows):
            return self.alone()
        dealt: list[Sequence[Sequence[Kind]]] = []
        for line, row in zip(self.lines, self.rows, strict=True):
            if len(row) == 1:
                dealt.append(deal(row[0], devices))
            elif len(row) == devices:
                dealt.append(row)
            else:
                message = (
                    f"an iteration on {len(row)} devices, and {devices} have sequences of their own"
                )
                help_ = "write what each has between bars, or leave out the bars"
                raise self.wrong(line, message, help_)
            if not all(dealt[-1]):
                message = f"device {dealt[-1].index([])} has no sequence, and {devices} have some of their own"
                help_ = "engines let such a device compute one token that nobody reads: `1x1` under `prefill`"
                raise self.wrong(line, message, help_)
        return DealtSequences.of(dealt)

    def alone(self) -> DealtSequences:
        """On one device, made at once."""
        ends = np.cumsum([len(row[0]) for row in self.rows], dtype=np.int64)
        kinds = [kind for row in self.rows for kind in row[0]]
        return DealtSequences(np.array(kinds, np.int64).reshape(-1, 4), ends[:, None])

    def wrong(
        self, line: int, message: str, help_: str = HELP, *, cell: int | None = None, word: str = ""
    ) -> CompileError:
        """E0421 in a line, or in a cell of it, or in a word of that."""
        place = line if cell is None else csv_place(self.text, self.path, line, cell, word)
        return refused_line(self.path, place, message, help_)

    def idle_taken(self, plan: str) -> list[Diagnostic]:
        """What it says of other pools, where a plan has none. A pool alone leaves it to the others."""
        if not self.taken or DOT in plan:
            return []
        message = f"`{TAKEN}` changes nothing here: the plan `{plan}` has no pools that sequences come from"
        line = Span.whole_line(self.path, self.lines[min(self.taken)])
        return [Diagnostic("W0304", message, line, help="leave the column out")]


def deal(kinds: Sequence[Kind], devices: int) -> list[list[Kind]]:
    """Sequences dealt out like cards: one to each device in turn."""
    found: list[list[Kind]] = [[] for _ in range(devices)]
    turn = 0
    for count, new, context, sampled in kinds:
        each, rest = divmod(count, devices)
        for at, hand in enumerate(found):
            number = each + ((at - turn) % devices < rest)
            if number:
                hand.append((number, new, context, sampled))
        turn = (turn + rest) % devices
    return found


def read_iterations(path: str, help_: str = HELP) -> Iterations:
    """E0421 for a file that cannot be read, as `help_` says what to do about, or a line that is no iteration."""
    found = Iterations(path)
    try:
        found.text = read_whole_text(path)
        rows = parse_csv(found.text)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise found.wrong(0, f"cannot read `{path}`: {reason}", help_) from None
    names: list[str] = []
    places: list[int] | None = None
    cells: dict[tuple[str, str], tuple[tuple[Kind, ...], ...]] = {}
    known: dict[re.Pattern[str], Words] = {PREFILL: {}, DECODE: {}}
    for line, words in rows:
        if not words or not any(words) or words[0].lstrip().startswith("#"):
            if words and any(words) is False and len(words) > 1 and places is not None:
                raise found.wrong(line, "an iteration that computes nothing")
            continue
        if places is None:
            names = [word.strip() for word in words]
            if not all(name in names for name in COLUMNS):
                message = "the first line does not name the columns `prefill` and `decode`"
                raise found.wrong(line, message, "write `prefill,decode` above the iterations")
            for at, name in enumerate(names):
                if name and name not in (*COLUMNS, TAKEN):
                    message = f"a column is called `{name}`, which says nothing of an iteration"
                    help_ = "there are `prefill`, `decode` and `taken`"
                    raise found.wrong(line, message, help_, cell=at)
            places = [names.index(name) for name in COLUMNS]
            places += [names.index(TAKEN)] if TAKEN in names else []
            continue
        if any(words[len(names) :]):
            message = f"a line of {len(words)} cells, where {len(names)} columns have names"
            help_ = "put a space between several of a cell: `63@1500 1@9`"
            raise found.wrong(line, message, help_, cell=len(names))
        prefill, decode, *more = (words[at].strip() if at < len(words) else "" for at in places)
        said = prefill, decode
        if any(more):
            found.taken[len(found.rows)] = list(taken(found, line, places[2], more[0]))
        if said not in cells:
            read = iteration(found, line, places, *said, known)
            cells[said] = tuple(tuple(device) for device in read)
        found.rows.append(cells[said])
        found.lines.append(line)
    if not found.rows:
        raise found.wrong(0, "there are no iterations in it")
    return found


def iteration(
    file: Iterations,
    line: int,
    places: Sequence[int],
    prefill: str,
    decode: str,
    words: Mapping[re.Pattern[str], Words],
) -> list[list[Kind]]:
    """What each device computes in an iteration: first what is decoded, as engines order it, then what is prefilled."""
    parts = [prefill.split("|"), decode.split("|")]
    number = max(map(len, parts))
    if any(len(part) != number for part in parts if part != [""]):
        message = "`prefill` and `decode` are of other numbers of devices"
        raise file.wrong(line, message, "write as many bars in both", cell=places[1])
    found: list[list[Kind]] = [[] for _ in range(number)]
    for cell, form in ((1, DECODE), (0, PREFILL)):
        known = words[form]
        for own, text in zip(found, parts[cell], strict=False):
            for word in text.split():
                if word not in known:
                    known[word] = kind_of(file, line, places[cell], word, form)
                own.append(known[word])
    if not any(found):
        raise file.wrong(line, "an iteration that computes nothing")
    return found


def taken(file: Iterations, line: int, cell: int, text: str) -> Iterator[TakenSequences]:
    for word in text.split():
        match = FROM_POOL.fullmatch(word)
        if match is None or not int(match[1]) or not int(match[2]):
            help_ = "write `2x2048@17` for two sequences of 2048 positions, which iteration 17 of the other pool completes"
            message = f"`{word}` says nothing that is taken"
            raise file.wrong(line, message, help_, cell=cell, word=word)
        count, positions, number = map(int, match.groups())
        yield count, positions, number


def kind_of(file: Iterations, line: int, cell: int, word: str, form: re.Pattern[str]) -> Kind:
    match = form.fullmatch(word)
    if match is None:
        message = f"`{word}` is nothing that one {'decodes' if form is DECODE else 'prefills'}"
        raise file.wrong(line, message, cell=cell, word=word)
    count, new, context = int(match[1]), int(match[2] or 1), int(match[3] or 0)
    if not count or not new or (form is DECODE and not context):
        message = f"`{word}` computes nothing, or goes on from nothing"
        raise file.wrong(line, message, cell=cell, word=word)
    return count, new, context, new if form is DECODE else 1
