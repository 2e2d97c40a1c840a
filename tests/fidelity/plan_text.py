"""The plan of a case, in the language of stagec: how the case was spread, saved and reduced."""

from __future__ import annotations

from tests.fidelity.attention_text import attention_dims, repeats_heads
from tests.fidelity.draw import SPLIT
from tests.fidelity.model_text import (
    GROUPED,
    SQUARES,
    WIDE_LOGITS,
    global_batch,
    has_few_tokens,
    has_penalty,
    model_name,
    norm_name,
)
from tests.fidelity.oracle import DTYPES, Case, NotInTheLanguage
from tests.fidelity.parameters import layers_of
from tests.fidelity.sublayers import Sublayer, parts_of, reads_source, steps_of

PLAN = "measured"

SCHEDULES = {
    "GPipe": "gpipe",
    "1F1B": "1f1b",
    "Interleaved1F1B": "interleaved_1f1b",
    "LoopedBFS": "looped_bfs",
    "InterleavedZeroBubble": "interleaved_zero_bubble",
    "ZBVZeroBubble": "zb_v",
    "DualPipeV": "dualpipe_v",
}

DEFAULT_BUCKET_MB = 25
MIB = 1 << 20


def plan_text(case: Case) -> str:
    lines = [
        *mesh_lines(case),
        *shard_lines(case),
        *microbatch_lines(case),
        *pipeline_lines(case),
        *zero_lines(case),
        *context_lines(case),
        *recompute_lines(case),
        *freeze_lines(case),
        *gradient_lines(case),
        *precision_lines(case),
        *serve_lines(case),
    ]
    if case.is_training:
        lines.append("optimizer adamw")
    if case.degree("tp") > 1:
        eager = "reduce = eager, " if "tp_mode" not in case.parallel else ""
        lines.append(f"collectives {{ {eager}bias = before }}")
    body = "".join(f"  {line}\n" for line in lines)
    return f"plan {PLAN} {{\n{body}}}\n"


def mesh_lines(case: Case) -> list[str]:
    sizes = [f"{axis} = {size}" for axis, size in case.mesh.items()]
    if "edp" in case.mesh:
        sizes.append("dp = edp * ep")
    if case.kept_ways:
        sizes.append(f"{case.storage_axis} = outer * inner")
    return [f"mesh {', '.join(sizes)}"]


def data_axes(case: Case) -> list[str]:
    """Axes over which ranks have sequences of their own."""
    return [axis for axis in ("dp", "dp_shard") if axis in named_axes(case)]


def named_axes(case: Case) -> list[str]:
    """The axes of the mesh, and the product that one may be."""
    product = ["dp"] if "edp" in case.mesh else [case.storage_axis] if case.kept_ways else []
    return [*case.mesh, *product]


def is_sequence_parallel(case: Case) -> bool:
    return case.degree("tp") > 1 and case.parallel.get("tp_mode") == "sp"


def shard_lines(case: Case) -> list[str]:
    lines: list[str] = []
    if data_axes(case):
        lines.append(f"shard B over {', '.join(data_axes(case))}")
    if case.degree("ep") > 1:
        lines.append(f"shard X over {'ep' if 'ep' in case.mesh else 'dp'}")
    sequence_axes = ["cp"] if case.has_rings else []
    token_axes = [*data_axes(case), *sequence_axes]
    if case.model["arch"] == "moe" and token_axes and not has_few_tokens(case):
        # What splits the tokens and not the experts splits the tokens of each expert.
        lines.append(f"shard C over {', '.join(token_axes)}")
    if case.degree("tp") > 1:
        heads = [dim for dim in ("H", "K") if dim in attention_dims(case)]
        vocabulary = ["V"] if has_rule_of_vocabulary(case) else []
        divides = vocabulary_divides(case)
        lines.append(f"shard {', '.join([*heads, 'F', *(vocabulary if divides else [])])} over tp")
        lines += (
            [] if divides else [f"shard {dim} over tp {{ uneven = chunk }}" for dim in vocabulary]
        )
        if is_sequence_parallel(case):
            sequence_axes.append("tp")
            if case.model["arch"] == "gpt":
                lines.append("shard P over tp")
    if sequence_axes:
        lines.append(f"shard S over {', '.join(sequence_axes)}")
    return lines + override_lines(case)


