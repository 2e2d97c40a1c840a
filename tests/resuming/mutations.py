"""Mistakes in the last IR, at random: each ends in a compilation or in a diagnostic, none in an exception.

python -m tests.resuming.mutations [SEED [NUMBER]]
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator

from stagec.backend.encode import encode_traces
from stagec.diagnostics import CompileError
from stagec.driver import compile_ir, compile_text
from tests.resuming.cuts import texts_after_passes
from tests.resuming.texts import random_text

SPOT = re.compile(r'"[^"\n]*"|\b\d+\b|\b(phase|late|trains|waits|carry|slice|over|in|on)\b')


def exceptions(text: str, seed: int, number: int) -> Iterator[str]:
    """What goes wrong in the compiler, of so many changes to the last IR of a model."""
    texts, _ = texts_after_passes(lambda stops: compile_text(text, "net.stg", stops=stops))
    last = list(texts.values())[-1]
    spots = list(SPOT.finditer(last))
    for spot in random.Random(seed).sample(spots, min(number, len(spots))):
        old = spot.group(0)
        new = f'{old[:-1]}x"' if old.startswith('"') else f"{old}q"
        new = str(int(old) + 1) if old.isdigit() else new
        try:
            job = compile_ir(last[: spot.start()] + new + last[spot.end() :], "changed.mlir")
            encode_traces(job.tracked)
        except CompileError:
            continue
        except Exception as error:
            line = 1 + last.count("\n", 0, spot.start())
            yield f"line {line}, {old} -> {new}: {type(error).__name__}: {error}"


def main(seed: int, number: int) -> int:
    found = list(exceptions(random_text(seed), seed, number))
    print(*found, f"{len(found)} exceptions", sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    arguments = [int(each) for each in sys.argv[1:]]
    sys.exit(main(*(arguments + [0, 100][len(arguments) :])))
