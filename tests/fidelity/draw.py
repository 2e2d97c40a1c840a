"""Cases drawn at random: a model, how it is spread, and what else a plan says, in the words of the capture tool.

`name=r7_0 llama dp=2 dp_mode=fsdp layers=3`: a case is a text of words, each `key=value` but that of the architecture. Whatever is drawn the
capture tool can run, on at most 8 ranks, and the language can say.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from tests.fidelity.sublayers import SUBLAYERS

Words = dict[str, object]

SPLIT = ("InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
"""Schedules with backward passes in two halves."""
ONE_STAGE = ("GPipe", "1F1B")
TWO_STAGES = ("Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV", "LoopedBFS")
SPREADS = (
    ("ddp",),
    ("fsdp",),
    ("fsdp",),
    ("hsdp",),
    ("tp",),
    ("tp",),
    ("tp", "fsdp"),
    ("tp", "fsdp"),
    ("tp", "hsdp"),
    ("tp", "ddp"),
    ("pp",),
    ("pp", "fsdp"),
    ("pp", "tp"),
    ("pp", "fsdp", "tp"),
    ("pp", "hsdp"),
    ("pp", "ddp"),
    ("pp", "tp", "ddp"),
    ("pp", "cp", "fsdp"),
    ("cp",),
    ("cp", "tp"),
    ("cp", "tp", "fsdp"),
    ("hsdp", "cp"),
    (),
)
SPREADS_OF_EXPERTS = (
    ("ddp",),
    ("fsdp",),
    ("hsdp",),
    ("tp",),
    ("tp", "fsdp"),
    ("cp",),
    ("pp", "fsdp"),
    ("pp", "ddp"),
    ("pp", "ep"),
    ("pp", "ep", "fsdp"),
    ("hsdp", "cp"),
    ("ep",),
    ("ep",),
    ("ep", "fsdp"),
    ("ep", "fsdp"),
    ("ep", "tp"),
)

SPREADS_OF_PARTS = (
    (),
    ("ddp",),
    ("ddp",),
    ("fsdp",),
    ("fsdp",),
    ("fsdp",),
    ("hsdp",),
    ("pp",),
    ("pp", "fsdp"),
    ("pp", "ddp"),
    ("pp", "tp"),
    ("pp", "hsdp"),
    ("tp",),
    ("tp", "fsdp"),
    ("tp", "ddp"),
    ("tp", "hsdp"),
    ("ep",),
    ("ep", "fsdp"),
)
PARTS_OF_TENSORS = ("mlp", "relu2", "gated", "heads", "shared", "linear", "cross")
"""Those that tensor parallelism is written for."""


def text_of(words: Mapping[str, object]) -> str:
    """The words of a case as the capture tool reads them."""
    return " ".join(
        str(value) if key == "arch" else f"{key}={value}" for key, value in words.items()
    )


def draw(rng: random.Random, name: str) -> Words:
    arch = rng.choice(["llama", "llama", "llama", "gpt", "gpt", "moe"])
    spread = rng.choice(SPREADS_OF_EXPERTS if arch == "moe" else SPREADS)
    if arch == "gpt" and ("cp" in spread or spread == ("pp", "tp", "ddp")):
        spread = ("tp", "fsdp")
    is_moe = arch == "moe"
    words: Words = {"name": name, "arch": arch}
    tp = rng.choice([2, 4] if spread == ("tp",) else [2]) if "tp" in spread else 1
    words |= draw_model(rng, arch, tp)
    batch = rng.choice([1, 2, 3])
    if tp > 1:
        words |= draw_tensor_parallelism(rng, arch, tp, spread)
    if "pp" in spread:
        words |= draw_pipeline(rng, spread)
        batch *= int(str(words["microbatches"]))
    if "cp" in spread:
        words |= draw_context_parallelism(rng, spread)
    words |= draw_data_parallelism(rng, spread, tp, is_moe=is_moe)
    if words.get("schedule") in SPLIT and "reshard" in words:
        # What a stage reduces after split backward passes is lost where it was freed in between.
        words["reshard"] = False
    if spread and "pp" not in spread and rng.random() < 0.3:
        times = rng.choice([2, 3])
        words["grad_accum"] = times
        batch *= times
        if rng.random() < 0.3:
            words["sync_every_mb"] = True
    if "ep" in spread:
        batch *= 2
    # PyTorch recomputes nothing in a backward pass of two halves.
    if rng.random() < 0.3 and words.get("schedule") not in SPLIT:
        words["ac"] = rng.choice(["full", "full", "sac_attn", "sac_mm2"])
    elif not {"pp", "cp"} & set(spread) and rng.random() < 0.15:
        words["attn"] = "eager"
    words["batch"] = batch
    draw_seldom(rng, spread, words)
    if "pp" not in spread and rng.random() < 0.12:
        draw_inference(rng, spread, words)
    return words


def draw_seldom(rng: random.Random, spread: tuple[str, ...], words: Words) -> None:
    """What few runs have, each by itself."""
    is_split = "tp" in spread
    whole_is_fine = is_split and words.get("tp_mode") != "sp" and "loss_parallel" not in words
    kinds: list[Words] = [{"fused_qkv": True}, {"norm": "fused"}, {"clip": True}]
    if "mp" not in words and "cp" not in spread:
        kinds.append({"dtype": "bfloat16"})
    if words.get("fsdp_group") != "titan" or is_split:
        kinds.append({"tie": True})
    if "cp" in spread:
        kinds.append({"cp_load_balance": False})
    else:
        kinds.append({"causal": False})
    if "ddp" in spread:
        kinds.append({"bucket_view": True})
    if whole_is_fine:
        # Where a whole head reads what was tied, `distribute_module` left it a DTensor.
        kinds.append({"tp_head": "replicated"})
        kinds.append({"tp_head": "replicated", "tp_embed": "replicated"})
    for kind in kinds:
        if rng.random() < 0.08 and not ("tp_head" in kind and "tie" in words):
            words |= kind
    if is_split and "clip" in words and "ddp" not in spread and words.get("tp_mode") != "sp":
        # Norms over two meshes, which PyTorch does not stack; tensors that are split and others, which it does not scale alike.
        del words["clip"]


def draw_inference(rng: random.Random, spread: tuple[str, ...], words: Words) -> None:
    """An iteration of serving in place of a step. The capture tool has no caches under DDP nor in mixed precision, and splits no single position."""
    for key in ("grad_accum", "sync_every_mb"):
        words.pop(key, None)
    has_caches = not {"ddp", "ep"} & set(spread) and "mp" not in words
    if has_caches and words.get("tp_mode") != "sp" and rng.random() < 0.7:
        words |= {"infer": "decode", "context": rng.randrange(1, 200)}
    else:
        words["infer"] = "prefill"


def draw_model(rng: random.Random, arch: str, tp: int) -> Words:
    """Sizes that nothing divides which need not be divided."""
    key_heads = tp * rng.choice([1, 1, 2, 3] if tp < 4 else [1, 2])
    heads = key_heads * (1 if arch == "gpt" else rng.choice([1, 2, 3]))
    words: Words = {
        "heads": heads,
        "kv_heads": key_heads,
        "dim": heads * rng.choice([8, 16, 24, 32]),
        "ffn": tp * rng.randrange(20, 200 // tp + 20),
        "vocab": tp * rng.randrange(60, 400) + rng.choice([0, 0, tp - 1]),
        "layers": rng.randrange(1, 6),
        "seq": tp * rng.choice([4, 8, 12, 20]) * 2,
    }
    if arch == "moe":
        words |= {"experts": 8, "top_k": 2, "moe_ffn": rng.randrange(30, 120)}
        if rng.random() < 0.3:
            words["router"] = "learned"
    if arch == "llama" and rng.random() < 0.2:
        words["qkv_bias"] = True
    return words


def draw_tensor_parallelism(
    rng: random.Random, arch: str, tp: int, spread: tuple[str, ...]
) -> Words:
    words: Words = {"tp": tp}
    # Experts beside tensor parallelism are plain modules, into which nothing split goes.
    if arch != "moe" and (mode := rng.choice([None, "tp_merged", "sp", "sp"])):
        words["tp_mode"] = mode
    if "pp" not in spread and rng.random() < 0.5:
        words["loss_parallel"] = True
    return words


def draw_pipeline(rng: random.Random, spread: tuple[str, ...]) -> Words:
    # DDP takes one stage of a rank, and a backward pass before the last forward pass; experts without FSDP are under it. Rings are of one stage, too.
    is_ddp = "ddp" in spread or ("ep" in spread and "fsdp" not in spread)
    stages = 1 if rng.random() < 0.5 or is_ddp or "cp" in spread else 2
    schedule = "1F1B" if is_ddp else rng.choice(ONE_STAGE if stages == 1 else TWO_STAGES)
    pp = rng.choice([2, 4]) if spread == ("pp",) else 2
    microbatches = pp * rng.choice([2, 3] if is_ddp else [1, 2, 3]) if stages == 1 else 2 * pp
    layers = pp * stages * rng.choice([1, 2])
    if rng.random() < 0.3:
        layers += rng.randrange(1, pp * stages)
    words: Words = {"pp": pp, "schedule": schedule, "microbatches": microbatches, "layers": layers}
    return words | ({"vstages": stages} if stages > 1 else {})


def draw_context_parallelism(rng: random.Random, spread: tuple[str, ...]) -> Words:
    cp = rng.choice([2, 4]) if spread == ("cp",) else 2
    words: Words = {"cp": cp, "seq": 2 * cp * rng.choice([4, 6, 8])}
    words["dp_mode"] = rng.choice(["ddp", "fsdp"]) if spread == ("cp",) else "fsdp"
    words["cp_rotate"] = rng.choice(["allgather", "alltoall"])
    if "tp" in spread:
        words["tp_mode"] = "sp"
    elif rng.random() < 0.3:
        words |= {"cp": 2, "dp": 2}
    return words


def draw_data_parallelism(
    rng: random.Random, spread: tuple[str, ...], tp: int, *, is_moe: bool
) -> Words:
    budget = 8 // tp // 2 ** len({"pp", "cp"} & set(spread))
    words: Words = {}
    if "ep" in spread:
        dp = min(budget, rng.choice([2, 4]))
        words |= {"dp": dp, "ep": rng.choice([n for n in (2, 4) if n <= dp])}
    elif "hsdp" in spread:
        words |= {"dp": 2, "dp_shard": rng.choice([n for n in (2, 4) if 2 * n <= budget])}
        words["dp_mode"] = "hsdp"
    elif "fsdp" in spread or "ddp" in spread:
        words["dp"] = rng.choice([n for n in (2, 3, 4) if n <= budget])
    if "fsdp" in spread:
        words["dp_mode"] = "fsdp"
    if "fsdp" in spread or "hsdp" in spread:
        if "pp" in spread:
            words["reshard"] = rng.random() < 0.4
        elif rng.random() < 0.3:
            words["reshard"] = False
        if (group := rng.choice(["block", "block", "titan", "root"])) != "block":
            words["fsdp_group"] = group
        if not is_moe and rng.random() < 0.35:
            words["mp"] = "bf16"
            if rng.random() < 0.4:
                words["reduce_dtype"] = "bfloat16"
    elif "ddp" in spread and rng.random() < 0.5:
        words["bucket_mb"] = rng.choice([1, 2])
    return words


def draw_composed(rng: random.Random, name: str) -> Words:
    """Blocks of other parts than a transformer's."""
    spread = rng.choice(SPREADS_OF_PARTS)
    is_moe = "ep" in spread or ("tp" not in spread and "pp" not in spread and rng.random() < 0.15)
    tp = 2 if "tp" in spread else 1
    arch = "moe" if is_moe else "llama"
    words: Words = {"name": name, "arch": arch, **draw_model(rng, arch, tp)}
    for key in ("qkv_bias", "router"):
        words.pop(key, None)
    steps = draw_steps(rng, spread, is_moe=is_moe)
    words["sublayers"] = "+".join("|".join(step) for step in steps)
    batch = rng.choice([1, 2, 3])
    if tp > 1:
        words |= draw_tensor_parallelism(rng, arch, tp, spread)
    if "pp" in spread:
        words |= draw_pipeline(rng, spread)
        if words["schedule"] in SPLIT:
            # How PyTorch finds the half of a backward pass that is of weights depends on more than the model: it makes some products twice, and stops
            # where a weight is read twice.
            words["schedule"] = "Interleaved1F1B"
        batch *= int(str(words["microbatches"]))
    words |= draw_data_parallelism(rng, spread, tp, is_moe=is_moe)
    may_have_units = "fsdp" in spread and not {"pp", "ep"} & set(spread) and "mp" not in words
    if may_have_units and rng.random() < 0.4:
        words["fsdp_group"] = "parts"
    if spread and "pp" not in spread and rng.random() < 0.3:
        words["grad_accum"] = rng.choice([2, 3])
        batch *= int(str(words["grad_accum"]))
        if rng.random() < 0.3:
            words["sync_every_mb"] = True
    words["batch"] = 2 * batch if "ep" in spread else batch
    if rng.random() < 0.3:
        words["ac"] = "full"
    draw_seldom_of_parts(rng, spread, words, is_moe=is_moe)
    return words


