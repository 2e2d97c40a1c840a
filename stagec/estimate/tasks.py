"""When the tasks of a rank run: the forward and backward pass of each microbatch through each stage, on the compute stream."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stagec.backend.program import RankClass, TraceSegment

STEP = "step"
"""The letter of tasks that run once per step, before or after the microbatches."""
LETTERS = ("F", "B", "I", "W", STEP)
"""Forward pass; whole backward pass; backward pass for inputs; backward pass for weights; once per step."""


@dataclass(frozen=True)
class TaskSpan:
    """One task and its time, from its first computation to its last: `2F5` is the forward pass of microbatch 5 through stage 2."""

    letter: str
    stage: int
    microbatch: int
    """-1 for a task that runs once per step."""
    start_us: float
    end_us: float

    def label(self, with_stage: bool) -> str:
        """The task as a picture names it: `2F5`, or without the stage `F5`."""
        if self.microbatch < 0:
            return self.letter
        return f"{self.stage if with_stage else ''}{self.letter}{self.microbatch}"


def tasks_of(
    rank_class: RankClass, start_us: np.ndarray, end_us: np.ndarray, halves: bool
) -> list[TaskSpan]:
    """The tasks of a class in the order in which they are issued, given when its nodes start and end, `[node]`.

    With `halves`, the backward pass is two tasks: I for inputs, W for weights.
    """
    program = rank_class.program
    first_node = program.first_node
    found: list[np.ndarray] = []
    for index, segment in enumerate(program.segments):
        at = [i for i, node in enumerate(segment.nodes) if node.computes]
        rows = np.flatnonzero(program.segment == index)
        if not at or not len(rows):
            continue
        letter = np.full(len(rows), LETTERS.index(letter_of(segment, halves)))
        letter[program.microbatch[rows] < 0] = LETTERS.index(STEP)
        begin, end = start_us[first_node[rows] + at[0]], end_us[first_node[rows] + at[-1]]
        found.append(
            np.stack([rows, letter, program.stage[rows], program.microbatch[rows], begin, end])
        )
    if not found:
        return []
    table = np.concatenate(found, axis=1)
    _, letter, stage, microbatch, begin, end = table[:, np.argsort(table[0], kind="stable")]
    stage = np.where(microbatch < 0, -1, stage)
    changes = (np.diff(letter) != 0) | (np.diff(stage) != 0) | (np.diff(microbatch) != 0)
    first = np.concatenate([[0], np.flatnonzero(changes) + 1])
    columns = (
        letter[first].astype(int).tolist(),
        stage[first].astype(int).tolist(),
        microbatch[first].astype(int).tolist(),
        begin[first].tolist(),
        np.maximum.reduceat(end, first).tolist(),
    )
    return [TaskSpan(LETTERS[kind], *rest) for kind, *rest in zip(*columns, strict=True)]


def letter_of(segment: TraceSegment, halves: bool) -> str:
    """The letter of the task that a segment belongs to. What computes for a pass on gathered parameters before it belongs to the pass."""
    task = segment.task.removeprefix("GATHER_")
    if task not in LETTERS:
        return STEP
    return "B" if task in ("I", "W") and not halves else task
