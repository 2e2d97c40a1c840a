"""The memory of all ranks of a module; of a series of iterations, of that in which each needs most."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp

from stagec.analysis.sequences import ModuleSequences
from stagec.memory.plan import ClassPlan, plan_memory
from stagec.memory.value_table import ValueTable
from stagec.unrolling.module import ModuleReader, rank_runs
from stagec.unrolling.rank import Arrangements, RankRun


def plan_module(
    module: ModuleOp, runs: Sequence[RankRun] = (), arrangements: Arrangements | None = None
) -> list[ClassPlan]:
    """The memory of each rank class. What is unrolled already may be given."""
    sequences = ModuleSequences.of(module)
    arranged = arrangements or Arrangements()
    if sequences is not None and sequences.is_series:
        return fullest(module, sequences, arranged)
    return plan_memory(runs or rank_runs(module), arranged)


def fullest(
    module: ModuleOp, sequences: ModuleSequences, arrangements: Arrangements
) -> list[ClassPlan]:
    """The memory of each class in the iteration in which it needs most."""
    reader = ModuleReader(module)
    runs: dict[int, list[RankRun]] = {}
    made: dict[object, ValueTable] = {}
    found: list[ClassPlan] = []
    for number, run in enumerate(reader.runs()):
        best: ClassPlan | None = None
        for iteration in sequences.fullest(sequences.device(run.stages[0].values)):
            if iteration not in runs:
                runs[iteration] = reader.at(iteration)
            (other,) = plan_memory([runs[iteration][number]], arrangements, made)
            best = other if best is None or other.peak_bytes > best.peak_bytes else best
        assert best is not None
        found.append(best)
    return found
