"""A little of the attack: a few cases of each kind, the same ones each time. `python -m tests.attack` has no end of them."""

from __future__ import annotations

import random

import pytest

from tests.attack.__main__ import KINDS, attack
from tests.attack.case import Failure, Kind, attempt, shrink
from tests.attack.seeded import SEEDED
from tests.attack.slips import SLIPS
from tests.unit.seldom import some

CASES = {
    "texts": 12,
    "large": 2,
    "plans": 4,
    "sweeps": 2,
    "ir": 4,
    "traces": 16,
    "faults": 20,
    "sets": 8,
    "slips": 6,
    "devices": 12,
    "files": 1,
    "disks": 12,
    "executors": 6,
}
"""Not those that start processes, which are a second each: `.ci/run` has them."""


@pytest.mark.parametrize("name", some([*CASES][::4], 3))
def test_stagec_stands(name: str, capsys: pytest.CaptureFixture[str]):
    found = attack([KINDS[name]], seed=15, budget=60, cases=CASES[name])
    assert not found, capsys.readouterr().out


def test_all_of_the_seeded_faults_are_there():
    assert sum(not fault.why for fault in SEEDED) >= 57
    assert len(SLIPS) >= 40
    assert len({fault.name for fault in SEEDED}) == len(SEEDED)


def test_what_fails_is_made_smaller():
    def run(case: str) -> None:
        if "x" in case:
            raise Failure("an x")

    def smaller(case: str):
        yield from (case[:i] + case[i + 1 :] for i in range(len(case)))

    kind = Kind("letters", lambda draw: "abxcd" * draw.randint(2, 3), run, smaller)
    case = kind.make(random.Random(1))
    error = attempt(kind, case)
    assert error is not None
    assert shrink(kind, case, error)[0] == "x"


def test_what_does_not_end_is_a_failure():
    def run(_: int) -> None:
        while True:
            pass

    kind = Kind("loops", lambda draw: draw.randint(0, 1), run, seconds=0.2)
    assert "0.2 s" in str(attempt(kind, 0))
