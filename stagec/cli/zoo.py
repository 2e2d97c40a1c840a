"""The models that ship and what they come to, beside what is published of them.

`zoo.json` has the figures as `stagec examples --measure --format json` last found them: nobody who lists models waits for all of them to
be compiled. `published.toml` has what papers, model cards and tables of results say.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib import resources
from math import prod
from pathlib import Path
from typing import Any

from stagec.analysis.sizes import size_values
from stagec.cli.tables import seconds
from stagec.compiled import Compiled
from stagec.dialects import stg
from stagec.dialects.types import ValueType
from stagec.driver import compile_program
from stagec.estimate.step import batch_of
from stagec.frontend import check, parse_file
from stagec.frontend.checker import plans_of_one_mesh
from stagec.frontend.files import Source
from stagec.frontend.lowering import lower
from stagec.pictures.scales import amount, digits
from stagec.reports.headline import headline
from stagec.rewriting import programs
from stagec.shipped_models import shipped, shipped_names
from stagec.step_count import matrix_flops

GIB = 2**30


@cache
def stored() -> dict[str, Any]:
    """Figures of each model, and of its plans."""
    return json.loads(resources.files("stagec.cli").joinpath("zoo.json").read_text())


@cache
def published() -> dict[str, Any]:
    return tomllib.loads(resources.files("stagec.cli").joinpath("published.toml").read_text())


def measured(chosen: Collection[str] = ()) -> dict[str, Any]:
    """The figures, found anew for the models that are named, or for all: every plan is compiled."""
    return {name: model_figures(Path(shipped(name))) for name in sorted(chosen or shipped_names())}


def model_figures(path: Path) -> dict[str, Any]:
    source = parse_file(path)
    plans = plans_of_one_mesh(source)
    title = source.texts[str(path)].partition("\n")[0].lstrip("# ")
    return {
        "title": title,
        "parameters": parameters(source),
        "plans": {
            plan: plan_figures(compile_program(check(parse_file(path), plan))) for plan in plans
        },
    }


def parameters(source: Source) -> int:
    """The number of parameters of the model under its own sizes, each weight counted once."""
    module = lower(check(source))
    values = size_values(module)
    (program,) = programs(module)
    kinds = [op.weight.type for op in program.walk() if isinstance(op, stg.WeightOp)]
    return sum(kind.num_elements.integer(values) for kind in kinds if isinstance(kind, ValueType))


def plan_figures(compiled: Compiled) -> dict[str, Any]:
    """Ranks, FLOPs of a token (or of a sample), GiB at the peak, and seconds of a step where the plan names a device."""
    found = headline(compiled)
    flops = matrix_flops(compiled.module, compiled.counts).model
    samples, tokens = batch_of(compiled)
    figures: dict[str, Any] = {
        "ranks": prod(compiled.trace_set.mesh.sizes),
        "flops": float(f"{flops / (tokens or samples):.5g}"),
        "per": "token" if tokens else "sample",
        "peak_gib": float(f"{found.peak_bytes / GIB:.4g}"),
    }
    if found.step_us is not None:
        figures["step_s"] = float(f"{found.step_us / 1e6:.4g}")
        figures["device"] = found.device
    return figures


def rows(name: str, model: Mapping[str, Any]) -> Sequence[tuple[str, ...]]:
    """A row of text for each plan: its name, ranks, FLOPs, peak, step, and what is published of it."""
    said = published().get(name, {}).get("plans", {})
    found = []
    for plan, figures in model["plans"].items():
        step = f"{seconds(figures['step_s'])}, {figures['device']}" if "step_s" in figures else ""
        note = said.get(plan, {})
        theirs = f"{note['step_s']:g} s" if "step_s" in note else ""
        if "tflops" in note:
            theirs = f"{note['tflops']:g} TFLOP/s of a GPU"
        found.append(
            (
                plan,
                f"{figures['ranks']:,}",
                f"{amount(int(figures['flops']))} / {figures['per']}",
                f"{digits(figures['peak_gib'])} GiB",
                step,
                f"{theirs} ({note['from']})" if theirs else "",
            )
        )
    return found


COLUMNS = ("plan", "ranks", "FLOPs of products", "peak memory", "a step", "published")


def page() -> str:
    """The page of the documentation."""
    parts = [PAGE]
    for name, model in stored().items():
        said = published().get(name, {})
        line = f"{model['title']}\n\n{model['parameters']:,} parameters."
        if "parameters" in said:
            line += f" Published: {said['parameters']:,} ({said['parameters_from']})."
        if "flops_per_token" in said:
            line += f" FLOPs of training for a token: {said['flops_per_token']:,} ({said['flops_from']})."
        table = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
        table += [f"| {' | '.join((f'`{row[0]}`', *row[1:]))} |" for row in rows(name, model)]
        parts.append(f"## `{name}`\n\n{line}\n\n" + "\n".join(table) + "\n")
    return "\n".join(parts)


PAGE = """\
# The models that ship

`stagec examples --format markdown` writes this page; `stagec NAME --plan PLAN` compiles any of it, wherever one stands. FLOPs are those of matrix
operations in a step, without what is recomputed, for each token, or each sample where there are none; routers count, and so do the scores that the
backward pass of fused attention makes again, which Megatron-LM's count leaves out. Memory is that of the rank that needs most.
A step is an estimate for the device that the plan names ([how](decisions/step-time.md)). Published figures stand beside ours as their authors
state them, who may have counted, or computed, otherwise.

Configurations of published models ship too: `stagec import NAME` makes a text of one (`stagec examples` lists their names).
"""
