"""The examples and their plans, each compiled once for all tests that look at it (see `conftest.py`)."""

from __future__ import annotations

import hashlib
import json
from functools import cache, lru_cache
from math import prod
from pathlib import Path

from stagec.backend.bundle import describe
from stagec.backend.encode import encode_traces
from stagec.driver import Compiled, compile_program
from stagec.frontend import check, parse_file
from stagec.frontend.checker import plans_of_one_mesh
from stagec.frontend.files import Source
from stagec.pass_arguments import virtual_stages

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.stg"))


@cache
def parsed(path: Path) -> Source:
    return parse_file(path)


@cache
def plans_of(path: Path) -> list[str]:
    """The plans that a model's file has; of one that has pools, these."""
    return plans_of_one_mesh(parsed(path))


Case = tuple[Path, str]
"""A file, and a plan of it."""

CASES = [(path, plan) for path in EXAMPLES for plan in plans_of(path)]
ENDS = [(path, plan) for path in EXAMPLES for plan in {plans_of(path)[0]: 0, plans_of(path)[-1]: 0}]
"""The first and the last plan of each example."""


LONG = ("kimi_k2", "gpt_oss_120b")
"""Models of many experts whose plans take seconds to compile; DeepSeek V3 is a third."""


def is_first(case: Case) -> bool:
    """The plan of an example that ordinary runs compile at full size."""
    path, plan = case
    return plan == plans_of(path)[0] and path.stem not in LONG


FIRST = [case for case in CASES if is_first(case)]


LARGE = (
    "gpt3_175b",
    "gpt_oss_120b",
    "kimi_k2",
    "mamba2_attention_2b7",
    "nemotron_h_8b",
    "whisper_large_v3",
)
"""Examples whose small versions are not small; what they have, others have, too."""


def is_small(case: Case) -> bool:
    """The plan of an example that ordinary runs compile at small sizes."""
    path, plan = case
    return plan == plans_of(path)[-1] and path.stem not in LARGE


def ids(cases: list[Case]) -> list[str]:
    return [f"{path.stem}-{plan}" for path, plan in cases]


@lru_cache(maxsize=2)
def compile_example(path: Path, plan: str) -> Compiled:
    """An example as it stands. Nobody changes what this returns."""
    return compile_program(check(parsed(path), plan))


@lru_cache(maxsize=2)
def compile_small(path: Path, plan: str) -> Compiled:
    """Likewise, at its smaller sizes."""
    return compile_program(check(parsed(path), plan, smaller(path, plan)))


def smaller(path: Path, plan: str) -> dict[str, str]:
    """The same plan on two ranks along each axis, with as few layers as it has stages and two microbatches for each of these.

    Of a long pipeline four ranks are left, which are of all kinds: the ends, and two between them.
    """
    checked, text = check(parsed(path), plan), path.read_text("utf-8")
    mesh, sizes, pipeline = checked.plan.mesh, checked.sizes.known, checked.plan.pipeline
    few = {axis: min(size, 2) for axis, size in mesh.items()}
    overrides: dict[str, int] = {}
    microbatches = 2
    if pipeline is None:
        overrides |= {count: 2 for count in ("L", "M") if f"repeat {count} " in text}
    else:
        few[pipeline.axis] = mesh[pipeline.axis]
        if pipeline.layers is None and len(pipeline.counts) == 1:
            few[pipeline.axis] = min(mesh[pipeline.axis], 4)
            stages = few[pipeline.axis] * virtual_stages(pipeline)
            overrides[pipeline.counts[0]] = stages + pipeline.first + pipeline.last
        microbatches = 2 * few[pipeline.axis]
    overrides |= few
    replicas = prod(few[a] for rule in checked.plan.rules if "B" in rule.dims for a in rule.axes)
    sequences = pipeline.microbatch if pipeline else checked.plan.microbatch or 1
    if checked.batch is None:
        overrides["B"] = min(sizes["B"], replicas * sequences * microbatches)
    return {name: str(size) for name, size in overrides.items() if size != {**sizes, **mesh}[name]}


def digest(job: Compiled) -> str:
    """A hash of all that is written."""
    described = json.dumps(describe(encode_traces(job.trace_set)), sort_keys=True)
    return hashlib.sha256(described.encode()).hexdigest()
