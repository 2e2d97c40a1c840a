"""A sweep, and whole compilations of its points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from random import Random

from stagec.diagnostics import CompileError
from stagec.driver import Compiled, compile_program
from stagec.estimate.step import on_device, step_time
from stagec.explaining.job import NamedJob
from stagec.explaining.questions import ask
from stagec.frontend import check, parse_text
from stagec.frontend.files import Source
from stagec.memory import ClassPlan, Kind
from stagec.summary import ClassSummary, summarize
from stagec.sweeping.grid import grid
from stagec.sweeping.plans import SweepRequest
from stagec.sweeping.run import sweep
from stagec.symbolic.conditions import recording
from tests.differential.random_plans import Drawn

Point = Mapping[str, int]

AT_PEAK = {
    "saved": Kind.SAVED,
    "gradients": Kind.GRADIENTS,
    "temporaries": Kind.TEMPORARIES,
    "parameters": Kind.PARAMETERS,
    "gathered": Kind.GATHERED,
}
OF_SUMMARY: dict[str, Callable[[ClassSummary], int]] = {
    "flops": lambda c: c.matrix_flops + c.other_flops,
    "flops.matrix": lambda c: c.matrix_flops,
    "bytes": lambda c: c.bytes_moved,
    "comm": lambda c: sum(t.operand_bytes for t in c.traffic if t.axes and t.kind != "recv"),
    "comm.result_bytes": lambda c: sum(
        t.result_bytes for t in c.traffic if t.axes and t.kind != "send"
    ),
    "params": lambda c: c.parameters.count,
}
OF_MEMORY: dict[str, Callable[[ClassPlan], int]] = {
    "memory.peak": lambda m: m.peak_bytes,
    "memory.parameters": lambda m: m.static.num_bytes[Kind.PARAMETERS],
    "memory.master": lambda m: m.static.num_bytes[Kind.MASTER],
    "memory.optimizer": lambda m: m.static.num_bytes[Kind.OPTIMIZER],
    "memory.gradients": lambda m: m.static.num_bytes[Kind.GRADIENTS],
    "memory.static": lambda m: m.static.total_bytes,
    "memory.in_flight": lambda m: int(
        m.lives.live_bytes(m.lives.kind == Kind.SAVED).max(initial=0)
    ),
    "memory.activations": lambda m: sum(m.saved_bytes),
    "memory.host": lambda m: sum(m.host_bytes.values()),
    "memory.nvme": lambda m: sum(m.nvme_bytes.values()),
    **{f"memory.peak.{n}": lambda m, kind=kind: m.at_peak()[kind] for n, kind in AT_PEAK.items()},
}
QUANTITIES = ("bubble", "step_time", *OF_SUMMARY, *OF_MEMORY)
NEAR_S = 1e-9
"""Times are sums of other numbers of floats; all else is exact."""


def whole(compiled: Compiled) -> dict[str, int | float]:
    """What a whole compilation says: of the rank that has most."""
    classes = summarize(compiled.module, compiled.counts).classes
    return {
        "bubble": float(ask(NamedJob(compiled), "bubble").worst.value),
        "step_time": step_time(compiled),
        **{name: max(of(c) for c in classes) for name, of in OF_SUMMARY.items()},
        **{name: max(of(m) for m in compiled.memory) for name, of in OF_MEMORY.items()},
    }


def request(
    source: Source, plan: str | None, quantities: Sequence[str], *varied: str
) -> SweepRequest:
    sizes = check(source, plan).sizes
    known = [*sizes.dims, *sizes.axes, "microbatch"]
    listed = grid(varied, known)
    return SweepRequest(
        source, plan, {}, listed, tuple(quantities), lambda own: on_device(own, "h100")
    )


def differences(drawn: Drawn, rng: Random | None = None, most: int = 1000) -> list[str]:
    """Where a sweep and whole compilations disagree; at `most` points, chosen at random if there are more."""
    try:
        asked = request(parse_text(drawn.text, "random.stg"), drawn.plan, QUANTITIES, *drawn.varied)
        table = sweep(asked)
    except CompileError:
        # Nothing of it compiles: so say all points.
        table, asked = None, None
    points = every_point(drawn)
    if rng is not None and len(points) > most:
        points = rng.sample(points, most)
    source = parse_text(drawn.text, "random.stg")
    rows = (
        {}
        if table is None or asked is None
        else {tuple(int(row[name]) for name in asked.grid.names): row for row in table.rows()}
    )
    found: list[str] = []
    for point in points:
        try:
            alone = request(source, drawn.plan, QUANTITIES, *(f"{n}={v}" for n, v in point.items()))
            with (
                recording()
            ):  # what it asks of sizes holds for all devices and iterations, or it is refused
                compiled = compile_program(alone.checked_at(point))
            expected = whole(compiled)
        except CompileError as error:
            if tuple(point.values()) in rows:
                found.append(f"{point}: does not compile: {error.diagnostics[0].message}")
            continue
        row = rows.get(tuple(point.values()))
        if row is None:
            reasons = dict(table.reasons) if table is not None else "nothing"
            found.append(f"{point}: compiles, but is left out: {reasons}")
            continue
        found += [
            f"{point}: {name} is {row[name]}, compiled {value}"
            for name, value in expected.items()
            if abs(row[name] - value) > (NEAR_S if name == "step_time" else 0)
        ]
    return found


def every_point(drawn: Drawn) -> list[dict[str, int]]:
    listed: dict[str, list[int]] = {}
    for text in drawn.varied:
        name, _, values = text.partition("=")
        first, dots, last = values.partition("..")
        listed[name] = (
            list(range(int(first), int(last) + 1)) if dots else [int(v) for v in values.split(",")]
        )
    return [dict(zip(listed, chosen, strict=True)) for chosen in product(*listed.values())]
