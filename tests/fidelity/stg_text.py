"""The whole `.stg` text of a case."""

from __future__ import annotations

from tests.fidelity.model_text import model_text
from tests.fidelity.oracle import Case
from tests.fidelity.plan_text import plan_text


def stg_text(case: Case) -> str:
    degrees = ", ".join(f"{key} = {value}" for key, value in case.parallel.items())
    header = f"# {case.model['arch']} as PyTorch ran it; parallel: {degrees or 'none'}\n"
    return f"{header}\n{model_text(case)}\n{plan_text(case)}"
