"""A schedule against time, as a paper draws it: a row per rank, as wide as its actions last."""

from fractions import Fraction
from math import gcd, lcm

from stagec.schedules.table import Schedule, group_text
from stagec.schedules.timing import ActionCosts, simulate


def picture(schedule: Schedule, costs: ActionCosts | None = None, widest: int = 400) -> str:
    """Draw compute on a time axis, `.` where a rank is idle.

        rank 0: F0  F1  .   .   B0  B0  B1  B1
        rank 1: .   F0  B0  B0  F1  B1  B1  .

    A column is the longest time that divides all starts and ends. Raises `ValueError` if that takes
    more than `widest` columns; then costs that are multiples of one another help.
    """
    shown = schedule.compute_only()
    timing = simulate(shown, costs)
    edges = [Fraction(float(t)).limit_denominator(1000) for t in (*timing.start, *timing.end)]
    unit = Fraction(gcd(*(e.numerator for e in edges)), lcm(*(e.denominator for e in edges)))
    unit = unit or Fraction(1)
    width = int(max(edges) / unit)
    if width > widest:
        raise ValueError(f"a picture of {width} columns, above {widest}")
    lines: list[list[str]] = []
    for rank in range(shown.num_ranks):
        cells = ["."] * width
        at = int(shown.starts[rank])
        for group in shown.groups(rank):
            begin, end = edges[at] / unit, edges[len(shown) + at] / unit
            for column in range(int(begin), int(end)):
                cells[column] = group_text(group, shown)
            at += len(group)
        lines.append(cells)
    space = max((len(cell) for cells in lines for cell in cells), default=0)
    label = len(f"rank {shown.num_ranks - 1}: ")
    return "\n".join(
        (f"rank {rank}: ".ljust(label) + " ".join(cell.ljust(space) for cell in cells)).rstrip()
        for rank, cells in enumerate(lines)
    )
