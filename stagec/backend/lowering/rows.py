"""What a task consists of: rows, and the runs of ops that they are made from."""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Operation, SSAValue

from stagec.backend.lowering.dataflow import Path, Source, behind_views, is_node
from stagec.dialects import sched, stg

TASK_OF_PHASE = {
    "fwd": "F",
    "recompute": "B",
    "bwd": "B",
    "wgrad": "B",
    "grad_reduce": "B",
}
"""The task that ops of a phase in the microbatch loop belong to when the backward pass is one piece."""


TAKEN = "taken "
"""With the path of a weight: the task of what other stages of the rank give."""


@dataclass(frozen=True, slots=True)
class Place:
    """A node: in which task, which row of it, which node of the row."""

    task: str
    row: int
    node: int
    chunk: int = -1
    """Which chunk of the rank; -1: the one that it is in."""


STAYS, WHEN_READY, AFTER_BACKWARD = range(3)


@dataclass
class Row:
    """One run of a segment. `arguments` has the place behind each slot, or nothing."""

    segment: int
    layer: int
    arguments: list[Place | None]
    lag: int = -1
    """For a gather of parameters: how many gathers early it may begin; -1: no gather."""
    moves: int = STAYS
    """Whether a reduction of a gradient is issued as soon as that is ready, or after the backward pass."""
    repeats: tuple[stg.RepeatOp, ...] = ()
    """The repeats around it."""
    path: Path = ()
    """Which iteration of each."""


@dataclass
class Task:
    """Rows in issue order."""

    name: str
    rows: list[Row] = field(default_factory=list)


@dataclass
class Run:
    """Straight-line ops that become one segment, and the repeats around them."""

    ops: list[Operation]
    repeats: tuple[stg.RepeatOp, ...]
    inputs: list[SSAValue] = field(default_factory=list)
    """The values behind the segment's slots, in order."""
    prefetch: int = 0
    """How many iterations of its repeat ahead it is issued."""
    segment: int = -1
    by_layer: dict[int, int] = field(default_factory=dict)
    """The segments of layers, where those have other numbers."""


@dataclass
class Bucket:
    """Reductions that will be one collective."""

    first: sched.CollectiveOp
    is_first: bool = True
    members: list[Source] = field(default_factory=list)
    num_bytes: int = 0

    @property
    def limit(self) -> int:
        return attribute(self.first, "first_bucket_bytes" if self.is_first else "bucket_bytes")


def attribute(op: Operation, key: str, default: int = 0) -> int:
    """A whole number that a pass left on an op."""
    value = op.attributes.get(key) or op.properties.get(key)
    return value.value.data if isinstance(value, IntegerAttr) else default


def stands_alone(op: Operation) -> bool:
    """Whether an op is a row of its own, to be issued apart from its neighbours."""
    keys = ("prefetch", "lag", "bucket_bytes", "apart", "tied")
    return any(key in op.attributes or key in op.properties for key in keys)


def begins_run(op: Operation, last: Operation) -> bool:
    """Whether an op is not issued with the one before it: it reduces a gradient, or follows an FSDP unit whose gradients may go first."""
    return stg.FOLLOWS_UNIT in op.attributes or (is_node(op) and moves(op) != moves(last))


def transfer_task(op: sched.StageSendOp | sched.StageRecvOp) -> str:
    """The schedule's action that a transfer belongs to: `SEND_F`, `RECV_B`, ..."""
    end = "SEND" if isinstance(op, sched.StageSendOp) else "RECV"
    return f"{end}_{op.direction.data[0].upper()}"


TRANSFER_TASKS = ("RECV_F", "SEND_F", "RECV_B", "SEND_B")


def moves(op: Operation) -> int:
    """How a row of this op is moved from its place in the program."""
    if stg.phase_of(op) != "grad_reduce" or "tied" in op.attributes:
        # Ranks of several stages reduce a tied weight: each when all its transfers are done.
        return STAYS
    return AFTER_BACKWARD if "late" in op.attributes else WHEN_READY


def halves(run: Run, following: stg.RepeatOp) -> list[Run]:
    """A run before layers that prefetch, cut where it begins to read parameters of its own unit.

    The first layers' parameters are gathered as the backward pass of the unit before them begins, as FSDP2 does in the
    hook of that unit; the gradient of a loss comes before.
    """
    if not any(attribute(op, "prefetch") for op in following.body.block.ops):
        return [run]
    first = next((i for i, op in enumerate(run.ops) if reads_gathered(op)), 0)
    if not first:
        return [run]
    return [Run(run.ops[:first], run.repeats), Run(run.ops[first:], run.repeats)]


def reads_gathered(op: Operation) -> bool:
    """Whether an operand is a parameter that was gathered for its unit."""
    for value in op.operands:
        owner = behind_views(value)
        if isinstance(owner, sched.CollectiveOp) and {"lag", "prefetch"} & owner.attributes.keys():
            return True
    return False
