"""When two ranks, or a rank under two numbers of microbatches, have the same moments in memory.

What is alive at a node depends on the task that runs, on how far its microbatch is, and on how many others are how far: on which
of its stages a microbatch did how many of its tasks; and on what each stage has of its parameters, where it frees them and gathers them
again. Two orders of tasks in which the same situations occur need the same memory with the same programs. Where every situation of one
occurs in another with as many microbatches or more at each point, it needs no more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from stagec.dialects.sched.tasks import COMPUTE_TASKS, GATHER_TASKS, TASKS, Order

Progress = tuple[int, ...]
"""Tasks of a microbatch that are done, for each stage of the rank."""

Running = tuple[str, int, Progress, tuple[int, ...], bool, tuple[str, ...]]
"""Task, stage, the microbatch's progress, how far the sums of gradients are, whether there is one microbatch, the last pass of each stage that gathers
parameters again."""

Others = frozenset[tuple[Progress, int]]
"""How many other microbatches are how far, of those that have begun and not ended."""

NONE_YET, SOME, ALL = range(3)
KEPT = 512
"""Orders whose situations are kept."""


@dataclass(frozen=True)
class OrderSignature:
    """The situations of an order."""

    situations: frozenset[tuple[Running, Others]]

    @cached_property
    def by_task(self) -> dict[Running, list[dict[Progress, int]]]:
        found: dict[Running, list[dict[Progress, int]]] = defaultdict(list)
        for running, others in self.situations:
            found[running].append(dict(others))
        return found

    def needs_no_more_than(self, other: OrderSignature) -> bool:
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
    stage: int
    microbatch: int
    pair: int
    """Tasks of the same number overlap."""


def progresses(slot: Slot) -> bool:
    """Whether a task is a step of its microbatch's way."""
    return slot.microbatch >= 0 and slot.task not in GATHER_TASKS


def sum_state(done: int, last: int, ends: bool = False) -> int:
    """How far a sum of gradients is, of which `done` of `last` terms are made, and one more if it `ends` now."""
    if done + ends >= last:
        return ALL
    return SOME if done else NONE_YET


def signature(tasks_in_order: Order, num_stages: int) -> OrderSignature:
    """The signature of a rank's order of tasks."""
    table = tasks_in_order.table[:, :3].astype(np.int32)
    joined = tasks_in_order.joined != 0
    return signature_of_table(table.tobytes(), joined.tobytes(), num_stages)


@lru_cache(maxsize=KEPT)
def signature_of_table(table: bytes, is_joined: bytes, num_stages: int) -> OrderSignature:
    """The same of its columns: programs that differ in much else have the same orders."""
    columns = np.frombuffer(table, np.int32).reshape(-1, 3).tolist()
    pairs = np.cumsum(~np.frombuffer(is_joined, bool)).tolist()
    order = [
        Slot(TASKS[task], stage, microbatch, pair)
        for (task, stage, microbatch), pair in zip(columns, pairs, strict=True)
    ]
    overlapping = {pair for pair, number in Counter(pairs).items() if number > 1}
    members: dict[int, list[Slot]] = defaultdict(list)
    for slot in order:
        if slot.pair in overlapping:
            members[slot.pair].append(slot)
    gathers = {slot.stage for slot in order if slot.task in GATHER_TASKS}
    tasks = Counter((slot.stage, slot.microbatch) for slot in order if progresses(slot))
    whole: dict[int, list[int]] = defaultdict(lambda: [0] * num_stages)
    for (stage, microbatch), number in tasks.items():
        whole[microbatch][stage] = number
    last = Counter(slot.stage for slot in order if slot.task in ("B", "W"))
    done: Counter[int] = Counter()
    at: dict[int, list[int]] = {m: [0] * num_stages for m in whole}
    begun: Counter[Progress] = Counter()
    found: set[tuple[Running, Others]] = set()
    alone = len(whole) == 1
    passed = [""] * num_stages
    labels: dict[int, str] = {}
    for slot in order:
        if not progresses(slot):
            if slot.task in GATHER_TASKS or slot.task == "reduce":
                sums = tuple(sum_state(done[c], last[c]) for c in range(num_stages))
                running = (slot.task, slot.stage, tuple(at.get(slot.microbatch, ())), sums)
                found.add(((*running, alone, tuple(passed)), frozenset(begun.items())))
            continue
        progress = at[slot.microbatch]
        before = tuple(progress)
        if begun[before] > 1:
            begun[before] -= 1
        else:
            begun.pop(before, None)
        ends = slot.task in ("B", "W")
        sums = tuple(
            sum_state(done[stage], last[stage], ends and stage == slot.stage)
            for stage in range(num_stages)
        )
        if slot.pair in members:
            # All that run at once, by how far they were before any of them ran.
            own = members.pop(slot.pair)
            label = " ".join(f"{each.task}:{each.stage} {at[each.microbatch]}" for each in own)
            labels[slot.pair] = label
        task = f"{slot.task} of {labels[slot.pair]}" if slot.pair in labels else slot.task
        running = (task, slot.stage, before, sums, alone, tuple(passed))
        found.add((running, frozenset(begun.items())))
        if slot.stage in gathers and slot.task in COMPUTE_TASKS:
            passed[slot.stage] = slot.task
        progress[slot.stage] += 1
        done[slot.stage] += ends
        if progress != whole[slot.microbatch]:
            begun[tuple(progress)] += 1
    return OrderSignature(frozenset(found))
