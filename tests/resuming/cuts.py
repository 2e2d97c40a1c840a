"""Compilations that are cut after a pass: what is printed there is all that goes on."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise

from xdsl.dialects.builtin import ModuleOp

from stagec.advice import warnings
from stagec.backend.encode import encode_traces
from stagec.backend.encoded import TraceOptions
from stagec.backend.program import TraceSet
from stagec.backend.writer import iterate_traces
from stagec.driver import Compiled, Stops, compile_ir, compile_text
from stagec.ir_text import print_ir
from tests.resuming.texts import random_text

Compile = Callable[[Stops], Compiled]


def texts_after_passes(compile_it: Compile, *passes: str) -> tuple[dict[str, str], Compiled]:
    """The IR that each pass leaves, or each of those that are named, in order, and what the uninterrupted compilation gives."""
    texts: dict[str, str] = {}

    def keep(name: str, module: ModuleOp) -> None:
        if not passes or name in passes:
            texts[f"{len(texts):02} {name}"] = print_ir(module)

    whole = compile_it(Stops(on_pass=keep))
    assert {name.partition(" ")[2] for name in texts}.issuperset(passes)
    return texts, whole


@cache
def random_cuts(seed: int) -> tuple[dict[str, str], Compiled]:
    """That of a random plan, once for all tests that look at it. Nobody changes what this returns."""
    text = random_text(seed)
    return texts_after_passes(lambda stops: compile_text(text, "net.stg", stops=stops))


def differences(texts: dict[str, str], whole: Compiled) -> Iterator[str]:
    """The passes after which one cannot go on without a difference, and what differs."""
    wanted = outcome(whole)
    for name, text in texts.items():
        found = outcome(compile_ir(text, "cut.mlir"))
        yield from (f"{name}: {what}" for what in wanted if found[what] != wanted[what])


PASSES_LEFT = re.compile(r"^ *dist\.passes .*$", re.MULTILINE)


def differing_steps(texts: dict[str, str]) -> Iterator[str]:
    """The passes from whose IR one does not get to that of the next pass which changed something. With `differences` of the last, that is all of them, and
    each is parsed once."""
    names = list(texts)
    plain = {name: PASSES_LEFT.sub("", text) for name, text in texts.items()}
    pairs = pairwise(names)
    cuts = [names[0], *(name for before, name in pairs if plain[name] != plain[before])]
    for first, then in pairwise(cuts):
        stops = Stops(after=then.partition(" ")[2])
        found = print_ir(compile_ir(texts[first], "cut.mlir", stops=stops).module, "cut.mlir")
        if found != texts[then]:
            yield f"{first}: another `{then}`"


def outcome(compiled: Compiled) -> dict[str, object]:
    """Digests of the traces of every rank, the plan of memory, the lines of the model that both come from, and what is doubtful: but for settings that
    changed nothing, of which the compilation of the text has told."""
    ranks = ",".join(map(str, range(min(64, compiled.trace_set.mesh.num_ranks))))
    traces = compiled.trace_set
    return {
        "traces": digest(traces, ranks, TraceOptions()),
        "tracked traces": digest(compiled.tracked, "0", TraceOptions()),
        "lines in traces": digest(traces, "0", TraceOptions(provenance=True)),
        "memory": [(m.name, m.peak_bytes, str(m.peak), m.saved_bytes) for m in compiled.memory],
        "lines in memory": [[part.location for part in m.parts_at_peak()] for m in compiled.memory],
        "lines of what is counted": [[op.location for op in c.operations] for c in compiled.counts],
        "warnings": [
            (d.code, d.message, d.span) for d in warnings(compiled, None) if d not in compiled.idle
        ],
    }


def digest(programs: TraceSet, ranks: str, options: TraceOptions) -> str:
    traces = encode_traces(programs, options)
    found = hashlib.sha256()
    for rank, data in iterate_traces(traces, ranks):
        found.update(f"{rank} {len(data)} ".encode())
        found.update(data)
    return found.hexdigest()
