"""The tools that hold step times against measured ones."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from stagec.devices import load, named
from stagec.driver import compile_text
from stagec.estimate import step_summary
from tests.fidelity.halves import SPEEDS, calibrated, device_text, seconds
from tests.fidelity.time_rows import rows_of

RUNS = Path(__file__).parents[1] / "fidelity" / "simumax_b200.csv"


def test_a_calibrated_device_is_a_file_and_its_speeds_are_what_was_found(tmp_path: Path) -> None:
    rows = [row for row in rows_of(RUNS) if row.source == "SimuMax"]
    assert len(rows) == 43
    assert not [row.why_not for row in rows if row.why_not]
    row = random.Random(0).choice([row for row in rows if "deepseek" not in row.name])
    compiled = compile_text(row.text)
    model = named("b200")
    rng = np.random.default_rng(0)
    logs = rng.uniform(-0.4, 0.0, len(SPEEDS))
    slower = calibrated(model, logs.tolist())
    files = [tmp_path / "same.toml", tmp_path / "slower.toml"]
    for path, each in zip(files, [calibrated(model, [0.0] * len(SPEEDS)), slower], strict=True):
        path.write_text(device_text("b200", each, 1))
    shipped, same, found = seconds(compiled, ["b200", *map(str, files)])
    assert shipped == step_summary(compiled).step_s
    # What products keep up starts from the most of square ones.
    assert shipped <= same <= shipped * 1.03
    assert same < found < same * np.exp(0.45)
    again = load(str(files[1]))
    assert vars(again.reached) == pytest.approx(vars(slower.reached), rel=1e-3)
    for key, table in slower.tables.items():
        assert np.abs(again.tables[key].values - table.values).max() <= 0.0051
