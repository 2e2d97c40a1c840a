"""Questions about points, asked of workers or of the cache: points that share a text are one question."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from stagec.backend.executors import run_tasks
from stagec.searching import serving_space
from stagec.searching.cache import Cache
from stagec.searching.candidates import Candidates
from stagec.searching.evaluation import NAME, FormsTask, Found, evaluate
from stagec.searching.results import Goal, Outcome
from stagec.searching.serving_space import ServedIteration, serving_text
from stagec.searching.space import Point
from stagec.searching.texts import plan_text, sizes_of, text_key, turns_of
from stagec.searching.whole_plans import WholeAnswer, WholePlan, compiled_whole
from stagec.sweeping.run import PEAK, STEP_TIME


class Questions:
    """Of one search, among plans that train or that serve."""

    def __init__(self, goal: Goal, executor: Executor, cache: Cache) -> None:
        self.goal, self.executor, self.cache = goal, executor, cache

    def evaluated(self, tasks: Sequence[FormsTask]) -> Iterator[Found]:
        waiting: list[FormsTask] = []
        for task in tasks:
            found = self.cache.get(task)
            if found is None:
                waiting.append(task)
            else:
                yield found
        # The largest first, so that none is left alone in the end.
        waiting.sort(key=lambda task: -len(task.rows))
        for task, found in run_tasks(self.executor, answered, waiting):
            self.cache.put(task, found)
            yield found

    def compiled_whole(self, plans: Sequence[WholePlan]) -> Iterator[WholeAnswer]:
        waiting: dict[int, WholePlan] = {}
        for plan in plans:
            found = self.cache.get_whole(plan)
            if found is None:
                waiting[plan.number] = plan
            else:
                yield found
        for found in run_tasks(self.executor, compiled_whole, waiting.values()):
            self.cache.put_whole(waiting[found.number], found)
            yield found

    def tasks(
        self, points: Mapping[int, Point], structure: Callable[[Point], Point] | None
    ) -> Iterator[FormsTask]:
        """Points that share a text, together: their own, to know their memory, or that of a `structure` that says as much of their times."""
        if self.goal.iteration is not None:
            yield from self.serving_tasks(points, self.goal.iteration)
            return
        groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
        shown = {n: structure(p) if structure else p for n, p in points.items()}
        for number, point in shown.items():
            groups[text_key(point)].append(number)
        for group in groups.values():
            # What is compiled for all is the plan with the fewest passes.
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
                tuple(turns_of(points[n]) for n in group) if is_pipeline else (),
                self.plan(first),
                self.goal.plug_ins,
                is_timed=self.goal.is_timed,
            )

    def serving_tasks(
        self, points: Mapping[int, Point], iteration: ServedIteration
    ) -> Iterator[FormsTask]:
        """Of plans that serve: memory and times are asked exactly."""
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
        """Of microbatches through ranks."""
        microbatches = self.goal.batch // int(point["dp"]) // int(point["microbatch"])
        return int(point["pp"]) * int(point["virtual_stages"]) * microbatches

    def plan(self, point: Point) -> str:
        goal = self.goal
        if goal.iteration is not None:
            return serving_text(NAME, point, goal.dims, goal.iteration, goal.clauses)
        return plan_text(NAME, point, goal.dims, goal.batch, goal.clauses)

    def whole(self, number: int, plan: str, wants_twice: bool) -> WholePlan:
        """To compile a plan of this text whole."""
        goal = self.goal
        text = f"{goal.text}\n{plan}"
        return WholePlan(goal.file, text, number, goal.overrides, wants_twice, goal.plug_ins)


@dataclass
class SearchStep:
    """What a step of a search has."""

    candidates: Candidates
    questions: Questions
    told: Callable[[str, int, int], None]
    """Hears of progress: what is done, how much, of how much."""

    @property
    def goal(self) -> Goal:
        return self.candidates.goal

    @property
    def outcome(self) -> Outcome:
        return self.candidates.outcome


def answered(task: FormsTask) -> tuple[FormsTask, Found]:
    """Results come in any order: each with its task."""
    return task, evaluate(task)
