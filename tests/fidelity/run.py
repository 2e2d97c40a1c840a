"""Compile a case and compare it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from stagec.diagnostics import CompileError
from stagec.driver import compile_model
from tests.fidelity.compare import Finding, compare_rank
from tests.fidelity.model_text import NotInTheLanguage, model_name
from tests.fidelity.oracle import Case
from tests.fidelity.plan_text import PLAN
from tests.fidelity.stg_text import stg_text
from tests.fidelity.trace import Traces

NOT_YET = "E0499"
"""The code of the diagnostic for what the compiler reads but cannot compile yet."""


@dataclass(frozen=True)
class Outcome:
    """What became of a case: findings of each rank, or why there are none."""

    case: Case
    findings: dict[int, list[Finding]]
    not_yet: str = ""
    error: str = ""

    @property
    def agrees(self) -> bool:
        return not self.error and all(f.agrees for fs in self.findings.values() for f in fs)


def run_case(case: Case) -> Outcome:
    try:
        text = stg_text(case)
        compiled = compile_model(text, plan=PLAN)
    except NotInTheLanguage as reason:
        return Outcome(case, {}, not_yet=f"needs words for {reason}")
    except CompileError as error:
        codes = {d.code for d in error.diagnostics}
        if codes == {NOT_YET}:
            return Outcome(case, {}, not_yet="; ".join(d.message for d in error.diagnostics))
        return Outcome(case, {}, error=error.render())
    with tempfile.TemporaryDirectory() as directory:
        compiled.write(Path(directory), ranks=sorted(case.ranks))
        traces = Traces(Path(directory), model_name(case), case.mesh)
        findings = {rank: compare_rank(case, rank, traces.rank(rank, None)) for rank in case.ranks}
    return Outcome(case, findings)
