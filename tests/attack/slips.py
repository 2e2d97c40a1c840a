"""Slips of the pen in plans and in IR: each is named by its code, before anything is written."""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
import tempfile
from dataclasses import dataclass
from functools import lru_cache

from stagec.cli import opt_main
from stagec.diagnostics import CompileError
from stagec.driver import Stops, compile_text
from stagec.ir_text import print_ir
from tests.attack.case import Failure, Kind
from tests.attack.models import MODELS

PLAN = """
plan p {
  mesh pp = 2, dp = 2, tp = 2
  shard B over dp
  shard H, K, F, V over tp
  shard S over tp
  pipeline L over pp { schedule = 1f1b, microbatch = 2 }
  zero 1 over dp
  unit Block
  gradients { reduce = step }
  recompute full in Block
  precision { weights = bf16, activations = bf16, gradients = fp32, optimizer = fp32 }
  optimizer adamw
}
"""
SIMPLE = """
plan p {
  mesh dp = 2, tp = 2
  shard B over dp
  shard F over tp
}
"""


@dataclass(frozen=True)
class Slip:
    """`old` becomes `new` in the text; one of the codes is found."""

    name: str
    old: str
    new: str
    codes: str
    stage: str = ""
    """The pass after which the IR is changed; the plan's text where there is none."""
    passes: str = ""
    """What then runs on the IR."""


PLANS = [
    Slip("an axis misspelt", "B over dp", "B over pd", "E0302"),
    Slip("a dim misspelt", "shard B over", "shard Q over", "E0304"),
    Slip("an axis twice in the mesh", "dp = 2, tp = 2", "dp = 2, dp = 2", "E0202 E0306"),
    Slip("an axis twice in a rule", "B over dp", "B over dp, dp", "E0303"),
    Slip("an axis of no ranks", "tp = 2", "tp = 0", "E0208"),
    Slip("an axis of a fraction", "tp = 2", "tp = 1/2", "E0208"),
    Slip("an axis that divides no head", "tp = 2", "tp = 3", "E0301"),
    Slip("more ranks than sequences", "dp = 2", "dp = 48", "E0301"),
    Slip("a rule over the axis of stages", "F, V over tp", "F, V over tp, pp", "E0401"),
    Slip("ZeRO over the axis of stages", "zero 1 over dp", "zero 1 over pp", "E0401"),
    Slip("ZeRO of a fourth stage", "zero 1", "zero 4", "E0401"),
    Slip("ZeRO over no axis", "zero 1 over dp", "zero 1 over xp", "E0302"),
    Slip("a schedule misspelt", "schedule = 1f1b", "schedule = f1b1", "E0403"),
    Slip("a microbatch that does not divide", "microbatch = 2", "microbatch = 5", "E0308"),
    Slip("a microbatch of nothing", "microbatch = 2", "microbatch = 0", "E0208 E0406"),
    Slip("more stages than layers", "pp = 2", "pp = 8", "E0409"),
    Slip("virtual stages of a schedule without", "microbatch = 2 }", "microbatch = 2, virtual_stages = 2 }", "E0408"),
    Slip("a pipeline of no repeat", "pipeline L", "pipeline H", "E0405"),
    Slip("a unit that is no module", "unit Block", "unit Blok", "E0401"),
    Slip("a setting misspelt", "reduce = step", "reduec = step", "E0402"),
    Slip("a dtype misspelt", "weights = bf16", "weights = bf61", "E0403"),
    Slip("an optimizer misspelt", "adamw", "adamv", "E0403"),
    Slip("recomputation of nothing", "full in Block", "full in Blok", "E0401"),
    Slip("an override of nothing", "zero 1 over dp", "zero 1 over dp shard Block.q[D] over dp", "E0305"),
    Slip("a clause that contradicts", "zero 1 over dp", "zero 1 over dp zero 2 over dp", "E0401"),
    Slip("a brace too few", "optimizer adamw\\n}", "optimizer adamw\\n", "E0101 E0103 E0102"),
]  # fmt: skip
IR = [
    Slip("a value that nothing makes", "%h = stg.add %x", "%h = stg.add %nobody", "E0708", "lower"),
    Slip("a value twice", "%h = ", "%x_1 = ", "E0708", "lower"),
    Slip("a size that does not parse", '"B" = "24"', '"B" = "24 *"', "E0708", "lower"),
    Slip("another shape of a result", "-> !stg.tensor<[B, S, F], fp32>", "-> !stg.tensor<[B, S, D], fp32>", "E0708", "lower"),
    Slip("another dtype of an operand", "(!stg.tensor<[B, S, D], fp32>", "(!stg.tensor<[B, S, D], fp8>", "E0708 E0709", "lower"),
    Slip("a contraction over what is not there", "over [D]", "over [V]", "E0709", "lower"),
    Slip("an op that there is not", "stg.rms_norm", "stg.rms_nrm", "E0708", "lower"),
    Slip("a pass that there is not", '"localize-shapes"', '"localise-shapes"', "E0704", "lower", "localise-shapes"),
    Slip("no yield", "      stg.yield", "      // stg.yield", "E0709 E0708", "lower"),
    Slip("a brace too few", "builtin.module {", "builtin.module", "E0708", "lower"),
    Slip("a batch that there is not", "dist.mesh", "dist.mesh", "E0705", "lower", "split-microbatches{dim=Q size=1 gradients=fp32}"),
    Slip("an axis that the mesh has not", "over [tp]", "over [xp]", "E0709", "propagate-shardings", "localize-shapes"),
    Slip("a tensor with a dim twice", "tensor<[B, S, D]", "tensor<[B, B, D]", "E0708 E0709", "lower"),
    Slip("a count that is not text", 'stg.repeat "L"', "stg.repeat L", "E0708", "lower"),
    Slip("text of nothing", "builtin.module", "builtin.modul", "E0708", "lower"),
]  # fmt: skip
SLIPS = [*PLANS, *IR]


@lru_cache
def ir_after(stage: str) -> str:
    found = {"": ""}
    stops = Stops(on_pass=lambda name, module: found.update({name: print_ir(module)}), unroll=False)
    compile_text(MODELS["dense"] + SIMPLE, "attack.stg", "p", stops=stops)
    return found[stage]


def run(slip: Slip) -> None:
    codes = codes_of_ir(slip) if slip.stage else codes_of_plan(slip)
    if not codes & set(slip.codes.split()):
        raise Failure(f"`{slip.name}` is not found: {sorted(codes)}")


def spoilt(text: str, slip: Slip) -> str:
    old, new = (each.replace("\\n", "\n") for each in (slip.old, slip.new))
    assert old in text, slip
    return text.replace(old, new, 1)


def codes_of_plan(slip: Slip) -> set[str]:
    try:
        compile_text(MODELS["dense"] + spoilt(PLAN, slip), "attack.stg", "p")
    except CompileError as error:
        return {d.code for d in error.diagnostics}
    return set()


def codes_of_ir(slip: Slip) -> set[str]:
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "slip.mlir")
        with open(path, "w", encoding="utf-8") as file:
            file.write(spoilt(ir_after(slip.stage), slip))
        arguments = [path, "-o", os.path.join(directory, "out.mlir")]
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            status = opt_main([*arguments, "-p", slip.passes] if slip.passes else arguments)
    if status not in (0, 1):
        raise Failure(said.getvalue())
    return set(re.findall(r"^error\[(E\d{4})\]", said.getvalue(), re.MULTILINE))


def make(draw: random.Random) -> Slip:
    return draw.choice(SLIPS)


TYPOS = Kind("slips", make, run, show=lambda slip: slip.name)
