"""Find out whether a step of many microbatches is a step of fewer ones with blocks of nodes put in, each of which repeats the block before it.

A node starts when the last node that it waits for ends. Suppose that on all ranks every node of a block, and every node after it, runs later by one and the
same time than the corresponding node of the block before. Then each further block delays everything after it by that time again.
`docs/decisions/many-microbatches.md` says which questions are answered in this way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from stagec.arrays import Bools, Floats, Ints
from stagec.backend.program import TraceProgram
from stagec.diagnostics import CompileError
from stagec.dialects.sched.tasks import COMPUTE_TASKS, NOWHERE, TASKS, Order
from stagec.plans.clauses import Plan
from stagec.schedules import ScheduleError
from stagec.schedules.catalogue import CATALOGUE

SAME = 1e-9
"""Times that differ by less than this share of the step are taken to be the same."""
MORE_TO_SETTLE = 4
"""So many microbatches more are given to a pipeline to settle than the number of its ranks alone asks for, which is little where they are few."""


@dataclass(frozen=True)
class RepeatedNodes:
    """The nodes that the longer step of a rank has and the shorter one has not: those at the positions `start` to `stop` - 1."""

    start: int
    stop: int


def may_repeat(plan: Plan) -> bool:
    """Whether a plan's schedule can be expected to repeat itself with more microbatches. A schedule or a pass of the user's own may do anything."""
    own = plan.pipeline is not None and plan.pipeline.schedule not in CATALOGUE
    return not own and not plan.passes


def pairs(plan: Plan, ranks: int, microbatches: int) -> Iterator[tuple[int, int]]:
    """Pairs of numbers of microbatches, the smallest first, whose orders of tasks may go on in a step of `microbatches`: it differs from each pair's second
    number by a multiple of the difference of its two numbers, so that it may be the longer of their steps with whole blocks put in.
    """
    pipeline = plan.pipeline
    if pipeline is None:
        return doubled(3, 1, microbatches)
    step = ranks if pipeline.virtual_stages > 1 else 2
    return doubled(ranks + ranks // 4 + MORE_TO_SETTLE, step, microbatches)


def timed_pairs(plan: Plan, ranks: int, microbatches: int) -> Iterator[tuple[int, int]]:
    """Those whose times may repeat themselves. With one stage on each rank a block may have any number of microbatches where the last stage is the slowest.

    Where all are alike it needs as many as there are ranks, and one less where the first alone has less to do: so many are on their way between the ranks
    that wait for each other. The least numbers only say where looking begins.
    """
    pipeline = plan.pipeline
    if pipeline is None:
        yield from pairs(plan, ranks, microbatches)
        return
    settled = round(CATALOGUE[pipeline.schedule].settled * ranks)
    if pipeline.virtual_stages > 1:
        yield from doubled(settled, ranks, microbatches)
        return
    yield from islice(doubled(settled + MORE_TO_SETTLE, 2, microbatches), 1)
    steps = [step for step in (ranks, ranks - 1) if step > 2]
    each = (doubled(settled + ranks + MORE_TO_SETTLE, step, microbatches) for step in steps or [2])
    yield from chain.from_iterable(zip(*each, strict=False))


def doubled(least: int, step: int, microbatches: int) -> Iterator[tuple[int, int]]:
    """Pairs of numbers that differ by `step`, from `least` microbatches on, each of about twice as many as the one before."""
    first = microbatches % step + -(-least // step) * step
    while first + step < microbatches // 2:
        yield first, first + step
        first += -(-first // step) * step


def fewest(
    plan: Plan, ranks: int, microbatches: int, orders: Callable[[int], Sequence[Order]]
) -> int:
    """As few microbatches as are known to show all situations of a step with so many (`goes_on`), and so to need as much memory. A step may have thousands,
    and unrolled that is gigabytes. `orders` gives the order of tasks of each rank for any number of microbatches.
    """
    for few, more in pairs(plan, ranks, microbatches) if may_repeat(plan) else ():
        whole = orders(microbatches)
        try:
            if all(goes_on(*each) for each in zip(orders(few), orders(more), whole, strict=True)):
                return more
        except (CompileError, ScheduleError):
            continue
    return microbatches


def goes_on(few: Order, more: Order, many: Order) -> bool:
    """Whether a rank's order of tasks in a step of `many` microbatches is that of `more` with its last block put in again and again. `few` is the order without
    that block, and each of the three does all tasks of each of its microbatches.

    If so, `many` needs the memory that `more` needs, as each situation of one occurs in the other (`stagec.sweeping.equal_memory`). Say that `more` is A, Y,
    X and Q, where X repeats Y with microbatches that are d later, and `few` is A, Y and Q, with those of Q d earlier. X then does for each microbatch what A
    and Y have left undone of it, less what they have left undone of the one d before it. So behind Y each microbatch is as far as the one d before it is
    behind A, the first d are done, and every further block begins as Y did. What else a situation knows of the tasks before it (`reached`) has to be the same.
    """
    before, after, whole = map(numbered_in_turn, (few, more, many))
    later = more.num_microbatches - few.num_microbatches
    size, rest = len(after) - len(before), len(whole) - len(after)
    if later <= 0 or size <= 0 or rest < 0 or rest % size:
        return False
    kinds = [0, 1, 3, 4]
    behind = put_in(before[:, kinds], after[:, kinds])[0]
    start, times = behind - size, rest // size
    if start < 0 or reached(after[:start]) != reached(after[:behind]):
        return False
    block, last = after[start:behind], before[behind:]
    blocks = np.tile(block, (2 + times, 1))
    blocks[:, 2] += np.repeat(later * np.arange(2 + times), size)
    return (
        bool((block[:, 2] > NOWHERE).all())
        and np.array_equal(
            after, np.concatenate([before[:behind], blocks[size : 2 * size], delayed(last, later)])
        )
        and np.array_equal(
            whole, np.concatenate([after[:start], blocks, delayed(last, later * (1 + times))])
        )
    )


def in_whole_step(task: int, few: Order, many: Order) -> int:
    """The position in the order of a whole step of a task in that of a step that shows all of its situations (`fewest`)."""
    kinds = [0, 1, 3, 4]
    behind = put_in(few.table[:, kinds], many.table[:, kinds])[0]
    return task + (len(many) - len(few)) * (task >= behind)


def numbered_in_turn(order: Order) -> Ints:
    """The table of an order, with microbatches numbered as they begin: some schedules have two rows of them, from both ends."""
    table = order.table.copy()
    there = table[:, 2] > NOWHERE
    _, first, which = np.unique(table[there, 2], return_index=True, return_inverse=True)
    table[there, 2] = np.argsort(np.argsort(first))[which]
    return table


def delayed(tasks: Ints, microbatches: int) -> Ints:
    """A table of tasks whose microbatches come so much later."""
    found = tasks.copy()
    found[found[:, 2] > NOWHERE, 2] += microbatches
    return found


def reached(tasks: Ints) -> dict[int, tuple[bool, int]]:
    """For each stage whether these tasks make a term of its sums of gradients, and the last of its passes."""
    found: dict[int, tuple[bool, int]] = {}
    passes = tasks[np.isin(tasks[:, 0], [TASKS.index(task) for task in COMPUTE_TASKS])]
    for stage in np.unique(passes[:, 1]).tolist():
        own = passes[passes[:, 1] == stage, 0]
        found[stage] = (
            bool(np.isin(own, [TASKS.index("B"), TASKS.index("W")]).any()),
            int(own[-1]),
        )
    return found


def repeated_nodes(few: TraceProgram, more: TraceProgram) -> RepeatedNodes | None:
    """The nodes that the longer of two programs has and the shorter one has not, if they repeat those before them. Both programs have the same segments."""
    before, after = sequence(few), sequence(more)
    start, stop = put_in(before, after)
    block = RepeatedNodes(int(more.first_node[start]), int(more.first_node[stop]))
    size = stop - start
    rows = slice(start - size, start)
    if size <= 0 or start < size or not np.array_equal(after[start:stop], after[rows]):
        return None
    return block if np.array_equal(before[start:], after[stop:]) else None


def sequence(program: TraceProgram) -> np.ndarray:
    """The segments that a program runs in their order, without their microbatches: `[n, 3]`, segment, layer and stage."""
    return np.stack([program.segment, program.layer, program.stage], axis=1)


def put_in(before: np.ndarray, after: np.ndarray) -> tuple[int, int]:
    """The rows, from the first up to the one after the last, that `after` has and the shorter table `before` has not, if the others are equal."""
    differ = np.flatnonzero((after[: len(before)] != before).any(axis=1))
    start = int(differ[0]) if len(differ) else len(before)
    return start, start + len(after) - len(before)


def is_put_in(
    before: np.ndarray,
    after: np.ndarray,
    block: RepeatedNodes,
    delay: Floats | float,
    near: Floats | float = 0.0,
) -> Bools:
    """Whether the numbers of the nodes of a longer step (`after`) are those of a shorter one (`before`) with a block put in.

    In front of the block they have to be the same; in the block, those of the block before it plus `delay`; behind it, those of the shorter step plus
    `delay`. `near` is the difference that is allowed. Numbers are `[node]`, or `[node, plan]` for several plans with an answer each. NaN agrees with anything.
    """
    start, stop = block.start, block.stop
    size = stop - start

    def same(one: np.ndarray, other: np.ndarray) -> Bools:
        return ~np.asarray((np.abs(one - other) > near).any(axis=0))

    return (
        same(after[:start], before[:start])
        & same(after[start:stop], after[start - size : start] + delay)
        & same(after[stop:], before[start:] + delay)
    )
