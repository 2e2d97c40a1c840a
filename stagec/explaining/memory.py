"""`memory.peak`, `memory.optimizer`, `memory.activations`, ...: bytes of one rank, as closed forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from stagec.analysis.buffers import owners
from stagec.diagnostics import CompileError, line_of
from stagec.dialects import stg
from stagec.dialects.memory import BEYOND, STORED, MemoryLevel
from stagec.explaining.job import NamedJob
from stagec.explaining.more_layers import few_layers
from stagec.explaining.papers import OF_MEMORY
from stagec.explaining.peak_formula import Moments
from stagec.explaining.quantities import Answer, Contribution, of_parts
from stagec.memory import TITLES, ClassPlan, Kind
from stagec.unrolling.rank import StageRun

Asked = Callable[[NamedJob, ClassPlan], list[Contribution]]
Unknown = Callable[[str, str, Sequence[str]], CompileError]
"""Makes the diagnostic of a word that means nothing."""

KINDS = {kind.name.lower(): kind for kind in Kind if kind not in BEYOND}
"""What a device's memory is for."""


def memory(job: NamedJob, words: Sequence[str], what: str, unknown: Unknown) -> Answer:
    """The memory of each rank class."""
    first, *rest = words or ("peak",)
    if first not in QUANTITIES:
        raise unknown(what, first, list(QUANTITIES))
    allowed = list(KINDS) if first == "peak" else []
    for word in rest:
        if word not in allowed or len(rest) > 1:
            raise unknown(what, word, allowed)
    title, asked = QUANTITIES[first]
    if rest:
        kind = KINDS[rest[0]]
        title = f"{TITLES[kind]} when a rank needs most memory"
        asked = at_peak_of(kind)
    if isinstance(asked, tuple):
        # Nobody needs to know when buffers live.
        classes = tuple(
            of_parts(c.name, c.where, static_parts(job, c.run.stages, asked)) for c in job.classes
        )
        alone: list[str] = []
    else:
        forms = [parts_of(job, plan, asked) for plan in job.memory]
        classes = tuple(
            of_parts(p.name, p.where, parts)
            for p, (parts, _) in zip(job.memory, forms, strict=True)
        )
        alone = sorted({condition for _, condition in forms if condition})
    notes = [f"the form is of {each}: of many layers there is another" for each in alone]
    if isinstance(asked, tuple):
        notes += [
            f"more of that is {where}: `{name}`"
            for level, where, name in BEYOND_THE_DEVICE
            if any(static_parts(job, c.run.stages, asked, level) for c in job.classes)
        ]
    if first in OF_A_MOMENT:
        which = max(range(len(classes)), key=lambda each: classes[each].value)
        plan = job.memory[which]
        node = fullest(plan, OF_A_MOMENT[first])
        if node is not None:
            notes += [
                f"{plan.name} needs most, at {job.moment(plan, node)}",
                "the form of a peak holds with as many layers or more, for as long as the peak stays at that moment",
            ]
    sources = {word: OF_MEMORY[word] for word in (first, *rest) if word in OF_MEMORY}
    return Answer(title, "B", classes, tuple(notes), sources, is_additive=False)


def parts_of(job: NamedJob, plan: ClassPlan, asked: Asked) -> tuple[list[Contribution], str]:
    """The parts of an answer, of forms that hold for more layers too; or of those for as many as there are, and how many that is."""
    own = asked(job, plan)
    larger = job.with_more_layers(plan)
    if larger is None:
        return own, ""
    values = {**job.names.values, **plan.stages[0].values}
    found: list[Contribution] = []
    for part in asked(job, larger):
        value = part.form.evaluate(values)
        if value.denominator != 1 or value < 0:
            return own, few_layers(plan, job.names)
        found.append(replace(part, value=int(value)))
    if sum(part.value for part in found) != sum(part.value for part in own):
        return own, few_layers(plan, job.names)
    return found, ""


def static_parts(
    job: NamedJob,
    stages: Sequence[StageRun],
    kinds: Sequence[Kind],
    level: MemoryLevel = MemoryLevel.DEVICE,
    *,
    always: bool = False,
) -> list[Contribution]:
    """What a rank stores at a level from step to step, or of that what is there `always`. A weight that two of its stages share it stores once."""
    found: dict[tuple[Kind, int, str], Contribution] = {}
    for stage in stages:
        for row, owner in owners(stage.program, with_gradients=not always):
            weight, kind, size = owner.op, row.kind, row.num_bytes
            if kind in kinds and row.level == level:
                place = stage.stage if owner.is_of_stage else -1
                found.setdefault(
                    (kind, place, row.path),
                    Contribution(
                        stg.scope_of(weight),
                        line_of(weight.location),
                        f"{row.path}: {TITLES[kind]}",
                        stg.made_by(weight),
                        job.names.write(size, stage.stage),
                        size.integer(stage.values),
                    ),
                )
    return list(found.values())


