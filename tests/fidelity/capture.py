"""PyTorch's own runs of cases, by the capture tool: a program that takes cases as text and records each as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.fidelity.draw import text_of

DEFAULT = Path(__file__).parents[3] / "shared" / "oracles" / "capture" / "capture.py"
SECONDS = 300
"""For one case."""


class NotCaptured(Exception):
    """PyTorch does not run a case, or not as the model says."""


def capture(
    tool: Path, cases: Sequence[Mapping[str, object]]
) -> dict[str, dict[str, Any] | NotCaptured]:
    """What was recorded of each case, by name; or why it was not."""
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "cases"
        listed.write_text("".join(f"{text_of(words)}\n" for words in cases))
        program = ["-m", "tests.fidelity.composed"] if "sublayers" in cases[0] else []
        command = [sys.executable, *program, str(tool), f"{folder}/out", "--cases", str(listed)]
        try:
            run = subprocess.run(
                command, capture_output=True, text=True, timeout=SECONDS * len(cases), check=False
            )
        except subprocess.TimeoutExpired:
            said = "took too long"
        else:
            said = (run.stdout + run.stderr)[-2000:]
        found: dict[str, dict[str, Any] | NotCaptured] = {}
        for words in cases:
            name = str(words["name"])
            path = Path(folder) / "out" / f"{name}.json"
            found[name] = json.loads(path.read_text()) if path.exists() else NotCaptured(said)
        return found
