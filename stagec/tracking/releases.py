"""with_releases(): a program with a node of its own behind each node with which a tensor dies that it cannot read.

A tracker frees a tensor when its last reader ends, and a node cannot read what it writes, nor what is written by a node for
which it does not wait. So a node that does nothing reads what no other node can. It waits for the one behind which it stands and
for the writer, and no node waits for it. Those of each stream queue on a stream of their own: on that of their writers, what
comes behind them would have to wait for them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from stagec.arrays import Ints
from stagec.backend.program import Dep, Node, TraceProgram, TraceSegment
from stagec.dialects.sched.actions import Compute

RELEASE = "release"
"""The name of a node that only reads what nobody else reads."""


@dataclass(frozen=True)
class Released:
    """A program with releases. The release of a node is the one behind it."""

    program: TraceProgram
    position: Ints
    """Where each node of the program without releases is."""


def with_releases(program: TraceProgram, behind: Ints, writer: Ints) -> Released:
    """The program, with a release behind each of some nodes, which waits for some writers, too: those of the same places of `writer`."""
    first, nodes = program.first_node, np.unique(behind)
    has_release = np.zeros(int(first[-1]), np.int64)
    has_release[nodes] = 1
    position = np.arange(len(has_release)) + np.cumsum(has_release) - has_release
    instance = np.searchsorted(first, nodes, side="right") - 1
    node = nodes - first[instance]
    names = [
        program.segments[number].nodes[at].stream
        for number, at in zip(program.segment[instance].tolist(), node.tolist(), strict=True)
    ]
    width = program.slots.shape[1]
    slot_of = {stream: width + number for number, stream in enumerate(dict.fromkeys(names))}
    start = width + len(slot_of)
    awaited = awaited_by(program, behind, writer, start)
    made = with_longer_segments(program, instance, node, slot_of, awaited)
    num_far = max((len(each.far) for each in awaited.values()), default=0)
    slots = np.full((len(program.slots), start + num_far), -1, np.int64)
    slots[:, :width] = np.where(program.slots >= 0, position[program.slots], -1)
    slot = np.array([slot_of[name] for name in names], np.int64)
    link_queues(slots, made, instance, slot, position[nodes] + 1)
    for row, each in awaited.items():
        slots[row, start : start + len(each.far)] = position[each.far]
    return Released(replace(made, slots=slots), position)


@dataclass
class WaitedFor:
    """What the releases of an instance wait for besides."""

    far: list[int] = field(default_factory=list)
    """Nodes of other instances."""
    deps: dict[int, tuple[Dep, ...]] = field(default_factory=dict)
    """Of the release behind a node of the instance."""


def awaited_by(
    program: TraceProgram, behind: Ints, writer: Ints, slot: int
) -> dict[int, WaitedFor]:
    """What releases of each instance wait for besides the nodes behind which they stand. From `slot` on there is room for nodes of other instances."""
    first, found = program.first_node, defaultdict[int, WaitedFor](WaitedFor)
    pairs = np.unique(np.stack([behind, writer])[:, behind != writer], axis=1)
    instances = np.searchsorted(first, pairs, side="right") - 1
    for (node, other), (row, of) in zip(pairs.T.tolist(), instances.T.tolist(), strict=True):
        each = found[row]
        if of == row:
            dep = Dep(-1, other - int(first[row]))
        else:
            if other not in each.far:
                each.far.append(other)
            dep = Dep(slot + each.far.index(other), 0)
        at = node - int(first[row])
        each.deps[at] = (*each.deps.get(at, ()), dep)
    return found


Chosen = tuple[tuple[int, tuple[Dep, ...]], ...]
"""The nodes of a segment that have releases behind them, and for what these wait besides."""


def with_longer_segments(
    program: TraceProgram,
    instance: Ints,
    node: Ints,
    slot_of: Mapping[str, int],
    awaited: Mapping[int, WaitedFor],
) -> TraceProgram:
    """The program with releases in its segments, of which those of instances that have them behind other nodes are told apart. Its slots are as before."""
    chosen: dict[int, list[tuple[int, tuple[Dep, ...]]]] = {}
    for row, at in zip(instance.tolist(), node.tolist(), strict=True):
        besides = awaited[row].deps.get(at, ()) if row in awaited else ()
        chosen.setdefault(row, []).append((at, besides))
    keys = [
        (number, tuple(chosen.get(row, ()))) for row, number in enumerate(program.segment.tolist())
    ]
    found = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    segments = (
        with_releases_behind(program.segments[number], nodes, slot_of) for number, nodes in found
    )
    segment = np.array([found[key] for key in keys], np.int32)
    made = replace(program, segments=tuple(segments), segment=segment)
    return replace(made, ahead=ahead_of(program, made))


def with_releases_behind(
    segment: TraceSegment, chosen: Chosen, slot_of: Mapping[str, int]
) -> TraceSegment:
    """The segment, with a release behind each of the chosen nodes. `slot_of` has the slot of the release before it on each stream."""
    if not chosen:
        return segment
    besides = dict(chosen)
    place = [at + sum(each < at for each in besides) for at in range(len(segment.nodes))]
    before = {stream: Dep(slot, 0) for stream, slot in slot_of.items()}

    def moved(deps: tuple[Dep, ...]) -> tuple[Dep, ...]:
        return tuple(dep if dep.slot >= 0 else Dep(dep.slot, place[dep.node]) for dep in deps)

    nodes: list[Node] = []
    for at, node in enumerate(segment.nodes):
        nodes.append(
            replace(node, data_deps=moved(node.data_deps), ctrl_deps=moved(node.ctrl_deps))
        )
        if at in besides:
            awaited = (Dep(-1, place[at]), *moved(besides[at]))
            nodes.append(release_of(node, awaited, before[node.stream]))
            before[node.stream] = Dep(-1, place[at] + 1)
    far = [dep.slot + 1 for deps in besides.values() for dep in deps]
    num_slots = max(segment.num_slots, *(slot + 1 for slot in slot_of.values()), *far)
    return replace(segment, nodes=tuple(nodes), num_slots=num_slots)


def release_of(node: Node, awaited: tuple[Dep, ...], before: Dep) -> Node:
    """Stands behind a node of its segment, and behind the release before it."""
    return Node(
        RELEASE,
        node.phase,
        node.scope,
        Compute(0, 0),
        f"{RELEASE}.{node.stream}",
        data_deps=awaited,
        ctrl_deps=(before,),
        made_by="track-memory",
    )


def ahead_of(old: TraceProgram, made: TraceProgram) -> Ints | None:
    """How many nodes before its place each instance is numbered, so that instances are numbered in the order of those of `old`."""
    if old.ahead is None:
        return None
    first = made.first_node
    lengths = np.diff(first)
    order = np.argsort(old.first_number, kind="stable")
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(lengths[order]) - lengths[order]
    return first[:-1] - number


def link_queues(
    slots: Ints, program: TraceProgram, instance: Ints, slot: Ints, release: Ints
) -> None:
    """Fill in, for each instance and each stream of releases, the last one that is numbered before those of the instance.

    `release` has the positions of the releases; each is of an instance, and has a slot for the one before it on its stream.
    """
    order = np.lexsort((program.numbers(release), slot))
    before, after = order[:-1], order[1:]
    enters = (slot[after] == slot[before]) & (instance[after] != instance[before])
    before, after = before[enters], after[enters]
    slots[instance[after], slot[after]] = release[before]
