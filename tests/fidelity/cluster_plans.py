"""The memory that is planned for runs of nanotron: of each by itself, or once for all runs of a structure.

Runs whose plans have the same axes of more than one rank, stages, layers of each stage and ZeRO level differ in sizes alone. Of
these one is compiled, and its closed forms and live peaks are evaluated for all (`docs/decisions/closed-forms.md`).
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np

from stagec.diagnostics import CompileError
from stagec.dialects.memory import STORED
from stagec.driver import Compiled, Stops, compile_text
from stagec.explaining.job import NamedJob
from stagec.explaining.memory import static_parts
from stagec.explaining.names import MICROBATCH
from stagec.memory import Kind
from stagec.sweeping.conditions import named_sizes, with_definitions
from stagec.sweeping.peaks import LiveCounts
from stagec.sweeping.structures import Structure
from stagec.symbolic import total
from stagec.symbolic.columns import Columns
from stagec.symbolic.conditions import Conditions, recording
from stagec.symbolic.verdict import verdict
from stagec.unrolling.rank import StageRun
from tests.fidelity.cluster_runs import Run, layers_of_stages, run_text, schedule_of

KEPT = """\
beside the plan's static bytes a rank has, while it updates its parameters (the peak is counted from the end of the backward passes on):
- the buckets of DistributedDataParallel, gradients in bf16, if dp > 1 (`FP32GradBucketManager` adds them to others in fp32)
- under ZeRO 1 the flat input and output of the gather of updated parameters (`all_gather_coalesced`)
- if tp > 1 two buffers for gathered hidden states of a microbatch (`MemoryBuffer`: "allgather", "allgather2")
- rotary tables of each layer in bf16 (`FlashRotaryEmbedding`)
- two workspaces of cuBLAS of 32 MiB, of the forward and the backward thread (PyTorch's `CublasHandlePool.cpp`, on H100)"""
CUBLAS_BYTES = 2 * (32 << 20)


@dataclass(frozen=True)
class Planned:
    """Of the first stage, and of whichever needs most."""

    static_bytes: int
    first_peak_bytes: int
    peak_bytes: int


def plan_all(runs: Sequence[Run]) -> dict[Run, Planned | str]:
    """Each once, on all cores. Of a run that does not compile, why."""
    alike: dict[object, list[Run]] = defaultdict(list)
    for run in dict.fromkeys(runs):
        alike[structure_of(run)].append(run)
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        # Long pipelines have most to lay out: they go first.
        groups = sorted(alike.values(), key=lambda group: -group[0].pp)
        found = pool.map(planned_alike, groups)
        return {
            run: plan
            for group, plans in zip(groups, found, strict=True)
            for run, plan in zip(group, plans, strict=True)
        }


def structure_of(run: Run) -> object:
    """What runs that differ in sizes alone have in common."""
    axes = run.dp > 1, run.pp, run.tp > 1
    stages = (schedule_of(run), *layers_of_stages(run)) if run.pp > 1 else ()
    return axes, stages, run.is_tied, run.zero


def planned_alike(runs: Sequence[Run]) -> list[Planned | str]:
    """Runs of one structure, by a compilation of one of them; those that meet not all its conditions by themselves."""
    found: dict[Run, Planned | str] = {}
    for run in runs:
        try:
            with recording({MICROBATCH: MICROBATCH}) as asked:
                structure = Structure(NamedJob(compiled(run)))
            others = [other for other in runs if other not in found]
            found.update(evaluated(structure, asked, others))
        except Exception as error:  # One run is no reason to leave out the others.
            found[run] = reason(error)
            continue
        break
    return [found[run] if run in found else planned(run) for run in runs]


def evaluated(
    structure: Structure, asked: Conditions, runs: Sequence[Run]
) -> Iterator[tuple[Run, Planned]]:
    """Those of the runs that are the same program."""
    job = structure.job
    rows = [sizes_of(run) for run in runs]
    columns = {name: np.array([row[name] for row in rows], np.int64) for name in rows[0]}
    sizes = named_sizes(job.compiled.checked, columns, len(runs))
    left = np.flatnonzero(verdict(asked, sizes, is_compiled=True).same)
    kept = Columns({name: column[left] for name, column in sizes.names.items()}, len(left))
    kept = with_definitions(kept, asked.definitions)
    microbatches = kept.number(job.names.num_microbatches)
    for chosen, own, classes in peaks_of_classes(structure, kept, microbatches):
        stages, first = classes[0]
        worst = np.max([peaks for _, peaks in classes], axis=0)
        parts = static_parts(job, stages, STORED)
        static = own.number(total(part.form for part in parts))
        parameters = own.number(structure.stored(stages, (Kind.PARAMETERS,)))
        for at, row in enumerate(chosen.tolist()):
            run = runs[int(left[row])]
            kept = kept_bytes(run, int(parameters[at]), layers_of_stages(run)[0])
            all_static = int(static[at]) + kept
            yield run, Planned(all_static, int(first[at]), int(worst[at]))


def peaks_of_classes(
    structure: Structure, sizes: Columns, microbatches: np.ndarray
) -> Iterator[tuple[np.ndarray, Columns, list[tuple[Sequence[StageRun], np.ndarray]]]]:
    """Plans in which the same things happen: which they are, their sizes, and of each class what it runs and its peaks.

    The first class is that of the first rank of a pipeline. Classes that need no more than another are left out.
    """
    for rows, own, values, key in structure.groups(sizes, microbatches):
        classes: list[tuple[Sequence[StageRun], np.ndarray]] = []
        for stages, live in structure.classes(values, key, ["memory.peak"]):
            counts = live["memory.peak"]
            assert isinstance(counts, LiveCounts)
            static = own.number(structure.stored(stages, STORED))
            classes.append((stages, counts.highest(own) + static))
        yield rows, own, classes


def sizes_of(run: Run) -> dict[str, int]:
    """The names of a run's text that no structure fixes."""
    batch = run.dp * run.microbatch * run.microbatches
    sizes = {"B": batch, "S": run.sequence, "V": run.vocabulary, "D": run.width}
    sizes |= {"F": run.feed_forward, "H": run.heads, "K": run.key_heads, "L": run.layers}
    return sizes | {"dp": run.dp, "pp": run.pp, "tp": run.tp, MICROBATCH: run.microbatch}


def planned(run: Run) -> Planned | str:
    """One run, by a compilation of its own."""
    try:
        classes = compiled(run).memory
    except Exception as error:
        return reason(error)
    first = classes[0]
    parameters = first.static.num_bytes[Kind.PARAMETERS]
    static = sum(first.static.num_bytes.values()) + kept_bytes(
        run, parameters, layers_of_stages(run)[0]
    )
    return Planned(static, first.peak_bytes, max(each.peak_bytes for each in classes))


def compiled(run: Run) -> Compiled:
    """Up to its tasks: nobody asks for traces."""
    return compile_text(run_text(run), "run.stg", stops=Stops(unroll=False))


def reason(error: Exception) -> str:
    """What is wrong, on one line."""
    first = str(error).strip().split("\n")[0]
    return first if isinstance(error, CompileError) else f"{type(error).__name__}: {first}"


def counts_norms(run: Run, allocated: float) -> bool | None:
    """Whether a run was cut into stages as by pull request 222, by the bytes that its first stage kept; None where these are the same, within 1 %."""
    ours, others = (first_static_bytes(run, layers_of_stages(run, x)[0]) for x in (True, False))
    if abs(ours - others) <= 0.01 * ours:
        return None
    return abs(ours - allocated) < abs(others - allocated)


def first_static_bytes(run: Run, layers: int) -> int:
    """Of a first stage of so many layers: weights in bf16, sums of gradients, master weights and two moments in fp32, and what `KEPT` lists."""
    attention = 2 * run.width * run.width * (run.heads + run.key_heads) // run.heads
    matrices = attention + 3 * run.feed_forward * run.width
    parameters = (run.vocabulary * run.width + layers * matrices) // run.tp
    parameters += 2 * layers * run.width
    state = 12 * parameters // (run.dp if run.zero else 1)
    return (2 + 4) * parameters + state + kept_bytes(run, 2 * parameters, layers)


def kept_bytes(run: Run, parameter_bytes: int, layers: int) -> int:
    """What `KEPT` lists, of a first stage of so many layers, whose parameters in bf16 take these bytes."""
    buckets = run.is_replicated * parameter_bytes
    gathered = run.zero * (parameter_bytes + parameter_bytes // run.dp)
    hidden = 2 * 2 * run.microbatch * run.sequence * run.width * (run.tp > 1)
    tables = layers * 2 * run.sequence * (run.width // run.heads // 2) * 2
    return buckets + gathered + hidden + tables + CUBLAS_BYTES
