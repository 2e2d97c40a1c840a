"""What kernels do besides computing their results: quantize the other way, sum gradients, reorder scales, copy what was gathered."""

from __future__ import annotations

from collections.abc import Mapping

from stagec.dialects.sched.actions import Kernel
from stagec.dialects.types import SCALES, bytes_per_element
from stagec.dialects.work import Work
from stagec.estimate.kernels.choices import KernelChoices
from stagec.estimate.kernels.measured import WIDE_BYTES, MeasuredKernels
from stagec.estimate.kernels.price import Basis, Price

RESULT_BYTES = 2
"""Bytes of an element of a product's result, as the tables of products have it."""
SWIZZLED = ("mxfp8", "nvfp4")
"""Formats whose scales tensor cores read in another order than that of rows."""


class Besides:
    """The times that kernels take for what they do besides their own work."""

    def __init__(self, choices: KernelChoices, measured: MeasuredKernels) -> None:
        self.choices, self.measured, self.device = choices, measured, choices.device

    def one_by_one(self, moved: Price, kernel: Kernel) -> Price:
        """The time of kernels that compute elements one by one, which is at least that of moving their bytes.

        So do PyTorch's where an operand is converted, repeated along a dim, or not contiguous (`gpu_kernel_impl` in `ATen/native/cuda/CUDALoops.cuh`: each
        thread loads the operands of an element, and then those of the next).
        """
        sizes = dict(kernel.sizes)
        us = self.measured.scalars_us(
            sizes.get("scalars", 0) + self.choices.eager * sizes.get("apart", 0)
        )
        us += self.device.launch_us if us else 0.0
        return Price(us, Basis.RULE) if us > moved.us else moved

    def columnwise_us(self, kernel: Kernel) -> float:
        """The time in µs to quantize a product's operands along columns too, as the gradient of a weight needs them.

        Blocks of a row share a scale that those of a column do not: an operand is quantized in both directions at once, and written twice. With one
        scale the second copy is the first one transposed, where the device's products need it: written at once too, or, if the operand is gathered,
        by a transposition after that, which reads it once more (Transformer Engine: "Performance Considerations", `fp8_cast_transpose_fused` and
        `fp8_transpose` in `module/linear.py`). A weight that is stored in 8 bits alone is transposed for each gradient of its layer's input, unless
        the copy is kept (`weight_fp8.transpose_2d()` in the backward pass of release 1.11: with no copy from before it makes one and leaves it): then once a
        step, when updated weights have been gathered (`post_all_gather_processing` in its `pytorch/tensor/utils.py`), each microbatch a part of it.
        """
        sizes = dict(kernel.sizes)
        if "transposed" in sizes:
            made = sizes["updated" if self.choices.keeps_transposed else "transposed"]
            return 1e6 * 2 * made / self.measured.memory_rate if self.device.transposes_fp8 else 0.0
        if "whole" not in sizes:
            return 0.0
        if kernel.dtype == "nvfp4":
            # Rotated before, by a kernel of its own, which reads the wide operand once more (`NVFP4Quantizer::quantize_impl`, release 2.9).
            moved = (sizes["whole"] + sizes["shard"]) * (WIDE_BYTES + bytes_per_element("nvfp4"))
        elif kernel.dtype in SCALES:
            sharing, scale_bytes = SCALES[kernel.dtype]
            moved = (sizes["whole"] + sizes["shard"]) * (1 + scale_bytes / sharing)
        elif self.device.transposes_fp8:
            moved = sizes["whole"] + 2 * sizes["gathered"]
        else:
            return 0.0
        return 1e6 * moved / self.measured.memory_rate

    def swizzled(self, kernel: Kernel) -> list[int]:
        """The elements of each operand of a product, or of all that are one product with it, whose scales a kernel puts into another order before.

        Tensor cores of Blackwell read scales of blocks in tiles, and Transformer Engine's quantizations wrote them row by row until its release 2.11: in front
        of each product a kernel reordered those of each operand, of all experts at once (`swizzle_scaling_factors` and
        `multi_tensor_swizzle_scaling_factors` in `csrc/util.cpp`). Since 2.12 what quantizes writes those of mxfp8 in order, but for what is sent between
        ranks, and for weights (`optimize_for_gemm` in `module/linear.py` and `module/grouped_linear.py`), and those of nvfp4 since 2.17.
        """
        is_any = kernel.kind == Work.PRODUCT and kernel.dtype in SWIZZLED
        if not is_any or not self.choices.products_add or self.choices.swizzle == "none":
            return []
        sizes = dict(kernel.sizes)
        batch, m, n, k = (sizes[name] for name in ("batch", "all_m", "all_n", "k"))
        operands = ((batch * m * k, sizes["late_left"]), (batch * k * n, sizes["late_right"]))
        return [elements for elements, late in operands if late or self.choices.swizzle == "each"]

    def swizzled_us(self, kernel: Kernel) -> float:
        """The time in µs that a product, or its share of one, takes for what `swizzled` says: scales are read and written."""
        found = self.swizzled(kernel)
        if not found:
            return 0.0
        sizes = dict(kernel.sizes)
        sharing, scale_bytes = SCALES[kernel.dtype]
        share = sizes["m"] * sizes["n"] / (sizes["all_m"] * sizes["all_n"])
        return share * sum(
            self.measured.moved(2 * each * scale_bytes / sharing).us for each in found
        )

    def filled_us(self, kernel: Kernel) -> float:
        """The time in µs of a microbatch's part of quantizing a weight, once a step, from what was gathered of it, and of setting that to zero.

        Megatron-LM gathers weights in mxfp8 in bf16, in their buffer of gradients. Each rank then quantizes all of them along both dims, and sets the buffer to
        zero (`reuse_grad_buf_for_mxfp8_param_ag`, `_post_param_sync` in `core/distributed/param_and_grad_buffer.py`).
        """
        sizes = dict(kernel.sizes)
        if "filled" not in sizes:
            return 0.0
        copies = 2 if kernel.dtype in SCALES or self.device.transposes_fp8 else 1
        written = copies * sizes["filled"] * bytes_per_element(kernel.dtype)
        return 1e6 * (2 * sizes["wide_filled"] + written) / self.measured.memory_rate

    def copied_us(self, kernel: Kernel) -> float:
        """The time in µs to copy what was gathered of parameters into place, in front of the op that reads the first of them.

        What came from each rank is a part of each parameter, so that a kernel on the stream of products reads all of it and writes each parameter
        (`foreach_all_gather_copy_out` in PyTorch's `_fsdp_collectives.py`, `split_with_sizes_copy`; `torch.cat` in `AllGatherCoalescedHandle.wait` of
        DeepSpeed's `partition_parameters.py`). Megatron-LM's FSDP gathers buffers of which parameters are parts.
        """
        copied = dict(kernel.sizes).get("copied", 0)
        return self.measured.moved(2 * copied).us if self.choices.copies and copied else 0.0

    def summed_us(self, kernel: Kernel) -> float:
        """The time in µs to add the gradient of a weight to those of earlier microbatches, and a microbatch's part of setting the sum to zero.

        A fused product reads the sum and writes it in place of its result (`gradient_accumulation_fusion` of Megatron-LM); else another kernel
        reads both, one by one where it converts. What else is done with sums before ranks add them up: `accesses`. On B200 a
        product of [28672, 4096] by [4096, 8192] takes 0.13 ms longer when it adds in fp32 than when it adds in bf16: four
        bytes of each element at 7.2 TB/s (SimuMax, `configs/system/b200_bf16_ceperm.json`). Its buffers are set to zero as a step begins (`zero_grad_buffer`
        in Megatron-LM's `core/distributed/distributed_data_parallel.py`); PyTorch has no sum until the first microbatch is done (`set_to_none`).
        """
        sizes = dict(kernel.sizes)
        if "summed" not in sizes:
            return self.divided_us(sizes)
        once = RESULT_BYTES * sizes["batch"] * sizes["m"] * sizes["n"]
        # Sums are as many as weights: none is left in a cache from the microbatch before.
        besides = self.choices.accesses * sizes.get("reduced", 0)
        if self.choices.products_add:
            return (
                1e6
                * (2 * sizes["summed"] + sizes["zeroed"] + besides - once)
                / self.measured.memory_rate
            )
        us = max(
            1e6 * (2 * sizes["summed"] + once) / self.measured.memory_rate,
            self.measured.scalars_us(sizes.get("converted", 0)),
        )
        return us + 1e6 * besides / self.measured.memory_rate + self.device.launch_us

    def divided_us(self, sizes: Mapping[str, int]) -> float:
        """The time in µs of kernels that divide gradients by the number of ranks, and find their norm, where ranks add them up in each microbatch.

        So does Megatron-LM's FSDP in bf16 (`gradient_reduce_preprocessing` in `megatron_fsdp/param_and_grad_buffer.py`: `grad_data.mul_(scaling_factor)`).
        """
        if not (self.choices.accesses and "divided" in sizes):
            return 0.0
        launched = (self.choices.averages + self.choices.checks) * self.device.launch_us
        return 1e6 * self.choices.accesses * sizes["divided"] / self.measured.memory_rate + launched

    def added_us(self, kernel: Kernel) -> float:
        """The time in µs of a kernel that adds a finished gradient to the sum over earlier microbatches, as Megatron-LM's hooks do (`main_grad.add_`)."""
        sizes = dict(kernel.sizes)
        if "divided" in sizes:
            return self.divided_us(sizes)
        if not self.choices.sums_tables or "summed" not in sizes:
            return 0.0
        once = sizes["zeroed"] if self.choices.products_add else 0
        once += self.choices.accesses * sizes.get("reduced", 0)
        added = 1e6 * (2 * sizes["summed"] + sizes["made"]) / self.measured.memory_rate
        us = max(added, self.measured.scalars_us(sizes.get("converted", 0)))
        return us + 1e6 * once / self.measured.memory_rate + self.device.launch_us
