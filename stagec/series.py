"""Compile all iterations of a file: each program that some of them are, once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from stagec.analysis.sequences import OtherPrograms
from stagec.compiled import Compiled, CompiledSeries, told_once
from stagec.diagnostics import CompileError
from stagec.driver import compile_checked
from stagec.frontend import CheckedModel
from stagec.frontend.plans.iterations import Iterations
from stagec.pass_manager import PassLoader, Stops

MOST_PROGRAMS = 64
"""The most different programs that the iterations of one series may need (E0421)."""


WANTING_ROWS = {"E0415", "E0308"}
"""Errors that appear only where all sequences of a device stand in one row: of attention that is written out, and of microbatches."""


def compile_series(
    make: Callable[[Iterations], CheckedModel],
    iterations: Iterations,
    *,
    kinds: Sequence[object] = (),
    handed: Callable[[Iterations], Sequence[Operation]] = lambda some: (),
    stops: Stops | None = None,
    load_pass: PassLoader | None = None,
    seen: Callable[[CheckedModel, ModuleOp], object] = lambda checked, module: None,
) -> CompiledSeries:
    """Compile all iterations of a file, each program that some of them are once. `make` checks the model that serves some iterations.

    The first that is left is compiled, with all that answer what was asked of sizes as it does. E0421 for a file that is of more than `MOST_PROGRAMS`.
    Sequences of an iteration are one row on each device; where a model or a plan cannot have that (`WANTING_ROWS`), they are rows, if they are of one kind.
    Iterations of different `kinds` are different programs; `handed` says what some of a pool hand over and take.
    """
    parts: list[Compiled] = []
    which = np.full(len(iterations.rows), -1, np.int64)
    while (left := np.flatnonzero(which < 0)).size:
        if len(parts) == MOST_PROGRAMS:
            raise too_many(iterations, int(left[0]))
        if len(kinds):
            left = np.array([at for at in left.tolist() if kinds[at] == kinds[left[0]]])
        compiled = None
        while compiled is None:
            some = iterations.only(left.tolist())
            try:
                compiled = compile_checked(
                    lambda some=some: make(some),
                    stops=stops,
                    load_pass=load_pass,
                    seen=seen,
                    handed=handed(some),
                )
            except OtherPrograms as others:
                left = left[others.same]
            except CompileError as error:
                is_of_rows = {each.code for each in error.diagnostics} <= WANTING_ROWS
                if iterations.in_rows or not is_of_rows or not iterations.could_be_rows:
                    raise
                iterations = replace(iterations, in_rows=True)
        which[left] = len(parts)
        parts.append(compiled)
    return CompiledSeries(told_once(parts), which)


def too_many(iterations: Iterations, number: int) -> CompileError:
    """The programs that were compiled so far; an iteration that needs another one adds it."""
    message = f"the iterations are more than {MOST_PROGRAMS} different programs"
    help_ = "serve sizes that divide over the plan's devices, or give the plan `experts = average`"
    return iterations.wrong(iterations.lines[number], message, help_)
