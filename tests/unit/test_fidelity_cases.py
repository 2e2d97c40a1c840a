"""Traces against PyTorch's measured runs, wherever the measurements lie beside the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fidelity.oracle import read_case
from tests.fidelity.report import outcome_text
from tests.fidelity.run import run_case

MEASURED = Path(__file__).parents[3] / "shared" / "oracles" / "torch"
CASES = sorted(MEASURED.glob("*.json"))


@pytest.mark.skipif(not CASES, reason="no measured cases beside the repository")
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_traces_agree_with_the_measured_run(path: Path) -> None:
    outcome = run_case(read_case(path))
    if outcome.not_yet:
        pytest.skip(outcome.not_yet)
    assert outcome.agrees, "\n" + outcome_text(outcome)
