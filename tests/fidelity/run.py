"""Compile a case and compare it."""

from __future__ import annotations

import tempfile
import traceback
from pathlib import Path

from stagec.backend.encode import TraceOptions, encode_traces
from stagec.backend.writer import WriteOptions, write_traces
from stagec.diagnostics import CompileError
from stagec.driver import Compiled, compile_text
from tests.fidelity.compare import Outcome, compare_rank
from tests.fidelity.memory import planned_memory
from tests.fidelity.model_text import model_name
from tests.fidelity.oracle import Case, NotInTheLanguage
from tests.fidelity.plan_text import PLAN
from tests.fidelity.stg_text import stg_text
from tests.fidelity.trace import Traces


def run_case(case: Case) -> Outcome:
    try:
        text = stg_text(case)
        compiled = compile_text(text, f"{case.name}.stg", PLAN)
    except NotInTheLanguage as reason:
        return Outcome(case, {}, not_yet=f"needs words for {reason}")
    except CompileError as error:
        return Outcome(case, {}, error=error.render())
    except (
        Exception
    ):  # A compiler that breaks down on one case is no reason to leave out the others.
        return Outcome(case, {}, error=traceback.format_exc(limit=-2))
    with tempfile.TemporaryDirectory() as directory:
        traces = written(case, compiled, Path(directory))
        findings = {
            rank: compare_rank(case, rank, traces.rank(rank, planned_memory(case, compiled, rank)))
            for rank in case.ranks
        }
    return Outcome(case, findings)


def written(case: Case, compiled: Compiled, directory: Path) -> Traces:
    """The traces of the ranks that were measured, as files."""
    ranks = ",".join(map(str, sorted(case.ranks)))
    encoded = encode_traces(compiled.trace_set, TraceOptions(names="full"))
    write_traces(encoded, str(directory), WriteOptions(ranks=ranks))
    return Traces(directory, model_name(case), case.mesh)
