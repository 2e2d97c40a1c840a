"""Mistakes in printed IR, at random: each ends in a compilation or in a diagnostic, none in an exception. Words and numbers are changed, and lines moved.

A mark that no op knows, or that is put on an op for which it means nothing, is a diagnostic; a note for others changes nothing.

python -m tests.resuming.mutations [SEED [NUMBER]]
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator

from stagec.backend.encode import encode_traces
from stagec.backend.errors import TraceError
from stagec.diagnostics import CompileError
from stagec.dialects.marks import marks_of_class
from stagec.driver import compile_ir
from stagec.plugins import STAGEC_UNIVERSE
from tests.resuming.cuts import random_cuts

SPOT = re.compile(r'"[^"\n]*"|\b\d+\b|\b(phase|late|trains|waits|carry|slice|over|in|on)\b')


def exceptions(texts: dict[str, str], seed: int, number: int) -> Iterator[str]:
    """What goes wrong in the compiler, of so many changes to the last IR of a model, and as many to lines of any IR of it."""
    chance, last = random.Random(seed), list(texts.values())[-1]
    spots = list(SPOT.finditer(last))
    for spot in chance.sample(spots, min(number, len(spots))):
        old = spot.group(0)
        new = f'{old[:-1]}x"' if old.startswith('"') else f"{old}q"
        new = str(int(old) + 1) if old.isdigit() else new
        line = 1 + last.count("\n", 0, spot.start())
        changed = last[: spot.start()] + new + last[spot.end() :]
        yield from crash(changed, f"line {line}, {old} -> {new}")
    for _ in range(number):
        name = chance.choice(list(texts))
        changed, what = other_lines(texts[name], chance)
        yield from crash(changed, f"{name}: {what}")


def crash(text: str, what: str) -> Iterator[str]:
    """The exception in which IR ends."""
    try:
        job = compile_ir(text, "changed.mlir")
        encode_traces(job.tracked)
    except (CompileError, TraceError):
        return
    except Exception as error:
        yield f"{what}: {type(error).__name__}: {error}"


def other_lines(text: str, chance: random.Random) -> tuple[str, str]:
    """An op or a row taken away, said twice, or moved behind others; and which."""
    lines = text.splitlines(keepends=True)
    alone = [i for i, line in enumerate(lines) if not line.rstrip().endswith(("{", "}"))]
    place = chance.randrange(len(alone))
    at, to = alone[place], alone[min(place + chance.choice((1, 2, 3, 9)), len(alone) - 1)]
    line, between = lines[at], lines[at + 1 : to + 1]
    kind = chance.choice(("gone", "twice", "moved"))
    changed = {"gone": between, "twice": [line, *between, line], "moved": [*between, line]}[kind]
    return "".join([*lines[:at], *changed, *lines[to + 1 :]]), f"line {at + 1} {kind}"


ALL_MARKS = {
    name
    for dialect in STAGEC_UNIVERSE.all_dialects.values()
    for op in dialect().operations
    for name in marks_of_class(op)
}
MARK = re.compile(r"(?<=[{ ])(\w+)(?= = [^{}]*\}|(, \w+)*\})")
"""The name of what stands in braces behind an op."""
LINE = re.compile(r"^ *(%.*= )?(sched|stg|dist)\.(?!yield|output)\w+.*( : ).*[^{]$", re.MULTILINE)


def silent(texts: dict[str, str], seed: int, number: int) -> Iterator[str]:
    """The marks that can be misspelled, or be put where they mean nothing, without a word; notes for others that are no notes."""
    chance = random.Random(seed)
    spots = [
        (name, spot)
        for name, text in texts.items()
        for spot in MARK.finditer(text)
        if text.rfind("\n", 0, spot.start()) < text.rfind("{", 0, spot.start())
        and spot.group(1) in ALL_MARKS
    ]
    for name, spot in chance.sample(spots, min(number, len(spots))):
        text, word = texts[name], spot.group(1)
        line = 1 + text.count("\n", 0, spot.start())
        misspelled = text[: spot.end()] + "q" + text[spot.end() :]
        if not is_refused(misspelled):
            yield f"{name}, line {line}: `{word}q` means nothing, and nobody says so"
    name = chance.choice(sorted(texts)[:-1])
    lines = [each for each in LINE.finditer(texts[name]) if "{" not in each.group(0)]
    chosen = chance.choice(lines)
    for note, wanted in (("{own.note}", False), ("{kind = 3}", True)):
        at = chosen.start(3)
        if is_refused(texts[name][:at] + f" {note}" + texts[name][at:]) != wanted:
            yield f"{name}: `{note}` behind {chosen.group(0).strip()}"


def is_refused(text: str) -> bool:
    try:
        compile_ir(text, "changed.mlir")
    except CompileError:
        return True
    return False


def main(seed: int, number: int) -> int:
    texts, _ = random_cuts(seed)
    found = [*exceptions(texts, seed, number), *silent(texts, seed, number)]
    print(*found, f"{len(found)} mistakes", sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    arguments = [int(each) for each in sys.argv[1:]]
    sys.exit(main(*(arguments + [0, 100][len(arguments) :])))