def vocabulary_divides(case: Case) -> bool:
    return int(case.model["vocab"]) % case.degree("tp") == 0


def has_rule_of_vocabulary(case: Case) -> bool:
    """Whether a rule splits the vocabulary: if the head is split, or if the table alone is in parts of unequal sizes, which only a rule can say."""
    is_uneven = "tp_embed" not in case.parallel and not vocabulary_divides(case)
    return "tp_head" not in case.parallel or is_uneven


def override_lines(case: Case) -> list[str]:
    """Where the vocabulary is split otherwise than the rule says."""
    if case.degree("tp") == 1:
        return []
    name = model_name(case)
    table, head = ("Embedding", "Head") if case.has_unit_of_head else (name, name)
    whole_table, whole_head = "tp_embed" in case.parallel, "tp_head" in case.parallel
    has_rule = has_rule_of_vocabulary(case)
    lines: list[str] = []
    if whole_table == has_rule and whole_table != whole_head:
        lines.append(f"shard {table}.embed[V] over {'none' if whole_table else 'tp'}")
    if whole_head and has_rule:
        lines.append(f"shard {head}.head[V] over none")
    if has_rule and (whole_head or not case.parallel.get("loss_parallel")):
        lines.append(f"shard {name}.logits[V] over none")
        if case.is_training and case.compute_dtype != "fp32":
            lines.append(f"shard {name}.{WIDE_LOGITS}[V] over none")
        if has_penalty(case):
            lines.append(f"shard {name}.{SQUARES}[V] over none")
    return lines


def microbatch_lines(case: Case) -> list[str]:
    accumulated = int(case.parallel.get("grad_accum", 1)) if case.is_training else 1
    return [f"microbatch {case.model['batch'] // accumulated}"] if accumulated > 1 else []


def pipeline_lines(case: Case) -> list[str]:
    if case.degree("pp") == 1:
        return []
    schedule = case.parallel["schedule"]
    if schedule not in SCHEDULES:
        raise NotInTheLanguage(f"the schedule {schedule}")
    microbatch = case.model["batch"] // int(case.parallel["microbatches"])
    settings = [f'schedule = "{SCHEDULES[schedule]}"', f"microbatch = {microbatch}"]
    if schedule in SPLIT:
        # PyTorch's first stage does its own whole.
        settings.append("first_backward = whole")
    if schedule == "DualPipeV":
        settings.append("transfers = as_sent")
    if "vstages" in case.parallel:
        settings.append(f"virtual_stages = {case.parallel['vstages']}")
    num_stages = case.degree("pp") * case.degree("vstages")
    if case.model["layers"] % num_stages:
        layers = [layers_of(case, stage) for stage in range(num_stages)]
        settings.append(f"layers = {layers}")
    return [f"pipeline L over pp {{ {', '.join(settings)} }}"]


def zero_axes(case: Case) -> list[str]:
    """Axes over which FSDP shards parameters; none for DDP."""
    mode = case.parallel.get("dp_mode", "ddp")
    axes = {"ddp": (), "fsdp": ("dp", "cp"), "hsdp": ("dp_shard",)}[mode]
    return [axis for axis in named_axes(case) if axis in axes and case.degree(axis) > 1]


