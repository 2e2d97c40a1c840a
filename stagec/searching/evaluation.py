"""Evaluate many points that share one plan text, and so differ in sizes alone: the task of a worker process."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from stagec.diagnostics import CompileError
from stagec.frontend import Source, parse_text
from stagec.plug_in_errors import mistakes_of_plug_ins
from stagec.plugins import loaded
from stagec.schedules.errors import ScheduleError
from stagec.searching.coarse_times import BOUNDS, STEP, Turns, outline
from stagec.searching.memory_bound import Storage, held
from stagec.sweeping.grid import Listed
from stagec.sweeping.plans import SweepRequest
from stagec.sweeping.run import PEAK, FurtherColumns, Sweep
from stagec.sweeping.structures import Structure
from stagec.symbolic.columns import Columns

HELD = "held"
"""The name of a lower bound on the peak of memory: bytes that a rank holds at least."""
NAME = "searched"
"""The name of a searched plan in its text."""


def held_as(storage: Storage) -> str:
    """The name of the same bound for a plan that stores its state in another way."""
    return f"{HELD}, zero {storage.level} in {storage.replicas}, saves {storage.saves}"


@dataclass(frozen=True)
class FormsTask:
    """Plans that share one text and differ in sizes, and what is asked of them."""

    file: str
    text: str
    """The text of the model's file."""
    names: tuple[str, ...]
    """The names of the sizes in which the plans differ."""
    rows: tuple[tuple[int, ...], ...]
    """For each plan, its values of these sizes."""
    numbers: tuple[int, ...]
    """For each plan, its number among the points of the search."""
    exactly: tuple[str, ...] = ()
    """The quantities that are asked as a compilation would give them: the peak of memory, the time of a step. Empty if outlines and bounds are asked."""
    overrides: tuple[tuple[str, str], ...] = ()
    """The sizes that `--set` gives."""
    turns: tuple[Turns, ...] = ()
    """For each plan, how it runs its pipeline; empty if all do as the text says."""
    plan: str = ""
    """The text of the plan `searched`, which is added to that of the file; empty if the file has it."""
    plug_ins: tuple[str, ...] = ()
    """The files of `--load-pass`."""
    storages: tuple[Storage, ...] = ()
    """Other ways to store the state of these plans. The bound on memory is asked for each of them, too."""
    units: tuple[str, ...] = ()
    """The modules whose parameters are gathered at once under ZeRO 3."""
    memory: int | None = None
    """How many bytes a plan may need: the exact time is asked only of plans that need no more. None for no limit."""
    is_timed: bool = True
    """Whether times in outline are asked, beside the bound on memory."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the numbers that are asked of each plan."""
        if self.exactly:
            return self.exactly
        times = (STEP, *BOUNDS) if self.is_timed else ()
        return (*times, HELD, *map(held_as, self.storages))


@dataclass(frozen=True)
class Found:
    """The answer to a task."""

    numbers: tuple[int, ...]
    """For each plan, its number among the points of the search."""
    columns: dict[str, list[float]] = field(default_factory=dict)
    """The numbers that were asked for by name, one for each plan; NaN where a point is no plan. Of one that needs too much memory it has how much."""
    reasons: dict[str, int] = field(default_factory=dict)
    """Why points are no plans, and how many for each reason."""


NO_MEMORY = "to compile it takes more memory than this machine has"


def left_out(task: FormsTask, reason: str) -> Found:
    """The answer to a task none of whose points is a plan that can be evaluated."""
    columns = {name: [float("nan")] * len(task.rows) for name in task.columns}
    return Found(task.numbers, columns, {reason: len(task.rows)})


UNTIL = "build-programs"
"""The last pass that runs for outlines and bounds. After it, it is known what a rank runs; the order of nodes and the place of buffers are not needed."""


@lru_cache(maxsize=2)
def source_of(text: str, file: str) -> Source:
    """A file, parsed once."""
    return parse_text(text, file)


def source_with(text: str, plan: str, file: str) -> Source:
    """A file, which is parsed once for all plans, with a plan added at its end."""
    source = source_of(text, file)
    own = parse_text(plan, file).files[file]
    items = (*source.files[file].items, *own.items)
    program = replace(source.files[file], items=items)
    texts = {**source.texts, file: f"{text}\n{plan}"}
    return Source(source.file, {**source.files, file: program}, texts)


def evaluate(task: FormsTask) -> Found:
    """Answer a task."""

    def measured(structure: Structure, sizes: Columns, rows: np.ndarray) -> dict[str, np.ndarray]:
        turns = [task.turns[row] for row in rows.tolist()] if task.turns else ()
        least = held(structure, sizes, turns, task.storages, task.units)
        columns = dict(zip((HELD, *map(held_as, task.storages)), least, strict=True))
        return {**outline(structure, sizes, turns), **columns} if task.is_timed else columns

    names = task.columns
    measure = None if task.exactly else FurtherColumns(names, measured)
    until = None if task.exactly else UNTIL
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
        return left_out(task, error.diagnostics[0].message)
    except ScheduleError as error:
        return left_out(task, error.message)
    except MemoryError:
        return left_out(task, NO_MEMORY)
    told = dict.fromkeys(names, found.left)
    if task.memory is not None:
        # Of a plan that needs too much it is known how much.
        told[PEAK] = found.left | (values[PEAK] > task.memory)
    columns = {
        name: np.where(told[name], values[name].astype(float), np.nan).tolist() for name in names
    }
    return Found(task.numbers, columns, dict(found.reasons))
