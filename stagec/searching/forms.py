"""All sizes of one choice at once: what a worker does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from stagec.diagnostics import CompileError
from stagec.explaining.sweeping.plans import Request
from stagec.explaining.sweeping.points import Listed
from stagec.explaining.sweeping.run import PEAK, Measure, Sweep
from stagec.frontend import parse_text
from stagec.searching.outline import PARTS, outline

STORED = ("memory.parameters", "memory.master", "memory.optimizer")
"""What is on a device at any time, unless its host keeps it."""
TIMES = ("step", *PARTS)
NAME = "searched"


@dataclass(frozen=True)
class FormsTask:
    """Plans of one text: what they are, and what is asked of them."""

    file: str
    text: str
    """Of the whole file, with a plan `searched`."""
    names: tuple[str, ...]
    rows: tuple[tuple[int, ...], ...]
    numbers: tuple[int, ...]
    """Of the points that these are."""
    wants_memory: bool = False
    overrides: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Found:
    """What is known of some points."""

    numbers: tuple[int, ...]
    columns: dict[str, list[float]] = field(default_factory=dict)
    """For each point; NaN where it is no plan."""
    reasons: dict[str, int] = field(default_factory=dict)


def evaluate(task: FormsTask) -> Found:
    """Times in outline and what is stored, or the peaks of memory."""
    quantities: Sequence[str] = (PEAK,) if task.wants_memory else STORED
    measure = None if task.wants_memory else Measure(TIMES, outline)
    try:
        source = parse_text(task.text, task.file)
        asked = Request(
            source, NAME, dict(task.overrides), Listed(task.names, task.rows), tuple(quantities)
        )
        sweep = Sweep(asked, measure, is_known_good=True)
        _, values, found = sweep.columns()
    except CompileError as error:
        nothing = [float("nan")] * len(task.rows)
        names = (PEAK,) if task.wants_memory else (*TIMES, "stored")
        reasons = Counter({error.diagnostics[0].message: len(task.rows)})
        return Found(task.numbers, {name: nothing for name in names}, dict(reasons))
    columns: dict[str, list[float]] = {}
    wanted = {PEAK: values[PEAK]} if task.wants_memory else {t: values[t] for t in TIMES}
    if not task.wants_memory:
        wanted["stored"] = np.sum([values[name] for name in STORED], axis=0)
    for name, column in wanted.items():
        columns[name] = np.where(found.left, column.astype(float), np.nan).tolist()
    return Found(task.numbers, columns, dict(found.reasons))
