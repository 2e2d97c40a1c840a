"""Layers whose state goes from position to position: scans of Mamba-2, and gated delta rules."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stagec.devices.rules import MEASURED_STATE_BYTES, Sizes, delta_rule_flops
from stagec.dialects.sched.actions import Compute, Kernel
from stagec.dialects.work import Work
from stagec.estimate.kernels.choices import KernelChoices
from stagec.estimate.kernels.measured import MeasuredKernels
from stagec.estimate.kernels.price import Basis, Price


class RecurrencePrices:
    """The times of scans and delta rules."""

    def __init__(self, choices: KernelChoices, measured: MeasuredKernels) -> None:
        self.choices, self.measured, self.device = choices, measured, choices.device

    def scan(self, compute: Compute, backward: bool) -> Price:
        """The time of a state-space scan: by the FLOP/s that the device's file gives for Mamba-2's Triton kernels, but no faster than memory allows."""
        moved = self.measured.moved(compute.num_bytes, compute.num_ops)
        rate = self.device.scan_flops_per_s
        if not rate:
            return moved
        us = 1e6 * compute.num_ops / (rate * (self.device.backward_scan_rate if backward else 1.0))
        return Price(max(us, moved.us), Basis.RULE)

    def delta_rule(self, compute: Compute, kernel: Kernel) -> Price:
        """The time of a gated delta rule: one kernel for all sequences with several new positions, and one for all with a single one. The backward pass is as
        fast as the forward pass, by FLOPs.
        """
        sizes = {name: np.float64(max(size, 1)) for name, size in kernel.sizes}
        kinds = [(n, new) for n, new, _ in kernel.requests if n] or [(1, int(sizes["seq"]))]
        steps = sum(n for n, new in kinds if new == 1) if "state_bytes" in sizes else 0
        long = [(n, new) for n, new in kinds if not steps or new > 1]
        parts = [self.delta_steps(sizes, steps)] if steps else []
        parts += [self.delta_chunks(sizes, long)] if long else []
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return self.measured.moved(compute.num_bytes, compute.num_ops)
        us, basis = sum(part.us for part in known), max(part.basis for part in known)
        if kernel.kind == Work.DELTA_RULE_GRAD:
            us *= compute.num_ops / float(delta_rule_flops(sizes))
            basis = Basis.RULE
        return Price(us, basis)

    def delta_steps(self, sizes: Sizes, count: int) -> Price | None:
        """The time to compute one token of each of `count` sequences, which share a kernel; None if there is no table."""
        found = self.measured.by_table(("delta_step", "bf16"), of_sequences(sizes, count))
        if found is None or sizes["state_bytes"] == MEASURED_STATE_BYTES:
            return found
        return Price(found.us, Basis.RULE)

    def delta_chunks(self, sizes: Sizes, kinds: Sequence[tuple[int, int]]) -> Price | None:
        """The time to compute sequences with several new positions: `kinds` are pairs of a number of sequences and their new positions. All of them together
        fill the device, as in `AttentionPrices.price`. None if there is no table.

        Each kind takes its share, by positions, of what the kernel would take if all were of that kind. The state of a sequence goes from chunk to chunk,
        so that none is done sooner than its kind is alone.
        """
        positions = sum(n * new for n, new in kinds)
        us, longest, basis = 0.0, 0.0, Basis.MEASURED if len(kinds) == 1 else Basis.RULE
        for count, new in kinds:
            own = {**sizes, "seq": np.float64(new)}
            alone = self.measured.by_table(("delta_rule", "bf16"), of_sequences(own, count))
            alike = self.measured.by_table(
                ("delta_rule", "bf16"), of_sequences(own, positions / new)
            )
            if alone is None or alike is None:
                return None
            us += alike.us * count * new / positions
            longest = max(longest, alone.us)
            basis = max(basis, alone.basis)
        return Price(max(us, longest), basis)


def of_sequences(sizes: Sizes, count: float) -> Sizes:
    """The sizes of a kernel with `count` times the sequences."""
    return {**sizes, "batch": sizes["batch"] * count}
