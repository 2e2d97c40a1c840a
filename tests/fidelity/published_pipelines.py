"""Bubbles and in-flight counts of pipeline schedules, as their papers publish them.

The formulas come from `published.json` as text and are evaluated for many p, m and costs. F, B and W
are the costs of a stage; B is the whole backward, I = B - W its other half. A formula holds where its
authors derived it: the zero-bubble ones for W <= I; DualPipe's for F = I (what its code really has
is (p/2-1)(F&B+F-2W)), and its idle time is what the whole step takes minus the compute of the rank.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import sympy
from sympy.parsing.sympy_parser import (
    implicit_multiplication,
    parse_expr,
    standard_transformations,
)

from stagec.schedules import CATALOGUE, ActionCosts, ScheduleReport, build, validate

OURS = {"interleaved": "interleaved_1f1b"}
SIZES = [
    (2, 2, 4),
    (2, 4, 8),
    (4, 2, 8),
    (4, 2, 12),
    (4, 4, 16),
    (8, 2, 16),
    (8, 2, 40),
    (16, 2, 32),
]


class Case(NamedTuple):
    """Costs of F, I and W, and of an overlapped F and B."""

    forward: float
    backward_input: float
    weight: float
    overlapped: float

    def costs(self) -> ActionCosts:
        return ActionCosts(self.forward, self.backward_input, self.weight, None, self.overlapped)


EVEN = [Case(1, 1, 1, 3), Case(2, 2, 1, 5), Case(4, 4, 2, 10), Case(1, 1, 0.5, 2.5)]
UNEVEN = [Case(1, 1.5, 0.75, 3.25), Case(3, 2, 1, 6), Case(1, 0.5, 0.5, 2)]
SHORTER = [Case(1, 1, 1, 2.5), Case(2, 2, 1, 4)]


def evaluate(formula: str, **values: float) -> float:
    """The value of a formula such as `(p/2-1)(F&B+B-3W)` or `min(m, p - i)`."""
    names = {name: sympy.Symbol(name) for name in values} | {"min": sympy.Min}
    expression = parse_expr(
        formula.replace("F&B", "FB"),
        local_dict=names,
        transformations=(*standard_transformations, implicit_multiplication),
    )
    return float(expression.subs(values))


def symbols(case: Case, p: int, v: int, m: int) -> dict[str, float]:
    whole = case.backward_input + case.weight
    sizes: dict[str, float] = {"p": p, "v": v, "m": m}
    return sizes | {"F": case.forward, "B": whole, "W": case.weight, "FB": case.overlapped}


def reports(
    name: str, cases: list[Case]
) -> Iterator[tuple[ScheduleReport, Case, tuple[int, int, int]]]:
    """A schedule at all sizes and costs, with the v it takes."""
    for p, v, m in SIZES:
        stages = CATALOGUE[name].stages_per_rank or v
        schedule = build(name, p, stages, m)
        for case in cases:
            yield validate(schedule, case.costs()), case, (p, stages, m)


def compare_published(formulas: dict[str, Any]) -> Iterator[tuple[str, int, str]]:
    """For each published formula: its name, how often it was evaluated, and the first difference."""
    for kind, measured in (
        ("bubble_fraction", lambda report: report.bubble_fraction),
        ("idle_time", lambda report: report.bubble),
    ):
        for name, formula in formulas[kind].items():
            cases = EVEN if name == "dualpipe" else EVEN + UNEVEN
            yield compare_formula(f"published {kind} {name}", name, formula, cases, measured)
    yield compare_formula(
        "published idle_time dualpipe, shorter F&B",
        "dualpipe",
        formulas["idle_time"]["dualpipe"],
        SHORTER,
        lambda report: max(report.makespan - report.timing.busy),
    )
    for name, formula in formulas["in_flight_microbatches_on_stage_i"].items():
        yield compare_in_flight(f"published in flight {name}", name, formula)
    # arXiv:2401.10241, table 2: (p-1)(F+I-2W) and 2p - 1 for ZB-H2; p for ZB-H1.
    # DualPipe's and DualPipeV's code states p + 1 and, per rank of a V, 2p + 1.
    yield compare_formula(
        "paper idle_time zb_h2", "zb_h2", "(p-1)(F+B-3W)", EVEN + UNEVEN, lambda r: r.bubble
    )
    for name, formula in (
        ("zb_h1", "min(m, p)"),
        ("zb_h2", "2p-1"),
        ("dualpipe", "p+1"),
    ):
        yield compare_in_flight(f"paper in flight {name}", name, formula)


def compare_formula(
    title: str, name: str, formula: str, cases: list[Case], measured: Any
) -> tuple[str, int, str]:
    count = 0
    for report, case, (p, v, m) in reports(OURS.get(name, name), cases):
        if m < 2 * p - 1:
            continue
        count += 1
        wanted, got = evaluate(formula, **symbols(case, p, v, m)), float(measured(report))
        if abs(wanted - got) > 1e-9 * max(1.0, report.makespan):
            return title, count, f"{formula} = {wanted}, ours {got} (p {p}, v {v}, m {m}, {case})"
    return title, count, ""


def compare_in_flight(title: str, name: str, formula: str) -> tuple[str, int, str]:
    count = 0
    for report, _, (p, _, m) in reports(name, EVEN[:1]):
        if m < 2 * p - 1:
            continue
        for rank in range(p):
            count += 1
            wanted = evaluate(formula, p=p, m=m, i=rank)
            got = int(report.in_flight.rank_peak[rank])
            if wanted != got:
                return title, count, f"{formula} = {wanted}, ours {got} (rank {rank}, p {p}, m {m})"
    return title, count, ""
