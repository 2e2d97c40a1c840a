"""Tables of whole numbers as text: what repeats, with numbers that grow evenly, is written once.

    0@0 (1@0+1 2@0+1)*8 3@7

A line of a table is a token, `(...)*8` a block of lines that stands eight times, and `+1` behind a number how much that
grows each time. So a table of thousands of lines that comes of loops has the length of the loops' bodies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from stagec.arrays import Ints

LONGEST_BLOCK = 96
"""Lines of a block that is looked for."""
TOKEN = re.compile(r"\s*(?:(\()|(\))\*(\d+)|([^\s()]+))")


class TableError(ValueError):
    """A text that is no table."""


def written(
    table: Ints, grows: Sequence[bool], spell: Callable[[list[int], list[int]], str]
) -> str:
    """The text of a table `[n, c]`. `spell` writes a line and by how much it grows; only some columns may."""
    tokens: list[str] = []
    for start, length, times in blocks(table, np.array(grows, bool)):
        block = table[start : start + length]
        after = table[start + length : start + 2 * length] if times > 1 else block
        lines = [
            spell(line, growth)
            for line, growth in zip(block.tolist(), (after - block).tolist(), strict=True)
        ]
        tokens.append(" ".join(lines) if times == 1 else f"({' '.join(lines)})*{times}")
    return " ".join(tokens)


def blocks(table: Ints, grows: Ints) -> Iterator[tuple[int, int, int]]:
    """Start, length and number of the blocks that a table consists of."""
    count, start, single = len(table), 0, 0
    while start < count:
        rest = table[start:]
        best_length, best_times = 1, 1
        for length in range(1, min(LONGEST_BLOCK, len(rest) // 2) + 1):
            window = rest[: max(4 * best_length * best_times, 8 * length)]
            times = repetitions(window, length, grows)
            if times * length == len(window) // length * length:
                times = repetitions(rest, length, grows)
            if times > 1 and times * length > max(2, best_times * best_length):
                best_length, best_times = length, times
        if best_times > 1:
            if single < start:
                yield single, start - single, 1
            yield start, best_length, best_times
            start += best_length * best_times
            single = start
        else:
            start += 1
    if single < count:
        yield single, count - single, 1


def repetitions(table: Ints, length: int, grows: Ints) -> int:
    """How often the first lines of a table stand there one after the other, growing evenly."""
    times = len(table) // length
    if times < 2:
        return 1
    whole = table[: times * length].reshape(times, length, table.shape[1])
    growth = np.diff(whole, axis=0)
    if growth[0][:, ~grows].any():
        return 1
    same = (growth == growth[0]).all(axis=(1, 2))
    return 1 + (len(same) if same.all() else int(np.argmin(same)))


def read(text: str, line: Callable[[str], tuple[list[int], list[int]]], columns: int) -> Ints:
    """The table in a text. `line` reads a token: its numbers, and by how much they grow."""
    found: list[Ints] = []
    block: list[tuple[list[int], list[int]]] | None = None
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            raise TableError(f"`{text[position:].strip()[:20]}` is not a line of a table")
        position = match.end()
        opens, closes, times, token = match.groups()
        if opens:
            if block is not None:
                raise TableError("a block of lines has no blocks in it")
            block = []
        elif closes:
            if not block:
                raise TableError("a block of lines ends that has no beginning, or no line")
            first, growth = (np.array(part, np.int64) for part in zip(*block, strict=True))
            steps = np.arange(int(times), dtype=np.int64)[:, None, None]
            found.append((first + steps * growth).reshape(-1, columns))
            block = None
        else:
            numbers = line(token)
            if block is None:
                found.append(np.array([numbers[0]], np.int64))
            else:
                block.append(numbers)
    if block is not None:
        raise TableError("a block of lines has no end")
    return np.concatenate(found) if found else np.zeros((0, columns), np.int64)


def growing(number: int, growth: int) -> str:
    """`3`, `3+1`, `3+-1`."""
    return f"{number}+{growth}" if growth else f"{number}"


def number_and_growth(text: str) -> tuple[int, int]:
    number, plus, growth = text.partition("+")
    try:
        return int(number), int(growth) if plus else 0
    except ValueError:
        raise TableError(f"`{text}` is not a number") from None
