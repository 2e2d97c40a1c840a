"""What the backend is given: one program per rank class, still rolled.

A `TraceProgram` is a list of *segments* (straight-line node templates) and a table of *instances*
(which segment runs when, for which layer and microbatch). Nodes of an instance refer to nodes of
other instances through *slots*: numbers that each instance supplies, as arguments are to a
function. Nothing here depends on a rank: groups are named by mesh axes, peers by a shift along
an axis. The backend unrolls instances into records and evaluates ranks with numpy, last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from stagec.arrays import distinct
from stagec.backend.bodies import Bodies
from stagec.diagnostics import Span
from stagec.dialects.sched import COMPUTE_STREAM
from stagec.dialects.sched.actions import Compute, NodeAction, Sum


@dataclass(frozen=True, slots=True)
class Mesh:
    """Named grid of devices. `axes` from the slowest-varying in rank order to the fastest."""

    axes: tuple[str, ...]
    sizes: tuple[int, ...]

    @staticmethod
    def of(sizes: Mapping[str, int]) -> Mesh:
        """The grid of these axes, each with its size."""
        return Mesh(tuple(sizes), tuple(sizes.values()))

    @property
    def num_ranks(self) -> int:
        product = 1
        for size in self.sizes:
            product *= size
        return product

    def size(self, axis: str) -> int:
        return self.sizes[self.axes.index(axis)]

    def stride(self, axis: str) -> int:
        """Distance in ranks between neighbours along `axis`."""
        stride = 1
        for size in self.sizes[self.axes.index(axis) + 1 :]:
            stride *= size
        return stride


class Dep(NamedTuple):
    """A node that must end first: `slot` < 0 is this segment's own node `node`;
    otherwise the instance's argument number `slot` (which may be none)."""

    slot: int
    node: int


SAME_LAYER = -2
"""The layer of a tensor's name is that of the instance that names it."""


@dataclass(frozen=True, slots=True)
class TraceTensor:
    """A tensor that a node reads or writes, and what its name is made of.

    A name is unique on its rank: the id of the node that writes it and the number of the tensor among those that the node
    writes, or, for what stays from step to step, the label and a layer.
    """

    label: str
    num_bytes: int
    writer: Dep | int | None = None
    """The node that writes it; by its number where a template can say no more; nothing for what stays."""
    output: int = 0
    layer: int = -1
    """The layer of what stays; -1 for none."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node template.

    `phase` is `fwd`, `bwd`, `recompute`, `p2p`, `grad_reduce`, `optim`. `op` is the op's name
    (`contract`, `all_gather`), `scope` the path in the model (`Block.Attention.wq`), `stream` what
    it queues on (`compute`, or `comm.tp`). `location` is `file:line:column`, `made_by` the pass
    that made it.
    """

    op: str
    phase: str
    scope: str
    action: NodeAction
    stream: str
    data_deps: tuple[Dep, ...] = ()
    ctrl_deps: tuple[Dep, ...] = ()
    location: str = ""
    made_by: str = ""
    serial: bool = False
    """A communication that computation waits for, and that waits for computation."""
    told: bool = False
    """What it makes are sizes of what comes behind it, which the host has to know before it launches that."""
    checked: bool = False
    """The host waits for the computation before it, of which it reads a norm, before it launches it."""
    leaves_units: bool = False
    """Products beside it leave it the multiprocessors that it takes, or it takes none."""
    pieces: int = 1
    """The number of pieces of a product, or of a collective, of which this is one. A product's kernel has the sizes of the whole."""
    inputs: tuple[TraceTensor, ...] | None = None
    """The tensors that it reads; nothing where they are not tracked."""
    outputs: tuple[TraceTensor, ...] | None = None
    duration_us: int = 0
    """What a trace says that it takes; 0 where it does not say."""
    sizes: tuple[Sum, ...] = ()
    """In a series of iterations: what the numbers of its action are; none where all iterations have the same. Of computation FLOPs and bytes, of a
    collective bytes before and after, of a transfer or a copy bytes."""
    durations: Sum | None = None
    """In a series whose traces say what nodes take: the name of it, in whole µs, in place of `duration_us`."""

    @property
    def computes(self) -> bool:
        """Whether it is computation that other computation waits for: what a kernel that communicates forwards is none."""
        return isinstance(self.action, Compute) and self.stream == COMPUTE_STREAM

    @property
    def span(self) -> Span | None:
        """Its place in the model, where that is known."""
        file, *place = self.location.rsplit(":", 2)
        return Span.point(file, *map(int, place)) if place else None


@dataclass(frozen=True, slots=True)
class TraceSegment:
    """Nodes that always run together, in issue order. Each instance has `num_slots` arguments.

    `task` is the task of the schedule that they are part of: `F`, `B` (or its halves `I` and `W`), `SEND_F`, ...; `pre` and `step`
    before and after all microbatches.
    """

    name: str
    nodes: tuple[Node, ...]
    num_slots: int
    task: str = ""


@dataclass(frozen=True, eq=False)
class Series:
    """Iterations of serving, one after the other, of which each runs the same program with other numbers."""

    count: int
    numbers: Mapping[Sum, np.ndarray]
    """What the sizes of nodes are in each iteration."""
    bodies: Bodies | None = None
    """The bodies of a program that has several iterations, each of which stands for all that are like it."""


