"""A sweep, and whole compilations of its points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from random import Random

from stagec.diagnostics import CompileError
from stagec.driver import Compiled, compile_program
from stagec.estimate.step import estimate, on_device
from stagec.explaining.job import NamedJob
from stagec.explaining.memory import KINDS
from stagec.explaining.questions import ask
from stagec.frontend import check
from stagec.frontend.files import Source
from stagec.memory import ClassPlan, Kind
from stagec.plans.clauses import Plan
from stagec.summary import ClassSummary, summarize
from stagec.sweeping.grid import grid
from stagec.sweeping.plans import SweepRequest, first_that_compiles
from stagec.sweeping.run import STORED, sweep
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
    "memory.static": lambda m: sum(m.static.num_bytes.values()),
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
        "step_time": estimate(compiled).step_time_us / 1e6,
        **{name: max(of(c) for c in classes) for name, of in OF_SUMMARY.items()},
        **{name: max(of(m) for m in compiled.memory) for name, of in OF_MEMORY.items()},
    }


def request(
    source: Source,
    plan: str | None,
    quantities: Sequence[str],
    *varied: str,
    set_sizes: Mapping[str, str] | None = None,
) -> SweepRequest:
    given = dict(set_sizes or {})
    sizes = check(source, plan, given).sizes
    known = [*sizes.dims, *sizes.axes, "microbatch"]
    listed = grid(varied, known)
    return SweepRequest(source, plan, given, listed, tuple(quantities), with_device)


def with_device(plan: Plan) -> Plan:
    return plan if plan.device.preset else on_device(plan, "h100")


def differences(
    drawn: Drawn, rng: Random | None = None, most: int = 1000, num_names: int = 0
) -> list[str]:
    """Where a sweep and whole compilations disagree; at `most` points, chosen at random if there are more: most of them rows.

    With `num_names` so many further names are asked, and what `explain` says of the points alone is compared, too.
    """
    source, quantities = drawn.source, QUANTITIES
    points = every_point(drawn)
    try:
        asked = request(source, drawn.plan, QUANTITIES, *drawn.varied, set_sizes=drawn.sizes)
        if rng is not None and num_names:
            base, _ = first_that_compiles(asked, points)
            quantities = (*QUANTITIES, *further_names(base, rng, num_names))
        table = sweep(replace(asked, quantities=quantities))
    except CompileError:
        # Nothing of it compiles: so say all points.
        table, asked = None, None
    rows = (
        {}
        if table is None or asked is None
        else {tuple(int(row[name]) for name in asked.grid.names): row for row in table.rows()}
    )
    if rng is not None and len(points) > most:
        told = [point for point in points if tuple(point.values()) in rows]
        rest = [point for point in points if tuple(point.values()) not in rows]
        chosen = rng.sample(told, min(len(told), most - min(most // 4, len(rest))))
        points = [*chosen, *rng.sample(rest, min(len(rest), most - len(chosen)))]
    found: list[str] = []
    for point in points:
        try:
            alone = request(
                source,
                drawn.plan,
                QUANTITIES,
                *(f"{n}={v}" for n, v in point.items()),
                set_sizes=drawn.sizes,
            )
            with (
                recording()
            ):  # what it asks of sizes holds for all devices and iterations, or it is refused
                compiled = compile_program(alone.checked_at(point))
            expected = whole(compiled)
        except CompileError as error:
            if tuple(point.values()) in rows:
                found.append(f"{point}: does not compile: {error.diagnostics[0].message}")
            continue
        if num_names:
            job = NamedJob(compiled)
            found += [f"{point}: {each}" for each in wrongly_explained(job, expected)]
            further = quantities[len(QUANTITIES) :]
            expected = {**expected, **{name: said_of(job, name) for name in further}}
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


def further_names(job: NamedJob, rng: Random, number: int) -> list[str]:
    """Names of what is part of a plan: ops, modules, phases, axes, kinds of communication, copies, kinds of memory."""
    found = {f"memory.{kind}" for kind in STORED} | {f"memory.peak.{kind}" for kind in KINDS}
    for term in (term for each in job.classes for term in each.terms):
        words, axes = term.words, "+".join(term.axes)
        if term.is_computation:
            starts = ("flops", "bytes", "bytes.read", "bytes.written", f"flops.{term.phase}")
            found |= {f"{start}.{word}" for start in starts for word in words if start != word}
        elif term.is_copy:
            found |= {f"host.{word}" for word in words}
        else:
            over = {"comm", f"comm.{axes}", f"comm.{axes}.{term.op}"}
            over |= {f"comm.{word}" for word in words}
            found |= {f"{each}{measure}" for each in over for measure in ("", *MEASURED)}
    chosen = rng.sample(others := sorted(found - {*QUANTITIES}), min(number, len(others)))
    return [*chosen, "kv"] if job.compiled.with_caches is not None else chosen


MEASURED = (".count", ".result_bytes", ".sent_bytes")


def said_of(job: NamedJob, name: str) -> int:
    """What `explain` says of a plan; it has none of what it does not know."""
    try:
        return int(ask(job, name).worst.value)
    except CompileError:
        return 0


def wrongly_explained(job: NamedJob, expected: Mapping[str, int | float]) -> list[str]:
    """Where `explain` says something else of a plan than was counted, or its closed forms do."""
    found: list[str] = []
    for name in (*OF_SUMMARY, *OF_MEMORY):
        answer = ask(job, name)
        if answer.worst.value != expected[name]:
            found.append(f"explained {name} is {answer.worst.value}, compiled {expected[name]}")
        for each, own in zip(answer.classes, job.classes, strict=True):
            form = each.at_its_place.evaluate({**job.names.values, **own.run.stages[0].values})
            if form != each.value:
                found.append(f"the form of {name} on {each.name} is {form}, not {each.value}")
    for number, each in enumerate(summarize(job.compiled.module, job.compiled.counts).classes):
        for row in (row for row in each.traffic if row.axes):
            what = f"comm.{'+'.join(row.axes)}.{row.kind}"
            told = [ask(job, f"{what}{m}").classes[number].value for m in ("", ".result_bytes")]
            if told != [row.operand_bytes, row.result_bytes]:
                found.append(f"{what} on {each.name} is {told}, counted {row}")
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
