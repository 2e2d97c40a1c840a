"""Ask worker processes, or the cache, about points. Points whose plans share a text are asked about together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from stagec.backend.running_tasks import run_tasks
from stagec.searching import serving_space
from stagec.searching.cache import SearchCache
from stagec.searching.candidates import Candidates
from stagec.searching.evaluation import NAME, NO_MEMORY, FormsTask, Found, evaluate, left_out
from stagec.searching.model import ModelDims
from stagec.searching.results import Goal, Outcome
from stagec.searching.serving_space import ServedIteration, serving_text
from stagec.searching.space import Point
from stagec.searching.texts import plan_text, sizes_of, text_key, turns_of
from stagec.searching.whole_plans import WholeAnswer, WholePlan, compiled_whole, without_memory
from stagec.sweeping.run import PEAK, STEP_TIME
from stagec.trust import as_here


class Questions:
    """The questions of one search."""

    def __init__(self, goal: Goal, executor: Executor, cache: SearchCache) -> None:
        self.goal, self.executor, self.cache = goal, executor, cache

    def evaluated(self, tasks: Sequence[FormsTask]) -> Iterator[Found]:
        """The answers to tasks, in any order."""
        waiting: list[FormsTask] = []
        for task in tasks:
            found = self.cache.get(task)
            if found is None:
                waiting.append(task)
            else:
                yield found
        # The largest first, so that no process works on a large one alone at the end.
        waiting.sort(key=lambda task: -len(task.rows))
        for task, found in run_tasks(self.executor, as_here(answered), waiting, unanswered):
            if NO_MEMORY not in found.reasons:
                self.cache.put(task, found)
            yield found

    def compiled_whole(self, plans: Sequence[WholePlan]) -> Iterator[WholeAnswer]:
        """The results of compiling plans whole, in any order."""
        waiting: dict[int, WholePlan] = {}
        for plan in plans:
            found = self.cache.get_whole(plan)
            if found is None:
                waiting[plan.number] = plan
            else:
                yield found
        work = as_here(compiled_whole)
        for found in run_tasks(self.executor, work, waiting.values(), without_memory):
            self.cache.put_whole(waiting[found.number], found)
            yield found

    def tasks(
        self, points: Mapping[int, Point], structure: Callable[[Point, ModelDims], Point] | None
    ) -> Iterator[FormsTask]:
        """The tasks that ask about some points. Without `structure` the peak of memory of each point is asked.

        `structure` gives for a point another one with the same times and bounds, which more points have in common; then times in outline and bounds are asked.
        """
        if self.goal.iteration is not None:
            yield from self.serving_tasks(points, self.goal.iteration)
            return
        groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
        shown = {n: structure(p, self.goal.dims) if structure else p for n, p in points.items()}
        for number, point in shown.items():
            groups[text_key(point)].append(number)
        for group in groups.values():
            # The first plan of a task is compiled for all: the one with the fewest passes.
            group.sort(key=lambda n: self.num_passes(shown[n]))
            first = shown[group[0]]
            is_pipeline = structure is not None and first["pp"] != 1
            sizes = [sizes_of(shown[n]) for n in group]
            yield FormsTask(
                self.goal.file,
                self.goal.text,
                tuple(sizes[0]),
                tuple(tuple(each.values()) for each in sizes),
                tuple(group),
                (PEAK,) if structure is None else (),
                self.goal.overrides,
                tuple(turns_of(points[n], self.goal.file) for n in group) if is_pipeline else (),
                self.plan(first),
                self.goal.plug_ins,
                units=self.goal.dims.units,
                is_timed=self.goal.is_timed,
            )

    def serving_tasks(
        self, points: Mapping[int, Point], iteration: ServedIteration
    ) -> Iterator[FormsTask]:
        """The tasks that ask about plans that serve, whose memory and times are asked exactly."""
        goal = self.goal
        groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for number, point in points.items():
            groups[serving_space.text_key(point)].append(number)
        for group in groups.values():
            sizes = [serving_space.sizes_of(points[n], iteration) for n in group]
            yield FormsTask(
                goal.file,
                goal.text,
                tuple(sizes[0]),
                tuple(tuple(each.values()) for each in sizes),
                tuple(group),
                (PEAK, STEP_TIME),
                goal.overrides,
                plan=self.plan(points[group[0]]),
                plug_ins=goal.plug_ins,
                memory=goal.memory,
            )

    def num_passes(self, point: Point) -> int:
        """How many passes of microbatches through stages a step has, of all ranks of the pipeline together."""
        microbatches = self.goal.batch // int(point["dp"]) // int(point["microbatch"])
        return int(point["pp"]) * int(point["virtual_stages"]) * microbatches

    def plan(self, point: Point) -> str:
        """The text of a point's plan."""
        goal = self.goal
        if goal.iteration is not None:
            return serving_text(NAME, point, goal.dims, goal.iteration, goal.clauses)
        return plan_text(NAME, point, goal.dims, goal.batch, goal.clauses)

    def whole(self, number: int, plan: str, wants_twice: bool) -> WholePlan:
        """The question that asks for the whole compilation of a plan with this text."""
        goal = self.goal
        text = f"{goal.text}\n{plan}"
        return WholePlan(goal.file, text, number, goal.overrides, wants_twice, goal.plug_ins)


@dataclass
class SearchStep:
    """What the steps of a search have in common."""

    candidates: Candidates
    questions: Questions
    told: Callable[[str, int, int], None]
    """Called to tell the user of progress: what is done, how much of it, and how much there is."""

    @property
    def goal(self) -> Goal:
        return self.candidates.goal

    @property
    def outcome(self) -> Outcome:
        return self.candidates.outcome


def answered(task: FormsTask) -> tuple[FormsTask, Found]:
    """A task with its answer, since answers come in any order."""
    return task, evaluate(task)


def unanswered(task: FormsTask) -> tuple[FormsTask, Found]:
    """A task whose process was killed."""
    return task, left_out(task, NO_MEMORY)