@dataclass(frozen=True)
class TraceProgram:
    """One rank class. All arrays have one row per instance, in issue order.

    `slots[i, k]` is the absolute position of a node in the unrolled program (instances in order,
    nodes in order within each), or -1 for none; rows are padded with -1 to the widest segment.
    """

    segments: tuple[TraceSegment, ...]
    segment: np.ndarray  # int32 [n]
    slots: np.ndarray  # int32, or int64 where others are added, [n, max_slots]
    layer: np.ndarray  # int32 [n], -1: not in a layer
    microbatch: np.ndarray  # int32 [n], -1: once per step
    stage: np.ndarray  # int32 [n], virtual stage; -1: none
    tag: np.ndarray  # int64 [n], of the sends and receives
    ahead: np.ndarray | None = (
        None  # int64 [n], how many nodes before its place an instance is numbered
    )
    series: Series | None = None
    """Where the program is one iteration of several."""

    @property
    def num_iterations(self) -> int:
        return 1 if self.series is None else self.series.count

    @property
    def num_nodes(self) -> int:
        """The number of nodes of all iterations."""
        if self.series is not None and self.series.bodies is not None:
            return self.series.bodies.total(self.first_node)
        return int(self.first_node[-1]) * self.num_iterations

    @property
    def first_number(self) -> np.ndarray:
        """The number of each instance's first node: devices issue nodes in ascending order of these.

        Positions are those in which a host issues nodes. A gather of parameters that begins before what stands in
        front of it has a lower number than that.
        """
        first = self.first_node[:-1]
        return first if self.ahead is None else first - self.ahead

    def position(self, number: int) -> int:
        """The position of the node with a number."""
        if self.ahead is None:
            return number
        instance = int(np.searchsorted(np.sort(self.first_number), number, side="right")) - 1
        instance = int(np.argsort(self.first_number)[instance])
        return number + int(self.ahead[instance])

    def numbers(self, positions: np.ndarray) -> np.ndarray:
        """The numbers of nodes at these positions."""
        if self.ahead is None:
            return positions
        instance = np.searchsorted(self.first_node, positions, side="right") - 1
        return positions - self.ahead[instance]

    def nodes_that_run(self) -> Iterator[Node]:
        """The node templates that run at least once."""
        for number in distinct(self.segment).tolist():
            yield from self.segments[number].nodes

    @property
    def first_node(self) -> np.ndarray:
        """Absolute position of each instance's first node; one more row holds the total."""
        lengths = np.array([len(s.nodes) for s in self.segments], dtype=np.int64)[self.segment]
        return np.concatenate([[0], np.cumsum(lengths)])


@dataclass(frozen=True)
class RankClass:
    """The ranks that share a program: those with coordinates in `where`, for each axis named."""

    name: str
    where: dict[str, tuple[int, ...]]
    program: TraceProgram


@dataclass(frozen=True)
class TraceSet:
    """A whole job: every rank belongs to exactly one class."""

    model: str
    mesh: Mesh
    classes: tuple[RankClass, ...]
    is_training: bool = False
    """Whether a step trains, and does not only evaluate or serve."""
    attributes: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class SeriesTraces:
    """A series of iterations that are not all of one program."""

    parts: tuple[TraceSet, ...]
    """The trace sets of one program each, in their order."""
    which: np.ndarray
    """int64 [iterations]: the part that each is of."""
    handed: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """For a pool, int64 [n, iterations]: which handover of the job each handover of an iteration is."""
    channels: int = 0
    """For a pool: the channels of a handover. Those of the n-th one of an iteration are n times as far."""

    @property
    def mesh(self) -> Mesh:
        return self.parts[0].mesh


@dataclass(frozen=True)
class PooledTraces:
    """A job of several pools, by name. The ranks of the first come first; each has a mesh of its own."""

    pools: tuple[tuple[str, TraceSet], ...]

    @property
    def firsts(self) -> dict[str, int]:
        """The first rank of each pool."""
        return {name: self.num_ranks_before(name) for name, _ in self.pools}

    @property
    def num_ranks(self) -> int:
        return sum(traces.mesh.num_ranks for _, traces in self.pools)

    def num_ranks_before(self, name: str) -> int:
        names = [each for each, _ in self.pools]
        return sum(traces.mesh.num_ranks for _, traces in self.pools[: names.index(name)])


@dataclass(frozen=True)
class PoolSeries:
    """A job of several pools that each run a series of iterations."""

    pools: tuple[tuple[str, SeriesTraces], ...]

    @property
    def is_together(self) -> bool:
        """Whether all pools compute each iteration together: there are no handovers from one to another."""
        return not any(each.channels for _, each in self.pools)

    @property
    def iterations(self) -> Iterator[PooledTraces]:
        """One of each program, where pools compute them together."""
        for parts in zip(*(each.parts for _, each in self.pools), strict=True):
            names = (name for name, _ in self.pools)
            yield PooledTraces(tuple(zip(names, parts, strict=True)))
