"""Device files with numbers that no device has: one diagnostic, or times that are numbers."""

from __future__ import annotations

import math
import random
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from stagec.diagnostics import CompileError
from stagec.driver import compile_text
from stagec.reports.headline import headline
from tests.attack.case import Failure, Kind
from tests.attack.models import MODELS

ODD = ("nan", "inf", "-inf", "-1", "0", "1e308", "1e-308", "1e400", "9223372036854775808", "0.5")
ODD += ("-0.0", "true", '"x"', "[]", "{}", "1979-05-27")
NUMBER = re.compile(r"(?<=[=\s\[,])-?\d[\d_.e+-]*(?=[\s,\]]|$)", re.MULTILINE)
PLAN = """
plan p {
  mesh pp = 2, dp = 2, tp = 2
  shard B over dp
  shard H, K, F, V over tp
  pipeline L over pp { schedule = 1f1b, microbatch = 3 }
  device "mine.toml"
}
"""
MOST_TABLES = 3


@dataclass(frozen=True)
class Case:
    text: str
    """Of the device file."""


@lru_cache
def parts() -> tuple[str, list[str]]:
    """What a device that ships says, and its tables."""
    text = files("stagec.devices").joinpath("h100.toml").read_text("utf-8")
    head, *tables = text.split("[[tables]]")
    return head, tables


def make(draw: random.Random) -> Case:
    head, tables = parts()
    text = "[[tables]]".join([head, *draw.sample(tables, draw.randint(0, MOST_TABLES))])
    if draw.random() < 0.2:
        lines = text.splitlines(keepends=True)
        del lines[draw.randrange(len(lines))]
        text = "".join(lines)
    numbers = list(NUMBER.finditer(text))
    chosen = draw.sample(numbers, min(len(numbers), draw.choice((1, 1, 2, 4))))
    for each in sorted(chosen, key=lambda found: -found.start()):
        text = text[: each.start()] + draw.choice(ODD) + text[each.end() :]
    return Case(text)


def run(case: Case) -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "mine.toml").write_text(case.text)
        try:
            compiled = compile_text(MODELS["dense"] + PLAN, f"{directory}/model.stg", "p")
            step_us = headline(compiled).step_us
        except CompileError as error:
            if not re.match(r"error\[E\d{4}\]: ", error.render()):
                raise Failure(f"a diagnostic without its form: {error.render()!r}") from None
            return
    if step_us is not None and not (math.isfinite(step_us) and step_us > 0):
        raise Failure(f"a step takes {step_us} µs")


def smaller(case: Case) -> Iterator[Case]:
    head, *tables = case.text.split("[[tables]]")
    for number in range(len(tables)):
        yield Case("[[tables]]".join([head, *tables[:number], *tables[number + 1 :]]))


DEVICES = Kind("devices", make, run, smaller, lambda case: case.text)
