"""Rows of tables of measured steps, each as a model and a plan in the language.

`times/mlperf_training.csv`, `times/nvidia_training.csv`, `clusters/megatron_deepspeed_a100.csv`, `clusters/nanotron_h100.csv`, `published.json`'s table
of Narayanan 2021, and `simumax_b200.csv` here. What a table leaves out is taken from the recipes of its source, as said beside each.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tests.fidelity.bridge_models import RECIPES, Recipe
from tests.fidelity.cluster_plans import counts_norms
from tests.fidelity.cluster_runs import read_run, run_text
from tests.fidelity.deepseek_text import deepseek_text
from tests.fidelity.time_models import MODELS, Model, repeats, text
from tests.fidelity.torchtitan_text import as_torchtitan, recomputed

Cells = Mapping[str, str]


STATIC_TILES = ", tile_scheduler = static"


@dataclass(frozen=True)
class Timed:
    """A measured step."""

    source: str
    name: str
    group: str
    """Runs of one model on as many devices: plans that can be ranked, by the time of a token."""
    measured_s: float
    text: str = ""
    device: str = ""
    why_not: str = ""
    """Why there is no plan."""
    tokens: int = 1
    """Of a step, where plans of a group have different ones."""

    @property
    def plan(self) -> str:
        """The text, whichever releases of cuDNN and cuBLAS it is of."""
        return re.sub(r"\bdevice [^{]*\{", "device {", self.text).replace(STATIC_TILES, "")


def rows_of(path: Path) -> Iterator[Timed]:
    """By what columns the file has."""
    if path.suffix == ".json":
        yield from narayanan(json.loads(path.read_text()))
        return
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        return
    columns = set(rows[0])
    readers = (
        ("benchmark", mlperf),
        ("tokens_s_gpu", published),
        ("iteration time (ms)", deepspeed),
        ("tok/s/gpu", nanotron),
        ("simumax_ms", simumax),
        ("simumax_ms", partial(simumax, device=MACHINE, source="SimuMax, its operators")),
    )
    fitting = [reader for column, reader in readers if column in columns]
    if not fitting:
        raise ValueError(f"`{path.name}` has no column of times that is known")
    for reader in fitting:
        for number, cells in enumerate(rows, 2):
            yield from read(reader, cells, f"{path.name}:{number}")


def read(reader, cells: Cells, where: str) -> Iterator[Timed]:
    try:
        found = reader(cells)
    except (KeyError, ValueError, ZeroDivisionError) as error:
        yield Timed(
            "rows that do not read", where, "", 0.0, why_not=f"{type(error).__name__} {error}"
        )
        return
    if found is not None:
        yield replace(found, name=f"{where} {found.name}")


def number(cells: Cells, name: str, default: int = 1) -> int:
    value = cells.get(name, "")
    return int(float(value)) if value else default


@dataclass(frozen=True)
class Layout:
    """How a step is spread and run."""

    tp: int = 1
    pp: int = 1
    vp: int = 1
    cp: int = 1
    dp: int = 1
    ep: int = 1
    microbatch: int = 1
    sequence_parallel: bool = True
    pipeline_inside: bool = False
    """Ranks run tp, pp, dp, in place of tp, cp, dp, pp."""
    zero: int = 1
    recompute: str = "none"
    products: str = "bf16"
    stored: str = ""
    """How weights are stored that narrow products alone read; empty: as others."""
    caches: bool = True
    """Whether layers quantize weights that are stored wide in the first microbatch of a step alone (Megatron-LM's, by `is_first_microbatch`)."""
    scaling: str = "delayed"
    maxima: str = "all"
    """Along which axes ranks agree on the maxima of delayed scaling."""
    loss: str = ""
    """What the loss computes with, if in another dtype than that of the logits."""
    attention: str = "bf16"
    context: str = "ring"
    gradients: str = "fp32"
    """What microbatches' gradients are added up in."""
    reduce: str = "bf16"
    tp_overlap: bool = False
    layers_overlap: bool = False
    """Whether linear layers hide, without rings, what they gather and scatter backward by themselves: whole."""
    compiler_overlaps: bool = False
    """Of what tensor parallelism sends, what PyTorch's compiler overlaps: pieces, one for each rank."""
    ep_overlap: bool = False
    once: bool = False
    """Whether a token goes once to each device that has experts of its own (HybridEP, DeepEP), in place of once for each expert."""
    grouped: bool = False
    """Whether one kernel multiplies the tokens of all experts of a device."""
    collective_units: int = 0
    exchange_units: int = 0
    message_units: int = 0
    """Multiprocessors of a device's collectives, exchanges and messages, where they are not those of its file."""
    clips: bool = True
    """Whether gradients are clipped by their norm: Megatron-LM's default (`clip_grad` of `OptimizerConfig`, 1), which recipes of Megatron-Bridge and the
    submissions of MLPerf keep (`clip_grad=1.0` in `pretrain.py` of 8B and 405B), and torchtitan's (`max_norm`)."""
    copies: bool = True
    """Whether kernels of their own copy gradients in bf16 to fp32, and master weights to what is stored (Megatron-LM without
    `use_precision_aware_optimizer`, and without its FSDP)."""
    averages: bool = False
    """Whether a kernel of its own divides gradients by the number of ranks (Megatron-LM without `--ddp-average-in-collective`, Megatron-DeepSpeed)."""
    checks: bool = False
    """Whether the host reads the norm of each bucket of gradients before it launches what reduces it (`check_for_nan_in_grad`)."""
    grad_overlap: bool = True
    param_gather: bool = False
    """Updated parameters are gathered beside the next forward pass."""
    bucket_bytes: int = 0
    in_split: bool = False
    """Embedding and loss count as a layer each."""
    kernels: str = "fused"
    graphs: bool = True
    captured: tuple[str, ...] = ()
    """Modules that are graphs where others are none."""
    device: str = "h100"
    cudnn: str = ""
    """The release of cuDNN whose attention runs, where it is not that of the device's file and a file beside this one has it."""
    swizzle: str = "stored"
    """Of which operands kernels put scales in order in front of products."""
    norms: str = "maxima"
    """What kernels of norms do for the quantization behind them: Transformer Engine's own since 2.7 and those of `cudnn`."""
    fused_activations: bool = False
    """Whether activations are kernels of Transformer Engine's op fuser (`use_transformer_engine_op_fuser`)."""
    deals_beforehand: bool = False
    """Whether it is of a time in which products on Hopper dealt out their tiles beforehand (`deals_beforehand`)."""
    rack: int = 0
    """Devices that share links, if the device's file says otherwise."""


def plan(layout: Layout, model: Model, recipe: Recipe | None = None) -> str:
    x, tokens = layout, "T" if recipe else "C"
    inner = [("cp", x.cp), ("tp", x.tp)]
    outer = [("pp", x.pp), ("dp", x.dp)] if not x.pipeline_inside else [("dp", x.dp), ("pp", x.pp)]
    experts = model.experts and x.ep > 1
    # Experts are whole (`expert_tensor_parallel_size` is 1), on ranks that share tensors first.
    over = x.ep // x.tp if x.ep % x.tp == 0 else x.ep
    if experts:
        whole = [("en", 1)] if x.once else []
        outer = [("pp", x.pp), ("edp", x.dp // over), *whole, ("ep", over)]
    mesh = ", ".join(f"{axis} = {size}" for axis, size in [*outer, *inner])
    dealt_over = "en, ep" if x.once else "ep"
    batch = f"edp, {dealt_over}" if experts else "dp"
    lines = [f"  mesh {mesh}", f"  shard B over {batch}"]
    split = "H, K, V" if model.experts else "H, K, F, V"
    if model.joins and model.gated and not model.experts:
        split += ", FU, FB"
    if model.joins:
        split += ", J, Q"
    lines.append(f"  shard {recipe.tensor if recipe else split} over tp")
    sequence = [
        axis
        for axis, size in (("cp", x.cp), ("tp", x.tp if x.sequence_parallel else 1))
        if size > 1
    ]
    if sequence:
        lines.append(f"  shard S over {', '.join(sequence)}")
    # Behind that of positions, of which a rank routes its own: each has the whole router (`TopKRouter` of Megatron-LM).
    if experts:
        whose = f"{dealt_over}, tp" if over < x.ep else dealt_over
        lines += [f"  shard X over {whose}", f"  shard {tokens} over edp"]
    elif model.experts:
        lines += [f"  shard {tokens} over dp"]
    if model.adapters and x.tp > 1 and x.sequence_parallel:
        # `tp_comm_overlap_disable_qkv` and `a2a_experimental` of LoRA's submissions: queries, keys and values read what is gathered in bf16 before, as
        # adapters do, and what an adapter adds to the output is made column by column and exchanged for positions.
        whole = "cp" if x.cp > 1 else "none"
        lines += [f"  shard Attention.x[S] over {whole}", "  shard Attention.bo[D] over tp"]
    if x.cp > 1:
        lines.append(f"  context cp {{ method = {x.context} }}")
    if x.pp > 1:
        schedule = "interleaved_1f1b" if x.vp > 1 else "1f1b"
        settings = [f"schedule = {schedule}", f"microbatch = {x.microbatch}"]
        if x.vp > 1:
            settings.append(f"virtual_stages = {x.vp}")
        if recipe:
            settings.append(f"layers = {list(recipe.stages(x.pp, x.vp))}")
        elif x.in_split:
            settings += ["first = -1", "last = -1"]
        elif model.window:
            each = sum(each.times for each in repeats(model)) // x.pp
            settings.append(f"layers = [{', '.join([str(each)] * x.pp)}]")
        elif model.layers % (x.pp * x.vp):
            settings.append(f"layers = [{', '.join(map(str, dealt(model.layers, x.pp * x.vp)))}]")
        names = recipe.layers if recipe else ", ".join(each.name for each in repeats(model))
        lines.append(f"  pipeline {names} over pp {{ {', '.join(settings)} }}")
    else:
        lines.append(f"  microbatch {x.microbatch}")
    replicas = [axis for axis, size in ((batch, x.dp), ("cp", x.cp)) if size > 1]
    if x.zero and replicas:
        # Megatron-LM's FSDP has parameters that are parts of what it gathers (`AllGatherPipeline` in its `param_and_grad_buffer.py`).
        buffers = " { copies = false }" if x.zero == 3 and x.kernels == "fused" else ""
        lines.append(f"  zero {x.zero} over {', '.join(replicas)}{buffers}")
    if model.adapters:
        lines.append("  freeze embed, head, norm, norm1, norm2, FeedForward, wqkv, wo")
    again = x.recompute
    if again == "none" and x.kernels == "fused" and model.gated and recipe is None:
        # Megatron-LM's kernels of gated activations keep what they read (`core/fusions/fused_bias_swiglu.py`).
        again = "silu"
    lines.append(f"  recompute {again}")
    if model.on_host:
        lines.append("  offload { activations = HostBlock }")
    # Weights that learn are transposed when they are updated; of frozen ones Transformer Engine keeps no second copy.
    if x.stored == "fp8" and x.zero < 3 and not model.adapters and x.device in ("h100", "h200"):
        lines.append("  process { transposed_weights = true }")
    lines += [f"  {clause}" for clause in cached_weights(x)]
    lines.append(f"  {precision(x)}")
    # `router_gating_linear` of Megatron-LM is no layer of Transformer Engine's.
    left = recipe.left(x.products) if recipe else "router" if model.experts else ""
    if left and (recipe or x.products != "bf16"):
        lines[-1] = lines[-1].replace(" }", f", unquantized = [{left}] }}")
    algorithm = recipe.optimizer if recipe else "adamw"
    said = ["clip = 1"] * x.clips
    said += ["copies = true"] * (
        x.copies and x.kernels == "fused" and x.zero < 3 and algorithm == "adamw"
    )
    lines.append(f"  optimizer {algorithm}{' { ' + ', '.join(said) + ' }' if said else ''}")
    settings = ["average = before"] * (x.averages and x.dp * x.cp > 1)
    settings += ["check = true"] * (x.checks and x.dp * x.cp > 1)
    if x.zero < 3:
        settings.append(f"overlap = {str(x.grad_overlap).lower()}")
        if x.bucket_bytes:
            settings.append(f"bucket_bytes = {x.bucket_bytes}B")
    if settings:
        lines.append(f"  gradients {{ {', '.join(settings)} }}")
    lines.append(f"  {overlap(x)}")
    lines.append(f"  collectives {{ keep = shard{', exchange = hierarchical' if x.once else ''} }}")
    body = "\n".join([*lines, f"  {device_clause(x)}"])
    return f"\nplan measured {{\n{body}\n}}\n"


def overlap(x: Layout) -> str:
    besides = ", ep = true" if x.ep_overlap else ""
    if x.param_gather and x.zero in (1, 2) and x.dp * x.cp > 1:
        besides += ", param_gather = true"
    if x.tp_overlap and x.compiler_overlaps:
        besides += f", pieces = {x.tp}, bulk = false"
    if x.layers_overlap and x.tp > 1:
        besides += ", pieces = 1"
    overlaps = x.tp_overlap or (x.layers_overlap and x.tp > 1)
    return f"overlap {{ tp = {str(overlaps).lower()}{besides} }}"


def precision(x: Layout) -> str:
    stored = f", product_weights = {x.stored}" if x.stored else ""
    # `reuse_grad_buf_for_mxfp8_param_ag` of Megatron-Bridge's `bf16_with_mxfp8_mixed`, which its FSDP leaves out.
    if x.stored == "mxfp8" and x.zero in (1, 2):
        stored += ", product_gather = bf16"
    if x.products == "fp8":
        stored += f", scaling = {x.scaling}"
        if x.scaling == "delayed" and x.maxima != "all":
            stored += f", maxima = {x.maxima}"
    if x.loss:
        stored += f", loss = {x.loss}"
    return (
        f"precision {{ weights = bf16, activations = bf16, gradients = {x.gradients}, optimizer = fp32, reduce = {x.reduce}, "
        f"products = {x.products}{stored}, attention = {x.attention} }}"
    )


def cached_weights(x: Layout) -> tuple[str, ...]:
    """Weights that are stored wide are quantized once in a step (`is_first_microbatch` of Transformer Engine's layers)."""
    narrows = x.products in ("fp8", "mxfp8", "fp4")
    caches = x.caches and narrows and not x.stored and x.zero < 3
    return ("process { cached_weights = true }",) if caches else ()


def device_clause(x: Layout) -> str:
    node = f", node = {x.rack}" if x.rack else ""
    experts = ", experts = grouped" if x.grouped else ""
    kinds = ("collective_units", "exchange_units", "message_units")
    units = "".join(f", {each} = {getattr(x, each)}" for each in kinds if getattr(x, each))
    parts = f", captured = [{', '.join(x.captured)}]" if x.captured else ""
    graphs = f"graphs = {str(x.graphs).lower()}{parts}"
    swizzle = f", swizzle = {x.swizzle}" if x.products in ("mxfp8", "fp4") else ""
    is_said = (x.products == "fp8" and x.scaling == "current") or x.products == "mxfp8"
    norms = f", norms = {x.norms}" if is_said and x.kernels == "fused" else ""
    norms += ", fused_activations = true" * (x.fused_activations and x.products in ("fp8", "mxfp8"))
    tiles = STATIC_TILES if x.deals_beforehand and Path(x.device).name.startswith("h") else ""
    named = device_word(of_release(x.device, x.cudnn))
    settings = f"kernels = {x.kernels}, {graphs}{node}{experts}{units}{swizzle}{norms}{tiles}"
    return f"device {named} {{ {settings} }}"


def deals_beforehand(release: str) -> bool:
    """Whether a release of NVIDIA's containers, or a day (`24.12`), is before products on Hopper gave up to share a device badly.

    Beside a collective they took 2 times as long in December 2024 (pytorch/pytorch, issue 143988) and 1.7 times in July 2025 (NVIDIA's forum, 337991), but
    1.26 times in January 2026 and 1.3 to 1.4 times in April (pytorch/pytorch, pull requests 172714 and 179937). CUDA 13, of which containers are from 25.08
    on, is between.
    """
    return release < "25.08"


def of_release(device: str, cudnn: str) -> str:
    """The device with attention of that release, where its tables are not what ships."""
    if not cudnn:
        return device
    file = Path(__file__).with_name(f"{device}_cudnn_{cudnn}.toml")
    return str(file) if file.exists() else device


def device_word(device: str) -> str:
    """A device's name, or its file."""
    return f'"{device}"' if device.endswith(".toml") else device


def dealt(layers: int, stages: int) -> list[int]:
    """As evenly as can be, the rest to the first."""
    each, rest = divmod(layers, stages)
    return [each + (i < rest) for i in range(stages)]


DEVICES = {
    "H100": "h100",
    "H200": "h200",
    "B200": "b200",
    "B300": "b300",
    "GB200": "gb200",
    "GB300": "gb300",
    "A100 80GB SXM": "a100",
}


def device_of(name: str) -> str:
    if name.startswith("H100 96GB HBM2e"):
        return str(Path(__file__).with_name("h100_hbm2e_500w.toml"))
    return DEVICES[name]


def products_of(precision: str) -> str:
    """What linear layers multiply in."""
    if "fp4" in precision:
        return "fp4"
    if precision == "mxfp8":
        return "mxfp8"
    return "fp8" if "fp8" in precision else "bf16"


BENCHMARKS = {
    "gpt3": (MODELS["gpt3"], "fp8"),
    "llama31_405b": (replace(MODELS["llama3_405b"], vocabulary=32768), "bf16"),
    "llama31_8b": (MODELS["llama3_8b"], "bf16"),
    "llama2_70b_lora": (MODELS["llama2_70b_lora"], "fp8"),
}
"""405B's tokenizer there is Mixtral 8x22B's."""


def bucket_bytes(said: str, element_bytes: int = 2) -> int:
    """A row's bucket: so many elements, or MB where that is a small number; Megatron-LM's default of 40 million elements."""
    value = float(said) if said else 40e6
    return int(value * 1e6) if value < 1e4 else int(value * element_bytes)


RACK = 64
"""GPUs of an NVL72 that jobs of several racks take, so that powers of two fit (`systems` of the submissions)."""


def rack_of(device: str, gpus: int) -> int:
    """Devices that share NVLink where it is not what the device's file says; 0 where it is."""
    return RACK if device.startswith("gb") and gpus > 72 and gpus % RACK == 0 else 0


def mlperf(r: Cells) -> Timed | None:
    name = f"{r['benchmark']} {r['gpus']} {r['gpu']} {r['precision']}"
    group = f"{r['benchmark']}|{r['gpu']}|{r['gpus']}"
    source = "MLPerf LoRA" if r["benchmark"].endswith("_lora") else "MLPerf pre-training"
    measured = float(r["step_s"])
    model, _ = BENCHMARKS[r["benchmark"]]
    model = replace(model, narrows=bool(model.adapters) and narrows(r), turns_at_once=is_recent(r))
    return timed(
        source,
        name,
        group,
        measured,
        model,
        number(r, "global_batch"),
        number(r, "sequence"),
        submitted_layout(r, model),
    )


def narrows(r: Cells) -> bool:
    """`FP8_ACTIVATION` and `FP8_ACT` of LoRA's scripts (rounds 4.1 to 5.1), and `activation_func_fp8_input_store` in logs: where a rank has many tokens."""
    ways = number(r, "tp") * number(r, "cp")
    if r["gpu"] == "H200":
        return ways == 2 and r["org"] != "Krai"
    return ways == 1 and (r["gpu"] == "B200" or (r["gpu"] == "GB200" and r["round"] == "v5.0"))


AGREE = (
    ("v5.0", "Lenovo", "32"),
    ("v5.1", "Cisco", "16"),
    ("v5.1", "Dell", "8"),
    ("v5.1", "Krai", "16"),
    ("v5.1", "Krai", "32"),
)
"""LoRA's submissions on Hopper whose scripts or logs say `reduce_amax: true`."""


def agreeing(r: Cells) -> str:
    """Along which axes ranks agree on the maxima of delayed scaling.

    `FP8_REDUCE_AMAX` of LoRA's scripts, which is true in NVIDIA's since those of its container 25.04 (`config_common.sh`), and so in all on Blackwell; with
    `tp_only_amax_red=False` where a log has it. `TP_ONLY_AMAX_RED` of Llama 3.1's, which is true unless said (`conf/custom.yaml` of rounds 5.0 and 5.1)."""
    if r["benchmark"] == "llama2_70b_lora":
        is_hopper = r["gpu"].startswith("H")
        agrees = not is_hopper or (r["round"], r["org"], r["gpus"]) in AGREE
        return "all" if agrees else "none"
    if not r["benchmark"].startswith("llama31"):
        return "all"
    axes = [axis for axis in ("cp", "tp") if number(r, axis) > 1]
    return f"[{', '.join(axes)}]" if axes else "none"


def cudnn_of(release: str) -> str:
    """The release of cuDNN in a container of a month, as far as NVIDIA has published attention of it.

    Megatron-Bridge's `docker/Dockerfile.ci` begins `FROM nvcr.io/nvidia/pytorch:25.09-py3` in v0.2.0 (its 25.11), with 25.11 in v0.3.0 (26.02) and 26.02 in
    v0.4.0 (26.04). The first has cuDNN 9.13 (cudnn-frontend at be6c079). The second has what was current in November 2025, nearest to the tables that ship,
    of 9.17. The third is of February 2026, when 9.19 came out; 9.18 is as fast. Submissions of MLPerf's round 5.1 name NGC's 25.09
    (`theia_ngpu512_ngc25.09_nemo`); older rounds have still older ones, of which nothing is published."""
    if release < "26.02":
        return "9_13"
    return "9_19" if release >= "26.04" else ""


def swizzle_of(release: str, products: str) -> str:
    """Whose scales are put in order in front of products, in a container of a month.

    Megatron-Bridge's `pyproject.toml` has Transformer Engine 2.9 in v0.2.0 (its 25.11), 2.12 in v0.3.0 (26.02), 2.14, 2.16 and 2.17 in v0.4.0 to v0.6.0. In
    2.12 what quantizes began to write scales of mxfp8 in order, in 2.17 those of nvfp4 (`with_gemm_swizzled_scales` in `csrc/quantizer.cpp`)."""
    first = "26.08" if products == "fp4" else "26.02"
    return "stored" if release >= first else "each"


def norms_of(r: Cells) -> str:
    """Whose norms run at Megatron-Bridge: cuDNN's where its scripts leave `NVTE_NORM_FWD_USE_CUDNN` set (`perf_plugins.py` of v0.2.0 to v0.5.0, recipes of
    v0.6.0), else Transformer Engine's own.

    Its release in 25.09 is 2.7, which takes its own norms with current scaling all the same. Of DeepSeek and Kimi the norms in front of layers are modules by
    themselves (`input_layernorm` of Megatron-LM's latent attention), whatever writes those of its latents.
    """
    model, gpu, release = r["model"], r["gpu"], r["release"]
    if release < "25.11":
        return "maxima"
    of_tensor = r["precision"] == "fp8"
    if r["kind"] == "SFT" or (model == "Nemotron_3_Nano" and release > "26.02"):
        return "cudnn"
    is_small = gpu == "H100" and model == "LLAMA3_8B"
    is_large = gpu[:2] == "GB" and model in ("LLAMA3_70B", "LLAMA3.1_405B")
    return "cudnn" if of_tensor and (is_small or is_large) else "maxima"


def is_recent(r: Cells) -> bool:
    """Whether a submission has what 8B's scripts of round 5.1 say, but for Cisco's, whose code is older.

    `CE_FUSION_IMPL=te`, where others have Megatron-LM's own loss in fp32, and `FUSED_QKV_ROPE=True` (`config_common_8b.sh` of HPE, Lambda and Lenovo).
    """
    return r["benchmark"] == "llama31_8b" and r["org"] != "Cisco"


def fuses_activations(r: Cells) -> bool:
    """`USE_TE_OPS` of scripts in round 5.1: of 8B's but Cisco's, and not where NVIDIA shares tensors among 512; of LoRA's Dell's, NVIDIA's, Florida's and
    Wiwynn's (its log). No script of rounds 4.1 and 5.0 has it."""
    if r["benchmark"] == "llama2_70b_lora":
        fusing = ("Dell", "NVIDIA", "University-of-Florida", "Wiwynn")
        return r["round"] == "v5.1" and r["org"] in fusing
    return is_recent(r) and not (r["org"] == "NVIDIA" and number(r, "tp") > 1)


def checks_gradients(r: Cells) -> bool:
    """`check_for_nan_in_grad = True` of Cisco's `pretrain.py` of 8B, with buckets of one parameter each (`bucket_size` 64)."""
    return r["benchmark"] == "llama31_8b" and r["org"] == "Cisco"


def submitted_layout(r: Cells, model: Model) -> Layout:
    # Weights of Transformer Engine's layers alone are fp8 then, and gathered so: those of the table, the head and norms are in buffers of bf16
    # (`_ParamAndGradBuffer` of Megatron-LM has one for each dtype of weights).
    learns_narrow = "gathered in fp8" in r["precision_parts"]
    products, container = products_of(r["precision"]), CONTAINERS[r["round"]]
    return Layout(
        tp=number(r, "tp"),
        pp=number(r, "pp"),
        vp=number(r, "vp"),
        cp=number(r, "cp"),
        dp=number(r, "dp"),
        microbatch=number(r, "micro_batch"),
        sequence_parallel=r["sequence_parallel"] == "1",
        pipeline_inside=r["tp_pp_dp_order"] == "1",
        products=products,
        # LoRA's model is made under `fp8_model_init` (`custom_llama.py` of the submissions): frozen weights are fp8 alone.
        stored="fp8" if products == "fp8" and (learns_narrow or model.adapters) else "",
        scaling="current" if "tensorwise" in r["precision_parts"] else "delayed",
        maxima=agreeing(r),
        loss="" if is_recent(r) else "fp32",
        attention="fp8" if "attention products fp8" in r["precision_parts"] else "bf16",
        # `cp_comm_type` in LoRA's configuration; elsewhere Megatron's own, the ring.
        context="ulysses" if model.adapters else "ring",
        # `grad_reduce_in_fp32=False` of their `pretrain.py`: Megatron-LM's buffers have the dtype in which they are reduced.
        gradients="bf16" if r["benchmark"] in ("llama31_405b", "llama31_8b") else "fp32",
        tp_overlap=r["tp_comm_overlap"] == "1",
        grad_overlap=r["overlap_grad_reduce"] != "0",
        param_gather=r["overlap_param_gather"] == "1",
        in_split=r["embedding_in_split"] == "1",
        graphs=r["cuda_graph"] != "none",
        device=device_of(r["gpu"]),
        cudnn=cudnn_of(container),
        swizzle=swizzle_of(container, products),
        # `NVTE_NORM_FWD_USE_CUDNN` is 1 in their `config_common.sh`, and 0 in `config_common_8b.sh`; they have Transformer Engine 2.8.
        norms="maxima" if r["benchmark"] == "llama31_8b" else "cudnn",
        fused_activations=fuses_activations(r),
        deals_beforehand=deals_beforehand(container),
        bucket_bytes=2 * 64 if checks_gradients(r) else bucket_bytes(r["bucket"]),
        checks=checks_gradients(r),
        rack=rack_of(device_of(r["gpu"]), number(r, "gpus")),
        collective_units=collective_units(r),
        message_units=message_units(r),
    )


def limits_blocks(r: Cells) -> bool:
    """Whether `custom_communicator_cta.yaml` decides how many thread blocks NCCL has in pre-training.

    In round 5.1 scripts but Cisco's export `NCCL_MIN_CTAS=16` and `NCCL_MAX_CTAS=32`, which override it (`envConfigOverride` in src/init.cc of 2.27).
    """
    return r["round"] != "v5.1" or r["org"] == "Cisco"


def collective_units(r: Cells) -> int:
    """Scripts of LoRA export `NCCL_MIN_CTAS=32`. Of pre-training the file gives gradients and shared tensors 8 at most; without it rings have 16, since
    `NCCL_NVLS_ENABLE=0`."""
    if r["benchmark"] == "llama2_70b_lora":
        return 32
    return 8 if limits_blocks(r) else 16


def message_units(r: Cells) -> int:
    """The file gives stages 2 and shared sequences 1; without it two ranks of a node send each other messages by half of 32."""
    if number(r, "cp") == number(r, "pp") == 1 or r["benchmark"] == "llama2_70b_lora":
        return 0
    return 2 if limits_blocks(r) or number(r, "cp") == 1 else 16


CONTAINERS = {"v4.1": "24.09", "v5.0": "25.01", "v5.1": "25.09"}
"""The release of NVIDIA's containers that the submissions of a round name (`ngc24.09` in names of systems). In v5.0 those on GB200 name 25.04, of which
all holds that is asked of 25.01."""
PUBLISHED = {
    "LLAMA3_8B": "llama3_8b",
    "LLAMA3.1_8B": "llama3_8b",
    "LLAMA3_70B": "llama3_70b",
    "LLAMA3.1_405B": "llama3_405b",
    "Qwen3_30B_a3B": "qwen3_30b_a3b",
    "Qwen3_235B_a22B": "qwen3_235b_a22b",
    "GPT OSS 120B": "gpt_oss_120b",
}


MISPRINTED = ("26.02.01", "LLAMA3_70B", "GB300")
"""The table gives its plans in NVFP4 and MXFP8 the microbatches, and one of them the degrees, of the plan by FSDP, by which weights and gradients alone are
larger than the device. Theirs are those of recipes (v0.3.1), as in the releases before and behind."""
SPLITS_ENDS = ("LLAMA3.1_405B", "Qwen3_235B_a22B")
"""Models at Megatron-Bridge whose embedding and loss count as a layer each where layers are dealt to stages (`account_for_embedding_in_pipeline_split` and
`account_for_loss_in_pipeline_split` in their recipes, v0.1.0rc4 to v0.5.0)."""
ENDS_AGAIN = ("Nemotron_3_Super", "B300", "fp4")
"""The plan of a Nemotron whose recipe computes norms in front of experts and their activation again (`recompute_modules`, v0.4.0 and v0.5.0)."""
ON_HOST = {("LLAMA3_70B", "GB300"): 20, ("LLAMA3.1_405B", "GB200"): 95}
"""`cpu_offloading_num_layers` of Megatron-Bridge's recipes by FSDP in fp8 (v0.2.0 to v0.5.0; of 405B v0.1.0rc4)."""


def published(r: Cells) -> Timed | None:
    name = f"{r['source'].split()[0]} {r['release']} {r['model']} {r['gpus']} {r['gpu']} {r['precision']}"
    group = f"{r['model']}|{r['gpu']}|{r['gpus']}|{r['kind']}"
    measured = float(r["step_s"])
    source = {"Megatron-Bridge": "Megatron-Bridge", "torchtitan": "torchtitan"}.get(
        r["source"], "Korthikanti 2022"
    )
    if r["model"].startswith("GPT ") and "hidden" in r["note"]:
        return korthikanti(r, name, group, measured)
    if r["kind"] == "LoRA":
        return Timed(
            f"{source} LoRA",
            name,
            group,
            measured,
            why_not="which layers have adapters is not published",
        )
    recipe = RECIPES.get(r["model"])
    if r["model"] not in PUBLISHED and recipe is None:
        return Timed(f"{source} others", name, group, measured, why_not=f"no text for {r['model']}")
    model = recipe.model if recipe else MODELS[PUBLISHED[r["model"]]]
    if model.experts:
        source += " experts"
    if (r["release"], r["model"], r["gpu"]) == MISPRINTED and not number(r, "fsdp", 0):
        r = {**r, "micro_batch": "1", "pp": "4", "vp": "5", "dp": "16"}
    if "other quantization granularity" in r["note"] and r["gpu"][0] != "H":
        # "32x32 for both weights and activations" on GB200 and B200 (below the table): MXFP8, of whose recipes its degrees are (`fp8_mx`, v0.1.0rc4).
        r = {**r, "precision": "mxfp8"}
    layout = Layout(
        tp=number(r, "tp"),
        pp=number(r, "pp"),
        vp=number(r, "vp"),
        cp=number(r, "cp"),
        dp=number(r, "dp"),
        ep=number(r, "ep"),
        microbatch=number(r, "micro_batch"),
        zero=3 if number(r, "fsdp", 0) > 1 else 1,
        products=products_of(r["precision"]),
        device=device_of(r["gpu"]),
    )
    if r["source"] == "torchtitan":
        eager = r["note"].startswith("eager")
        again = recomputed(r["recompute"], layout.products, eager, layout.tp)
        layout = replace(
            layout,
            zero=3,
            reduce="fp32",
            # torchao's recipes of float8 find scales from each tensor.
            scaling="current",
            kernels="eager" if eager else "compiled",
            tp_overlap="async TP" in r["note"],
            compiler_overlaps=True,
            recompute=again,
            # `cross_entropy(pred.flatten(0, 1).float(), ...)` in its `train.py`.
            loss="fp32",
            deals_beforehand=deals_beforehand("24.12"),
        )
    else:
        rack = rack_of(layout.device, number(r, "gpus"))
        cudnn = cudnn_of(r["release"])
        # `_get_optimizer_overlap_cfgs` of its `comm_overlap.py`: 128 Mi elements.
        bucket = bucket_bytes(str(128 * 2**20))
        swizzle = swizzle_of(r["release"], layout.products)
        layout = replace(layout, bucket_bytes=bucket, rack=rack, cudnn=cudnn, swizzle=swizzle)
        layout = replace(layout, norms=norms_of(r), in_split=r["model"] in SPLITS_ENDS)
        layout = replace(layout, collective_units=rings_of(r))
        # `grad_reduce_in_fp32 = False` in all of its `scripts/performance/configs`.
        layout = replace(layout, gradients="bf16")
        # `use_precision_aware_optimizer` where it computes in bf16 (`overrides.py` there), and of DeepSeek (`recipes/deepseek`).
        if r["precision"] == "bf16" or r["model"].startswith("DeepSeek"):
            layout = replace(layout, copies=False)
        # `mixed_precision.py` there: parameters are gathered, and stay, in what fp8 products read.
        stored = layout.products if layout.products in ("fp8", "mxfp8") else ""
        if recipe and recipe.optimizer.startswith("muon") and r["release"] > "26.02":
            # But for Kimi K2 in mxfp8 (`set_kimi_k2_common_configs` from v0.3.1 on).
            stored = "" if stored == "mxfp8" else stored
        # `precision.py` of `scripts/performance` there: fp8 is scaled by each tensor as it is (`fp8_cs`).
        layout = replace(layout, stored=stored, scaling="current")
        # `fp8_dot_product_attention = True` in its recipes of experts in mxfp8 on GB200 and GB300, from 26.06 (v0.5.0) on.
        narrow = model.experts and layout.products == "mxfp8" and r["release"] >= "26.06"
        if narrow and recipe is None and layout.device.startswith("gb"):
            # Which Transformer Engine does in the format of its recipe (`get_attention_backend` of release 2.16).
            layout = replace(layout, attention="mxfp8")
        if recipe:
            again = recipe.recompute
            if (r["model"], r["gpu"], layout.products) == ENDS_AGAIN:
                again = "rms_norm, relu, square in ExpertsBlock, LastExpertsBlock"
            layout = replace(
                layout,
                graphs=False,
                captured=recipe.captured,
                recompute=again,
            )
        elif model.experts:
            layout = of_recipe(r, layout)
        else:
            layout = replace(layout, graphs=False, captured=feed_forward_of(r))
            layout = replace(layout, graphs=is_graph(r, layout.products))
        if model.experts:
            # Exchanges that are hidden are left as they are: of two in a row interleaving hides one.
            # Across ranks that share tensors, too, an exchange goes straight.
            once = is_flexible(r) and not layout.ep_overlap and layout.tp == 1
            units = exchange_units(r, layout)
            layout = replace(layout, once=once, grouped=is_one_kernel(r), exchange_units=units)
        if model.experts and recipe is None:
            model = replace(model, stages=layout.pp, **dispatched(r, layout, model))
        if layout.zero == 3:
            model = replace(model, on_host=ON_HOST.get((r["model"], r["gpu"]), 0))
        # `scripts/performance` there: tensor-parallel communication overlaps where there is any; FSDP in one unit per block.
        # `comm_overlap.py` overlaps gathers of parameters wherever ranks hold other data.
        layout = replace(layout, tp_overlap=layout.tp > 1, param_gather=True)
        if layout.zero == 3:
            # `_set_megatron_fsdp_overrides`: FSDP has no average in its collectives.
            layout = replace(layout, averages=True)
        if layout.products == "fp4" or (model.experts and layout.device == "h100"):
            # No rings in nvfp4, nor for experts on H100: `tp_comm_overlap = False`, of Qwen3 235B in `configs/qwen3/qwen3_llm_pretrain.py` (v0.2.0 to
            # v0.5.0), of DeepSeek V3 in its recipe. Linear layers hide by themselves what they do backward.
            layout = replace(layout, tp_overlap=False, layers_overlap=True)
    if recipe:
        batch, sequence = number(r, "global_batch"), number(r, "sequence")
        text = recipe.sized(batch, sequence, layout.products, layout.microbatch)
        whole = text + plan(layout, model, recipe)
        return Timed(source, name, group, measured, whole, layout.device, tokens=batch * sequence)
    found = timed(
        source,
        name,
        group,
        measured,
        model,
        number(r, "global_batch"),
        number(r, "sequence"),
        layout,
    )
    if r["source"] != "torchtitan":
        return found
    return replace(found, text=as_torchtitan(found.text, layout.kernels == "eager"))


def is_graph(r: Cells, products: str) -> bool:
    """Whether iterations of a Llama are graphs: `cuda_graphs` of its recipes in v0.1.0rc4 (25.09), `cuda_graph_impl` of those of v0.2.0 (25.11) to v0.5.0."""
    model, gpu, release = PUBLISHED[r["model"]], r["gpu"], r["release"]
    if products == "fp4":
        # Of 8B and of the other two on GB200 and GB300, and since v0.3.1 of 8B on GB300 alone.
        return (release < "26" and gpu[:2] == "GB") or (model, gpu) == ("llama3_8b", "GB300")
    if model == "llama3_8b":
        # In the first release those in fp8 are none on GB200.
        return gpu != "H100" and (release, gpu, products) != ("25.09", "GB200", "fp8")
    return model == "llama3_70b" and (gpu, products) == ("B200", "bf16")


def feed_forward_of(r: Cells) -> tuple[str, ...]:
    """Of fine-tuned 70B (`SFT` in `llama3_workload_base_configs.py`, v0.5.0) feed-forward layers are graphs, but not in bf16 on H100."""
    in_bf16_on_hopper = r["gpu"] == "H100" and r["precision"] == "bf16"
    return ("FeedForward",) if r["kind"] == "SFT" and not in_bf16_on_hopper else ()


def of_recipe(r: Cells, layout: Layout) -> Layout:
    """What recipes of experts say in `scripts/performance/configs` of v0.2.0 (25.11) to v0.5.0 (26.06).

    Of `moe_a2a_overlap`, `cuda_graph_impl`, `cuda_graph_scope` and `recompute_modules`.
    """
    release, wide = r["release"], r["precision"] == "bf16"
    whole_graphs = is_one_kernel(r)
    if r["model"].startswith("GPT OSS"):
        again = wide and r["gpu"] != "GB300"
        overlaps = whole_graphs or (r["gpu"] == "GB200" and wide and release >= "26.04")
        recompute = (
            "rms_norm, clamped, rejoined, silu, mul in LocalBlock, Block"
            if again
            else layout.recompute
        )
        attention = () if again or whole_graphs else ("LocalAttention", "Attention")
        return replace(
            layout,
            ep_overlap=overlaps,
            graphs=whole_graphs,
            captured=attention,
            recompute=recompute,
        )
    if r["model"].startswith("Qwen3_235B"):
        apart = r["gpu"] in ("H100", "B200") and release >= "25.11"
        attention = ("Attention",) if r["gpu"][:2] == "GB" and not whole_graphs else ()
        overlaps = whole_graphs or apart
        return replace(layout, ep_overlap=overlaps, graphs=whole_graphs, captured=attention)
    # `moe_router` and `moe_preprocess` alone are graphs.
    return replace(layout, ep_overlap=whole_graphs, graphs=whole_graphs)


def is_flexible(r: Cells) -> bool:
    """Whether a token goes once to each device (`moe_flex_dispatcher_backend` of the same configurations: HybridEP).

    Not of GPT-OSS, but for GB200 in 26.04 and what is one kernel; not of Qwen3 235B on H100 and B200; nor where tokens are dropped (25.09).
    """
    if r["model"].startswith("GPT OSS"):
        return is_one_kernel(r) or (r["gpu"] == "GB200" and r["release"][:5] == "26.04")
    is_large = r["model"].startswith("Qwen3_235B")
    return r["release"] >= "25.11" and (not is_large or r["gpu"][:2] == "GB")


def rings_of(r: Cells) -> int:
    """The blocks of NCCL's rings, without NVLink SHARP (`NCCL_NVLS_ENABLE=0` of `scripts/performance`, v0.2.0 to v0.5.0): 24 in one node of H100, else 16.

    With `nccl_ub`, which 70B by FSDP on GB200 and GB300 has, it is on, and there are as many as the device's file says.
    """
    if r["model"] == "LLAMA3_70B" and r["gpu"][:2] == "GB" and number(r, "fsdp", 0) > 1:
        return 0
    return 24 if r["gpu"] == "H100" and number(r, "gpus") <= 8 else 16


def exchange_units(r: Cells, layout: Layout) -> int:
    """`moe_hybridep_num_sms` of `scripts/performance/utils` (v0.2.0 to v0.5.0); between nodes of eight devices NCCL's 16 channels."""
    if is_flexible(r):
        return 32
    is_apart = layout.device in ("h100", "b200", "b300") and layout.ep * layout.tp > 8
    return 16 if is_apart else 0


def is_one_kernel(r: Cells) -> bool:
    """Whether experts are one fused kernel with their bias (`cutedsl_fused_grouped_mlp` of v0.5.0, `use_transformer_engine_op_fuser` of v0.6.0).

    On GB200 and GB300 alone, and there not of Kimi K2 nor of Nemotron's Nano and Super.
    """
    has_none = r["model"] in ("Kimi_K2", "Nemotron_3_Nano", "Nemotron_3_Super")
    is_rack = r["gpu"][:2] == "GB" and r["precision"] == "mxfp8"
    return r["release"] >= "26.06" and is_rack and not has_none


def dispatched(r: Cells, layout: Layout, model: Model) -> dict[str, int]:
    """What Megatron-LM's dispatcher and experts have by themselves, if they are not one kernel."""
    if is_one_kernel(r):
        return {}
    sorts = not is_flexible(r)
    # HybridEP leaves room itself; without it `TEGroupedMLP` does, where it quantizes what no capacity has cut to blocks before (25.09).
    pads = sorts and layout.products != "bf16" and r["release"] >= "25.11"
    # Recipes of Qwen3 30B have graphs of them; 25.09 drops tokens, and counts none.
    counts = sorts and r["release"] >= "25.11" and r["model"].startswith(("GPT OSS", "Qwen3_235B"))
    found = {"sorts": int(sorts), "pads": int(pads), "counts": int(counts)}
    if r["model"].startswith("GPT OSS"):
        found |= {"biased": model.experts // layout.ep, "clamps": 1}
    return found


def korthikanti(r: Cells, name: str, group: str, measured: float) -> Timed:
    said = {
        key: int(value)
        for key, value in re.findall(r"(hidden|heads|layers|vocabulary) (\d+)", r["note"])
    }
    model = Model(
        said["layers"],
        said["hidden"],
        4 * said["hidden"],
        said["heads"],
        said["heads"],
        said["vocabulary"],
        gated=False,
    )
    again = (
        "scores, weighed, probabilities in Attention"
        if "selective" in r["recompute"]
        else "full in Block"
    )
    layout = Layout(
        tp=number(r, "tp"),
        pp=number(r, "pp"),
        vp=number(r, "vp"),
        dp=number(r, "dp"),
        microbatch=number(r, "micro_batch"),
        sequence_parallel="sequence parallel yes" in r["note"],
        zero=0,
        reduce="fp32",
        recompute=again,
        device="a100",
    )
    return timed(
        "Korthikanti 2022",
        name,
        group,
        measured,
        model,
        number(r, "global_batch"),
        number(r, "sequence"),
        layout,
        True,
    )


def narayanan(data: Mapping[str, Mapping[str, object]]) -> Iterator[Timed]:
    table = data["narayanan_2021_table_1"]
    columns, rows = table["columns"], table["rows"]
    assert isinstance(columns, list)
    assert isinstance(rows, list)
    for values in rows:
        r = dict(zip(columns, values, strict=True))
        model = Model(
            r["layers"], r["hidden"], 4 * r["hidden"], r["heads"], r["heads"], 51200, gated=False
        )
        dp = r["gpus"] // (r["tp"] * r["pp"])
        # The paper's section 5.1 and figure 17: microbatches of the sizes that were best, 1 where there is a pipeline.
        micro = 1 if r["pp"] > 1 else {1: 16, 2: 8, 4: 4, 8: 4}[r["tp"]]
        layout = Layout(
            tp=r["tp"],
            pp=r["pp"],
            dp=dp,
            microbatch=micro,
            sequence_parallel=False,
            zero=0,
            reduce="fp32",
            recompute="full in Block",
            averages=True,
            device="a100",
        )
        measured = r["flops_per_iteration"] / (r["gpus"] * r["tflops_per_gpu"] * 1e12)
        name = f"narayanan {r['parameters_billion']}B on {r['gpus']}"
        yield timed("Narayanan 2021", name, name, measured, model, r["batch"], 2048, layout, True)


def deepspeed(r: Cells) -> Timed:
    name = f"{r['Parameters (billion)']}B on {r['# GPUs']}"
    heads, width = number(r, "attention heads"), number(r, "hidden size")
    model = Model(number(r, "# layers"), width, 4 * width, heads, heads, 51200, gated=False)
    layout = Layout(
        tp=number(r, "tensor parallelism"),
        pp=number(r, "pipeline parallelism"),
        dp=number(r, "data parallelism"),
        microbatch=number(r, "micro batch"),
        sequence_parallel=False,
        zero=0,
        reduce="fp32",
        recompute="full in Block",
        averages=True,
        grad_overlap=False,
        device="a100",
    )
    measured = float(r["iteration time (ms)"]) / 1e3
    batch, sequence = number(r, "global batch"), number(r, "sequence length")
    return timed("vTrain", name, name, measured, model, batch, sequence, layout, True)


P5 = str(Path(__file__).with_name("h100_p5.toml"))


def nanotron(r: Cells) -> Timed | None:
    """Runs whose stages are known to be those of a release, and those without a pipeline, by themselves.

    The others ran a release, or the branch `nouamane/bench2` (67c5ebb6), which asks each tenth of a second whether a message is there
    (`_send_meta` and `_recv_meta` in `parallel/pipeline_parallel/p2p.py`), and which of these no column says.
    """
    if r["status"] != "Success" or not r["tok/s/gpu"]:
        return None
    run = read_run(r)
    ranks = run.dp * run.tp * run.pp
    batch = run.dp * run.microbatch * run.microbatches
    measured = batch * run.sequence / (float(r["tok/s/gpu"]) * ranks)
    cut = counts_norms(run, float(r["Mem Alloc (GB)"]) * 2**30) if run.pp > 1 else True
    found = run_text(run, as_run=True, counts_norms=cut is not False).replace(
        "  optimizer adamw { clip = 1 }\n}",
        f'  optimizer adamw {{ clip = 1 }}\n  device "{P5}" {{ kernels = eager, graphs = false{STATIC_TILES} }}\n}}',
    )
    name = f"{run.width}x{run.layers} on {ranks}: dp {run.dp} tp {run.tp} pp {run.pp} mb {run.microbatch}"
    source = "nanotron" if cut else "nanotron, which polls or not"
    group = f"{source}|{run.width}|{run.layers}|{ranks}|{run.sequence}|{batch}"
    return Timed(source, name, group, measured, found, P5)


MACHINE = str(Path(__file__).with_name("b200_simumax.toml"))
"""The eight B200 of SimuMax's runs, as far as products, collectives and attention that it measured there by themselves tell them from others."""


def simumax(r: Cells, device: str = "b200", source: str = "SimuMax") -> Timed:
    """MooreThreads/SimuMax@4dcaae5, docs/b200: Megatron-LM with Transformer Engine 2.11, of which it says that nothing overlaps
    (`b200_real_repro_guide.md`: "non-overlap contract").

    Transformer Engine's linear layers launch what they gather and scatter backward beside products (`async_op` in `module/linear.py`), but the scripts set
    `CUDA_DEVICE_MAX_CONNECTIONS=1`, under which others saw collectives hide nothing (NVIDIA/Megatron-LM, issue 1468; alibaba/Megatron-LLaMA, issue 26).
    """
    layers, pp, dp = number(r, "layers"), number(r, "pp"), number(r, "dp")
    batch, sequence = number(r, "accumulation") * dp, number(r, "sequence")
    name = f"{r['model']} {layers} layers tp {r['tp']} pp {pp} dp {dp} cp {r['cp']} of {sequence}, {r['accumulation']} microbatches"
    measured = float(r["real_ms"]) / 1e3
    layout = Layout(
        tp=number(r, "tp"),
        pp=pp,
        cp=number(r, "cp"),
        dp=dp,
        ep=number(r, "ep"),
        context="ulysses",
        reduce="fp32",
        averages=True,
        # Megatron-LM's default, which the scripts leave.
        checks=True,
        grad_overlap=False,
        graphs=False,
        device=device,
    )
    if r["model"].startswith("deepseek"):
        found = deepseek_text(r["model"], batch, sequence, 1, layers - 1)
        found += experts_plan(layout)
        return Timed(source, name, name, measured, found, layout.device)
    # Its 405B is padded to 128 layers and has 16 heads of keys.
    known = {
        "llama3-70b": MODELS["llama3_70b"],
        "llama3-405b": replace(MODELS["llama3_405b"], key_heads=16),
    }
    model = replace(known[r["model"]], layers=layers)
    return timed(source, name, name, measured, model, batch, sequence, layout)


def experts_plan(x: Layout) -> str:
    """Of DeepSeek's text: experts over the data-parallel ranks of a stage."""
    assert x.ep == x.dp
    cut = ["  pipeline L1, L2 over pp { schedule = 1f1b, microbatch = 1 }"]
    lines = [
        f"  mesh pp = {x.pp}, ep = {x.ep}",
        "  shard B over ep",
        "  shard X over ep",
        *(cut if x.pp > 1 else ["  microbatch 1"]),
        "  zero 1 over ep",
        "  recompute silu",
        f"  precision {{ weights = bf16, activations = bf16, gradients = fp32, optimizer = fp32, reduce = {x.reduce} }}",
        "  gradients { overlap = false, average = before, check = true }",
        f"  device {device_word(x.device)} {{ kernels = {x.kernels}, graphs = false }}",
    ]
    return "\nplan measured {\n" + "\n".join(lines) + "\n}\n"


def by_megatron(model: Model, layout: Layout) -> Model:
    """With what its code does by itself, on the ranks of a plan."""
    return replace(model, keys_of_rank=max(model.key_heads // layout.tp, 1))


def timed(
    source: str,
    name: str,
    group: str,
    measured: float,
    model: Model,
    batch: int,
    sequence: int,
    layout: Layout,
    unfused: bool = False,
) -> Timed:
    whole_again = unfused and layout.recompute.startswith("full")
    if layout.kernels == "fused":
        model = by_megatron(model, layout)
    whole = text(model, batch, sequence, unfused, whole_again) + plan(layout, model)
    tokens = batch * sequence
    return Timed(source, name, group, measured, whole, layout.device, tokens=tokens)
