"""All sizes of one choice at once: what a worker does."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from stagec.diagnostics import CompileError
from stagec.frontend import Source, parse_text
from stagec.plug_in_errors import mistakes_of_plug_ins
from stagec.plugins import loaded
from stagec.searching.coarse_times import BOUNDS, PARTS, Turns, outline
from stagec.searching.memory_bound import Storage, held
from stagec.sweeping.grid import Listed
from stagec.sweeping.plans import SweepRequest
from stagec.sweeping.run import PEAK, FurtherColumns, Sweep
from stagec.sweeping.structures import Structure
from stagec.symbolic.columns import Columns

TIMES = ("step", *PARTS)
HELD = "held"
"""Bytes that a rank holds at least: less than that is no peak."""
NAME = "searched"


def held_as(storage: Storage) -> str:
    """The column of what a rank holds that stores what it has otherwise."""
    return f"{HELD}, zero {storage.level} in {storage.replicas}, saves {storage.saves}"


@dataclass(frozen=True)
class FormsTask:
    """Plans of one text: what they are, and what is asked of them."""

    file: str
    text: str
    """Of the file."""
    names: tuple[str, ...]
    rows: tuple[tuple[int, ...], ...]
    numbers: tuple[int, ...]
    """Of the points that these are."""
    exactly: tuple[str, ...] = ()
    """What is asked of each as a compilation would say it: the peak of memory, the time of a step. Nothing for times in outline."""
    overrides: tuple[tuple[str, str], ...] = ()
    turns: tuple[Turns, ...] = ()
    """How each plan runs its pipeline, where that is not as the text says."""
    plan: str = ""
    """The text of a plan `searched`, behind that of the file if it is not in there."""
    plug_ins: tuple[str, ...] = ()
    """The files of `--load-pass`."""
    storages: tuple[Storage, ...] = ()
    """In which other ways plans may store what these have whole, of which it is asked what they hold."""
    memory: int | None = None
    """Bytes that a plan may need whose time is asked exactly."""
    is_timed: bool = True
    """Whether times in outline are asked, beside what is held at least."""

    @property
    def columns(self) -> tuple[str, ...]:
        """What is asked of each plan."""
        if self.exactly:
            return self.exactly
        times = (*TIMES, *BOUNDS) if self.is_timed else ()
        return (*times, HELD, *map(held_as, self.storages))


@dataclass(frozen=True)
class Found:
    """What is known of some points."""

    numbers: tuple[int, ...]
    columns: dict[str, list[float]] = field(default_factory=dict)
    """For each point; NaN where it is no plan."""
    reasons: dict[str, int] = field(default_factory=dict)


UNTIL = "build-programs"
"""What a rank runs is known then; when its nodes run, and where buffers are, is not asked for."""
UNTIL_MEMORY = "plan-memory"
"""When buffers are born and die is known then. What waits for what besides is not asked for."""


@lru_cache(maxsize=2)
def source_of(text: str, file: str) -> Source:
    return parse_text(text, file)


def source_with(text: str, plan: str, file: str) -> Source:
    """A file, which is read once for all plans, and a plan behind it."""
    source = source_of(text, file)
    own = parse_text(plan, file).files[file]
    items = (*source.files[file].items, *own.items)
    program = replace(source.files[file], items=items)
    texts = {**source.texts, file: f"{text}\n{plan}"}
    return Source(source.file, {**source.files, file: program}, texts)


def evaluate(task: FormsTask) -> Found:
    """Times in outline, and what is held at least; or the peaks of memory."""

    def measured(structure: Structure, sizes: Columns, rows: np.ndarray) -> dict[str, np.ndarray]:
        turns = [task.turns[row] for row in rows.tolist()] if task.turns else ()
        least = held(structure, sizes, turns, task.storages)
        columns = dict(zip((HELD, *map(held_as, task.storages)), least, strict=True))
        return {**outline(structure, sizes, turns), **columns} if task.is_timed else columns

    names = task.columns
    measure = None if task.exactly else FurtherColumns(names, measured)
    until = UNTIL_MEMORY if task.exactly == (PEAK,) else None if task.exactly else UNTIL
    try:
        source = source_with(task.text, task.plan, task.file)
        listed = Listed(task.names, task.rows)
        asked = SweepRequest(
            source,
            NAME,
            dict(task.overrides),
            listed,
            task.exactly,
            plug_ins=loaded(task.plug_ins),
        )
        sweep = Sweep(asked, measure, is_known_good=True, until=until, limit=task.memory)
        with mistakes_of_plug_ins():
            _, values, found = sweep.columns()
    except CompileError as error:
        nothing = [float("nan")] * len(task.rows)
        reasons = Counter({error.diagnostics[0].message: len(task.rows)})
        return Found(task.numbers, {name: nothing for name in names}, dict(reasons))
    columns = {
        name: np.where(found.left, values[name].astype(float), np.nan).tolist() for name in names
    }
    return Found(task.numbers, columns, dict(found.reasons))
