"""When two ranks, or a rank under two numbers of microbatches, have the same moments in memory.

What is alive at a node depends on the task that runs, on how far its microbatch is, and on how many others are how far: on which
of its stages a microbatch did how many of its tasks. Two orders of tasks in which the same situations occur need the same memory
with the same programs. Where every situation of one occurs in another with as many microbatches or more at each point, it needs
no more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from stagec.dialects.tasks import TASKS, Order

Progress = tuple[int, ...]
"""Tasks of a microbatch that are done, for each stage of the rank."""

Running = tuple[str, int, Progress, tuple[int, ...], bool]
"""Task, chunk, the microbatch's progress, how far the sums of gradients are, whether there is one microbatch."""

Others = frozenset[tuple[Progress, int]]
"""How many other microbatches are how far, of those that have begun and not ended."""

NONE_YET, SOME, ALL = range(3)


@dataclass(frozen=True)
class Signature:
    """The situations of an order."""

    situations: frozenset[tuple[Running, Others]]

    @cached_property
    def by_task(self) -> dict[Running, list[dict[Progress, int]]]:
        found: dict[Running, list[dict[Progress, int]]] = defaultdict(list)
        for running, others in self.situations:
            found[running].append(dict(others))
        return found

    def needs_no_more_than(self, other: Signature) -> bool:
        return all(
            any(
                all(larger.get(at, 0) >= number for at, number in own.items())
                for larger in other.by_task.get(running, ())
            )
            for running, owns in self.by_task.items()
            for own in owns
        )


class Slot(NamedTuple):
    """One task in an order: of which stage of the rank, and for which microbatch."""

    task: str
    chunk: int
    microbatch: int


def signature(tasks_in_order: Order, num_chunks: int) -> Signature:
    """Of a rank's order of tasks."""
    columns = tasks_in_order.table[:, :3].tolist()
    order = [Slot(TASKS[task], chunk, microbatch) for task, chunk, microbatch in columns]
    tasks = Counter((slot.chunk, slot.microbatch) for slot in order if slot.microbatch >= 0)
    whole: dict[int, list[int]] = defaultdict(lambda: [0] * num_chunks)
    for (chunk, microbatch), number in tasks.items():
        whole[microbatch][chunk] = number
    last = Counter(slot.chunk for slot in order if slot.task in ("B", "W"))
    done: Counter[int] = Counter()
    at: dict[int, list[int]] = {m: [0] * num_chunks for m in whole}
    begun: Counter[Progress] = Counter()
    found: set[tuple[Running, Others]] = set()
    alone = len(whole) == 1
    for slot in order:
        if slot.microbatch < 0:
            continue
        progress = at[slot.microbatch]
        before = tuple(progress)
        if begun[before] > 1:
            begun[before] -= 1
        else:
            begun.pop(before, None)
        ends = slot.task in ("B", "W")
        sums = tuple(
            ALL
            if number + (ends and chunk == slot.chunk) >= last[chunk]
            else SOME
            if number
            else NONE_YET
            for chunk, number in ((c, done[c]) for c in range(num_chunks))
        )
        found.add(((slot.task, slot.chunk, before, sums, alone), frozenset(begun.items())))
        progress[slot.chunk] += 1
        done[slot.chunk] += ends
        if progress != whole[slot.microbatch]:
            begun[tuple(progress)] += 1
    return Signature(frozenset(found))
