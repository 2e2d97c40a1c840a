"""IR texts: what a model is after some pass, with a few changes, given to `stagec-opt`."""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from stagec.cli import opt_main
from stagec.diagnostics import CompileError
from stagec.driver import Stops, compile_text
from stagec.ir_text import print_ir
from tests.attack.case import Failure, Kind, fewer_lines
from tests.attack.models import MODELS, random_model, random_plan

PASSES = (
    "propagate-shardings",
    "localize-shapes",
    "build-backward",
    "split-microbatches{dim=B size=1 gradients=fp32}",
    "chunk-loss{chunks=2}",
    "chunk-loss{chunks=0}",
    "split-stages{counts=L axis=pp stages=2}",
    "split-stages{counts=L axis=pp stages=1000000000}",
    "split-microbatches{dim=Q size=1 gradients=fp32}",
    "split-microbatches{dim=B size=1 gradients=fp77}",
    "reduce-gradients{axes=dp}",
    "recompute-activations{what=full}",
)
TOKEN = re.compile(r"%?[\w.$@]+|\"[^\"\n]*\"|->|\s+|.")


@dataclass(frozen=True)
class Case:
    text: str
    passes: str


@lru_cache
def texts(model: str, seed: int) -> list[str]:
    """A model after each pass."""
    found: list[str] = []
    stops = Stops(on_pass=lambda _name, module: found.append(print_ir(module)), unroll=False)
    with contextlib.suppress(CompileError):
        compile_text(
            MODELS[model] + random_plan(random.Random(seed), model), "attack.stg", "p", stops=stops
        )
    return found


def make(draw: random.Random) -> Case:
    known: list[str] = []
    while not known:
        known = texts(random_model(draw), draw.randrange(12))
    lines = draw.choice(known).splitlines()
    for _ in range(draw.randint(1, 2)):
        at, other = draw.randrange(len(lines)), draw.randrange(len(lines))
        match draw.randrange(5):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, lines[other])
            case 2:
                lines[at], lines[other] = lines[other], lines[at]
            case _:
                tokens = TOKEN.findall(lines[at])
                pool = [t for t in (*tokens, *TOKEN.findall(lines[other])) if t.strip()] or ["x"]
                if tokens:
                    k = draw.randrange(len(tokens))
                    tokens[k] = draw.choice([*pool, "", "-1", "99999999999999999999", "%nobody"])
                lines[at] = "".join(tokens)
    chosen = draw.choices(PASSES, k=draw.randint(0, 2))
    return Case("\n".join(lines) + "\n", ",".join(chosen))


def run(case: Case) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "case.mlir")
        with open(path, "w", encoding="utf-8") as file:
            file.write(case.text)
        arguments = [path, "-o", os.path.join(directory, "out.mlir")]
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            status = opt_main([*arguments, "-p", case.passes] if case.passes else arguments)
    if status not in (0, 1):
        # Where it was is what failures of one cause share.
        place = re.search(r"note: (in .*)", said.getvalue())
        raise Failure(f"{place[1] if place else ''}, exit status {status}\n{said.getvalue()}")


def smaller(case: Case) -> Iterator[Case]:
    if "," in case.passes:
        yield from (replace(case, passes=each) for each in re.split(r",(?=[a-z-]+\{)", case.passes))
    for text in fewer_lines(case.text):
        yield replace(case, text=text)


IR = Kind("ir", make, run, smaller, lambda case: f"-p '{case.passes}'\n{case.text}")
