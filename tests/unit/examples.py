"""The examples and their plans, each compiled once for all tests that look at it (see `conftest.py`)."""

from __future__ import annotations

import hashlib
import json
import re
from functools import lru_cache
from pathlib import Path

from stagec.backend.bundle import describe
from stagec.backend.encode import encode_traces
from stagec.driver import Compiled, compile_program
from stagec.frontend import check, parse_file
from stagec.frontend.files import Source

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.stg"))


def plans_of(path: Path) -> list[str]:
    """The plans that a model's file has."""
    return re.findall(r"^plan (\w+)", path.read_text("utf-8"), re.MULTILINE)


Case = tuple[Path, str]
"""A file, and a plan of it."""

CASES = [(path, plan) for path in EXAMPLES for plan in plans_of(path)]
ENDS = [(path, plan) for path in EXAMPLES for plan in {plans_of(path)[0]: 0, plans_of(path)[-1]: 0}]
"""The first and the last plan of each example."""


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


@lru_cache(maxsize=1)
def parsed(path: Path) -> Source:
    return parse_file(path)


def smaller(path: Path, plan: str) -> dict[str, str]:
    """The same plan on as few data-parallel ranks as it takes, with as few layers as it has stages."""
    checked, text = check(parsed(path), plan), path.read_text("utf-8")
    mesh = checked.plan.mesh
    overrides: dict[str, str] = {}
    if "dp" in mesh and mesh["dp"] > 2:
        overrides["dp"] = "2"
        overrides["B"] = str(max(checked.sizes.known["B"] * 2 // mesh["dp"], 2))
    if "pp" not in mesh or mesh["pp"] == 1:
        overrides |= {count: "2" for count in ("L", "M") if f"repeat {count} " in text}
    return overrides


def digest(job: Compiled) -> str:
    """A hash of all that is written."""
    described = json.dumps(describe(encode_traces(job.trace_set)), sort_keys=True)
    return hashlib.sha256(described.encode()).hexdigest()
