"""Traces for programs: `stagec.traces(...)`, rank by rank, without a file.

import stagec

for rank, data in stagec.traces("model.stg", plan="h100_16k", ranks="0,8,1024-1031"):
    simulator.feed(rank, data)
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from stagec.api.arguments import checks_arguments
from stagec.backend.bundle import MAGIC, read_bundle
from stagec.backend.encode import encode_traces
from stagec.backend.encoded import Encoded, TraceOptions
from stagec.backend.program import PooledTraces, TraceSet
from stagec.backend.writer import WriteOptions, WriteReport, iterate_traces, write_traces
from stagec.compiled import Compiled
from stagec.driver import compile_model
from stagec.plug_in_errors import mistakes_of_plug_ins
from stagec.plugins import registry
from stagec.trust import Trust, trusting

PassFiles = str | Path | Sequence[str | Path]
"""One file of passes and ops, or several."""


def files_of(load_pass: PassFiles) -> tuple[str, ...]:
    one = isinstance(load_pass, str | Path)
    return (str(load_pass),) if one else tuple(map(str, load_pass))


@checks_arguments("stagec.traces")
def traces(
    source: str | Path,
    plan: str | None = None,
    overrides: Mapping[str, int | str] | None = None,
    *,
    ranks: str = "",
    names: Literal["full", "short", "none"] = "full",
    provenance: bool = False,
    track_memory: bool = False,
    compress: Literal["none", "gzip"] = "none",
    allow_code: bool = False,
    trust: Sequence[str | Path] = (),
    load_pass: PassFiles = (),
) -> Iterator[tuple[int, bytes]]:
    """Each rank and the bytes of its `.et` file, equal to those that the command line writes.

    `source` is a model's file, or a bundle (whose plan and options are fixed). `ranks` is a selection such as
    `0,8,1024-1031`, all where empty. With `track_memory`, nodes list the tensors that they read and write.
    Python that the model names (a schedule of its own) runs with `allow_code`, or from a folder that you `trust`; files
    that it names are read from its own folder and from those. `load_pass` are files with
    passes and ops of your own. `CompileError` for a mistake in the model or the plan, `TraceError` for one in `ranks`.
    """
    if is_bundle(Path(source)):
        encoded = read_bundle(source).traces
    else:
        with trusting(Trust(allow_code, tuple(map(str, trust)))):
            settings = {k: str(v) for k, v in (overrides or {}).items()}
            plug_ins = registry(files_of(load_pass))
            with mistakes_of_plug_ins():
                compiled = compile_model(source, plan, settings, plug_ins=plug_ins)
        encoded = encode_traces(chosen(compiled, track_memory), TraceOptions(names, provenance))
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


def is_bundle(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False
