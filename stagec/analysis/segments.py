"""Segments of a rolled program: the ops that are issued together, and the repeats around them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr
from xdsl.ir import Operation, SSAValue

from stagec.analysis.coordinates import SUFFIX
from stagec.analysis.dataflow import Dataflow, OpInstance, behind_views, is_node
from stagec.analysis.sizes import dims_by_place, mesh_of, size_values, values_at
from stagec.dialects import dist, sched, stg
from stagec.dialects.sched.tasks import TASK_NUMBER, Rows
from stagec.symbolic.conditions import with_known

TASK_OF_PHASE = {
    "fwd": "F",
    "recompute": "B",
    "bwd": "B",
    "wgrad": "B",
    "grad_reduce": "B",
}
"""The task that ops of a phase in the microbatch loop belong to when the backward pass is one piece."""


def transfer_task(op: Operation) -> str | None:
    """The schedule's action that an op belongs to which a boundary of stages is crossed by, to this pool's or another's: `SEND_F`, `RECV_B`, ..."""
    end = ENDS.get(type(op))
    direction = op.properties.get("direction") if end is not None else None
    if direction is None:
        return None
    assert isinstance(direction, StringAttr)
    return f"{end}_{direction.data[0].upper()}"


ENDS = {
    sched.StageSendOp: "SEND",
    sched.PoolSendOp: "SEND",
    sched.StageRecvOp: "RECV",
    sched.PoolRecvOp: "RECV",
}


def is_of_stage(op: Operation) -> bool:
    """Whether an op, or one in it, reduces gradients when its stage has done its last backward pass."""
    return any(stg.OF_STAGE in inner.properties for inner in op.walk())


def is_shared(op: Operation) -> bool:
    """Whether an op sums the gradients of a weight that several stages have: over their ranks, or those of its own rank."""
    return "tied" in op.properties or any(
        isinstance(operand.owner, sched.TakenOp) for operand in op.operands
    )


def whole_number(op: Operation, key: str, default: int = 0) -> int:
    """A whole number that a pass left on an op."""
    value = op.properties.get(key, op.attributes.get(key))
    return value.value.data if isinstance(value, IntegerAttr) else default


@dataclass
class Segment:
    """Straight-line ops of one task."""

    task: str
    number: int
    repeats: tuple[stg.RepeatOp, ...]
    ops: list[sched.NodeOp] = field(default_factory=list)

    @property
    def first(self) -> sched.NodeOp:
        return self.ops[0]

    def inputs(self) -> dict[SSAValue, None]:
        """The values that its ops read and do not make, in order."""
        own = set(self.ops)
        operands = (operand for op in self.ops for operand in op.operands)
        return {value: None for value in operands if behind_views(value) not in own}


def segments_of(program: stg.ProgramOp) -> dict[int, Segment]:
    """The segments of a program, by number."""
    found: dict[int, Segment] = {}
    for op, repeats in nodes_inside(program):
        if op.segment is not None:
            number = op.segment.number
            if number not in found:
                found[number] = Segment(op.segment.task, number, repeats)
            found[number].ops.append(op)
    return found


def nodes_inside(
    op: Operation, repeats: tuple[stg.RepeatOp, ...] = ()
) -> Iterator[tuple[sched.NodeOp, tuple[stg.RepeatOp, ...]]]:
    """The nodes in an op's regions, each with the repeats around it."""
    for region in op.regions:
        for block in region.blocks:
            for inner in block.ops:
                if is_node(inner):
                    yield inner, repeats
                elif isinstance(inner, stg.RepeatOp):
                    yield from nodes_inside(inner, (*repeats, inner))
                elif inner.regions:
                    yield from nodes_inside(inner, repeats)


def stage_values(module: ModuleOp, tasks: sched.TasksOp) -> dict[str, int]:
    """The numbers of sizes on a stage with these tasks, as if its layers were the first and its rank the first on each axis that they do not name."""
    counts = tasks.counts
    places = {f"{axis}{SUFFIX}": 0 for axis in mesh_of(module)}
    firsts = {dist.first_layer(name): 0 for name in counts}
    values = with_known(size_values(module), {**places, **counts, **firsts})
    parts = dims_by_place(module)
    return with_known(values, values_at(parts, values)) if parts else values


def scheduled(
    module: ModuleOp,
) -> Iterator[tuple[sched.TasksOp, dict[int, Segment], dict[str, int]]]:
    """The tasks of each kind of stage, with the segments of its program and the numbers of its sizes (`stage_values`)."""
    segments = {
        stg.text(each, "kind"): segments_of(each)
        for each in module.body.ops
        if isinstance(each, stg.ProgramOp)
    }
    for tasks in module.body.ops:
        if isinstance(tasks, sched.TasksOp):
            yield tasks, segments[tasks.kind.data], stage_values(module, tasks)


@dataclass
class RowFinder:
    """Finds the row that makes a value."""

    flow: Dataflow
    rows: Mapping[str, Rows]
    _known: dict[tuple[int, tuple[int, ...]], tuple[int, int]] = field(init=False)

    def __post_init__(self) -> None:
        self._known = {}
        for task, own in self.rows.items():
            number = TASK_NUMBER[task]
            columns = zip(own.segment.tolist(), own.path.tolist(), strict=True)
            for row, (segment, path) in enumerate(columns):
                self._known[segment, tuple(at for at in path if at >= 0)] = number, row

    def row_of(self, source: OpInstance) -> tuple[int, int] | None:
        """The number of a node's task, and its row."""
        op = source.op
        if not isinstance(op, sched.NodeOp) or op.segment is None:
            return None
        return self._known.get((op.segment.number, source.path))


def path_of(rows: Rows, row: int) -> tuple[int, ...]:
    """The iteration of each repeat around a row."""
    return tuple(at for at in rows.path[row].tolist() if at >= 0)