def zero_lines(case: Case) -> list[str]:
    axes = zero_axes(case)
    if not axes:
        return []
    group = case.parallel.get("fsdp_group", "block")
    reshards = bool(case.parallel.get("reshard", True))
    # Of a root above other units the capture tool asks for nothing.
    settings = [] if reshards and group != "root" else [f"reshard = {str(reshards).lower()}"]
    settings += ["reshard_over = inner"] if case.kept_ways else []
    braces = f" {{ {', '.join(settings)} }}" if settings else ""
    lines = [f"zero 3 over {', '.join(axes)}{braces}"]
    if group == "titan" and not case.has_unit_of_head:
        raise NotInTheLanguage("a table that is the weight of two units")
    units = {
        "block": ["Block"],
        "root": [],
        "titan": ["Embedding", "Block", "Head"],
        "ffn": ["SwiGLU"],
        "parts": [name for _, name, _ in parts_of(case)],
    }[group]
    if "edp" in case.mesh:
        # Experts on some of the ranks are split over others than the rest: a unit of their own, in that of the block.
        units.append(GROUPED)
    return [*lines, f"unit {', '.join(units) or 'none'}"]


def context_lines(case: Case) -> list[str]:
    if not case.has_rings:
        return []
    rotate = {"allgather": "all_gather", "alltoall": "all_to_all"}[
        case.parallel.get("cp_rotate", "allgather")
    ]
    balance = "head_tail" if case.parallel.get("cp_load_balance", True) else "none"
    return [f"context cp {{ method = ring, rotate = {rotate}, balance = {balance} }}"]


def freeze_lines(case: Case) -> list[str]:
    feed = "Mlp" if case.model["arch"] == "gpt" else "SwiGLU"
    modules = {"attn": "Attention", "ffn": feed} | {part: name for part, name, _ in parts_of(case)}
    names = [modules.get(name, name) for name in case.frozen]
    return [f"freeze {', '.join(names)}"] if names else []


def recompute_lines(case: Case) -> list[str]:
    match case.parallel.get("ac"):
        case None:
            return []
        case _ if case.is_served:
            return []  # Without gradients nothing is kept.
        case "full":
            return ["recompute full in Block"]
        case "sac_attn":
            return [f"recompute {', '.join(values_of_block(case))} in Block"]
        case "sac_mm2":
            # Of the matmuls, in order, the first is kept, the second is not, and so on; those of experts all are made again.
            again = [name for name in values_of_block(case) if name not in kept_products(case)]
            return [f"recompute {', '.join(again)} in Block"]
        case other:
            raise NotInTheLanguage(f"ac = {other}")


def products_of_block(case: Case) -> list[str]:
    """The values that matmuls with weights make, in order. Scores and mixed values of unfused attention are batched products."""
    is_gpt = case.model["arch"] == "gpt"
    if case.model["fused_qkv"]:
        projected = ["y"]
    else:
        projected = ["q", "k", "v"] if is_gpt else ["q_raw", "k_raw", "v"]
    if case.model["arch"] == "moe":
        return [*projected, "attended", "routes"]
    return [*projected, "attended", *([] if is_gpt else ["gate"]), "up", "fed"]


def kept_products(case: Case) -> list[str]:
    """Of `sac_mm2`: every second one."""
    return products_of_block(case)[::2]


def values_of_block(case: Case) -> list[str]:
    """The named values of a block but for `mixed` where fused attention makes it."""
    is_gpt = case.model["arch"] == "gpt"
    made = products_of_block(case)
    parts = ["q", "k", "v"] if is_gpt else ["q_raw", "k_raw", "q", "k", "v"]
    repeated = ["k_all", "v_all"] if repeats_heads(case) else []
    unfused = ["scores", "probabilities", "mixed"] if case.model["attn"] == "eager" else []
    others = [name for name in parts if name not in made]
    routing = []
    if case.model["arch"] == "moe":
        routing = ["scores", "gates", "chosen", "routed", "gate", "up", "fed", "returned"]
    steps = []
    if not is_gpt and norm_name(case) == "RmsNorm":
        steps = ["scale"] if case.compute_dtype == "fp32" else ["y", "scale"]
    names = [*made, *others, *repeated, *unfused, "n1", "h", "n2", "hidden", *routing, *steps]
    return list(dict.fromkeys(names))


