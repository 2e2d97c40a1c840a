"""The smallest case that still differs, from one that does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.fidelity.draw import SPLIT, Words

OPTIONAL = [
    "frozen",
    "ac",
    "grad_accum",
    "sync_every_mb",
    "mp",
    "reduce_dtype",
    "fsdp_group",
    "reshard",
    "bucket_mb",
    "loss_parallel",
    "tp_mode",
    "qkv_bias",
    "attn",
    "cp_rotate",
    "infer",
    "clip",
    "tie",
    "fused_qkv",
    "norm",
    "dtype",
    "causal",
    "tp_embed",
    "tp_head",
    "cp_load_balance",
    "router",
    "bucket_view",
]
"""Choices that a case may be without."""

LEAST = {"layers": 1, "vocab": 128, "ffn": 64, "seq": 16, "batch": 1, "moe_ffn": 32}


def shrunk(words: Words, differs: Callable[[Words], bool], attempts: int = 24) -> Words:
    """Simplify as long as the case differs and attempts are left. `differs` runs a case."""
    tried = 0
    progress = True
    while progress and tried < attempts:
        progress = False
        for candidate in simpler(words):
            if tried >= attempts:
                break
            tried += 1
            if differs(candidate):
                words, progress = candidate, True
                break
    return words


def simpler(words: Words) -> Iterator[Words]:
    """Cases with one choice less, or one size smaller."""
    for key in OPTIONAL:
        if key in words and not (key == "reshard" and words.get("schedule") in SPLIT):
            less = {k: v for k, v in words.items() if k != key}
            if key == "grad_accum":
                less.pop("sync_every_mb", None)
                less["batch"] = max(1, number(words["batch"]) // number(words[key]))
            if key == "infer":
                less.pop("context", None)
            if key == "mp":
                less.pop("reduce_dtype", None)
            yield less
    for key, least in LEAST.items():
        if key not in words or number(words[key]) <= least:
            continue
        smaller = least
        if key == "layers":
            smaller = max(least, number(words.get("pp", 1)) * number(words.get("vstages", 1)))
        if key == "batch":
            smaller = number(words.get("grad_accum", 1)) * number(words.get("microbatches", 1))
            smaller *= 2 if "ep" in words else 1
        if smaller < number(words[key]):
            yield {**words, key: smaller}


def number(value: object) -> int:
    assert isinstance(value, int)
    return value
