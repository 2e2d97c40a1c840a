"""`python -m tests.fidelity.blocks`: blocks of the cache that vLLM allotted on real cards, beside those that a plan has room for.

`vllm_blocks.csv` has what vLLM's logs said. Each row is judged by what it has of three things:

- The positions that fit into the memory that the log says is left: to the block, within the two digits of that memory.
- The weights of a rank.
- The positions that a plan alone has room for, which says what the process has beside PyTorch's tensors, and what vLLM's sampler needs.

Sources: `planner` is the report of llm-d-planner's pull request 205 (58 runs of vLLM 0.19 on an H100 of 79.19 GiB); `vllm#N` an issue of vllm-project/vllm;
`unsloth` a log of a notebook for Phi-4.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass
from pathlib import Path

from stagec.dialects.memory import Kind
from stagec.driver import compile_text
from stagec.explaining.cache_room import CacheRoom, cache_room
from stagec.explaining.job import NamedJob
from tests.fidelity.serving_models import DENSE

GIB = 2**30
BLOCK = 16
ROWS = Path(__file__).with_name("vllm_blocks.csv")
SIZES = {
    "Llama-3.1-8B": (128256, 4096, 14336, 32, 8, 32, False),
    "Qwen2.5-7B": (152064, 3584, 18944, 28, 4, 28, False),
    "Qwen3-14B": (151936, 5120, 17408, 40, 8, 40, True),
    "Qwen3-1.7B": (151936, 2048, 6144, 16, 8, 28, True),
    "phi-4": (100352, 5120, 17920, 40, 10, 40, False),
}
"""Vocabulary, width, feed-forward width, heads, heads of keys, layers, and whether queries and keys are normed, as published. Heads are 128 wide."""
SAMPLER = {"bf16": 12, "fp32": 8}
"""Bytes that vLLM's sampler has for each logit beside the logit, by the logit's dtype.

These are the logit in fp32 (`Sampler.forward`), its probability, and the noise that divides it (`random_sample`).
"""
MOST_OFF = 0.01
"""Of weights and of positions that a plan has room for."""


@dataclass(frozen=True)
class Row:
    model: str
    tp: int
    pp: int
    weights: str
    cache: str
    source: str
    numbers: dict[str, float]
    """The other columns, of those that are known."""

    @property
    def name(self) -> str:
        return f"{self.model} tp {self.tp} pp {self.pp} weights {self.weights} cache {self.cache} ({self.source})"


@dataclass(frozen=True)
class Found:
    """What is judged of a row; nothing of what its log does not say."""

    row: Row
    in_the_rest: int | None
    """Positions that fit into what the log says is left, nearest to those that vLLM has."""
    weights: float | None
    """Our bytes over its bytes, less one."""
    positions: float | None
    """Likewise of positions."""

    @property
    def wrong(self) -> list[str]:
        found = []
        if self.in_the_rest is not None and self.in_the_rest != self.row.numbers["positions"]:
            found.append(f"{self.in_the_rest:,} positions fit into what is left")
        for what, off in (("weights", self.weights), ("positions", self.positions)):
            if off is not None and abs(off) > MOST_OFF:
                found.append(f"{what} {off:+.2%}")
        return found


def read_rows(path: Path = ROWS) -> list[Row]:
    found = []
    with path.open() as file:
        for row in csv.DictReader(file):
            words = {name: row.pop(name) for name in ("model", "weights", "cache", "source")}
            tp, pp = int(row.pop("tp")), int(row.pop("pp"))
            numbers = {name: float(value) for name, value in row.items() if value}
            found.append(Row(tp=tp, pp=pp, numbers=numbers, **words))
    return found


def text_of(row: Row) -> str:
    """A model, and the plan of the iteration by which vLLM finds out what it needs: as many sequences as may run, with as many tokens as they may have."""
    vocabulary, width, hidden, heads, keys, layers, normed = SIZES[row.model]
    model = DENSE.format(
        vocabulary=vocabulary,
        width=width,
        hidden=hidden,
        heads=heads,
        kv_heads=keys,
        head_width=128,
        layers="L",
        norms=", nq[E], nk[E]" if normed else "",
        query="rms_norm(x @ wq, nq)" if normed else "x @ wq",
        key="rms_norm(x @ wk, nk)" if normed else "x @ wk",
    )
    number = row.numbers
    sequences = int(number.get("sequences", 1))
    tokens = int(number.get("budget", 1)) // sequences
    memory = int(number.get("card_gib", 80) * number.get("share", 1) * GIB)
    beside = int(number.get("beside_gib", 0) * GIB)
    dtype = row.weights or "bf16"
    axes = {"pp": row.pp, "tp": row.tp}
    return f"""dim L = {layers}
{model}
plan blocks {{
  mesh {", ".join(f"{name} = {size}" for name, size in axes.items())}
  shard H, K, F, V over tp
  {"pipeline L over pp { schedule = forward_only }" if row.pp > 1 else ""}
  precision {{ weights = {dtype}, activations = {dtype}, cache = {row.cache} }}
  serve {{ prefill {sequences} x {tokens}, block = {BLOCK} }}
  device h100 {{ memory = {memory} }}
  process {{ context = {beside}, reserve = {SAMPLER[dtype] * sequences * vocabulary} }}
}}
"""


def found_of(row: Row) -> Found:
    """Compile the plan, and compare."""
    job = NamedJob(compile_text(text_of(row)))
    room = cache_room(job)
    assert room is not None
    number, largest = (
        row.numbers,
        max(job.memory, key=lambda each: each.static.num_bytes[Kind.PARAMETERS]),
    )
    weights = largest.static.num_bytes[Kind.PARAMETERS]
    return Found(
        row,
        in_the_rest(row, room) if {"cache_gib", "positions"} <= {*number} else None,
        weights / (number["weights_gib"] * GIB) - 1 if "weights_gib" in number else None,
        room.positions / number["positions"] - 1 if {"positions", "budget"} <= {*number} else None,
    )


def in_the_rest(row: Row, room: CacheRoom) -> int:
    """Of the positions that fit into the memory in the log, which has two digits, those nearest to vLLM's."""
    low, high = (
        (row.numbers["cache_gib"] + off) * GIB // room.block_bytes for off in (-0.005, 0.005)
    )
    blocks = round(row.numbers["positions"] / BLOCK)
    return int(min(max(blocks, low), high)) * BLOCK


def main() -> int:
    found = [found_of(row) for row in read_rows()]
    for each in found:
        said = [
            f"{name} {off:+.2%}"
            for name, off in (("weights", each.weights), ("positions", each.positions))
            if off is not None
        ]
        fits = [] if each.in_the_rest is None else [f"{each.in_the_rest:,} fit into what is left"]
        print(f"{each.row.name}: {', '.join([*fits, *said])}")
    wrong = [f"{each.row.name}: {what}" for each in found for what in each.wrong]
    print(*(f"WRONG {line}" for line in wrong), sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