def parts_at_peak(job: NamedJob, plan: ClassPlan, kinds: Sequence[Kind]) -> list[Contribution]:
    parts = Moments(job, plan).parts(plan.peak.node, kinds)
    return [*static_parts(job, plan.stages, kinds, always=True), *parts]


def fullest(plan: ClassPlan, kind: Kind | None) -> int | None:
    """The node at which most of a kind is there, or of all that is on the device; nothing where there never is any."""
    if kind is None:
        return plan.peak.node
    lives = plan.host_lives if kind in BEYOND else plan.lives
    rows = np.flatnonzero(lives.kind == kind)
    return int(np.argmax(lives.live_bytes(rows))) if len(rows) else None


def saved_parts(job: NamedJob, plan: ClassPlan) -> list[Contribution]:
    """When most is saved."""
    node = fullest(plan, Kind.SAVED)
    return [] if node is None else Moments(job, plan).parts(node, [Kind.SAVED])


def activation_parts(job: NamedJob, plan: ClassPlan) -> list[Contribution]:
    """What the first microbatch of each virtual stage saves."""
    return Moments(job, plan).saved_by_one()


def host_parts(job: NamedJob, plan: ClassPlan) -> list[Contribution]:
    """When most is there: what stays on the host from step to step, and what is stored there for a while."""
    return parts_beyond(job, plan, MemoryLevel.HOST, Kind.HOST)


def nvme_parts(job: NamedJob, plan: ClassPlan) -> list[Contribution]:
    """The same of NVMe."""
    return parts_beyond(job, plan, MemoryLevel.NVME, Kind.NVME)


def parts_beyond(
    job: NamedJob, plan: ClassPlan, level: MemoryLevel, kind: Kind
) -> list[Contribution]:
    """What stays at a level, and what is there for a while, when most of that is."""
    always, node = static_parts(job, plan.stages, STORED, level, always=True), fullest(plan, kind)
    if node is None:
        return always
    return [*always, *Moments(job, replace(plan, lives=plan.host_lives)).parts(node, [kind])]


def at_peak_of(kind: Kind) -> Asked:
    return lambda job, plan: parts_at_peak(job, plan, [kind])


QUANTITIES: dict[str, tuple[str, Asked | tuple[Kind, ...]]] = {
    "peak": (
        "the most that a rank needs at any moment",
        lambda job, plan: parts_at_peak(job, plan, list(Kind)),
    ),
    "parameters": ("parameters that a rank stores on its device", (Kind.PARAMETERS,)),
    "transposed": ("transposed copies of weights that a rank stores", (Kind.TRANSPOSED,)),
    "master": ("master weights that a rank stores on its device", (Kind.MASTER,)),
    "optimizer": ("optimizer state that a rank stores on its device", (Kind.OPTIMIZER,)),
    "gradients": ("gradients that a rank adds up on its device", (Kind.GRADIENTS,)),
    "cache": ("what a rank keeps of requests, from iteration to iteration", (Kind.CACHE,)),
    "process": ("what a process keeps beside the tensors of its program", (Kind.PROCESS,)),
    "static": ("what a rank stores on its device from step to step", STORED),
    "activations": (
        "what one microbatch saves for its backward pass, on all virtual stages of a rank",
        activation_parts,
    ),
    "in_flight": ("saved activations of all microbatches in flight, at most", saved_parts),
    "host": ("the most that a rank keeps in the memory of its host", host_parts),
    "nvme": ("the most that a rank keeps on NVMe", nvme_parts),
}
"""Title, and what it consists of: kinds of what is stored from step to step, or what is alive at some moment."""

BEYOND_THE_DEVICE = (
    (MemoryLevel.HOST, "on the host", "memory.host"),
    (MemoryLevel.NVME, "on NVMe", "memory.nvme"),
)
"""Where else what stays from step to step may be, and which quantity counts it there."""

OF_A_MOMENT = {"peak": None, "in_flight": Kind.SAVED, "host": Kind.HOST, "nvme": Kind.NVME}
"""The quantities that are the most of some moment, and of which kind it is most then; of `peak`, of all kinds together."""
