"""Traces for programs: `stagec.traces(...)`, rank by rank, without a file.

import stagec

for rank, data in stagec.traces("model.stg", plan="h100_16k", ranks="0,8,1024-1031"):
    simulator.feed(rank, data)
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from stagec.api.arguments import checks_arguments
from stagec.api.asked import Files, Sizes, asked_for
from stagec.backend.bundle import MAGIC, read_bundle
from stagec.backend.encode import encode_traces
from stagec.backend.encoded import Encoded, TraceOptions
from stagec.backend.program import PooledTraces, TraceSet
from stagec.backend.writer import WriteOptions, WriteReport, iterate_traces, write_traces
from stagec.compiled import Compiled
from stagec.diagnostics import refuse_beside


@checks_arguments("stagec.traces")
def traces(
    source: str | Path,
    plan: str | None = None,
    set: Sizes | None = None,
    device: str | Path | None = None,
    network: str | Path | None = None,
    load_pass: Files = (),
    *,
    ranks: str = "",
    names: Literal["full", "short", "none"] = "full",
    provenance: bool = False,
    track_memory: bool = False,
    compress: Literal["none", "gzip"] = "none",
    allow_code: bool = False,
    trust: Files = (),
) -> Iterator[tuple[int, bytes]]:
    """Each rank and the bytes of its `.et` file, equal to those that the command line writes.

    `source` is what `stagec.compile` takes, with the same arguments beside it, or a bundle, whose plan and options are fixed. `ranks` is a
    selection such as `0,8,1024-1031`, all where empty. With `track_memory`, nodes list the tensors that they read and write.
    `CompileError` for a mistake in the model or the plan, `TraceError` for one in `ranks`.
    """
    if is_bundle(source):
        options = {"names": names != "full", "provenance": provenance, "track_memory": track_memory}
        of_model = {"plan": plan, "set": set, "device": device, "network": network}
        of_code = {"load_pass": load_pass, "allow_code": allow_code, "trust": trust}
        why = "is a bundle, whose plan and options are fixed"
        refuse_beside(str(source), why, {**of_model, **of_code, **options})
        encoded = read_bundle(source).traces
    else:
        asked = asked_for(
            source, plan, set, device, network, load_pass, allow_code=allow_code, trust=trust
        )
        with asked.working():
            found = chosen(asked.compiled(), track_memory)
        encoded = encode_traces(found, TraceOptions(names, provenance))
    return selected(encoded, ranks, compress)


def chosen(compiled: Compiled, track_memory: bool) -> TraceSet:
    """The traces; with `track_memory`, their nodes list the tensors that they read and write."""
    return compiled.tracked if track_memory else compiled.trace_set


class WithTraces(ABC):
    """Shared by jobs: what they run, rank by rank, or in a directory."""

    @checks_arguments("Job.traces")
    def traces(
        self,
        ranks: str = "",
        *,
        names: Literal["full", "short", "none"] = "full",
        provenance: bool = False,
        track_memory: bool = False,
        compress: Literal["none", "gzip"] = "none",
    ) -> Iterator[tuple[int, bytes]]:
        """Each rank's number and the contents of its `.et` file, as `stagec.traces` yields them. Of several pools, those of the first come first."""
        encoded = encode_traces(self._chosen(track_memory), TraceOptions(names, provenance))
        return selected(encoded, ranks, compress)

    @checks_arguments("Job.write")
    def write(
        self, directory: str | Path, ranks: str = "", *, track_memory: bool = False
    ) -> WriteReport:
        """Write a trace per rank and `comm_group.json`, as `stagec MODEL -o DIR` does."""
        options = WriteOptions(ranks=ranks) if ranks else WriteOptions()
        encoded = encode_traces(self._chosen(track_memory), TraceOptions())
        return write_traces(encoded, os.fspath(directory), options)

    @abstractmethod
    def _chosen(self, track_memory: bool) -> TraceSet | PooledTraces: ...


def selected(
    encoded: Encoded, ranks: str, compress: Literal["none", "gzip"]
) -> Iterator[tuple[int, bytes]]:
    for rank, data in iterate_traces(encoded, ranks, compress):
        yield rank, bytes(data)


def is_bundle(source: str | Path) -> bool:
    try:
        with open(source, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):  # a text is no path
        return False
