"""Compare the memory of two orders of tasks without computing it: of two ranks, or of one rank under two numbers of microbatches.

Which buffers are alive at a node follows from a *situation*: the task that runs, how far its microbatch is (how many of its tasks it has done on each
stage of the rank), how many other microbatches have come how far, and, where stages free their parameters and gather them again, which parameters each
stage has. With the same programs, two orders in which the same situations occur need the same memory. An order needs no more memory than another one if,
for each of its situations, the other has one with the same task and at least as many microbatches at each point.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from stagec.dialects.sched.tasks import COMPUTE_TASKS, GATHER_TASKS, TASKS, Order

Progress = tuple[int, ...]
"""How many tasks of a microbatch are done, on each stage of the rank."""

Running = tuple[str, int, Progress, tuple[int, ...], bool, tuple[str, ...]]
"""The part of a situation that is about the running task: the task, its stage, the progress of its microbatch before the task, for each stage how far its
sum of gradients is (`gradient_sum_state`), whether the step has one microbatch only, and for each stage that gathers parameters again, its last task."""

Others = frozenset[tuple[Progress, int]]
"""The part of a situation that is about the other microbatches that have begun and not ended: for each progress, how many have come so far."""

NONE_YET, SOME, ALL = range(3)
MOST_KEPT_ORDERS = 512
"""How many orders of tasks have their signatures cached."""


@dataclass(frozen=True)
class OrderSignature:
    """All situations that occur in an order of tasks, each once. Orders with equal signatures need equal memory."""

    situations: frozenset[tuple[Running, Others]]

    @cached_property
    def others_by_running(self) -> dict[Running, list[dict[Progress, int]]]:
        """For each running task, how many other microbatches have come how far: an entry for each situation with that task."""
        found: dict[Running, list[dict[Progress, int]]] = defaultdict(list)
        for running, others in self.situations:
            found[running].append(dict(others))
        return found

    def needs_no_more_than(self, other: OrderSignature) -> bool:
        """Whether each situation here occurs in `other` with at least as many microbatches at each point. Then the order needs no more memory."""
        return all(
            any(
                all(larger.get(at, 0) >= number for at, number in own.items())
                for larger in other.others_by_running.get(running, ())
            )
            for running, owns in self.others_by_running.items()
            for own in owns
        )


class OrderedTask(NamedTuple):
    """One entry of an order of tasks: the task, the stage of the rank that it belongs to, and its microbatch (-1: it runs once per step)."""

    task: str
    stage: int
    microbatch: int
    pair: int
    """Tasks with the same number run at the same time."""


def progresses(slot: OrderedTask) -> bool:
    """Whether a task brings its microbatch further. Tasks that run once per step and gathers of parameters do not."""
    return slot.microbatch >= 0 and slot.task not in GATHER_TASKS


def gradient_sum_state(done: int, last: int, ends: bool = False) -> int:
    """Whether none, some or all of the `last` terms of a stage's sum of gradients are made. `done` are; `ends`: the running task makes one more."""
    if done + ends >= last:
        return ALL
    return SOME if done else NONE_YET


def signature(tasks_in_order: Order, num_stages: int) -> OrderSignature:
    """The situations that occur in a rank's order of tasks. The rank has `num_stages` stages."""
    table = tasks_in_order.table[:, :3].astype(np.int32)
    joined = tasks_in_order.joined != 0
    return signature_of_table(table.tobytes(), joined.tobytes(), num_stages)


@lru_cache(maxsize=MOST_KEPT_ORDERS)
def signature_of_table(table: bytes, is_joined: bytes, num_stages: int) -> OrderSignature:
    """The signature of an order that is given as bytes: `table` is `[task, 3]` of int32 (task, stage, microbatch), `is_joined` is `[task]` of bool.

    Bytes can be cached: ranks whose programs differ in much else often have the same order.
    """
    columns = np.frombuffer(table, np.int32).reshape(-1, 3).tolist()
    pairs = np.cumsum(~np.frombuffer(is_joined, bool)).tolist()
    order = [
        OrderedTask(TASKS[task], stage, microbatch, pair)
        for (task, stage, microbatch), pair in zip(columns, pairs, strict=True)
    ]
    overlapping = {pair for pair, number in Counter(pairs).items() if number > 1}
    members: dict[int, list[OrderedTask]] = defaultdict(list)
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
                sums = tuple(gradient_sum_state(done[c], last[c]) for c in range(num_stages))
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
            gradient_sum_state(done[stage], last[stage], ends and stage == slot.stage)
            for stage in range(num_stages)
        )
        if slot.pair in members:
            # Tasks that run at once are one situation: each microbatch is as far as before any of them ran.
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
