"""What a step costs each rank of a class, added up without unrolling it.

Pure data: `stagec.cli` shows it. Every number is the sum of what the class' trace nodes say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from stagec.backend.program import (
    Collective,
    Compute,
    HostCopy,
    Mesh,
    Node,
    RankClass,
    TraceSet,
    Transfer,
)
from stagec.dialects import stg
from stagec.dialects.types import ShardType, StackType, TensorType, tensor_of
from stagec.symbolic import ONE, Size
from stagec.unrolling.module import rank_runs
from stagec.unrolling.rank import StageRun


@dataclass(frozen=True)
class Traffic:
    """Collectives, transfers or copies of one kind on one rank."""

    axes: tuple[str, ...]
    """Of the mesh; none for a copy between host and device."""
    kind: str
    count: int
    operand_bytes: int
    result_bytes: int


@dataclass(frozen=True)
class Parameters:
    """How many numbers, and in how many bytes."""

    count: int
    num_bytes: int


@dataclass(frozen=True)
class ClassSummary:
    """One rank of a class, in one step."""

    name: str
    where: Mapping[str, tuple[int, ...]]
    num_ranks: int
    num_nodes: int
    matrix_flops: int
    other_flops: int
    bytes_moved: int
    """Read from and written to device memory."""
    traffic: tuple[Traffic, ...]
    parameters: Parameters
    """Stored on the rank, in the dtype of the weights."""


@dataclass(frozen=True)
class Summary:
    """A compiled job."""

    model: str
    plan: str
    mesh: Mesh
    num_parameters: int
    """Of the model, each counted once."""
    classes: tuple[ClassSummary, ...]

    @property
    def num_ranks(self) -> int:
        return self.mesh.num_ranks


def summarize(traces: TraceSet, module: ModuleOp, plan: str = "") -> Summary:
    """The totals of a job. `module` is the IR that the traces were made from."""
    runs = {run.name: run for run in rank_runs(module)}
    whole: dict[tuple[int, str], int] = {}
    stages = {stage.stage: stage for run in runs.values() for stage in run.stages}
    for each in stages.values():
        for path, value_type in weights(each.program):
            # A weight in the layers is another one on each stage; one beside them is the same.
            stage = each.stage if isinstance(value_type, StackType) else 0
            whole[stage, path] = whole_elements(value_type).integer(each.values)
    return Summary(
        model=traces.model,
        plan=plan,
        mesh=traces.mesh,
        num_parameters=sum(whole.values()),
        classes=tuple(
            class_summary(traces.mesh, each, stored_parameters(runs[each.name].stages))
            for each in traces.classes
        ),
    )


def class_summary(mesh: Mesh, rank_class: RankClass, parameters: Parameters) -> ClassSummary:
    num_nodes = matrix = other = moved = 0
    traffic: dict[tuple[tuple[str, ...], str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for node, count in counted_nodes(rank_class):
        num_nodes += count
        action = node.action
        if isinstance(action, Compute):
            if action.work.on_matrix_units:
                matrix += count * action.num_ops
            else:
                other += count * action.num_ops
            moved += count * action.num_bytes
            continue
        axes, kind, before, after = traffic_of(action)
        total = traffic[axes, kind]
        for index, amount in enumerate((1, before, after)):
            total[index] += count * amount
    return ClassSummary(
        name=rank_class.name,
        where=rank_class.where,
        num_ranks=num_ranks(mesh, rank_class),
        num_nodes=num_nodes,
        matrix_flops=matrix,
        other_flops=other,
        bytes_moved=moved,
        traffic=tuple(
            Traffic(axes, kind, *traffic[axes, kind]) for axes, kind in sorted_keys(mesh, traffic)
        ),
        parameters=parameters,
    )


def counted_nodes(rank_class: RankClass) -> Iterator[tuple[Node, int]]:
    """Each node template, and how often a rank runs it."""
    program = rank_class.program
    counts = np.bincount(program.segment, minlength=len(program.segments))
    for segment, count in zip(program.segments, counts.tolist(), strict=True):
        for node in segment.nodes:
            if count:
                yield node, count


def traffic_of(
    action: Collective | Transfer | HostCopy,
) -> tuple[tuple[str, ...], str, int, int]:
    """Axes, kind, and bytes before and after."""
    if isinstance(action, Collective):
        return action.axes, action.kind, action.operand_bytes, action.result_bytes
    size = action.num_bytes
    if isinstance(action, HostCopy):
        return (), action.kind, size, size
    return action.axes, action.kind, size, size


def sorted_keys(
    mesh: Mesh, keys: Iterable[tuple[tuple[str, ...], str]]
) -> list[tuple[tuple[str, ...], str]]:
    """In the order of the mesh, then by kind."""
    return sorted(keys, key=lambda key: ([mesh.axes.index(a) for a in key[0]], key[1]))


def num_ranks(mesh: Mesh, rank_class: RankClass) -> int:
    product = 1
    for axis in mesh.axes:
        chosen = rank_class.where.get(axis)
        product *= mesh.size(axis) if chosen is None else len(chosen)
    return product


def weights(
    program: stg.ProgramOp,
) -> Iterator[tuple[str, TensorType | ShardType | StackType]]:
    """The path and the type of each parameter."""
    for op in program.walk():
        if isinstance(op, stg.WeightOp):
            value_type = op.weight.type
            assert isinstance(value_type, TensorType | ShardType | StackType)
            yield op.path.data, value_type


def stored_parameters(stages: Sequence[StageRun]) -> Parameters:
    """What one rank holds. A weight that two of its stages share it holds once."""
    held: dict[tuple[int, str], tuple[int, int]] = {}
    for run in stages:
        for path, value_type in weights(run.program):
            stage = run.stage if isinstance(value_type, StackType) else 0
            held[stage, path] = (
                value_type.num_elements.integer(run.values),
                value_type.num_bytes.integer(run.values),
            )
    return Parameters(sum(n for n, _ in held.values()), sum(b for _, b in held.values()))


def whole_elements(value_type: TensorType | ShardType | StackType) -> Size:
    count = value_type.total_count if isinstance(value_type, StackType) else ONE
    return count * tensor_of(value_type).unsplit.num_elements
