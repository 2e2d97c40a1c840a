"""Rank classes: which ranks share a program, and in which order a class runs its tasks.

Ranks differ by pipeline stage; whatever else tells them apart (groups, peers) is a function of their coordinates that the backend
evaluates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from stagec.analysis.coordinates import Coordinates, Others, coordinate_classes
from stagec.analysis.loads import Loads, num_layers
from stagec.analysis.sizes import mesh_of, size_values
from stagec.backend.lowering import Assembler, Chunk, Owners, Slot
from stagec.backend.program import RankClass
from stagec.diagnostics import CompileError, Diagnostic
from stagec.dialects import dist, stg
from stagec.dialects.types import TIME_AXIS, StackType
from stagec.facts import ModelFacts
from stagec.pipeline_schedule import pipeline_schedule
from stagec.rewriting import programs
from stagec.schedules import Schedule
from stagec.schedules.table import Kind


@dataclass(frozen=True)
class RankTasks:
    """What a rank class runs: its part of the model, and the order of its tasks."""

    name: str
    where: dict[str, tuple[int, ...]]
    chunks: Sequence[Chunk]
    order: Sequence[Slot]
    assembler: Assembler


def rank_classes(classes: Sequence[RankTasks]) -> Iterator[RankClass]:
    """The trace program of each rank class."""
    for tasks in classes:
        program = tasks.assembler.program(tasks.chunks, tasks.order)
        yield RankClass(tasks.name, tasks.where, program)


def rank_tasks(module: ModuleOp, facts: ModelFacts) -> Iterator[RankTasks]:
    """The tasks of every rank class, in order."""
    values = size_values(module)
    stages = next((op for op in module.body.ops if isinstance(op, dist.StagesOp)), None)
    others = by_load(module)
    if stages is None:
        (program,) = programs(module)
        order = plain_order(values[TIME_AXIS], facts.is_training)
        assembler = Assembler()
        for ranks in coordinate_classes([program], values, mesh_of(module), others):
            chunk = Chunk(program, {**values, **ranks.values})
            yield RankTasks(ranks.name, ranks.where, [chunk], order, assembler)
        return
    schedule = pipeline_schedule(module)
    if facts.is_training and not schedule.has_backward:
        raise CompileError([no_backward(schedule)])
    assembler = Assembler(stages.axis.data)
    for ranks in coordinate_classes(programs(module), values, mesh_of(module), others):
        yield from stage_tasks(module, stages, schedule, values, ranks, assembler)


def no_backward(schedule: Schedule) -> Diagnostic:
    """A schedule of a user's own that leaves out what the loss is there for."""
    return Diagnostic(
        "E0409",
        f"the schedule `{schedule.name}` has no backward passes, and the model has a loss to train",
        help="add a `B` for each `F`; `schedule = forward_only` evaluates a loss",
    )


def by_load(module: ModuleOp) -> Others | None:
    """What tells ranks apart whose experts are not equally busy."""
    loads = Loads.of(module)
    if not loads.loads:
        return None
    layers = num_layers(module)
    return Others(loads.axes, lambda here: loads.column(layers, here))


def plain_order(microbatches: int, is_training: bool) -> list[Slot]:
    """Without a pipeline each microbatch goes forward, then backward."""
    order = [Slot("pre", 0, -1)]
    for microbatch in range(microbatches):
        order.append(Slot("F", 0, microbatch))
        if is_training:
            order.append(Slot("B", 0, microbatch))
    order.append(Slot("step", 0, -1))
    return order


def stage_tasks(
    module: ModuleOp,
    stages: dist.StagesOp,
    schedule: Schedule,
    values: Mapping[str, int],
    ranks: Coordinates,
    assembler: Assembler,
) -> Iterator[RankTasks]:
    """A class per coordinate on the axis of the stages, of ranks that differ in nothing else."""
    axis = stages.axis.data
    chunks = with_owners(stage_chunks(module, stages, {**values, **ranks.values}), schedule, axis)
    for rank in range(mesh_of(module)[axis]):
        own = [chunks[stage] for stage in schedule.stages_of(rank)]
        name = " ".join([f"{axis}{rank}", *([ranks.name] if ranks.where else [])])
        order = rank_order(schedule, rank, own)
        yield RankTasks(name, {axis: (rank,), **ranks.where}, own, order, assembler)


