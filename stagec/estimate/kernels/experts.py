"""Layers of experts that an inference engine computes as a whole."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stagec.devices.rules import KINDS
from stagec.dialects.sched.actions import Compute
from stagec.estimate.kernels.choices import KernelChoices
from stagec.estimate.kernels.measured import TABLES, MeasuredKernels
from stagec.estimate.kernels.price import Basis, Price

QUARTER = 0.25
"""Of the way between two points of a table: so closely times are compared that are to grow."""


class ExpertPrices:
    """The times of products of experts, as shares of measured layers."""

    def __init__(self, choices: KernelChoices, measured: MeasuredKernels) -> None:
        self.choices, self.measured, self.device = choices, measured, choices.device

    def share_of_layer(self, dtype: str, own: Mapping[str, np.float64]) -> Price | None:
        """The time of a product of a device's experts where an engine serves or tokens are few: its share, by FLOPs, of a measured layer of experts. None if
        there is no table of such layers.

        Tables were measured with tokens dealt out evenly, so that as many experts as possible have one. Tokens that choose at random leave some experts
        without any: if experts have r tokens on average, a share e^-r of them (Poisson's limit of r X choices among X experts). No kernel reads their weights.
        """
        gated = own["leading"] > 1
        key = self.layer_table(dtype, bool(gated))
        experts, sent = own["batch"], np.minimum(own["sent"] / own["places"], 1)
        copies = own["m"] * experts * sent
        same = {"experts": experts, "hidden": own["hidden"], "inner": own["inner"]}
        same |= dict.fromkeys(("topk", "tp", "ep"), np.float64(1))
        if key not in self.device.tables:
            return None
        busy = experts * -np.expm1(-copies / experts)
        found, dealt, random = self.layers_of_experts(
            key, same, [copies, np.minimum(copies, experts), busy]
        )
        unread = min(max(dealt.us - random.us, 0.0), found.us - self.device.launch_us)
        return Price((found.us - unread) / (3 if gated else 2), found.basis)

    def layers_of_experts(
        self, key: tuple[str, ...], sizes: Mapping[str, np.float64], copies: list[np.float64]
    ) -> list[Price]:
        """The times of a measured layer of experts that so many copies of tokens come to: by its table, but no more than that of more copies.

        Measurements of few tokens are scattered, and where a table has few of them it continues others. An engine may always compute a token more.
        """
        table, kind = self.device.tables[key], KINDS[key[0]]
        (rows,) = (axis for axis in table.axes if axis.name == "rows")
        places = np.arange(0, rows.count - 1 + QUARTER, QUARTER)
        points = 2.0 ** (rows.first + rows.step * places) * sizes["experts"]
        tokens = np.array([*copies, *points[points > min(copies)]])
        every = {name: np.full(len(tokens), size) for name, size in sizes.items()}
        every["tokens"] = tokens
        axes = kind.axes(every)
        us = np.asarray(kind.rule(self.device, key[1], every)) * table.factor(axes)
        is_covered = np.asarray(table.covers(axes))
        return [
            Price(float(us[tokens >= each].min()), Basis.MEASURED if covered else Basis.RULE)
            for each, covered in zip(copies, is_covered, strict=False)
        ]

    def is_in_layer_of_experts(self, action: object) -> bool:
        """Whether an action is part of a layer of experts that an inference engine computes as a whole, and of which there is a table."""
        return bool(self.layer_tables(action))

    def layer_tables(self, action: object) -> list[tuple[str, ...]]:
        """The keys of the device's tables of whole layers of experts that an action may be part of; none in a step that trains."""
        if not self.choices.serves or not isinstance(action, Compute) or action.kernel is None:
            return []
        sizes, kernel = dict(action.kernel.sizes), action.kernel
        if "hidden" not in sizes or sizes["batch"] <= 1:
            return []
        dtypes = (self.device.multiplied(each) for each in (kernel.stored, kernel.dtype))
        names = [name for dtype in dtypes for name in TABLES.get(dtype, (dtype,))]
        keys = [self.layer_table(name, sizes["leading"] > 1) for name in names]
        return [key for key in keys if key in self.device.tables]

    def layer_table(self, dtype: str, gated: bool) -> tuple[str, ...]:
        """The key of the device's table of whole layers of experts: the one of the engine, where engines have tables of their own. `grouped` is of none."""
        key = ("experts", dtype, "balanced", *(() if gated else ("plain",)))
        own = ((*key, engine) for engine in (self.choices.engine, "trtllm"))
        return next((each for each in own if each in self.device.tables), key)
