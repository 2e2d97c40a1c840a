"""`python -m tests.fidelity.expert_layers BASELINE.json`: estimated layers of experts beside those that Megatron-LM's own test measures.

The file is `tests/functional_tests/test_cases/common/moe_perf/baseline.json` of NVIDIA/Megatron-LM (read at d98e8a64): milliseconds of the forward and of the
backward pass of one `MoELayer` on eight H100, 4,096 tokens on each, by dispatcher and precision. What a case is, its name says and `test_cases.py` beside it.
A layer is measured alone, between products of another kind: devices are not at their power limit, so products go as fast as their tables say. Nodes are
added up one by one, since nothing overlaps; what hosts take is left out. Of routing limited to groups of experts (DeepSeek's) the text has nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from stagec.dialects.sched.actions import Compute
from stagec.driver import compile_text
from stagec.estimate.prices import Prices
from tests.fidelity.time_models import Model, text
from tests.fidelity.time_rows import Layout, by_megatron, plan

RANKS, TOKENS, LAYERS = 8, 4096, 2
MODELS = {
    "mixtral": Model(LAYERS, 4096, 14336, 32, 8, 32000, experts=8, topk=2, routes_in_fp32=True),
    "deepseek": Model(LAYERS, 7168, 2048, 56, 8, 32000, experts=32, topk=8, routes_in_fp32=True),
}
"""`MIXTRAL_PROXY` and `DEEPSEEK_PROXY`. What is not experts is of no account."""
PASSES = {"fwd": "forward", "bwd": "backward", "wgrad": "backward"}


@dataclass(frozen=True)
class Layer:
    """One case."""

    name: str
    measured_ms: dict[str, float]
    """By pass."""

    @property
    def text(self) -> str:
        """Two layers of that kind in a model, and a plan for eight ranks."""
        which, dispatcher, _, dtype = self.name.split("_")
        sorts, is_narrow = dispatcher == "a2a", dtype == "fp8"
        model = replace(MODELS[which], sorts=sorts, pads=sorts and is_narrow)
        layout = Layout(
            dp=RANKS, ep=RANKS, products="fp8_1x128" if is_narrow else "bf16", once=not sorts
        )
        model = by_megatron(model, layout)
        return text(model, RANKS, TOKENS) + plan(layout, model)

    def estimated_ms(self) -> dict[str, float]:
        """By pass, of one layer."""
        compiled = compile_text(self.text)
        prices = Prices.of(compiled.trace_set, compiled.plan)
        assert prices.kernels is not None
        device = replace(prices.kernels.device, sustained={})
        prices.kernels = kernels = replace(prices.kernels, device=device, _known={})
        rank_class, found = compiled.trace_set.classes[0], Counter[str]()
        for number in rank_class.program.segment.tolist():
            nodes = rank_class.program.segments[number].nodes
            for node, us in zip(nodes, prices.segment(rank_class, number).us, strict=True):
                if node.phase in PASSES and "FeedForward" in node.scope.split("."):
                    kernel = node.action.kernel if isinstance(node.action, Compute) else None
                    # Weights have no gradients yet, so nothing is added up.
                    summed = kernels.besides.summed_us(kernel) if kernel is not None else 0.0
                    found[PASSES[node.phase]] += (us - summed) / 1e3 / LAYERS
        return dict(found)


def layers_of(path: Path) -> list[Layer]:
    known = json.loads(path.read_text())
    passes = dict.fromkeys(PASSES.values())
    return [
        Layer(name, {each: own[f"{each}_ms"] for each in passes}) for name, own in known.items()
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("python -m tests.fidelity.expert_layers", description=__doc__)
    parser.add_argument("file", type=Path)
    errors: dict[str, list[float]] = {each: [] for each in PASSES.values()}
    for layer in layers_of(parser.parse_args(arguments).file):
        estimated, shown = layer.estimated_ms(), []
        for each, measured in layer.measured_ms.items():
            errors[each].append(estimated[each] / measured - 1)
            shown.append(
                f"{each} {estimated[each]:.2f} ms of {measured:.2f} ({errors[each][-1]:+.0%})"
            )
        print(f"{layer.name:<32}{', '.join(shown)}")
    for each, own in errors.items():
        print(f"{each}: {np.median(own):+.1%} in the median, {min(own):+.0%} to {max(own):+.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