def draw_steps(rng: random.Random, spread: tuple[str, ...], *, is_moe: bool) -> list[list[str]]:
    """What a block does, step by step. Tensor parallelism splits one part after a norm, stages hand on one value, and a block has experts once."""
    known = [name for name in sorted(SUBLAYERS) if name != "experts"]
    if "tp" in spread:
        drawn = [rng.choice(PARTS_OF_TENSORS) for _ in range(rng.choice([1, 2, 3]))]
        # Two parts that read the same tensor whole gather it twice in PyTorch, whose modules do not know of each other, and once here.
        first = drawn.index("cross") if "cross" in drawn else -1
        return [
            ["heads" if n != first and each == "cross" else each] for n, each in enumerate(drawn)
        ]
    if "pp" in spread:
        known.remove("cross")
    steps = [rng.sample(known, rng.choice([1, 1, 2])) for _ in range(rng.choice([1, 2, 3]))]
    if is_moe:
        # Beside others these are experts that all tokens visit.
        rng.choice(steps).insert(rng.choice([0, 1]), "experts")
    return steps


def draw_seldom_of_parts(
    rng: random.Random, spread: tuple[str, ...], words: Words, *, is_moe: bool
) -> None:
    number = str(words["sublayers"]).replace("|", "+").count("+") + 1
    if not is_moe and "tp" not in spread and rng.random() < 0.35:
        names = ["embed", *(f"part{n}" for n in range(number))]
        words["frozen"] = "+".join(sorted(rng.sample(names, rng.randrange(1, len(names) + 1))))
    elif rng.random() < 0.15 and words.get("fsdp_group") != "titan" and "tp" not in spread:
        words["tie"] = True
    if rng.random() < 0.1 and not is_moe and "tp" not in spread:
        words["clip"] = True
    if rng.random() < 0.2 and "loss_parallel" not in words:
        words["losses"] = 2


