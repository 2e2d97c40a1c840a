"""plan_memory(): what each rank class keeps in memory, and when it is most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from stagec.diagnostics import refused, span_of
from stagec.dialects import sched
from stagec.dialects.dist.stages import is_first_layer
from stagec.dialects.memory import Kind, MemoryLevel
from stagec.dialects.types import TensorType, tensor_of
from stagec.memory.lifetimes import Lifetimes, lifetimes
from stagec.memory.static import StaticBytes, StoredBytes, StoredWeights, by_kind, stored_by
from stagec.memory.value_table import About, ValueTable, value_table
from stagec.unrolling.rank import Arrangement, Arrangements, RankRun, StageRun

MOST_BYTES = 2**62
"""The most bytes of all buffers of a step: sums of them have 64 bits."""


@dataclass(frozen=True)
class Moment:
    """A node of the program, for people."""

    node: int
    task: str
    """`F`, `B`, ... of the microbatch; `step` outside of it."""
    stage: int
    """Virtual stage; -1 without a pipeline."""
    microbatch: int
    layer: int
    op: str
    scope: str

    def __str__(self) -> str:
        where = f" of microbatch {self.microbatch}" if self.microbatch >= 0 else ""
        where += f" on stage {self.stage}" if self.stage >= 0 else ""
        layer = f", layer {self.layer}" if self.layer >= 0 else ""
        scope = f" in {self.scope}" if self.scope else ""
        return f"{self.task}{where}{layer}: {self.op}{scope}"


@dataclass(frozen=True)
class BufferGroup:
    """The sum of all buffers of one kind that come from one place in the model."""

    kind: Kind
    name: str
    scope: str
    location: str
    num_bytes: int
    count: int

    @property
    def place(self) -> str:
        """`contract in Block.SwiGLU, model.stg:26 (64 buffers)`."""
        inside = f" in {self.scope}" if self.scope and self.scope not in self.name else ""
        line = f", {self.location}" if self.location else ""
        return f"{self.name}{inside}{line} ({self.count} buffer{'s' * (self.count != 1)})"


class TensorBuffer(NamedTuple):
    """A buffer, and the tensor that it holds."""

    kind: Kind
    type: TensorType
    """On the device, in closed form; `values` are the numbers of its sizes."""
    values: Mapping[str, int]
    num_bytes: int


@dataclass(frozen=True)
class ClassPlan:
    """The memory of one rank class."""

    name: str
    where: Mapping[str, tuple[int, ...]]
    arrangement: Arrangement
    stages: Sequence[StageRun]
    saved_bytes: tuple[int, ...]
    """Saved activations of one microbatch, for each virtual stage of the rank."""
    lives: Lifetimes
    host_lives: Lifetimes
    """The lifetimes of what is stored on the host, or on NVMe, for a while."""
    tables: Sequence[ValueTable]
    stored: Sequence[StoredBytes]
    """What stays from step to step, on the device and beyond it."""
    peak_bytes: int
    peak: Moment

    @cached_property
    def static(self) -> StaticBytes:
        """What of that is on the device."""
        return StaticBytes(
            by_kind(each for each in self.stored if each.level == MemoryLevel.DEVICE)
        )

    @cached_property
    def always(self) -> Sequence[StoredBytes]:
        """What is on the device all the time: parameters, master weights, optimizer state."""
        return always_at(self.stored, MemoryLevel.DEVICE)

    @cached_property
    def always_bytes(self) -> int:
        return sum(each.num_bytes for each in self.always)

    @property
    def host_bytes(self) -> dict[Kind, int]:
        """The memory of the host by kind; of what is stored for a while, the most at once."""
        return self.with_most(MemoryLevel.HOST, Kind.HOST)

    @property
    def nvme_bytes(self) -> dict[Kind, int]:
        """What is on NVMe, by kind; of what is written for a while, the most at once."""
        return self.with_most(MemoryLevel.NVME, Kind.NVME)

    def with_most(self, level: MemoryLevel, kind: Kind) -> dict[Kind, int]:
        """What is at a level all the time, and the most of what is there for a while."""
        kept, lives = by_kind(always_at(self.stored, level)), self.host_lives
        most = int(lives.live_bytes(np.flatnonzero(lives.kind == kind)).max(initial=0))
        return {kind: number for kind, number in {**kept, kind: most}.items() if number}

    def timeline(self) -> np.ndarray:
        """Bytes alive at each node."""
        return self.lives.live_bytes() + self.always_bytes

    def timeline_by_kind(self) -> dict[Kind, np.ndarray]:
        found: dict[Kind, np.ndarray] = {}
        always = by_kind(self.always)
        for kind in Kind:
            live = self.lives.live_bytes(np.flatnonzero(self.lives.kind == kind))
            series = live + always.get(kind, 0)
            if series.any():
                found[kind] = series
        return found

    def at_peak(self) -> dict[Kind, int]:
        """Bytes by kind when it is most."""
        alive = self.lives.alive_at(self.peak.node)
        sums = np.bincount(self.lives.kind[alive], self.lives.num_bytes[alive], minlength=len(Kind))
        always = by_kind(self.always)
        return {kind: int(sums[kind]) + always.get(kind, 0) for kind in Kind}

    def parts_at_peak(self) -> list[BufferGroup]:
        """What memory consists of when it is most, by kind, place in the model and op; largest first."""
        sizes: dict[tuple[Kind, str, str, str], list[int]] = defaultdict(lambda: [0, 0])
        for row in self.lives.alive_at(self.peak.node).tolist():
            kind = Kind(int(self.lives.kind[row]))
            said = self.about(row)
            total = sizes[kind, said.op, said.scope, said.location]
            total[0] += int(self.lives.num_bytes[row])
            total[1] += 1
        for each in self.always:
            total = sizes[each.kind, each.path, each.scope, each.location]
            total[0] += each.num_bytes
            total[1] += 1
        parts = [BufferGroup(*key, *total) for key, total in sizes.items()]
        return sorted(parts, key=lambda part: -part.num_bytes)

    def tensors_at_peak(self) -> Iterator[TensorBuffer]:
        """The buffers that there are when memory is most, without what stays from step to step."""
        for row in self.lives.alive_at(self.peak.node).tolist():
            stage = int(self.lives.stage[row])
            result = self.tables[stage].results[int(self.lives.value[row])]
            yield TensorBuffer(
                Kind(int(self.lives.kind[row])),
                tensor_of(result.type),
                self.stages[stage].at(int(self.lives.microbatch[row])).values,
                int(self.lives.num_bytes[row]),
            )

    def about(self, row: int) -> About:
        table = self.tables[int(self.lives.stage[row])]
        return table.abouts[int(table.about[int(self.lives.value[row])])]


def plan_memory(
    runs: Sequence[RankRun],
    arrangements: Arrangements | None = None,
    made: dict[object, ValueTable] | None = None,
) -> list[ClassPlan]:
    """The memory of every rank class. `made` keeps the tables of layouts for whom asks again."""
    arranged = arrangements or Arrangements()
    made = {} if made is None else made
    weights = StoredWeights()
    return [plan_class(arranged.of(run), made, weights) for run in runs]


def plan_class(
    arrangement: Arrangement, made: dict[object, ValueTable], weights: StoredWeights
) -> ClassPlan:
    """`made` has the tables of layouts that other classes share, `weights` what each program stores."""
    run = arrangement.run
    tables: list[ValueTable] = []
    for stage in run.stages:
        # Which layers a stage has makes no difference to sizes, unless each layer loads its experts in its own way.
        numbers = frozenset(
            (name, number)
            for name, number in stage.values.items()
            if stage.layout.loads.loads or not is_first_layer(name)
        )
        key = (stage.layout, numbers)
        if key not in made:
            other = made.get(stage.layout)
            if other is not None and other.holds_for_all:
                made[key] = other.with_numbers(stage)
            else:
                made[key] = made[stage.layout] = value_table(stage)
        tables.append(made[key])
    everything = lifetimes(arrangement, tables)
    if everything.num_bytes.sum(dtype=float) > MOST_BYTES:
        message = f"the buffers of a rank ({run.name}) add up to more than can be counted"
        help_ = "look for a size of one digit too many"
        raise refused("E0216", message, span_of(run.program.location), help=help_)
    lives = everything.select(everything.kind < Kind.HOST)
    host_lives = everything.select(everything.kind >= Kind.HOST)
    stored = stored_by(run.stages, weights)
    always = sum(each.num_bytes for each in always_at(stored, MemoryLevel.DEVICE))
    live = lives.live_bytes()
    node = int(np.argmax(live)) if len(live) else 0
    return ClassPlan(
        name=run.name,
        where=run.where,
        arrangement=arrangement,
        stages=run.stages,
        saved_bytes=saved_bytes(lives, len(tables)),
        lives=lives,
        host_lives=host_lives,
        tables=tables,
        stored=stored,
        peak_bytes=always + (int(live[node]) if len(live) else 0),
        peak=moment(arrangement, node),
    )


def always_at(rows: Iterable[StoredBytes], level: MemoryLevel) -> list[StoredBytes]:
    """What of that is at a level all the time. Gradients have lifetimes of their own."""
    return [each for each in rows if each.is_always and each.level == level]


def saved_bytes(lives: Lifetimes, num_stages: int) -> tuple[int, ...]:
    """The bytes that the first microbatch of each stage saves for its backward pass."""
    saved = lives.kind == Kind.SAVED
    found: list[int] = []
    for stage in range(num_stages):
        own = saved & (lives.stage == stage)
        first = lives.microbatch[own].min() if own.any() else 0
        found.append(int(lives.num_bytes[own & (lives.microbatch == first)].sum()))
    return tuple(found)


def moment(arrangement: Arrangement, node: int) -> Moment:
    """What runs at a node."""
    run = arrangement.run
    row, at = arrangement.node_at(node)
    number, _ = arrangement.task_at(row)
    task, stage, microbatch = run.task_name(number)
    body = arrangement.bodies[int(arrangement.body[row])].body
    op = body.nodes[at]
    assert isinstance(op, sched.NodeOp)
    return Moment(
        node=node,
        task=task,
        stage=run.stages[stage].stage if run.axis else -1,
        microbatch=microbatch,
        layer=int(arrangement.layer(run.stages)[row]),
        op=op.node_name,
        scope=body.scope(at),
    )
