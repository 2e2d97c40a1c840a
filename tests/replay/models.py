"""Small models and plans whose parallelism is given by numbers, and the traces of all their ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from stagec.backend.encode import encode_traces
from stagec.backend.encoded import Encoded, EncodedTraces, TraceOptions
from stagec.backend.et_def_pb2 import Node
from stagec.backend.et_file import TraceReader
from stagec.backend.groups import comm_group_json
from stagec.backend.writer import iterate_traces, select_ranks
from stagec.driver import Compiled, compile_text

MODEL = """
dim B = {batch}
dim S = 16
dim V = 64
dim D = 16
dim F = 32
dim H = 4
dim E = D / H
dim L = {layers}

module Block(x[B, S, D]) -> [B, S, D] {{
  weight norm[D], wq[D, H, E], wk[D, H, E], wv[D, H, E], wo[H, E, D], up[D, F], down[F, D]
  n = rms_norm(x, norm)
  h = x + attention(n @ wq, n @ wk, n @ wv, causal = true) @ wo
  return h + gelu(h @ up) @ down
}}

model Tiny(tokens[B, S]: i32, targets[B, S]: i32) {{
  weight embed[V, D]{head}
  x = embedding(tokens, embed)
  repeat L {{ x = Block(x) }}
  loss = cross_entropy(x @ {logits}, targets)
}}
"""


@dataclass(frozen=True)
class Job:
    """How a small model is spread."""

    p: int = 2
    v: int = 1
    m: int = 4
    schedule: str = "1f1b"
    dp: int = 1
    tp: int = 1
    zero: int = 0
    tied: bool = False
    extra_layers: int = 0
    """Layers that the first stage has more than others."""
    clauses: tuple[str, ...] = ()
    """Further clauses of the plan."""
    pipeline: tuple[str, ...] = ()
    """Further settings of the pipeline."""
    layers_per_stage: int = 1
    axes: tuple[str, ...] = field(default=("dp", "pp", "tp"))

    @property
    def num_stages(self) -> int:
        return self.p * (1 if self.schedule == "dualpipe" else self.v)

    def text(self) -> str:
        layers = self.num_stages * self.layers_per_stage + self.extra_layers
        model = MODEL.format(
            batch=self.m * self.dp,
            layers=layers,
            head="" if self.tied else ", head[D, V]",
            logits="embed" if self.tied else "head",
        )
        return f"{model}\nplan p {{\n{self.plan()}}}\n"

    def plan(self) -> str:
        sizes = {"dp": self.dp, "pp": self.p, "tp": self.tp}
        settings = [f'schedule = "{self.schedule}"', "microbatch = 1"]
        if self.schedule not in ("zb_v", "dualpipe", "dualpipe_v"):
            settings.append(f"virtual_stages = {self.v}")
        if self.extra_layers:
            settings.append(f"first = {self.extra_layers}")
        lines = [
            "mesh " + ", ".join(f"{axis} = {sizes[axis]}" for axis in self.axes),
            "shard B over dp",
            "shard H, F, V over tp",
            f"pipeline L over pp {{ {', '.join([*settings, *self.pipeline])} }}",
            "precision { weights = bf16, gradients = fp32, optimizer = fp32 }",
            "optimizer adamw",
        ]
        if self.zero:
            lines += [f"zero {self.zero} over dp", "unit Block"]
        return "".join(f"  {line}\n" for line in [*lines, *self.clauses])


@lru_cache(maxsize=1)
def compiled(job: Job) -> Compiled:
    return compile_text(job.text(), "tiny.stg", "p")


def encoded(job: Job) -> EncodedTraces:
    return encode_traces(compiled(job).trace_set, TraceOptions(provenance=True))


def traces_of(traces: Encoded) -> tuple[dict[int, list[Node]], Mapping[str, list[int]]]:
    """The nodes of every rank, and the groups."""
    ranks = {r: list(TraceReader.of_bytes(data)) for r, data in iterate_traces(traces)}
    every = select_ranks(traces, "")
    return ranks, json.loads(comm_group_json(traces.comm_groups(every)))
