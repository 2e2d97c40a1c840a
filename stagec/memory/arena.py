"""Offsets in one arena for all buffers of a rank, as regular as its program, so that they are written as short as it is.

Buffers are placed in *frames*. Those that live within one run of a task, as temporaries do, have a frame of that task, in which they share bytes as their
lives allow; those that one task makes and another reads, as saved activations are, lie side by side in a frame of both. All microbatches have the same frames,
each somewhere else if they need them at once. Where every task runs once, all buffers are in one frame.

Within a frame, and among the frames of all microbatches, each gets the tightest gap that is free all its life, the largest first (as TensorFlow Lite's planner
does: Pisarchyk and Lee 2020, "greedy by size"), which needs all lifetimes beforehand: a compiler has them, an allocator at run time has not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from stagec.arrays import Ints, distinct_rows
from stagec.diagnostics import refused, span_of
from stagec.dialects import sched
from stagec.dialects.sched.tasks import PerRow
from stagec.memory.lifetimes import Lifetimes
from stagec.memory.plan import ClassPlan
from stagec.unrolling.rank import Arrangement


@dataclass(frozen=True)
class Arena:
    """`offset[i]` is where buffer i of the lifetimes begins."""

    offset: Ints
    num_bytes: int
    """Up to the end of the highest buffer."""
    live_peak_bytes: int
    """The most that is alive at once: no arena is smaller."""

    @property
    def fragmentation_bytes(self) -> int:
        return self.num_bytes - self.live_peak_bytes


def in_order(lives: Lifetimes, arrangement: Arrangement) -> tuple[Ints, Ints]:
    """The buffers in the order in which `sched.arena` lists them, and how many come to be in each task."""
    position = np.searchsorted(arrangement.first, lives.birth, side="right") - 1
    task_of_row = np.repeat(np.arange(len(arrangement.lengths)), arrangement.lengths)
    task = task_of_row[arrangement.order[position]]
    order = np.lexsort((lives.value, lives.stage, lives.birth, task))
    return order, np.bincount(task, minlength=len(arrangement.lengths))


def arena_op(plan: ClassPlan) -> sched.ArenaOp:
    """The arena of a class, as an op."""
    found = assign_offsets(plan.lives, plan.arrangement)
    order, lengths = in_order(plan.lives, plan.arrangement)
    offsets = PerRow(found.offset[order], lengths)
    return sched.ArenaOp(plan.name, found.num_bytes, found.live_peak_bytes, offsets)


def read_arena(op: sched.ArenaOp, plan: ClassPlan) -> Arena:
    """The arena that an op says. E0709 where it is about other buffers than there are."""
    order, lengths = in_order(plan.lives, plan.arrangement)
    said = op.offsets.data
    if not np.array_equal(said.lengths, lengths):
        message = f"`sched.arena`: `{plan.name}` has other buffers than those that are placed here"
        help_ = "run `place-buffers` after what changes the program"
        raise refused("E0709", message, span_of(op.location), help=help_)
    offset = np.empty(len(order), np.int64)
    offset[order] = said.numbers
    return Arena(offset, op.size.value.data, op.live.value.data)


@dataclass(frozen=True)
class BufferBlock:
    """Buffers that are placed relative to each other, the same in all microbatches."""

    buffers: Ints
    """Rows of the lifetimes."""
    relative: Ints
    """The offset of each in the frame."""
    num_bytes: int
    run: Ints
    """Of each, the number of its microbatch among those that have the frame."""
    birth: Ints
    """Of each of these microbatches, when it needs the frame."""
    death: Ints


MOST_PLACED = 4_096
"""Frames of microbatches that are placed one by one: that takes the square of their number. Of more each has an array of slots."""


def assign_offsets(lives: Lifetimes, arrangement: Arrangement) -> Arena:
    """Place every buffer of a rank class."""
    frames = list(frames_of(lives, arrangement))
    if sum(len(frame.birth) for frame in frames) > MOST_PLACED:
        base = in_slots(frames)
    else:
        base = one_by_one(frames)
    offset = np.zeros(len(lives), np.int64)
    for frame, bases in zip(frames, base, strict=True):
        offset[frame.buffers] = bases[frame.run] + frame.relative
    end = int((offset + lives.num_bytes).max(initial=0))
    return Arena(offset, end, int(lives.live_bytes().max(initial=0)))


def one_by_one(frames: Sequence[BufferBlock]) -> list[Ints]:
    """Where the frame of each microbatch begins."""
    counts = [len(frame.birth) for frame in frames]
    empty = np.zeros(0, np.int64)
    birth = np.concatenate([empty, *(frame.birth for frame in frames)])
    death = np.concatenate([empty, *(frame.death for frame in frames)])
    size = np.repeat(np.array([frame.num_bytes for frame in frames], np.int64), counts)
    placed = side_by_side(birth, death, size)
    return np.split(placed, np.cumsum(counts)[:-1]) if counts else []


def in_slots(frames: Sequence[BufferBlock]) -> list[Ints]:
    """Likewise, of frames that have as many slots as microbatches need them at once. Arrays of slots that are never needed together share bytes."""
    numbers = [slots(frame.birth, frame.death) for frame in frames]
    size = np.array(
        [frame.num_bytes * (1 + int(n.max())) for frame, n in zip(frames, numbers, strict=True)]
    )
    base = np.zeros(len(frames), np.int64)
    done: list[int] = []
    for i in np.argsort(-size, kind="stable").tolist():
        met = [j for j in done if meet(frames[i], frames[j])]
        base[i] = tightest(base[met], size[met], int(size[i]))
        done.append(i)
    pairs = zip(frames, numbers, strict=True)
    return [base[i] + number * frame.num_bytes for i, (frame, number) in enumerate(pairs)]


def frames_of(lives: Lifetimes, arrangement: Arrangement) -> Iterator[BufferBlock]:
    if not len(lives):
        return
    kinds = arrangement.run.order.table[:, :2]
    distinct, _, kind = distinct_rows(kinds)
    everything = np.arange(len(lives))
    if len(distinct) == len(kinds):
        offset = side_by_side(lives.birth, lives.death, lives.num_bytes)
        end = int((offset + lives.num_bytes).max())
        once = np.zeros(len(lives), np.int64)
        always = np.array([[lives.birth.min()], [lives.death.max()]])
        yield BufferBlock(everything, offset, end, once, *always)
        return
    task_of_row = np.repeat(np.arange(len(arrangement.lengths)), arrangement.lengths)

    def task_at(nodes: Ints) -> Ints:
        position = np.searchsorted(arrangement.first, nodes, side="right") - 1
        return task_of_row[arrangement.order[position]]

    begun, ended = task_at(lives.birth), task_at(lives.death)
    # Instances of one value in all microbatches have one place: the first tells between which tasks.
    columns = np.stack((lives.stage, lives.value, lives.kind, lives.microbatch < 0), axis=1)
    _, first, group = distinct_rows(columns)
    is_local = np.ones(len(first), bool)
    np.logical_and.at(is_local, group, begun == ended)
    local, first = is_local[group], first[group]
    ends = np.where(local, -1, kind[ended[first]])
    _, _, which = distinct_rows(np.stack((kind[begun[first]], ends), axis=1))
    rank = ranks(arrangement)
    for number in range(int(which.max()) + 1):
        own = np.flatnonzero(which == number)
        yield frame_of(lives, own, group[own], rank if local[own[0]] else None)


def ranks(arrangement: Arrangement) -> Callable[[Ints], Ints]:
    """The places of nodes among those of their own run of a task."""
    task_of_row = np.repeat(np.arange(len(arrangement.lengths)), arrangement.lengths)
    task = task_of_row[arrangement.order]
    counts = np.diff(arrangement.first)
    by_task = np.argsort(task, kind="stable")
    before = np.cumsum(counts[by_task]) - counts[by_task]
    begins = np.flatnonzero(np.diff(task[by_task], prepend=-1))
    start = np.repeat(before[begins], np.diff(np.append(begins, len(by_task))))
    own = np.empty(len(task), np.int64)
    own[by_task] = before - start

    def rank(nodes: Ints) -> Ints:
        position = np.searchsorted(arrangement.first, nodes, side="right") - 1
        return own[position] + nodes - arrangement.first[position]

    return rank


def frame_of(
    lives: Lifetimes, own: Ints, group: Ints, rank: Callable[[Ints], Ints] | None
) -> BufferBlock:
    """Place some buffers relative to each other. Of a value all microbatches have the same place. Without `rank` none shares bytes with another."""
    birth, death = lives.birth[own], lives.death[own]
    _, which = np.unique(group, return_inverse=True)
    size = highest(which, lives.num_bytes[own])
    if rank is None:
        relative = np.cumsum(size) - size
    else:
        # In all runs at once: what is alive together in one of them is apart.
        relative = side_by_side(-highest(which, -rank(birth)), highest(which, rank(death)), size)
    _, run = np.unique(lives.microbatch[own], return_inverse=True)
    return BufferBlock(
        buffers=own,
        relative=relative[which],
        num_bytes=int((relative + size).max()),
        run=run,
        birth=-highest(run, -birth),
        death=highest(run, death),
    )


def highest(group: Ints, numbers: Ints) -> Ints:
    """The highest number of each group."""
    found = np.full(int(group.max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(found, group, numbers)
    return found


def slots(birth: Ints, death: Ints) -> Ints:
    """For each of some intervals the lowest slot that is free all its life."""
    found = np.zeros(len(birth), np.int64)
    free: list[int] = []
    taken: list[tuple[int, int]] = []
    count = 0
    for i in np.argsort(birth, kind="stable").tolist():
        while taken and taken[0][0] < birth[i]:
            heappush(free, heappop(taken)[1])
        if not free:
            heappush(free, count)
            count += 1
        found[i] = heappop(free)
        heappush(taken, (int(death[i]), int(found[i])))
    return found


def meet(one: BufferBlock, other: BufferBlock) -> bool:
    """Whether both are needed at some time."""
    order = np.argsort(other.birth, kind="stable")
    begins, ends = other.birth[order], np.maximum.accumulate(other.death[order])
    # Of those that begin before one of ours ends, the last to end.
    last = np.searchsorted(begins, one.death, side="right") - 1
    return bool(((last >= 0) & (ends[last] >= one.birth)).any())


def side_by_side(birth: Ints, death: Ints, size: Ints) -> Ints:
    """Offsets of buffers with these lives, largest first."""
    order = np.lexsort((birth, -size))
    birth, death, size = birth[order], death[order], size[order]
    placed = np.zeros(len(order), np.int64)
    for i in range(len(order)):
        together = np.flatnonzero((birth[:i] <= death[i]) & (birth[i] <= death[:i]))
        placed[i] = tightest(placed[together], size[together], int(size[i]))
    offset = np.zeros(len(order), np.int64)
    offset[order] = placed
    return offset


def tightest(start: Ints, size: Ints, wanted: int) -> int:
    """The start of the smallest gap between blocks that holds `wanted` bytes; behind all if none does."""
    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    ends = np.maximum.accumulate(start[order] + size[order])
    before = np.concatenate([[0], ends[:-1]])
    gaps = start[order] - before
    fits = np.flatnonzero(gaps >= wanted)
    if not len(fits):
        return int(ends[-1])
    return int(before[fits[np.argmin(gaps[fits])]])
