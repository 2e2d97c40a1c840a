"""Models of Megatron-Bridge's tables that are no plain decoders: texts of the examples and imported configurations, under the plans of its recipes.

`scripts/performance/configs` of v0.3.0 (26.02) to v0.5.0 (26.06), and `src/megatron/bridge/recipes` for what models have there beyond their configurations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tests.fidelity.serving_models import EXAMPLES, imported_text
from tests.fidelity.time_models import ROUTED, Model

MTP = """
dim D2 = 2 * D

# Another token ahead: shares the embedding and the head.
module Ahead(x[B, S, D], next[B, S]: i32, embed[V, D], head[V, D]) -> [B, S, D] {
  weight norm1[D], norm2[D], join[D2, D]
  both = concat(rms_norm(x, norm1), rms_norm(embedding(next, embed), norm2), to = D2)
  return ExpertsBlock(AttentionBlock(both @ join))
}
"""
"""`mtp_hybrid_override_pattern` is `*E`. Its two repetitions have the same weights there (`mtp_use_repeated_layer`), here their own."""


@dataclass(frozen=True)
class Recipe:
    """A model, and what its recipe says besides the table."""

    text: Callable[[], str]
    tensor: str
    """The dims that tensor parallelism splits."""
    tokens: str = "T"
    layers: str = ""
    """Of repeats that a pipeline cuts."""
    num_layers: int = 0
    recompute: str = "none"
    optimizer: str = "adamw"
    unquantized: str = "Router"
    """Of plans in nvfp4 besides: `te_quant.cfg` of the recipe."""
    captured: tuple[str, ...] = ()
    """Modules that are graphs (`cuda_graph_scope`), where no plan's whole iterations are."""
    ends_wide: bool = False
    """Whether plans in nvfp4 leave the last layers in bf16 (`num_layers_at_end_in_bf16`)."""

    @property
    def model(self) -> Model:
        """What plans read of it."""
        return Model(self.num_layers, 0, 0, 0, 0, 0, experts=1)

    def sized(self, batch: int, sequence: int, products: str, microbatch: int) -> str:
        # `moe_router_dtype` is fp32 in all of them.
        text = copied_apart(self.text(), microbatch).replace(
            "(x @ router)", "(routed_in_fp32(widened(x @ router)))"
        )
        text = text.replace("\nmodule ", f"\n{ROUTED}\nmodule ", 1)
        if self.ends_wide and products == "fp4":
            text = with_wide_end(text)
        for name, size in (("B", batch), ("S", sequence)):
            text = re.sub(rf"^dim {name} = .*$", f"dim {name} = {size}", text, flags=re.MULTILINE)
        return text

    def stages(self, pp: int, vp: int) -> Sequence[int]:
        """`layout_map` of `recipes/deepseek/deepseek_v3.py`, that of `kimi_k2.py`, and `pp_layout` of 32 parts: as many layers each, what is left the last."""
        parts = pp * vp
        if parts == 32:
            return [1, *[2] * 30, 0]
        each = -(-self.num_layers // parts)
        return [*[each] * (parts - 1), self.num_layers - each * (parts - 1)]

    def left(self, products: str) -> str:
        """What is not quantized."""
        if products != "fp4":
            return "Router"
        return f"{self.unquantized}, {', '.join(WIDE)}" if self.ends_wide else self.unquantized


APART = """
op queries_apart(x[B, S, H, E]) -> [B, S, H, E] { flops = 0, bytes = 4 * B * S * H * E, scalars = B * S * H * E, backward_bytes = 0, backward_reads = [] }
op values_apart(x[B, S, K, E]) -> [B, S, K, E] { flops = 0, bytes = 4 * B * S * K * E, scalars = B * S * K * E, backward_bytes = 0, backward_reads = [] }
"""
"""Copies of queries and values out of what one product makes: `taken_apart` in `time_models.py`."""
TURNED = """
op sequences_first(x[B, S, HS, ES]) -> [B, S, HS, ES] { flops = 0, backward_reads = []
  bytes = 4 * B * S * (2 * HS * ES + 2 * GS * NS + HS), scalars = B * S * (2 * HS * ES + 2 * GS * NS + HS)
  backward_bytes = 4 * B * S * (2 * HS * ES + 2 * GS * NS + HS), backward_scalars = B * S * (2 * HS * ES + 2 * GS * NS + HS) }
op positions_first(x[B, S, HS, ES]) -> [B, S, HS, ES] { flops = 0, backward_reads = []
  bytes = 4 * B * S * HS * ES, scalars = B * S * HS * ES, backward_bytes = 4 * B * S * HS * ES, backward_scalars = B * S * HS * ES }
"""
"""What a scan reads and makes, put into the order of sequences and back (`rearrange(...).contiguous()` in `_ssm_training` of Megatron-LM's
`core/ssm/mamba_mixer.py`), and their gradients likewise (`grad_output.contiguous()` in `module/linear.py` of Transformer Engine).
All that one product makes goes together. Where a microbatch is one sequence, both orders are the same."""


def copied_apart(text: str, microbatch: int) -> str:
    """The text with the copies that Megatron-LM makes in layers of attention and of Mamba: element by element, as they are not of contiguous memory."""
    ops = ""
    if "x @ q_proj\n" in text:
        ops += APART
        text = text.replace("x @ q_proj\n", "queries_apart(x @ q_proj)\n")
        text = text.replace(
            "append(values, x @ v_proj)", "append(values, values_apart(x @ v_proj))"
        )
    if "silu(x @ z_proj)" in text and microbatch > 1:
        ops += TURNED
        text = text.replace(
            "y * silu(x @ z_proj)", "positions_first(y * silu(sequences_first(x @ z_proj)))"
        )
    return text.replace("\nmodule ", f"{ops}\nmodule ", 1)


def example(name: str) -> str:
    """The model of an example, without its plans and what is said of them."""
    whole = Path(EXAMPLES, name).read_text()
    end = re.search(r"(\n#[^\n]*)+\nplan ", whole)
    assert end is not None
    return whole[: end.start() + 1]


ROUTER_APART = """
op routed_apart(s[B, S, X]) -> [B, S, X] { flops = 0, bytes = 126 * B * S * X, kernels = 29,
  backward_bytes = 116 * B * S * X, backward_kernels = 22 }
"""
"""A router whose choice is no fused kernel (`moe_router_fusion = False`): what its kernels move for each score beside those of a text, and how many they are.

`apply_random_logits`, `topk_routing_with_score_function`, `compute_routing_scores_for_aux_loss` and `switch_load_balancing_loss_func` of Megatron-LM (core
0.17, `megatron/core/transformer/moe/moe_utils.py`), run under PyTorch op by op on scores in fp32: 32 kernels that move 132 bytes for a score, and 25 that move
124 in the backward pass. Of these a text has three and three, with 6 and 8 bytes. That `torch.topk` takes longer than its bytes do is not in it."""


def nemotron(name: str, ahead: int = 0, fuses_router: bool = False) -> str:
    """An imported configuration, with so many tokens predicted further ahead."""
    text = imported_text(name)
    if not fuses_router:
        text = text.replace("sigmoid(x @ router)", "sigmoid(routed_apart(x @ router))")
        text = text.replace("\nmodule Mixer", f"{ROUTER_APART}\nmodule Mixer", 1)
    if not ahead:
        return text
    inputs = "".join(f", later{i}[B, S]: i32" for i in range(ahead))
    text = text.replace("targets[B, S]: i32)", f"targets[B, S]: i32{inputs})")
    steps, following, read = "", "targets", "x"
    losses = ["cross_entropy(logits, targets)"]
    for i in range(ahead):
        steps += f"  ahead{i} = Ahead({read}, {following}, embed, head)\n"
        losses.append(f"cross_entropy(rms_norm(ahead{i}, norm) @ head, later{i}) * 0.3")
        following, read = f"later{i}", f"ahead{i}"
    text = text.replace(
        "  loss = cross_entropy(logits, targets)\n", f"{steps}  loss = {' + '.join(losses)}\n"
    )
    return text.replace("\nmodel NemotronH", f"{MTP}\nmodel NemotronH")


WIDE = ("LastExpertsBlock", "LastMambaBlock")


def with_wide_end(text: str) -> str:
    """Super's text with the last 14 of its 88 layers in modules of their own (`nemotron_3_super_bf16_with_nvfp4_mixed`).

    Its last repeat is twice nine layers, and one stands behind it: the last four of the first nine are among the 14. Attention is in bf16 in all layers."""
    blocks = "".join(
        module.replace(f"module {name[4:]}", f"module {name}")
        for name in WIDE
        for module in re.findall(rf"^module {name[4:]}\(.*?^}}\n", text, re.MULTILINE | re.DOTALL)
    )
    pair = "{\n    x = LastExpertsBlock(x)\n    x = LastMambaBlock(x)\n  }"
    whole = r"  repeat L4 \{\n    x = AttentionBlock\(x\)\n    repeat 4 (\{.*?\n    \})\n  \}\n  x = ExpertsBlock\(x\)\n"
    found = re.search(whole, text, re.DOTALL)
    assert found is not None
    ends = (
        f"  x = AttentionBlock(x)\n  repeat 2 {found[1]}\n  repeat 2 {pair}\n"
        f"  x = AttentionBlock(x)\n  repeat 4 {pair}\n  x = LastExpertsBlock(x)\n"
    )
    text = re.sub(r"^dim L4 = .*\n", "", text.replace(found[0], ends), flags=re.MULTILINE)
    return text.replace("\nmodel NemotronH", f"\n{blocks}\nmodel NemotronH")


LATENT = "Attention.q, Attention.k, Attention.v, Attention.near"  # `mla_up_proj`
OF_NVFP4 = 'Router, Attention, "Experts.squeeze", "Experts.widen", Ahead'
NEMOTRON = Recipe(
    partial(nemotron, ""),
    "H, K, V, HS, FS",
    unquantized=OF_NVFP4,
    captured=("Attention", "Mixer", "Router"),
)
RECIPES = {
    "DeepSeekV3": Recipe(
        partial(example, "deepseek_v3.stg"),
        "H, V, F",
        layers="L1, L2",
        num_layers=61,
        recompute=LATENT,
    ),
    "Kimi_K2": Recipe(
        partial(example, "kimi_k2.stg"),
        "H, V, F",
        layers="L1, L2",
        num_layers=61,
        recompute=LATENT,
        optimizer="muon",
    ),
    "Nemotron_3_Nano": replace(
        NEMOTRON, text=partial(nemotron, "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
    ),
    "Nemotron_3_Super": replace(
        NEMOTRON,
        text=partial(nemotron, "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8", 2),
        ends_wide=True,
    ),
    "Nemotron_3_Ultra": replace(
        NEMOTRON,
        text=partial(nemotron, "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", 2, True),
        captured=(),
    ),
}