def stage_chunks(module: ModuleOp, stages: dist.StagesOp, values: Mapping[str, int]) -> list[Chunk]:
    """Each virtual stage's program, with its own number of layers."""
    by_kind = {stg.text(program, "kind"): program for program in programs(module)}
    chunks = []
    before: dict[int, int] = {}
    for number, stage in enumerate(stages.stages.data):
        own = dict(values)
        for index, count in enumerate(stage.layers):
            name = dist.local_count(index)
            own[name] = count
            own[dist.first_layer(name)] = before.get(index, 0)
            before[index] = before.get(index, 0) + count
        chunks.append(Chunk(by_kind[stage.kind], own, number))
    return chunks


def with_owners(chunks: Sequence[Chunk], schedule: Schedule, axis: str) -> list[Chunk]:
    """Chunks that know which ranks share each tied weight: one of a layer is that of its stage."""
    own = [tuple(int(r) for r in np.unique(schedule.owner[chunk.stage])) for chunk in chunks]
    shared: dict[str, set[int]] = {}
    for chunk, ranks in zip(chunks, own, strict=True):
        for op in chunk.program.body.block.ops:
            if isinstance(op, stg.WeightOp) and not isinstance(op.weight.type, StackType):
                shared.setdefault(op.path.data, set()).update(ranks)
    tied = {program: tied_weights(program) for program in dict.fromkeys(c.program for c in chunks)}

    def owners(chunk: Chunk, ranks: tuple[int, ...]) -> Owners:
        return {
            path: ((axis, tuple(sorted(shared.get(path, ranks)))),) for path in tied[chunk.program]
        }

    return [replace(c, owners=owners(c, ranks)) for c, ranks in zip(chunks, own, strict=True)]


def tied_weights(program: stg.ProgramOp) -> list[str]:
    """The weights whose gradients are reduced over the ranks of several stages."""
    return [path for op in program.walk() if (path := stg.text(op, "tied"))]


TASKS = {
    Kind.FORWARD: "F",
    Kind.BACKWARD: "B",
    Kind.BACKWARD_INPUT: "I",
    Kind.BACKWARD_WEIGHT: "W",
    Kind.SEND_FORWARD: "SEND_F",
    Kind.RECV_FORWARD: "RECV_F",
    Kind.SEND_BACKWARD: "SEND_B",
    Kind.RECV_BACKWARD: "RECV_B",
}


def rank_order(schedule: Schedule, rank: int, chunks: Sequence[Chunk]) -> list[Slot]:
    """A rank's tasks, from its schedule. A whole backward pass is two halves where some are apart."""
    position = {chunk.stage: i for i, chunk in enumerate(chunks)}
    row = schedule.row(rank)
    splits = bool(np.isin(row.kind, (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)).any())
    peers = schedule.peer[schedule.starts[rank] : schedule.starts[rank + 1]]
    order = [Slot("pre", i, -1) for i in range(len(chunks))]
    columns = (row.kind.tolist(), row.stage.tolist(), row.microbatch.tolist(), peers.tolist())
    for kind, stage, microbatch, peer in zip(*columns, strict=True):
        chunk, task = position[stage], TASKS[Kind(kind)]
        if peer >= 0:
            shift = (peer - rank) % schedule.num_ranks
            order.append(Slot(task, chunk, microbatch, shift))
        elif task == "B" and splits:
            order += [Slot("I", chunk, microbatch), Slot("W", chunk, microbatch)]
        else:
            order.append(Slot(task, chunk, microbatch))
    return order + [Slot("step", i, -1) for i in range(len(chunks))]
