"""The plans that an imported model starts with: sharded storage, tensor parallelism, and experts over ranks."""

from __future__ import annotations

from collections.abc import Sequence

from stagec.importing.text import Writer

PRECISION = (
    "precision { weights = bf16, activations = bf16, gradients = fp32, optimizer = fp32 }",
    "optimizer adamw",
)
RANKS = 64


def starter_plans(w: Writer) -> list[str]:
    """Plans that hold for the sizes of that model; the first is what is compiled without `--plan`."""
    found = [sharded(w)]
    ways = tensor_ways(w)
    if ways > 1:
        found.append(tensor_parallel(w, ways))
    if w.experts:
        found.append(expert_parallel(w))
    return [text for text in found if text]


def plan(name: str, about: str, clauses: Sequence[str]) -> str:
    return f"# {about}\nplan {name} {{\n" + "".join(f"  {c}\n" for c in clauses) + "}\n"


def sharded(w: Writer) -> str:
    units = ", ".join(w.layers)
    return plan(
        f"fsdp{RANKS}",
        "Weights, gradients and optimizer state sharded over all ranks, gathered block by block.",
        (
            f"mesh dp = {RANKS}",
            "shard B over dp",
            *tokens_of_experts(w),
            "zero 3 over dp",
            f"unit {units}",
            f"recompute full in {units}",
            *microbatch(w),
            *PRECISION,
        ),
    )


def tensor_ways(w: Writer) -> int:
    """The most ranks of a node that all heads divide over; 1 if there are heads that do not."""
    counts = [w.dims[name].value for name in dict.fromkeys(w.heads)]
    return max(n for n in (1, 2, 4, 8) if all(c % n == 0 for c in counts))


def tensor_parallel(w: Writer, ways: int) -> str:
    dims = list(dict.fromkeys(w.heads))
    dims += [d for d in dict.fromkeys(w.widths) if w.dims[d].value % ways == 0]
    return plan(
        f"dp8_tp{ways}",
        "Tensor parallelism within a node, the sequence split between the blocks.",
        (
            f"mesh dp = 8, tp = {ways}",
            "shard B over dp",
            *tokens_of_experts(w),
            f"shard {', '.join(dims)} over tp",
            *(["shard S over tp"] if "S" in w.dims else []),
            *microbatch(w),
            "zero 1 over dp",
            *PRECISION,
        ),
    )


def expert_parallel(w: Writer) -> str:
    """Experts over as many ranks as divide them."""
    batch = w.dims["B"].value
    ranks = max(
        n
        for n in (1, 2, 4, 8, 16, 32, 64)
        if batch % n == 0 and all(w.dims[x].value % n == 0 for x, _ in w.experts)
    )
    if ranks == 1:
        return ""
    return plan(
        f"ep{ranks}",
        "Experts over all ranks, to which tokens travel.",
        (
            f"mesh dp = {ranks}, ep = dp",
            "shard B over dp",
            *(f"shard {x} over ep" for x, _ in dict.fromkeys(w.experts)),
            *tokens_of_experts(w),
            *microbatch(w),
            "zero 1 over dp",
            *PRECISION,
        ),
    )


def tokens_of_experts(w: Writer) -> list[str]:
    return [f"shard {t} over dp" for _, t in dict.fromkeys(w.experts)]


def microbatch(w: Writer) -> list[str]:
    """One sequence at a time, if experts then have a whole number of tokens."""
    whole = all(w.dims["S"].value * chosen % experts == 0 for chosen, experts in w.shares)
    return ["microbatch 1"] if whole and not w.whole_batch else []
