"""Compilations that are cut after a pass: what is printed there is all that goes on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

from xdsl.dialects.builtin import ModuleOp

from stagec.backend.encode import encode_traces
from stagec.backend.encoded import TraceOptions
from stagec.backend.writer import iterate_traces
from stagec.driver import Compiled, Stops, compile_ir
from stagec.ir_text import print_ir

Compile = Callable[[Stops], Compiled]


def texts_after_passes(compile_it: Compile) -> tuple[dict[str, str], Compiled]:
    """The IR that each pass leaves, in order, and what the uninterrupted compilation gives."""
    texts: dict[str, str] = {}

    def keep(name: str, module: ModuleOp) -> None:
        texts[f"{len(texts):02} {name}"] = print_ir(module)

    return texts, compile_it(Stops(on_pass=keep))


def differences(texts: dict[str, str], whole: Compiled) -> Iterator[str]:
    """The passes after which one cannot go on without a difference, and what differs."""
    wanted = outcome(whole)
    for name, text in texts.items():
        found = outcome(compile_ir(text, "cut.mlir"))
        yield from (f"{name}: {what}" for what in wanted if found[what] != wanted[what])


def outcome(compiled: Compiled) -> dict[str, object]:
    """Digests of the traces of every rank, and the plan of memory."""
    ranks = ",".join(map(str, range(min(64, compiled.trace_set.mesh.num_ranks))))
    return {
        "traces": digest(compiled, ranks, tracked=False),
        "tracked traces": digest(compiled, "0", tracked=True),
        "memory": [(m.name, m.peak_bytes, str(m.peak), m.saved_bytes) for m in compiled.memory],
    }


def digest(compiled: Compiled, ranks: str, tracked: bool) -> str:
    traces = encode_traces(compiled.tracked if tracked else compiled.trace_set, TraceOptions())
    found = hashlib.sha256()
    for rank, data in iterate_traces(traces, ranks):
        found.update(f"{rank} {len(data)} ".encode())
        found.update(data)
    return found.hexdigest()
