"""`bubble`: the idle share of a pipeline, from its schedule with stages of equal cost."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from stagec.explaining.job import NamedJob
from stagec.explaining.names import Names
from stagec.explaining.quantities import Answer, ClassAnswer
from stagec.pipeline_schedule import schedule_op, whole_schedule
from stagec.schedules import CATALOGUE, Schedule, simulate
from stagec.symbolic import ZERO, Size, constant, symbol

Form = Callable[[Size, int, Size], Size]
"""A closed form of ranks, virtual stages and microbatches."""

FORMS: dict[str, Form] = {
    "gpipe": lambda p, v, m: (p - 1) / m,
    "1f1b": lambda p, v, m: (p - 1) / m,
    "interleaved_1f1b": lambda p, v, m: (p - 1) / (v * m),
    "overlapped_1f1b": lambda p, v, m: (p - 1) / (v * m),
    "looped_bfs": lambda p, v, m: (p - 1) / (v * m),
    "forward_only": lambda p, v, m: (p - 1) / (v * m),
    "zb_h1": lambda p, v, m: (p - 1) / (3 * m),
    "zb_h2": lambda p, v, m: ZERO,
    "interleaved_zero_bubble": lambda p, v, m: (p - 1) / (3 * v * m),
    "zb_v": lambda p, v, m: ZERO,
    "dualpipe": lambda p, v, m: (p - 2) / (3 * m),
    "dualpipe_v": lambda p, v, m: (p - 1) / (3 * m),
}
"""The papers' bubbles over the time of all microbatches without any, for F = I = W = 1."""


def bubble(job: NamedJob) -> Answer:
    """The bubble over the time that the same rank computes (Narayanan et al. 2021, section 2.2)."""
    title = "idle time over computing time, stages of equal cost, backward twice forward"
    names = job.names
    op = schedule_op(names.module)
    if op is None:
        none = ClassAnswer("all", {}, ZERO, 0, ())
        return Answer(title, "", (none,), ("the plan has no pipeline",), is_additive=False)
    worst, value = idle_share(whole_schedule(names.module))
    ranks = None
    if op.part is not None:
        # Of the pipeline of all pools, whose ranks wait equally long in a step.
        worst, ranks = 0, constant(op.part[1])
    form = published(names, op.schedule.data, ranks)
    notes: tuple[str, ...] = ()
    if form is None or form.evaluate(names.values) != value:
        notes = (
            "simulated: these sizes are none for which the schedule's paper has a closed form",
        )
        form = None
    entry = CATALOGUE.get(op.schedule.data)
    sources = {op.schedule.data: entry.source} if entry is not None else {}
    axis = names.stages.axis.data if names.stages is not None else ""
    answer = ClassAnswer(f"{axis}{worst}", {axis: (worst,)}, form or constant_of(value), value, ())
    return Answer(title, "", (answer,), notes, sources, is_additive=False)


def idle_share(schedule: Schedule) -> tuple[int, Fraction]:
    """The rank that idles most, and its idle time over its computing time."""
    timing = simulate(schedule)
    worst = int(timing.idle.argmax())
    # Whole units of time, so that floats hold them exactly.
    return worst, Fraction(int(timing.idle[worst]), int(timing.busy[worst]))


def published(names: Names, schedule: str, ranks: Size | None) -> Size | None:
    """`ranks` are those of all pools, where several run the pipeline."""
    if schedule not in FORMS or names.stages is None:
        return None
    ranks = ranks if ranks is not None else symbol(names.stages.axis.data)
    return FORMS[schedule](ranks, names.virtual_stages, names.num_microbatches)


def constant_of(value: Fraction) -> Size:
    return Size({(): value})
