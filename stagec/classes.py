"""Rank classes: which ranks share a program, and in which order a class runs its tasks.

Ranks differ by pipeline stage; whatever else tells them apart (groups, peers) is a function of their coordinates that the backend
evaluates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from stagec.analysis.coordinates import Coordinates, coordinate_classes
from stagec.analysis.sizes import mesh_of, size_values
from stagec.backend.lowering import Assembler, Chunk, Slot
from stagec.backend.program import RankClass
from stagec.diagnostics import CompileError, Diagnostic, span_of
from stagec.dialects import dist, sched, stg
from stagec.dialects.types import TIME_AXIS
from stagec.facts import ModelFacts
from stagec.rewriting import programs
from stagec.schedules import Schedule, ScheduleError, build
from stagec.schedules.table import Kind


def rank_classes(module: ModuleOp, facts: ModelFacts) -> Iterator[RankClass]:
    """Every rank class of a module that is lowered to tasks."""
    values = size_values(module)
    stages = next((op for op in module.body.ops if isinstance(op, dist.StagesOp)), None)
    if stages is None:
        (program,) = programs(module)
        order = plain_order(values[TIME_AXIS], facts.is_training)
        for ranks in coordinate_classes([program], values, mesh_of(module)):
            chunk = Chunk(program, {**values, **ranks.values})
            yield RankClass(ranks.name, ranks.where, Assembler().program([chunk], order))
        return
    for ranks in coordinate_classes(programs(module), values, mesh_of(module)):
        yield from stage_classes(module, stages, values, ranks)


def plain_order(microbatches: int, is_training: bool) -> list[Slot]:
    """Without a pipeline each microbatch goes forward, then backward."""
    order = [Slot("pre", 0, -1)]
    for microbatch in range(microbatches):
        order.append(Slot("F", 0, microbatch))
        if is_training:
            order.append(Slot("B", 0, microbatch))
    order.append(Slot("step", 0, -1))
    return order


def stage_classes(
    module: ModuleOp, stages: dist.StagesOp, values: Mapping[str, int], ranks: Coordinates
) -> Iterator[RankClass]:
    """A class per coordinate on the axis of the stages, of ranks that differ in nothing else."""
    schedule = pipeline_schedule(module, values)
    axis = stages.axis.data
    chunks = stage_chunks(module, stages, {**values, **ranks.values})
    assembler = Assembler(axis, weight_owners(chunks, schedule, axis))
    for rank in range(mesh_of(module)[axis]):
        own = [chunks[stage] for stage in schedule.stages_of(rank)]
        program = assembler.program(own, rank_order(schedule, rank, own))
        name = " ".join([f"{axis}{rank}", *([ranks.name] if ranks.where else [])])
        yield RankClass(name, {axis: (rank,), **ranks.where}, program)


def pipeline_schedule(module: ModuleOp, values: Mapping[str, int]) -> Schedule:
    """The schedule that `sched.schedule` names, built. One that cannot be is E0409."""
    op = next(op for op in module.body.ops if isinstance(op, sched.ScheduleOp))
    ranks, virtual = op.ranks.data.integer(values), op.virtual_stages.value.data
    try:
        return build(op.schedule.data, ranks, virtual, op.microbatches.data.integer(values))
    except ScheduleError as error:
        raise CompileError(
            [Diagnostic("E0409", error.message, span_of(op.location), help=error.help)]
        ) from None


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


def weight_owners(
    chunks: Sequence[Chunk], schedule: Schedule, axis: str
) -> dict[str, tuple[tuple[str, tuple[int, ...]], ...]]:
    """The coordinates of the stages that have each weight which is not in a layer."""
    ranks: dict[str, set[int]] = {}
    for chunk in chunks:
        owners = np.unique(schedule.owner[chunk.stage])
        for op in chunk.program.body.block.ops:
            if isinstance(op, stg.WeightOp):
                ranks.setdefault(op.path.data, set()).update(int(r) for r in owners)
    return {path: ((axis, tuple(sorted(found))),) for path, found in ranks.items()}


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
