"""Which paper or program each number follows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stagec.dialects.interfaces import CostInterface
from stagec.dialects.op import is_our_class

MEGATRON = "Shoeybi et al., Megatron-LM, 2019 (arXiv:1909.08053), section 3"
KORTHIKANTI = "Korthikanti et al., Reducing Activation Recomputation, 2022 (arXiv:2205.05198)"
ZERO = "Rajbhandari et al., ZeRO, 2020 (arXiv:1910.02054)"
NARAYANAN = "Narayanan et al., Efficient Large-Scale Training, SC'21 (arXiv:2104.04473)"

MIXED = "Micikevicius et al., Mixed Precision Training, 2018 (arXiv:1710.03740)"
OF_MEMORY = {
    "activations": f"{KORTHIKANTI}, section 4",
    "master": MIXED,
    "optimizer": f"{ZERO}, section 3.1",
    "peak": f"{ZERO}, section 3; {KORTHIKANTI}, section 4",
}
"""By what memory is for."""

OF_PASSES = {
    "bucket-gradients": "Li et al., PyTorch Distributed, 2020 (arXiv:2006.15704), section 4.2",
    "decompose-all-reduce": f"{KORTHIKANTI}, section 4.2.2",
    "decompose-statistics": f"{MEGATRON}: cross-entropy of a split vocabulary",
    "expand-ring-attention": "Liu et al., Ring Attention, 2023 (arXiv:2310.01889)",
    "insert-collectives": f"{MEGATRON}; of a split sequence: {KORTHIKANTI}, section 4.2.2",
    "orthogonalize-updates": "Liu et al., Muon is Scalable for LLM Training, 2025 (arXiv:2502.16982), section 2.3",
    "precondition-updates": "Shi et al., Distributed Shampoo, 2023 (arXiv:2309.06497)",
    "sum-factors": "Shazeer and Stern, Adafactor, 2018 (arXiv:1804.04235), algorithm 4",
    "insert-optimizer": "Loshchilov and Hutter, AdamW, 2019 (arXiv:1711.05101)",
    "recompute-activations": f"Chen et al., 2016 (arXiv:1604.06174); {KORTHIKANTI}, section 5",
    "reduce-gradients": f"{ZERO}, section 7",
    "regather-operands": f"{KORTHIKANTI}, section 4.2.2",
    "shard-parameters": f"{ZERO}, section 5; Zhao et al., FSDP, 2023 (arXiv:2304.11277)",
    "split-products": "NVIDIA, Transformer Engine: userbuffers; PyTorch: symmetric memory's fused_all_gather_matmul",
    "split-exchanges": "DeepSeek-AI, DeepSeek-V3, 2024 (arXiv:2412.19437), section 3.2.2",
    "split-stages": f"{NARAYANAN}, section 2.2",
}
"""By the pass that made an op."""


def sources(passes: Iterable[str], ops: Iterable[str]) -> dict[str, str]:
    """What each pass and op among these follows, where that is written down."""
    found = {name: OF_PASSES[name] for name in sorted(set(passes)) if name in OF_PASSES}
    known = {
        each.name.partition(".")[2]: source
        for each in sorted(classes_of(CostInterface), key=is_our_class)
        if (source := vars(each).get("SOURCE"))
    }
    return found | {name: known[name] for name in sorted(set(ops)) if name in known}


def classes_of(kind: type[CostInterface]) -> Iterator[type[CostInterface]]:
    """The classes of ops, in the order in which they were loaded. What several have the name of is the last one's, or ours."""
    for each in kind.__subclasses__():
        yield each
        yield from classes_of(each)
