"""Products of matrices: by a table, by the product that they are one with, or by the roofline."""

from __future__ import annotations

import numpy as np

from stagec.devices.rules import KINDS, Sizes, element_bytes
from stagec.dialects.sched.actions import Compute, Kernel
from stagec.dialects.types import QUANTIZED, bytes_per_element
from stagec.estimate.kernels.choices import KernelChoices
from stagec.estimate.kernels.experts import ExpertPrices
from stagec.estimate.kernels.measured import TABLES, WIDE_BYTES, MeasuredKernels
from stagec.estimate.kernels.price import Basis, Price, at_most

TILE = 128
"""Rows of a product that a multiprocessor works on at a time. An expert with fewer tokens leaves some of them empty."""
QUANTIZING = {"fp8": ("computescale", "scale_matrix"), "fp8_block": ("scale_matrix",)}
"""Kernels whose time a table of products includes, by the name of the table: measured layers first find a scale for their bf16 input, and convert it.

Products of few columns show this: on H100 a product of [32768, 51200] by [51200, 128] takes 4.83 ms, of which the two kernels take 2.54 and 1.68 ms."""
STATIC = {"fp8": ("computescale",)}
"""Those of the kernels in `QUANTIZING` that an engine does not run if it knows its scales beforehand."""


class ProductPrices:
    """The times of products of matrices."""

    def __init__(
        self, choices: KernelChoices, measured: MeasuredKernels, experts: ExpertPrices
    ) -> None:
        self.choices, self.measured, self.experts = choices, measured, experts
        self.device = choices.device

    def price(self, kernel: Kernel, backward: bool) -> Price:
        """The time of a product of `batch` pairs of matrices [m, k] and [k, n]: by the table of its dtype, or by the roofline if there is none."""
        own = {name: np.float64(max(size, 1)) for name, size in kernel.sizes}
        sizes = {name: own[name] for name in ("batch", "m", "n", "k")}
        if self.choices.merges and (own["batch"] == 1 or not self.choices.serves):
            sizes |= {"m": own.get("all_m", own["m"]), "n": own.get("all_n", own["n"])}
        share = own["m"] * own["n"] / (sizes["m"] * sizes["n"])
        dtype, stored = (self.device.multiplied(each) for each in (kernel.dtype, kernel.stored))
        wide = TABLES.get(dtype, (dtype,))
        # Engines quantize what such a weight multiplies; a step that trains has ops for that, and multiplies in what its operands are in.
        narrow = TABLES.get(stored, ()) if self.choices.serves else ()
        if "hidden" in own and own["batch"] > 1 and (self.choices.serves or own["m"] < TILE):
            for each in (*narrow, *wide):
                found = self.experts.share_of_layer(each, own)
                if found is not None:
                    return found
        for each in (*narrow, *wide):
            found = self.matrix(each, sizes, in_turn=self.choices.kernels_of(kernel) > 1)
            if found is not None:
                slower = self.device.backward_fp8_rate if backward and each == "fp8" else 1.0
                made = self.without_quantization(found, each, sizes, kernel.dtype in QUANTIZED)
                alone = made.times(1 / slower)
                form = kernel.dtype if kernel.dtype in QUANTIZED else each
                flops = 2 * float(sizes["batch"] * sizes["m"] * sizes["n"] * sizes["k"])
                held = at_most(self.device.most_of_products(form), alone, flops)
                return held.plus(self.turns_us(kernel)).times(share)
        return self.roofline_product((*narrow, *wide)[0], sizes).times(share)

    def without_quantization(
        self, price: Price, dtype: str, sizes: Sizes, is_quantized: bool
    ) -> Price:
        """The price of a measured product without the quantization of its input that the measurement includes.

        If nodes of the step quantized the input (`is_quantized`), all of it is left out; else only the search for a scale, where scales are known.
        """
        rows = {"m": sizes["m"] * sizes["batch"], "k": sizes["k"]}
        if dtype == "nvfp4" and is_quantized:
            # Of a conversion alone there is no table: it reads and writes memory. What is left is what NVIDIA measured of products of operands that are
            # quantized already, within 7 % (twelve products on B300, "GEMM Profiling" in Transformer Engine's documentation).
            moved = rows["m"] * rows["k"] * (WIDE_BYTES + bytes_per_element("nvfp4"))
            converted = self.measured.moved(float(moved)).us
            return Price(max(price.us - converted, self.device.launch_us), price.basis)
        known = STATIC if self.choices.scales_are_known else {}
        leaves_out = (QUANTIZING if is_quantized else known).get(dtype, ())
        found = [self.measured.by_table(("quantize", each), rows) for each in leaves_out]
        us = price.us - sum(each.us for each in found if each is not None)
        return Price(max(us, self.device.launch_us), price.basis) if found else price

    def matrix(self, dtype: str, sizes: Sizes, in_turn: bool = False) -> Price | None:
        """The time of a product by the table of its dtype; None if there is none. Several products of one shape take as long as one that has all of their
        rows, if rows fill tiles; `in_turn` they are kernels of their own.

        Transformer Engine's are kernels of cuBLAS, one for each expert, on four streams that share the device (`multi_stream_cublas_gemm`).
        """
        batch = sizes["batch"]
        if in_turn:
            single = self.measured.by_table(("product", dtype), {**sizes, "batch": np.float64(1)})
            return None if single is None else Price(single.us * float(batch), Basis.RULE)
        one = {"m": sizes["m"] * batch, "n": sizes["n"], "k": sizes["k"]}
        found = self.measured.by_table(("product", dtype), one)
        if found is None:
            return None
        if batch == 1:
            return found
        kind = KINDS["product"]
        apart = float(kind.rule(self.device, dtype, sizes))
        together = float(kind.rule(self.device, dtype, one))
        return Price(found.us * apart / together, Basis.RULE)

    def roofline_product(self, dtype: str, sizes: Sizes) -> Price:
        """The time of a product without a table: FLOPs at the dtype's peak, or reading operands and writing the result, whichever is longer."""
        peak = self.device.peak(dtype) or self.device.peak("bf16") or 1.0
        batch, m, n, k = (float(sizes[name]) for name in ("batch", "m", "n", "k"))
        wide = element_bytes(dtype)
        moved = batch * (wide * (m * k + n * k) + max(wide, 2) * m * n)
        seconds = max(2 * batch * m * n * k / peak, moved / self.measured.memory_rate)
        return Price(1e6 * seconds + self.device.launch_us, Basis.ROOFLINE)

    def turns_us(self, kernel: Kernel) -> float:
        """The time in µs that products of experts, computed one after the other, take in addition to what each takes by itself."""
        turns = self.choices.kernels_of(kernel)
        return turns * self.device.turn_us if turns > 1 else 0.0

    def in_turn(self, compute: Compute, dtype: str) -> Price:
        """The time of square products on matrix units, one after the other: FLOPs at the dtype's peak, but no faster than memory allows."""
        peak = self.device.peak(dtype) or self.device.peak("bf16") or 1.0
        seconds = max(compute.num_ops / peak, compute.num_bytes / self.measured.memory_rate)
        return Price(1e6 * seconds + self.device.launch_us, Basis.ROOFLINE)
