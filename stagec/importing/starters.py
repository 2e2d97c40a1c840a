"""The plans that an imported model starts with: sharded storage, tensor parallelism, experts over ranks, and serving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd, lcm

from stagec.importing.text import RANKS, Module, Writer
from stagec.importing.transformers_plans import plans_of, tensor_clauses


def starter_plans(w: Writer, model: Module, model_types: Sequence[str], stored: str) -> list[str]:
    """Plans that hold for the sizes of that model; the first is what is compiled without `--plan`. `stored`: what serving
    says of a quantized checkpoint."""
    found = [sharded(w)]
    ways = tensor_ways(w)
    if ways > 1:
        found.append(tensor_parallel(w, ways))
    if w.experts:
        found.append(expert_parallel(w, bool(plans_of(model_types, "ep"))))
    if plan := plans_of(model_types, "tp"):
        found.append(their_tensor_parallel(w, model, plan))
    if plans_of(model_types, "pp"):
        found.append(their_pipeline(w))
    if w.decodes and not w.carries_state and any(m.caches for m in w.modules.values()):
        found.append(served(w, model, ways, stored))
    return [text for text in found if text]


def plan_text(name: str, about: str, clauses: Sequence[str]) -> str:
    return f"# {about}\nplan {name} {{\n" + "".join(f"  {c}\n" for c in clauses) + "}\n"


def optimized(w: Writer) -> tuple[str, str]:
    """The clauses of dtypes and of the optimizer."""
    loss = ", loss = fp32" if w.widens_loss else ""
    dtypes = f"weights = bf16, activations = bf16, gradients = fp32, optimizer = fp32{loss}"
    return f"precision {{ {dtypes} }}", "optimizer adamw"


def sharded(w: Writer) -> str:
    units = ", ".join(block for block in w.layers if block not in w.idle)
    return plan_text(
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
            *optimized(w),
        ),
    )


def tensor_ways(w: Writer) -> int:
    """The most ranks of a node that all heads divide over; 1 if there are heads that do not."""
    counts = [w.dims[name].value for name in dict.fromkeys(w.heads)]
    return max(n for n in (1, 2, 4, 8) if all(c % n == 0 for c in counts))


def tensor_parallel(w: Writer, ways: int) -> str:
    return plan_text(
        f"dp8_tp{ways}",
        "Tensor parallelism within a node, the sequence split between the blocks.",
        (
            f"mesh dp = 8, tp = {ways}",
            "shard B over dp",
            *tokens_of_experts(w),
            f"shard {', '.join(tensor_dims(w, ways))} over tp",
            *(["shard S over tp"] if "S" in w.dims and w.dims["S"].value % ways == 0 else []),
            *microbatch(w),
            "zero 1 over dp",
            *optimized(w),
        ),
    )


def tensor_dims(w: Writer, ways: int) -> list[str]:
    """What so many ranks split: heads, and widths that divide."""
    dims = list(dict.fromkeys(w.heads))
    return dims + [d for d in dict.fromkeys(w.widths) if w.dims[d].value % ways == 0]


def counted(w: Writer, model: Module) -> tuple[int, int]:
    """Parameters, and elements of buffers, of all calls that a model makes."""
    places: dict[str, int] = {}

    def of(module: Module) -> tuple[int, int]:
        found = [0, 0]
        for weight in module.all_weights:
            found[weight.buffer] += w.elements(weight.dims)
        for callee in module.calls:
            times = 1
            if callee in w.layers:
                times = len(w.layers[callee][places.get(callee, 0)])
                places[callee] = places.get(callee, 0) + 1
            inner = of(w.modules[callee])
            found[0] += times * inner[0]
            found[1] += times * inner[1]
        return found[0], found[1]

    return of(model)


DECODED, CONTEXT = 128, 2047
"""Sequences of an iteration, and the tokens before the one that each gets."""


ROOM = 64e9
"""Bytes of weights that leave room for caches on a device of 80 GB, of which most engines serve on."""


def serving_ways(w: Writer, model: Module, ways: int, stored: str) -> int:
    """As many ranks as tensor parallelism has, or more, so that weights fit, if heads divide over these: of heads of keys ranks may have copies."""
    num_bytes = counted(w, model)[0] * (
        2 if "products" not in stored else 0.5 if "fp4" in stored else 1
    )
    possible = [ways]
    for more in (2, 4, 8, 16, 32, 64):
        counts = ((name, w.dims[name].value) for name in w.heads)
        if more > ways and all(
            n % more == 0 or (name in w.key_heads and more % n == 0) for name, n in counts
        ):
            possible.append(more)
    return next((n for n in possible if num_bytes <= n * ROOM), possible[-1])


def served(w: Writer, model: Module, ways: int, stored: str) -> str:
    """An iteration of serving: one token more for each of many sequences."""
    many = lcm(DECODED, *(x // gcd(x, chosen) for chosen, x in w.shares))
    ways = serving_ways(w, model, ways, stored)
    copied = [name for name in dict.fromkeys(w.key_heads) if w.dims[name].value % ways]
    clauses = [f"mesh tp = {ways}"]
    if ways > 1:
        clauses.append(
            f"shard {', '.join(d for d in tensor_dims(w, ways) if d not in copied)} over tp"
        )
    if copied:
        clauses.append(f"shard {', '.join(copied)} over tp {{ replicate = true }}")
    return plan_text(
        f"serve_tp{ways}",
        "An iteration of serving: a token for each of many sequences.",
        (
            *clauses,
            f"precision {{ weights = bf16{stored and ', '}{stored} }}",
            f"serve {{ decode {many} at {CONTEXT}, block = 16 }}",
        ),
    )


def their_tensor_parallel(w: Writer, model: Module, plan: Mapping[str, str]) -> str:
    """Tensor parallelism as transformers has it: sums are reduced, and the sequence is whole."""
    ways, clauses, remarks = tensor_clauses(w, model, plan)
    if ways == 1:
        return ""
    about = "Tensor parallelism as the class in transformers plans it (`tp_plan`)."
    return plan_text(
        f"transformers_tp{ways}",
        " ".join([about, *remarks]),
        (*clauses, *microbatch(w), *optimized(w)),
    )


def their_pipeline(w: Writer) -> str:
    """Stages of whole layers, embedding before and norm and head after them."""
    if len(w.stack) != 1:
        return ""
    (layers,) = w.stack
    stages = max(n for n in (1, 2, 4, 8) if w.dims[layers].value % n == 0)
    if stages == 1 or not microbatch(w):
        return ""
    return plan_text(
        f"transformers_pp{stages}",
        "A pipeline of the parts that the class in transformers names (`pp_plan`): embedding, layers, norm and head.",
        (
            f"mesh pp = {stages}",
            f"pipeline {layers} over pp {{ schedule = 1f1b, microbatch = 1 }}",
            *optimized(w),
        ),
    )


def expert_parallel(w: Writer, theirs: bool) -> str:
    """Experts over as many ranks as divide them."""
    batch = w.dims["B"].value
    ranks = max(
        n
        for n in (1, 2, 4, 8, 16, 32, 64)
        if batch % n == 0 and all(w.dims[x].value % n == 0 for x, _ in w.experts)
    )
    if ranks == 1:
        return ""
    return plan_text(
        f"ep{ranks}",
        "Experts over all ranks, to which tokens travel"
        + (": transformers' own plan for them (`ep_plan`)." if theirs else "."),
        (
            f"mesh dp = {ranks}, ep = dp",
            "shard B over dp",
            *(f"shard {x} over ep" for x, _ in dict.fromkeys(w.experts)),
            *tokens_of_experts(w),
            *microbatch(w),
            "zero 1 over dp",
            *optimized(w),
        ),
    )


def tokens_of_experts(w: Writer) -> list[str]:
    return [f"shard {t} over dp" for _, t in dict.fromkeys(w.experts)]


def microbatch(w: Writer) -> list[str]:
    """One sequence at a time, if experts then have a whole number of tokens."""
    whole = all(w.dims["S"].value * chosen % experts == 0 for chosen, experts in w.shares)
    return ["microbatch 1"] if whole and not w.whole_batch else []
