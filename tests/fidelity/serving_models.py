"""Models of measured serving as texts, with a plan that serves so many sequences."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from stagec.importing import import_configuration
from stagec.importing.shipped import shipped

if TYPE_CHECKING:
    from tests.fidelity.serving import Row

DENSE = """
dim B = 8
dim S = 64
dim T = S
dim V = {vocabulary}
dim D = {width}
dim F = {hidden}
dim H = {heads}
dim K = {kv_heads}
dim E = {head_width}

module Attention(x[B, S, D]) -> [B, S, D] {{
  weight wq[D, H, E], wk[D, K, E], wv[D, K, E], wo[H, E, D]{norms}
  cache keys[B, T, K, E], values[B, T, K, E]
  q[B, S, H, E] = rope({query})
  k[B, T, K, E] = append(keys, rope({key}))
  v[B, T, K, E] = append(values, x @ wv)
  return attention(q, k, v, causal = true) @ wo
}}

module Block(x[B, S, D]) -> [B, S, D] {{
  weight norm1[D], norm2[D], gate[D, F], up[D, F], down[F, D]
  h = x + Attention(rms_norm(x, norm1))
  y = rms_norm(h, norm2)
  return h + (silu(y @ gate) * (y @ up)) @ down
}}

model Decoder(tokens[B, S]: i32) {{
  weight embed[V, D], norm[D], head[D, V]
  x = embedding(tokens, embed)
  repeat {layers} {{ x = Block(x) }}
  return rms_norm(x, norm) @ head
}}
"""

SIZES = {
    "Qwen/Qwen3-32B": (151936, 5120, 25600, 64, 8, 128, 64, True),
    "nvidia/Llama-3.1-8B-Instruct-FP8": (128256, 4096, 14336, 32, 8, 128, 32, False),
    "Llama-3.3-70B-Instruct": (128256, 8192, 28672, 64, 8, 128, 80, False),
}
"""Vocabulary, width, feed-forward width, heads, heads of keys, their width, layers, and whether queries and keys are normed: published configurations."""


EXAMPLES = Path(__file__).parents[2] / "examples"


WHOLE_EXPERTS = """shard X over {axis}
  shard Router.router[X] over none
  shard Router.logits[X] over none
  shard Router.scores[X] over none"""
"""Each rank has experts of its own, of which it adds up what they make of all tokens; all have the router (`ReplicatedLinear` in vLLM, `MoEGate` in SGLang)."""


def with_scores(text: str) -> str:
    """With names for what a router makes, for a plan to say where it is."""
    return re.sub(
        r"  gates, chosen = topk\((sigmoid|softmax)\(x @ router(, over = X)?\), ",
        r"  logits[B, S, X] = x @ router\n  scores[B, S, X] = \1(logits\2)\n  gates, chosen = topk(scores, ",
        text,
    )


@cache
def imported_text(model: str) -> str:
    """A model by the configuration that ships, without plans; nothing if none does."""
    found = shipped(model)
    if found is None:
        return ""
    imported = import_configuration(found[1], model)
    return imported.text.partition("\nplan ")[0].rpartition("\n#")[0]


def has_experts(model: str) -> bool:
    return "dispatch(" in imported_text(model)


def text_of_model(row: Row, sequences: str) -> str:
    """A model, and the plan `serve` of it."""
    if row.model in SIZES:
        return dense_text(row.model) + plan_of(row, sequences, "H, K, F, V")
    if row.model.startswith("deepseek-ai/DeepSeek-"):
        text = (EXAMPLES / "deepseek_v3.stg").read_text().partition("\n# Section 3.2")[0]
        use = "Absorbed for Attention" if sequences.startswith("decode") else "none"
        # The shared expert is cut as a dense layer is, and added up with the others in one all-reduce (`DeepseekV2MoE`).
        experts = f"{dealt_out(row)}\n  shard FX over tp"
        return with_scores(text) + plan_of(row, sequences, "H, F, V", experts, f"use {use}")
    text = imported_text(row.model)
    if not text:
        raise ValueError(f"no configuration of {row.model}")
    inner = re.search(r"down_proj\[X, (\w+), D\]", text)
    assert inner is not None
    experts = dealt_out(row) or f"shard {inner[1]} over tp"
    # What sees images is on each device, and sees none here. Gated delta nets have heads of their own.
    heads = ["H", "V", *(name for name in ("KD", "HD") if f"\ndim {name} =" in text)]
    keys = re.search(r"^dim K = (\d+)", text, re.MULTILINE)
    copies = " { replicate = true }" if keys is not None and int(keys[1]) < row.tp else ""
    experts += f"\n  shard K over tp{copies}"
    # `mamba_ssm_dtype` of its configuration.
    text = text.replace("state[B, HD, ED, GD]", "state[B, HD, ED, GD]: fp32")
    # A shared expert is cut as a dense layer is, and added up with the others in one all-reduce.
    shared = "\n  shard FS over tp" if "\ndim FS =" in text else ""
    return with_scores(text) + plan_of(row, sequences, ", ".join(heads), experts + shared)


def dealt_out(row: Row) -> str:
    """Experts over all ranks. Replicas of attention gather the tokens of all, of which each rank's experts take their own, and what these make is reduced
    and scattered (`allgather_reducescatter` of vLLM, and in the main `CutlassFusedMoE` of TensorRT-LLM)."""
    if row.ep == 1:
        return ""
    if row.attention_dp == 1:
        return WHOLE_EXPERTS.format(axis="tp")
    return f"{WHOLE_EXPERTS.format(axis='dp')}\n  shard B over dp\n  collectives {{ exchange = all_gather }}"


def dense_text(model: str) -> str:
    vocabulary, width, hidden, heads, kv_heads, head_width, layers, normed = SIZES[model]
    return DENSE.format(
        vocabulary=vocabulary,
        width=width,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_width=head_width,
        layers=layers,
        norms=", nq[E], nk[E]" if normed else "",
        query="rms_norm(x @ wq, nq)" if normed else "x @ wq",
        key="rms_norm(x @ wk, nk)" if normed else "x @ wk",
    )


def unquantized(row: Row) -> str:
    """Modules and weights that checkpoints with experts leave as they are (`modules_to_not_convert`, `ignore`): routers, and in nvfp4 attention (ModelOpt's
    `examples/deepseek/ptq.py`, nvidia/MiniMax-M2.5-NVFP4), of DeepSeek-R1-0528-FP4-v2 but for the last product."""
    if row.products != "fp4":
        return "Router"
    if not row.model.startswith("deepseek-ai/"):
        return "Router, Attention"
    blocks, weights = ("Dense", "Block"), ("qa", "qb", "kva", "kb", "vb")
    return ", ".join(["Router", *(f'"{b}.Attention.{w}"' for b in blocks for w in weights)])


def kernels_of_experts(row: Row) -> str:
    """Whose tables: on B200 TensorRT-LLM has experts in its generator's kernels (`moe_config.backend: TRTLLM` in InferenceX's `dsr1_fp*_b200_trt.sh`), which
    were measured as SGLang and vLLM call them (`flashinfer_trtllm`); on H200 in those of CUTLASS (`dsr1_fp8_h200_trt.sh`), as in its own tables,
    and so under `DP_ATTENTION` in nvfp4 (`dsr1_fp4_b200_trt.sh`)."""
    own = "trtllm" if row.engine == "nccl" else row.engine
    is_cutlass = row.attention_dp > 1 and row.products == "fp4"
    return "sglang" if (own, row.device) == ("trtllm", "b200") and not is_cutlass else own


def gathers_quantized(row: Row) -> bool:
    """Whether replicas of attention gather tokens as products read them: in nvfp4 `CutlassFusedMoE` of TensorRT-LLM does (`run_post_quant_allgather` in
    `_torch/modules/fused_moe/fused_moe_cutlass.py`), which leaves `has_deepseek_fp8_block_scales` to the kernels behind the gather."""
    is_cutlass = row.engine == "trtllm" and row.attention_dp > 1
    return is_cutlass and row.products == "fp4"


def plan_of(row: Row, sequences: str, heads: str, experts: str = "", use: str = "") -> str:
    """Attention over `tp`, or there for each of `dp`, and, where experts are on ranks of their own, these over the same ranks."""
    mesh = f"dp = {row.attention_dp}, tp = {row.tp}"
    precision = (
        f"weights = bf16, activations = bf16, cache = {row.cache}, products = {row.products}"
    )
    if experts:
        precision += f", unquantized = [{unquantized(row)}]"
    if gathers_quantized(row):
        precision += ", dispatch = nvfp4"
    # Of several replicas each has its share of the tokens of an expert, a whole number or not.
    how = "average" if row.attention_dp > 1 else "padded"
    padded = f", experts = {how}" if experts else ""
    return f"""
plan serve {{
  mesh {mesh}
  shard {heads} over tp
  {experts}
  {use}
  precision {{ {precision} }}
  serve {{ {sequences}{padded} }}
  device {row.device} {{ kernels = compiled, all_reduce = {row.engine}, experts = {kernels_of_experts(row)} }}
}}
"""
