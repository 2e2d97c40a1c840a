"""`plan-memory`: what names say changes nothing, who frees is who reads last, and what is written is what is read."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
import pytest

from stagec.driver import Compiled, compile_ir, compile_text
from stagec.memory.lifetimes import lifetimes
from stagec.memory.value_table import value_table
from tests.differential.random_plans import draw
from tests.resuming.cuts import random_cuts
from tests.unit.seldom import some


def planned(job: Compiled) -> list[object]:
    return [(m.peak_bytes, m.at_peak(), m.saved_bytes, m.host_bytes) for m in job.memory]


@pytest.mark.parametrize("seed", some([1, 4], 2))
def test_names_mean_nothing(seed: int) -> None:
    """Other names of tasks, values and modules before memory is planned: the same bytes."""
    texts, whole = random_cuts(seed)
    tasks = next(cut for name, cut in texts.items() if name.endswith("lower-to-tasks"))
    renamed = re.sub(r'sched\.compute "\w+"', 'sched.compute "task"', tasks)
    renamed = re.sub(r"%([A-Za-z]\w*)", r"%renamed_\1", renamed)
    renamed = re.sub(r'scope = "[^"]*"', 'scope = "Elsewhere"', renamed)
    renamed = re.sub(r'made_by = "[^"]*"', 'made_by = "somebody"', renamed)
    assert renamed != tasks
    assert planned(compile_ir(renamed, "renamed.mlir")) == planned(whole)


@pytest.mark.parametrize("seed", [3, 7])
def test_who_frees_is_who_reads_last(seed: int) -> None:
    """If all readers freed what they read, everything would live as long: those that free nothing are never the last."""
    job = compile_text(draw(random.Random(seed)).text, "net.stg")
    for each in job.memory:
        tables = [value_table(stage) for stage in each.stages]
        assert not all(table.frees.all() for table in tables)
        every = [replace(table, frees=np.ones_like(table.frees)) for table in tables]
        one, other = (lifetimes(each.arrangement, found) for found in (tables, every))
        assert np.array_equal(one.birth, other.birth)
        assert np.array_equal(one.death, other.death)


def test_what_is_written_is_what_is_read() -> None:
    """Whoever changes the plan in the IR changes the memory, and nothing else is to be told."""
    texts, whole = random_cuts(0)
    last = list(texts.values())[-1]
    larger = re.sub(r'optimizer "(\d+)', lambda found: f'optimizer "{found[1]}0', last)
    assert larger != last
    for before, after in zip(whole.memory, compile_ir(larger, "x.mlir").memory, strict=True):
        assert after.peak_bytes > before.peak_bytes
