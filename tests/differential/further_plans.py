"""Random plans of `random_plans` with what those lack, changed in their text so that the seeds of those stay what they are."""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random

from tests.differential.random_plans import Drawn, draw

MASKS = ("window = 5", "window = S / 2", "softcap = 30", "alibi = true", "chunk = 8")
"""What attention may say besides whether it is causal; the last if it is."""
REPEATS = (
    "repeat L { repeat 2 { x = Block(x) } }",
    "repeat L { x = Block(x) x = Block(x) }",
    "repeat 2 { x = Block(x) }\n  repeat L { x = Block(x) }",
)
"""Layers that are not one repeat of one block."""
DOCUMENTS = {"16": ("[5, 3, 8]", "[16]"), "24": ("[1, 1, 6, 8, 8]", "[14, 10]")}
"""Documents that a sequence of so many tokens may be packed of."""
OPTIMIZERS = (
    "muon { clip = 1, average = fp32 }",
    "muon { steps = 3, bits = 8 }",
    "shampoo { block = 8, graft = true }",
    "lion { bits = 8 }",
)
SCHEDULES = (
    "dualpipe",
    "overlapped_1f1b, virtual_stages = 2",
    "interleaved_zero_bubble, virtual_stages = 2",
    "interleaved_1f1b, virtual_stages = 2",
)

RARE = {
    "precision": (
        *("gather = fp8", "gather = fp8_1x128", "gather = fp32", "loss = fp32", "reduce = bf16"),
        *("maxima = none", "scaling = current", "unquantized = [Attention]"),
        *("dispatch = fp8_1x128", "combine = bf16"),
    ),
    "gradients": (
        "bucket_bytes = 4KiB, first_bucket_bytes = 1KiB",
        *("late = [Attention]", "late = [Mlp, embed]", "average = before", "inputs = true"),
    ),
    "collectives": ("bias = before", "keep = shard, keep_in = [Attention]"),
    "overlap": ("zero = false", "cp = false", "p2p = false", "tp = true, pieces = 4, bulk = false"),
    "process": ("transposed_weights = true", "cached_weights = true"),
    "device h100": (
        *("kernels = eager, graphs = false", "kernels = compiled"),
        *(
            "collective_units = 4, exchange_units = 16",
            "message_units = 16",
            "tile_scheduler = static",
        ),
    ),
}
"""Settings of clauses that few plans have."""


def draw_further(rng: Random, device: str = "") -> Drawn:
    """A plan with one to three of these: masks, nested layers, documents, optimizers of matrices, further schedules, replicas of shards, rare settings."""
    drawn = draw(rng, device)
    text, pick = drawn.text, rng.choice
    changes = (masked, nested, packed, optimized, scheduled, hybrid, rarely_set)
    for change in rng.sample(changes, rng.randint(1, 3)):
        text = change(text, rng)
    # More samples than most plans ask for: with these fewer sizes divide.
    text = re.sub(r"dim B = \d+", f"dim B = {pick((16, 32))}", text)
    varied = tuple(each.replace("B=8,16,24", "B=16,32,48") for each in drawn.varied)
    return replace(drawn, text=text, varied=varied)


def masked(text: str, rng: Random) -> str:
    causal = "causal = true" in text
    return re.sub(r"(causal = \w+)", rf"\1, {rng.choice(MASKS[: 5 if causal else 4])}", text)


def nested(text: str, rng: Random) -> str:
    return text.replace("repeat L { x = Block(x) }", rng.choice(REPEATS))


def packed(text: str, rng: Random) -> str:
    found = re.search(r"dim S = (\d+)", text)
    assert found is not None
    if "context cp" in text:
        return text
    return text.rstrip()[:-1] + f"  documents S {rng.choice(DOCUMENTS[found[1]])}\n}}\n"


def optimized(text: str, rng: Random) -> str:
    return re.sub(r"  optimizer .*", f"  optimizer {rng.choice(OPTIMIZERS)}", text)


def scheduled(text: str, rng: Random) -> str:
    text = re.sub(r", virtual_stages = [^,}]+(?=[,}])", " ", text)
    return re.sub(r"schedule = \w+", f"schedule = {rng.choice(SCHEDULES)}", text)


def hybrid(text: str, rng: Random) -> str:
    """Groups of ranks that each have all shards; or all ranks store, and those of a group keep what they gathered between the passes."""
    text = text.replace("mesh dp", "mesh rep = 2, dp")
    text = re.sub(r"shard (B|N) over dp", r"shard \1 over rep, dp", text)
    if rng.random() < 0.3:
        text = re.sub(r"  zero 3 .*", "  zero 3 over rep, dp { reshard_over = dp }", text)
    return text


def rarely_set(text: str, rng: Random) -> str:
    """With biases in half of the models, and up to three settings of clauses that the plan does not have."""
    if rng.random() < 0.5:
        text = text.replace(
            "down[F, D]\n  return gelu(x @ up) @ down",
            "down[F, D], b1[F], b2[D]\n  return gelu(x @ up + b1) @ down + b2",
        )
    for clause in rng.sample(sorted(RARE), 3):
        if not re.search(rf"^  {clause}\b", text, re.MULTILINE):
            text = f"{text.rstrip()[:-1]}  {clause} {{ {rng.choice(RARE[clause])} }}\n}}\n"
    return text
