"""`stagec explain --solve`, as it is printed, and compilations of the values that it names, of their neighbours and of others."""

from __future__ import annotations

import io
import re
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from random import Random

from stagec.cli import main
from stagec.diagnostics import CompileError
from stagec.driver import compile_program
from stagec.symbolic.conditions import RELATIONS, recording
from tests.differential.random_plans import Drawn
from tests.differential.sweeps import every_point, request, whole

ASKED = ("memory.peak", "memory.static", "flops", "bytes", "comm", "step_time")
LONG = ("S",)
"""Of which each value is laid out anew: their peaks and times are not asked."""
ROW = re.compile(r"(smallest|largest|not met): \w+ = (\d+) \(([^=]+) = ([\d,]+)")


def wrong_solutions(drawn: Drawn, rng: Random) -> list[str]:
    """Where what `--solve` says of a name that varies is not so."""
    points = every_point(drawn)
    name = rng.choice(sorted(points[0]))
    what = rng.choice(ASKED[1:5] if name in LONG else ASKED)
    known: dict[int, float | None] = {}

    def value(number: int) -> float | None:
        """Of a plan alone; nothing if it does not compile."""
        if number not in known:
            known[number] = None
            try:
                alone = request(drawn.source, drawn.plan, (what,), f"{name}={number}")
                with recording():
                    compiled = compile_program(alone.checked_at({name: number}))
                known[number] = whole(compiled)[what]
            except CompileError:
                pass
        return known[number]

    tried = sorted({point[name] for point in points})
    able = [each for number in tried if (each := value(number)) is not None]
    if not able:
        return []
    sign = rng.choice(("<", "<=", ">", ">="))
    # As it is written: seconds to the nanosecond, all else in whole numbers.
    limit = f"{rng.choice(able) * rng.choice((0.6, 1, 1.4)):.{9 if what == 'step_time' else 0}f}"
    condition = f"{what} {sign} {limit}"
    printed = solved(drawn, condition, name)
    rows = [(kind, int(at), number) for kind, at, _, number in ROW.findall(printed)]
    ends = [at for kind, at, _ in rows if kind != "not met"]
    found: list[str] = []

    def meets(number: int) -> bool:
        own = value(number)
        return own is not None and RELATIONS[sign](own, float(limit))

    for kind, at, number in rows:
        own = value(at)
        if own is None or meets(at) != (kind != "not met"):
            found.append(f"{kind} {at}: compiled it is {own}")
        elif what != "step_time" and int(number.replace(",", "")) != own:
            found.append(f"{kind} {at} is {number}: compiled it is {own}")
    range_of = re.search(r"of 1 to ([\d,]+)", printed)
    if range_of is None:
        return [f"--solve '{condition}' --for {name}: {printed}"]
    last = int(range_of[1].rstrip(",").replace(",", ""))
    others = [*tried, *(near for at in ends for near in (at - 1, at + 1) if 0 < near <= last)]
    if "were tried" not in printed:
        found += [
            f"{name} = {other} meets it, compiled it is {value(other)}"
            for other in others
            if meets(other) and not (ends and min(ends) <= other <= max(ends))
        ]
    return [f"--solve '{condition}' --for {name}: {each}\n{printed}" for each in found]


def solved(drawn: Drawn, condition: str, name: str) -> str:
    """What the command prints."""
    out = io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "random.stg"
        path.write_text(drawn.text)
        line = ["explain", str(path), "--plan", drawn.plan, "--solve", condition, "--for", name]
        with redirect_stdout(out), redirect_stderr(out):
            main([*line, "--device", "h100"])
    return " ".join(out.getvalue().split())
