"""`--solve` where each value is long to ask: those around the ends are tried."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from stagec.cli import solve_page
from stagec.diagnostics import Diagnostic
from stagec.frontend import check, parse_file, parse_text
from stagec.sweeping.grid import Grid
from stagec.sweeping.plans import SweepRequest

MODEL = "dim B = 1\nmodel M(x[B]) { loss = mean(x, over = B) }\n"


@dataclass
class Table:
    """What a sweep finds of some values."""

    values: list[int]
    num_compiled: int = 1
    idle: tuple[Diagnostic, ...] = ()

    def rows(self) -> list[dict[str, int]]:
        return [{"B": value, "memory.peak": value} for value in self.values]


@pytest.mark.parametrize("seed", range(12))
def test_the_largest_value_that_meets_it_is_found(
    seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of those that can be compiled; the very last one, if all meet it."""
    rng = Random(seed)
    first, step = rng.randint(1, 9), rng.choice((1, 2, 7, 30))
    able = range(first, solve_page.LARGEST_DIM + 1, step)
    most = rng.choice((able[-1], able[-1] - step, rng.choice(able), rng.choice(able[:600])))
    asked: set[int] = set()

    def table_of(request: SweepRequest) -> Table:
        assert isinstance(request.grid, Grid)
        values = [v for v in request.grid.values["B"] if v in able]
        asked.update(values if request.quantities else ())
        return Table(values)

    monkeypatch.setattr(solve_page, "table_of", table_of)
    (tmp_path / "m.stg").write_text(MODEL)
    values = tuple(range(1, solve_page.LARGEST_DIM + 1))
    source = parse_file(str(tmp_path / "m.stg"))
    request = SweepRequest(source, None, {}, Grid({"B": values}, {}), ("memory.peak",))
    rows, num_tried, _ = solve_page.tried(request, values, lambda value: value <= most, True)
    met = [value for value, _ in rows if value <= most]
    assert (min(met), max(met)) == (first, most)
    assert len(asked) <= num_tried < 150


def test_plans_that_are_programs_of_their_own_are_not_all_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where few of the first values can be compiled, which are few programs."""
    asked: list[int] = []

    def table_of(request: SweepRequest) -> Table:
        assert isinstance(request.grid, Grid)
        values = [v for v in request.grid.values["B"] if v % 4 == 0]
        asked.extend(values)
        return Table(values, num_compiled=len(values))

    monkeypatch.setattr(solve_page, "table_of", table_of)
    (tmp_path / "m.stg").write_text(MODEL)
    values = tuple(range(1, solve_page.LARGEST_DIM + 1))
    source = parse_file(str(tmp_path / "m.stg"))
    request = SweepRequest(source, None, {}, Grid({"B": values}, {}), ("memory.peak",))
    rows, _, _ = solve_page.tried(request, values, lambda value: value <= 1000)
    assert max(value for value, _ in rows if value <= 1000) == 1000
    assert len(asked) < 150


REPEATED = """
# Here one could also repeat D times.
dim B = 1
dim D = 4
dim M = 2
dim N = 2
DEFINED
module Inner(x[B, D]) -> [B, D] {
  weight w[D]
  repeat M { x = x * w }
  return x
}
model Net(x[B, D]) {
  repeat COUNT { x = Inner(x) }
  loss = mean(x, over = [B, D])
}
"""


@pytest.mark.parametrize(
    ("count", "defined", "sizes", "found"),
    [
        ("N", "", {}, {"M", "N"}),
        ("2 * N", "", {}, {"M", "N"}),
        ("L", "dim K = N + 1\ndim L = 2 * K", {}, {"K", "L", "M", "N"}),
        ("L", "dim L = 2 * N", {"L": "4"}, {"L", "M"}),
        ("3", "", {}, {"M"}),
    ],
)
def test_sizes_that_say_how_often_bodies_run(
    count: str, defined: str, sizes: dict[str, str], found: set[str]
) -> None:
    """Of each of these few values are tried, as every number of layers is a program of its own: whatever they are made of, and whatever comments say."""
    text = REPEATED.replace("COUNT", count).replace("DEFINED", defined)
    checked = check(parse_text(text, "m.stg"), None, sizes)
    assert checked.repeat_counts == found
    tried = {name: solve_page.largest_of(checked, name) for name in ("B", "D", "M", "N")}
    assert {n for n, most in tried.items() if most == solve_page.LARGEST_COUNT} == found - {
        *("K", "L")
    }