def serve_lines(case: Case) -> list[str]:
    """One kind of sequences; PyTorch's model makes the logits of all their new positions."""
    if case.is_training:
        return []
    count, new = global_batch(case), case.new_positions
    kind = f"decode {count} at {case.context}" if case.context else f"prefill {count} x {new}"
    return [f"serve {{ {kind}, logits = all }}"]


def gradient_lines(case: Case) -> list[str]:
    if not case.is_training:
        return []
    settings: list[str] = []
    reduces = any(case.degree(axis) > 1 for axis in ("dp", "dp_shard", "cp"))
    if reduces and not zero_axes(case):
        bucket = int(case.parallel.get("bucket_mb", DEFAULT_BUCKET_MB)) * MIB
        # A cap of the user's own is that of the first bucket too (`_ddp_init_helper`).
        first = bucket if "bucket_mb" in case.parallel else MIB
        settings += [f"bucket_bytes = {bucket}", f"first_bucket_bytes = {first}"]
        if case.degree("tp") > 1:
            # DDP sees a DTensor's gradient where it was made of the local tensor: before the forward pass, so that its backward pass is last.
            # Other parameters are not DTensors (`_reconstruct_dtensor` in `torch/distributed/tensor/parallel/ddp.py`).
            settings.append(f"late = [{', '.join(parallel_weights(case))}]")
    if zero_axes(case) and case.degree("pp") > 1:
        # The pipeline's runtime reduces a stage's units after its last backward pass.
        settings.append("overlap = false")
    if case.parallel.get("grad_accum", 1) > 1 and reduces:
        every = bool(case.parallel.get("sync_every_mb"))
        settings.append(f"reduce = {'microbatch' if every else 'step'}")
    return [f"gradients {{ {', '.join(settings)} }}"] if settings else []


def parallel_weights(case: Case) -> list[str]:
    """The weights that tensor parallelism makes DTensors: those of the modules that it names."""
    if parts := parts_of(case):
        return weights_of_parts(case, parts)
    m, is_gpt = case.model, case.model["arch"] == "gpt"
    has_bias = is_gpt or m.get("qkv_bias")
    names = ["wqkv"] if m["fused_qkv"] else ["wq", "wk", "wv"]
    found = [each for name in names for each in (name, *([f"b{name[1:]}"] if has_bias else []))]
    found += ["wo", *(["bo"] if is_gpt else [])]
    if m["arch"] != "moe":
        found += ["w1", "b1", "w2", "b2"] if is_gpt else ["w1", "w3", "w2"]
    found += [] if "tp_embed" in case.parallel else ["embed"]
    found += [] if "tp_head" in case.parallel or case.is_tied else ["head"]
    if is_sequence_parallel(case):
        found += ["norm1", "norm2", "norm", *(["shift1", "shift2", "shift", "places"] * is_gpt)]
    return found


def weights_of_parts(case: Case, parts: list[tuple[str, str, Sublayer]]) -> list[str]:
    """Of blocks of other parts: linear layers, and norms under sequence parallelism."""
    found = [
        f'"{name}.{w}"' for _, name, part in parts for w, d in part.weights.items() if " | " in d
    ]
    found += [] if "tp_embed" in case.parallel else ["embed"]
    found += [] if "tp_head" in case.parallel or case.is_tied else ["head"]
    if is_sequence_parallel(case):
        found += [*(f"norm{n}" for n in range(len(steps_of(case)))), "norm"]
        found += ["norm_of_source"] * reads_source(case)
    return found


def precision_lines(case: Case) -> list[str]:
    stored, computed = case.dtype, case.compute_dtype
    reduced = DTYPES[case.parallel.get("reduce_dtype", "float32")] if stored != computed else stored
    settings = {
        "weights": computed,
        "activations": computed,
        "gradients": stored,
        "optimizer": stored,
    }
    if stored != computed:
        # FSDP2 keeps its shards as they are, and casts before it gathers.
        own = {"weights": stored} if zero_axes(case) else {"master": stored}
        settings |= {**own, "reduce": reduced}
    return ["precision { " + ", ".join(f"{k} = {v}" for k, v in settings.items()) + " }"]