def draw_fake(rng: random.Random, name: str) -> Words:
    """A run on fake tensors, whose live peak is compared: what fills memory is drawn larger. Those take neither DDP nor a mesh of HSDP beside another axis."""
    arch = rng.choice(["llama", "llama", "gpt"])
    tp = rng.choice([1, 2, 2, 2, 4])
    key_heads = tp * rng.choice([1, 2])
    heads = key_heads * (1 if arch == "gpt" else rng.choice([1, 2]))
    words: Words = {
        "name": name,
        "arch": arch,
        "fake": 1,
        "heads": heads,
        "kv_heads": key_heads,
        "dim": heads * rng.choice([16, 32, 64]),
        "ffn": tp * rng.randrange(40, 600),
        "vocab": tp * rng.randrange(60, 2000),
        "layers": rng.randrange(1, 5),
        "seq": tp * rng.choice([16, 32, 64]),
        "batch": rng.choice([1, 2, 4, 8]),
    }
    if tp > 1:
        words |= draw_tensor_parallelism(rng, arch, tp, ("tp",))
    if tp == 1 or rng.random() < 0.6:
        words |= {"dp": rng.choice([2, 4, 8]), "dp_mode": "fsdp"}
        if (group := rng.choice(["block", "block", "titan", "root"])) != "block":
            words["fsdp_group"] = group
        if rng.random() < 0.3:
            words["mp"] = "bf16"
        if rng.random() < 0.3:
            words["reshard"] = False
    if rng.random() < 0.3:
        words["ac"] = "full"
    return words
