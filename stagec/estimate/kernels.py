"""How long a kernel takes on a device, in µs. There are three ways to find out, the best one first (`Basis`):

- *measured*: the device's file has a table of measurements for the kind of kernel and its dtype, and the sizes are within it.
- *rule*: the sizes are beyond the table, or the time follows from that of another kernel: attention's backward pass from its forward pass, or a product
  whose rows are dealt to experts from one product with as many tiles.
- *roofline*: there is no table. The time is that of the FLOPs at the dtype's peak, or of the bytes at the share of the memory's bandwidth that copies
  reach, whichever is longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import product

import numpy as np

from stagec.devices.model import DeviceModel, Floats
from stagec.devices.rules import (
    KINDS,
    LATENT,
    MEASURED_STATE_BYTES,
    ROTARY,
    Sizes,
    cache_part,
    delta_rule_flops,
    element_bytes,
    score_pairs,
)
from stagec.dialects.sched.actions import Compute, Kernel
from stagec.dialects.types import QUANTIZED, SCALES, bytes_per_element
from stagec.dialects.work import Work


class Basis(IntEnum):
    """What a time is based on: a measurement, a rule that starts from one, or the roofline of the device. A smaller number is the better basis."""

    MEASURED = 0
    RULE = 1
    ROOFLINE = 2


@dataclass(frozen=True, slots=True)
class Price:
    """The time of one kernel or message in µs, and what it is based on."""

    us: float
    basis: Basis


RESULT_BYTES = 2
"""Bytes of an element of a product's result, as the tables of products have it."""
WIDE_BYTES = 2
"""Bytes of an element before it is quantized: bf16."""
TILE = 128
"""Rows of a product that a multiprocessor works on at a time. An expert with fewer tokens leaves some of them empty."""
FORWARD_PRODUCTS, BACKWARD_PRODUCTS = 2, 5
"""How many products fused attention computes in each pass: its backward pass computes scores again (Dao 2023, FlashAttention-2, section 3.1)."""
BACKWARD_KEYS = 128
"""How many keys a block of attention's backward kernel has, which goes over all queries (FlashAttention-2, section 3.2, and `kBlockN` of its kernels for
heads of 64 and 128 in `flash_bwd_launch_template.h`)."""
LEAST = {
    name: np.float64(size)
    for name, size in dict(batch=1, seq=16, keys=16, heads=1, kv_heads=1).items()
}
"""The smallest sizes of attention that tables have. The time at these sizes is the fixed time that a kernel takes however little it computes."""
TRAINED_WIDTHS = (64, 128)
"""The widths of heads for which there are tables of attention kernels for training."""
BLOCKS = ("fp8_block", "fp8")
TABLES = {
    "fp16": ("bf16",),
    **dict.fromkeys(QUANTIZED, BLOCKS),
    "fp8": ("fp8",),
    "nvfp4": ("nvfp4", "fp4"),
}
"""For a dtype of operands, the names of the tables of products that apply, the best first; a dtype that is not listed is the name of its own table.

Formats with many scales have kernels, and so tables, of their own."""
SWIZZLED = ("mxfp8", "nvfp4")
"""Formats whose scales tensor cores read in another order than that of rows."""
QUANTIZING = {"fp8": ("computescale", "scale_matrix"), "fp8_block": ("scale_matrix",)}
"""Kernels whose time a table of products includes, by the name of the table: measured layers first find a scale for their bf16 input, and convert it.

Products of few columns show this: on H100 a product of [32768, 51200] by [51200, 128] takes 4.83 ms, of which the two kernels take 2.54 and 1.68 ms."""
STATIC = {"fp8": ("computescale",)}
"""Those of the kernels in `QUANTIZING` that an engine does not run if it knows its scales beforehand."""


@dataclass(frozen=True)
class KernelPrices:
    """The times of kernels on one device, under the settings of a plan that decide which kernels run."""

    device: DeviceModel
    merges: bool = True
    """Whether linear layers that read the same input are computed as one product."""
    attends: str = "bf16"
    """The dtype in which fused attention multiplies."""
    scales_are_known: bool = True
    """Whether the scales of operands in `fp8` are known before the operand is read, from earlier steps or because they are fixed."""
    keeps_transposed: bool = False
    """Whether a weight that is stored in 8 bits is also kept as a transposed copy."""
    caches: bool = False
    """Whether what products read of a weight that is stored wide is kept from the first microbatch to the last."""
    copies: bool = False
    """Whether a kernel of its own copies what was gathered of parameters into place, before the first product by one of them."""
    products_add: bool = True
    """Whether the product that makes a weight's gradient adds it to the sum over earlier microbatches. If not, another kernel does."""
    eager: bool = False
    """Whether elementwise ops are kernels of an eager framework, which load vectors of contiguous operands alone."""
    averages: bool = False
    """Whether a kernel of its own divides a gradient's sum by the number of ranks before they add up theirs."""
    checks: bool = False
    """Whether a kernel of its own finds the norm of a gradient's sum before ranks add up theirs."""
    sums_tables: bool = True
    """Whether gradients of embedding tables are added to those of earlier microbatches. If the batch is not cut, the only gradient is the sum."""
    trains: str = ""
    """In a step that trains, the library whose attention kernels run, where there are tables of them: `cudnn`, which Transformer Engine calls, or `flash2`,
    FlashAttention-2, which PyTorch calls. Empty in an iteration that serves, whose kernels are those of an inference engine."""
    engine: str = "trtllm"
    """The engine whose kernels compute experts, where there are tables of several engines."""
    swizzle: str = "none"
    """Of which operands scales are put into the order that products read (`swizzled`): of `each`, of those that are `stored` or sent, or of `none`."""
    fuses: bool = False
    """Whether activations are kernels of Transformer Engine, which do for the quantization behind them what its norms do."""
    norms: str = "plain"
    """What kernels of norms do for the quantization behind them: find `maxima` of whole tensors, write `mxfp8` (`cudnn`), or neither."""
    devices: int = 1
    """How many devices wait for each other, and so for the slowest of them."""
    _known: dict[object, Price] = field(default_factory=dict, compare=False)
    _among: dict[int, KernelPrices] = field(default_factory=dict, compare=False)
    _by_table: dict[object, Price | None] = field(default_factory=dict, compare=False)
    """What tables say, which is the same among any number of devices."""

    def among(self, devices: int) -> KernelPrices:
        """The same kernels in a job of this many devices, which wait for each other: at their power limit no two of them are equally fast."""
        if not (self.device.is_limited and self.device.sustained_spread):
            return self
        if devices not in self._among:
            self._among[devices] = replace(self, devices=devices, _known={}, _among={})
        return self._among[devices]

    @property
    def serves(self) -> bool:
        """Whether the kernels are those of an inference engine."""
        return not self.trains

    @property
    def memory_rate(self) -> float:
        """The bytes per second that kernels reach which are bound by memory."""
        return float(self.device.numbers["memory_bytes_per_s"]) * self.device.reached.memory

    def price(self, compute: Compute, backward: bool = False) -> Price:
        """How long a node that computes takes. `backward`: it belongs to the backward pass."""
        kernel = compute.kernel
        key = (kernel, compute.num_ops, compute.num_bytes, backward)
        if key not in self._known:
            self._known[key] = self.find(compute, backward)
        return self._known[key]

    def find(self, compute: Compute, backward: bool) -> Price:
        """Compute what `price` keeps, by the kind of the kernel."""
        kernel = compute.kernel
        if kernel is None:
            return self.moved(compute.num_bytes, compute.num_ops)
        if kernel.kind == Work.QUANTIZE:
            return self.quantized(kernel, compute.num_bytes)
        if kernel.kind == Work.OTHER:
            moved = self.moved(compute.num_bytes, compute.num_ops)
            price = self.one_by_one(moved, kernel)
            more = self.added_us(kernel) + self.copied_us(kernel)
            return Price(price.us + more, price.basis)
        if kernel.kind == Work.PRODUCT:
            price = self.product(kernel, backward)
            more = self.columnwise_us(kernel) + self.summed_us(kernel) + self.swizzled_us(kernel)
            more += self.filled_us(kernel) + self.copied_us(kernel)
            return Price(price.us + more, price.basis)
        if kernel.kind == Work.CONVOLUTION:
            # An implicit product: patches are read where they are in the image (Chetlur et al., cuDNN, 2014, section 3).
            price = self.product(kernel, backward)
            more = self.added_us(kernel) + self.copied_us(kernel)
            return Price(price.us + more, max(price.basis, Basis.RULE))
        if kernel.kind in (Work.ORTHOGONALIZATION, Work.PRECONDITIONING):
            return self.products_in_turn(compute, kernel.dtype)
        if kernel.kind in (Work.SCAN, Work.SCAN_GRAD):
            return self.scan(compute, kernel.kind == Work.SCAN_GRAD)
        if kernel.kind in (Work.DELTA_RULE, Work.DELTA_RULE_GRAD):
            return self.delta_rule(compute, kernel)
        is_grad = kernel.kind == Work.ATTENTION_GRAD
        most = self.device.most_of_attention(self.attends, is_grad, self.devices)
        return at_most(most, self.attention(compute, kernel), compute.num_ops)

    def one_by_one(self, moved: Price, kernel: Kernel) -> Price:
        """The time of kernels that compute elements one by one, which is at least that of moving their bytes.

        So do PyTorch's where an operand is converted, repeated along a dim, or not contiguous (`gpu_kernel_impl` in `ATen/native/cuda/CUDALoops.cuh`: each
        thread loads the operands of an element, and then those of the next).
        """
        sizes = dict(kernel.sizes)
        us = self.scalars_us(sizes.get("scalars", 0) + self.eager * sizes.get("apart", 0))
        us += self.device.launch_us if us else 0.0
        return Price(us, Basis.RULE) if us > moved.us else moved

    def scalars_us(self, elements: float) -> float:
        """The time in µs in which the device computes so many elements one by one; 0 where its file does not say it."""
        rate = self.device.scalars_per_s
        return 1e6 * elements / rate if rate else 0.0

    def scan(self, compute: Compute, backward: bool) -> Price:
        """The time of a state-space scan: by the FLOP/s that the device's file gives for Mamba-2's Triton kernels, but no faster than memory allows."""
        moved = self.moved(compute.num_bytes, compute.num_ops)
        rate = self.device.scan_flops_per_s
        if not rate:
            return moved
        us = 1e6 * compute.num_ops / (rate * (self.device.backward_scan_rate if backward else 1.0))
        return Price(max(us, moved.us), Basis.RULE)

    def products_in_turn(self, compute: Compute, dtype: str) -> Price:
        """The time of square products on matrix units, one after the other: FLOPs at the dtype's peak, but no faster than memory allows."""
        peak = self.device.peak(dtype) or self.device.peak("bf16") or 1.0
        seconds = max(compute.num_ops / peak, compute.num_bytes / self.memory_rate)
        return Price(1e6 * seconds + self.device.launch_us, Basis.ROOFLINE)

    def moved(self, num_bytes: float, num_ops: float = 0.0) -> Price:
        """The time of a kernel that is bound by memory: it reads and writes `num_bytes` bytes, and computes `num_ops` FLOPs."""
        key = (num_bytes, num_ops)
        if key not in self._known:
            self._known[key] = self.find_moved(num_bytes, num_ops)
        return self._known[key]

    def quantized(self, kernel: Kernel, num_bytes: float) -> Price:
        """The time to read an operand and write it in fewer bits; operands of several experts may take a kernel each.

        Transformer Engine has one kernel for all with delayed scaling (`multi_tensor_quantize_impl`: "Quantize kernels individually") and in nvfp4
        (`split_quantize_nvfp4_impl`, since release 2.11).
        """
        experts = self.kernels_of(kernel)
        return scaled(self.moved(num_bytes / experts), experts)

    def kernels_of(self, kernel: Kernel) -> int:
        """How many kernels a product or a quantization consists of: one for each expert where experts are computed one after the other."""
        together = kernel.kind == Work.QUANTIZE and (
            kernel.dtype == "nvfp4" or (kernel.dtype == "fp8" and self.scales_are_known)
        )
        sizes = dict(kernel.sizes)
        # Products of pairs of matrices that no tokens were sent for are one kernel, such as scores that are written out.
        is_batched = kernel.kind == Work.PRODUCT and "hidden" not in sizes
        is_one = not self.takes_turns or together or is_batched
        return 1 if is_one else max(int(sizes.get("batch", 1)), 1)

    def is_cached(self, action: object) -> bool:
        """Whether an action quantizes a weight, of which the result is kept for the other microbatches of a step (`process { cached_weights = true }`).

        Transformer Engine does so where it is told which microbatch is the first (`is_first_microbatch`, which Megatron-LM's layers say).
        """
        if not self.caches or not isinstance(action, Compute) or action.kernel is None:
            return False
        return action.kernel.kind == Work.QUANTIZE and "new" in dict(action.kernel.sizes)

    def part_of_step(self, action: object, backward: bool) -> float:
        """The part of a kernel that a microbatch counts: all of it, but of what is done in the first microbatch of a step alone its share.

        A weight that is kept is quantized along both dims at once, in the forward pass: nothing is left for the backward pass.
        """
        if not self.is_cached(action):
            return 1.0
        assert isinstance(action, Compute) and action.kernel is not None
        sizes = dict(action.kernel.sizes)
        return 0.0 if backward else sizes["new"] / max(sizes["elements"], 1)

    def copied_bytes(self, action: Compute) -> int:
        """The bytes of the second copy of a weight that is kept, written with the first one where products of backward passes read along the other dim."""
        assert action.kernel is not None
        reads_columns = action.kernel.dtype in SCALES or self.device.transposes_fp8
        return action.num_written if self.is_cached(action) and reads_columns else 0

    def maximum_is_found(self, kernel: Kernel) -> bool:
        """Whether the kernel in front of a quantization finds the largest number of what it writes, so that nothing reads that for it.

        Transformer Engine's own norms do so since 2.7, those of cuDNN do not (`FUSED_NORM_AMAX_FP8` in `csrc/extensions/normalization.cpp`; in 2.7
        `rmsnorm_api.cpp` takes its own where a maximum is wanted), and so do its activations (`FUSED_ACTIVATION_AMAX_FP8` in `activation.cpp`). In nvfp4
        the maximum is that of rotated columns too, which what quantizes finds.
        """
        if self.trains != "cudnn" or kernel.dtype != "fp8":
            return False
        of_norm = kernel.behind == "norm" and self.norms == "maxima"
        return of_norm or (kernel.behind == "activation" and self.fuses)

    def is_written_quantized(self, kernel: Kernel) -> bool:
        """Whether the kernel in front of a quantization writes its result itself: in fp8 where the scale is known, in mxfp8 cuDNN's norms, for whole tiles of
        128 by 128, and activations (`FULLY_FUSED` there).
        """
        known, in_blocks = kernel.dtype == "fp8" and self.scales_are_known, kernel.dtype == "mxfp8"
        if kernel.behind == "norm":
            return known or (in_blocks and self.trains == "cudnn" and self.norms == "cudnn")
        fuses = kernel.behind == "activation" and self.trains == "cudnn" and self.fuses
        return fuses and (known or in_blocks)

    def turns_us(self, kernel: Kernel) -> float:
        """The time in µs that products of experts, computed one after the other, take in addition to what each takes by itself."""
        turns = self.kernels_of(kernel)
        return turns * self.device.turn_us if turns > 1 else 0.0

    def further_launches(self, action: object, each_takes: int = 1) -> float:
        """How long the host takes to launch the kernels of one call behind the first one, as a multiple of the time of one launch. `each_takes`: so many
        kernels take the place of one.
        """
        if not isinstance(action, Compute) or action.kernel is None:
            return 0.0
        device, kind = self.device, action.kernel.kind
        each = {Work.PRODUCT: device.host_product_us, Work.QUANTIZE: device.host_kernel_us}
        if kind not in each or not device.host_launch_us:
            return 0.0
        kernels = self.kernels_of(action.kernel) * each_takes
        us = (kernels - 1) * each[kind] + len(self.swizzled(action.kernel)) * device.host_kernel_us
        return us / device.host_launch_us

    @property
    def takes_turns(self) -> bool:
        """Whether kernels are those of Transformer Engine, which multiplies the tokens of one expert after the other."""
        return self.trains == "cudnn" and self.engine != "grouped"

    def find_moved(self, num_bytes: float, num_ops: float) -> Price:
        """Compute what `moved` keeps: by the table of copies, else by the bandwidth of memory."""
        found = self.by_table(("memory",), {"bytes": np.float64(max(num_bytes, 1))})
        if found is not None:
            return found
        peak = self.device.peak("fp32")
        seconds = max(num_bytes / self.memory_rate, num_ops / peak if peak else 0.0)
        return Price(1e6 * seconds + self.device.launch_us, Basis.ROOFLINE)

    def product(self, kernel: Kernel, backward: bool) -> Price:
        """The time of a product of `batch` pairs of matrices [m, k] and [k, n]: by the table of its dtype, or by the roofline if there is none."""
        own = {name: np.float64(max(size, 1)) for name, size in kernel.sizes}
        sizes = {name: own[name] for name in ("batch", "m", "n", "k")}
        if self.merges and (own["batch"] == 1 or not self.serves):
            sizes |= {"m": own.get("all_m", own["m"]), "n": own.get("all_n", own["n"])}
        share = own["m"] * own["n"] / (sizes["m"] * sizes["n"])
        dtype, stored = (self.device.multiplied(each) for each in (kernel.dtype, kernel.stored))
        wide = TABLES.get(dtype, (dtype,))
        # Engines quantize what such a weight multiplies; a step that trains has ops for that, and multiplies in what its operands are in.
        narrow = TABLES.get(stored, ()) if self.serves else ()
        if "hidden" in own and own["batch"] > 1 and (self.serves or own["m"] < TILE):
            for each in (*narrow, *wide):
                found = self.experts(each, own)
                if found is not None:
                    return found
        for each in (*narrow, *wide):
            found = self.matrix(each, sizes, in_turn=self.kernels_of(kernel) > 1)
            if found is not None:
                slower = self.device.backward_fp8_rate if backward and each == "fp8" else 1.0
                made = self.without_quantization(found, each, sizes, kernel.dtype in QUANTIZED)
                alone = scaled(made, 1 / slower)
                form = kernel.dtype if kernel.dtype in QUANTIZED else each
                flops = 2 * float(sizes["batch"] * sizes["m"] * sizes["n"] * sizes["k"])
                held = at_most(self.device.most_of_products(form, self.devices), alone, flops)
                return scaled(Price(held.us + self.turns_us(kernel), held.basis), share)
        return scaled(self.roofline_product((*narrow, *wide)[0], sizes), share)

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
            made = sizes["updated" if self.keeps_transposed else "transposed"]
            return 1e6 * 2 * made / self.memory_rate if self.device.transposes_fp8 else 0.0
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
        return 1e6 * moved / self.memory_rate

    def swizzled(self, kernel: Kernel) -> list[int]:
        """The elements of each operand of a product, or of all that are one product with it, whose scales a kernel puts into another order before.

        Tensor cores of Blackwell read scales of blocks in tiles, and Transformer Engine's quantizations wrote them row by row until its release 2.11: in front
        of each product a kernel reordered those of each operand, of all experts at once (`swizzle_scaling_factors` and
        `multi_tensor_swizzle_scaling_factors` in `csrc/util.cpp`). Since 2.12 what quantizes writes those of mxfp8 in order, but for what is sent between
        ranks, and for weights (`optimize_for_gemm` in `module/linear.py` and `module/grouped_linear.py`), and those of nvfp4 since 2.17.
        """
        is_any = kernel.kind == Work.PRODUCT and kernel.dtype in SWIZZLED
        if not is_any or not self.products_add or self.swizzle == "none":
            return []
        sizes = dict(kernel.sizes)
        batch, m, n, k = (sizes[name] for name in ("batch", "all_m", "all_n", "k"))
        operands = ((batch * m * k, sizes["late_left"]), (batch * k * n, sizes["late_right"]))
        return [elements for elements, late in operands if late or self.swizzle == "each"]

    def swizzled_us(self, kernel: Kernel) -> float:
        """The time in µs that a product, or its share of one, takes for what `swizzled` says: scales are read and written."""
        found = self.swizzled(kernel)
        if not found:
            return 0.0
        sizes = dict(kernel.sizes)
        sharing, scale_bytes = SCALES[kernel.dtype]
        share = sizes["m"] * sizes["n"] / (sizes["all_m"] * sizes["all_n"])
        return share * sum(self.moved(2 * each * scale_bytes / sharing).us for each in found)

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
        return 1e6 * (2 * sizes["wide_filled"] + written) / self.memory_rate

    def copied_us(self, kernel: Kernel) -> float:
        """The time in µs to copy what was gathered of parameters into place, in front of the op that reads the first of them.

        What came from each rank is a part of each parameter, so that a kernel on the stream of products reads all of it and writes each parameter
        (`foreach_all_gather_copy_out` in PyTorch's `_fsdp_collectives.py`, `split_with_sizes_copy`; `torch.cat` in `AllGatherCoalescedHandle.wait` of
        DeepSpeed's `partition_parameters.py`). Megatron-LM's FSDP gathers buffers of which parameters are parts.
        """
        copied = dict(kernel.sizes).get("copied", 0)
        return self.moved(2 * copied).us if self.copies and copied else 0.0

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
        besides = self.accesses * sizes.get("reduced", 0)
        if self.products_add:
            return 1e6 * (2 * sizes["summed"] + sizes["zeroed"] + besides - once) / self.memory_rate
        us = max(
            1e6 * (2 * sizes["summed"] + once) / self.memory_rate,
            self.scalars_us(sizes.get("converted", 0)),
        )
        return us + 1e6 * besides / self.memory_rate + self.device.launch_us

    @property
    def accesses(self) -> int:
        """How often kernels read or write a sum of gradients before ranks add up theirs: one divides it (`averages`), one finds its norm (`checks`)."""
        return 2 * self.averages + self.checks

    def divided_us(self, sizes: Mapping[str, int]) -> float:
        """The time in µs of kernels that divide gradients by the number of ranks, and find their norm, where ranks add them up in each microbatch.

        So does Megatron-LM's FSDP in bf16 (`gradient_reduce_preprocessing` in `megatron_fsdp/param_and_grad_buffer.py`: `grad_data.mul_(scaling_factor)`).
        """
        if not (self.accesses and "divided" in sizes):
            return 0.0
        launched = (self.averages + self.checks) * self.device.launch_us
        return 1e6 * self.accesses * sizes["divided"] / self.memory_rate + launched

    def added_us(self, kernel: Kernel) -> float:
        """The time in µs of a kernel that adds a finished gradient to the sum over earlier microbatches, as Megatron-LM's hooks do (`main_grad.add_`)."""
        sizes = dict(kernel.sizes)
        if "divided" in sizes:
            return self.divided_us(sizes)
        if not self.sums_tables or "summed" not in sizes:
            return 0.0
        once = sizes["zeroed"] if self.products_add else 0
        once += self.accesses * sizes.get("reduced", 0)
        added = 1e6 * (2 * sizes["summed"] + sizes["made"]) / self.memory_rate
        us = max(added, self.scalars_us(sizes.get("converted", 0)))
        return us + 1e6 * once / self.memory_rate + self.device.launch_us

    def experts(self, dtype: str, own: Mapping[str, np.float64]) -> Price | None:
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
        found, dealt, random = (
            self.layer_of_experts(key, same, each)
            for each in (copies, np.minimum(copies, experts), busy)
        )
        unread = min(max(dealt.us - random.us, 0.0), found.us - self.device.launch_us)
        return Price((found.us - unread) / (3 if gated else 2), found.basis)

    def layer_of_experts(
        self, key: tuple[str, ...], sizes: Mapping[str, np.float64], copies: np.float64
    ) -> Price:
        """The time of a measured layer of experts that `copies` of tokens come to: by its table, but no more than that of more copies.

        Measurements of few tokens are scattered, and where a table has few of them it continues others. An engine may always compute a token more.
        """
        table, kind = self.device.tables[key], KINDS[key[0]]
        (rows,) = (axis for axis in table.axes if axis.name == "rows")
        places = np.arange(0, rows.count - 1 + QUARTER, QUARTER)
        points = 2.0 ** (rows.first + rows.step * places) * sizes["experts"]
        tokens = np.array([copies, *points[points > copies]])
        every = {name: np.full(len(tokens), size) for name, size in sizes.items()}
        every["tokens"] = tokens
        axes = kind.axes(every)
        us = np.asarray(kind.rule(self.device, key[1], every)) * table.factor(axes)
        is_covered = bool(np.asarray(table.covers(axes))[0])
        return Price(float(us.min()), Basis.MEASURED if is_covered else Basis.RULE)

    def is_in_layer_of_experts(self, action: object) -> bool:
        """Whether an action is part of a layer of experts that an inference engine computes as a whole, and of which there is a table."""
        return bool(self.layer_tables(action))

    def layer_tables(self, action: object) -> list[tuple[str, ...]]:
        """The keys of the device's tables of whole layers of experts that an action may be part of; none in a step that trains."""
        if not self.serves or not isinstance(action, Compute) or action.kernel is None:
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
        own = ((*key, engine) for engine in (self.engine, "trtllm"))
        return next((each for each in own if each in self.device.tables), key)

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
            converted = self.moved(float(moved)).us
            return Price(max(price.us - converted, self.device.launch_us), price.basis)
        known = STATIC if self.scales_are_known else {}
        leaves_out = (QUANTIZING if is_quantized else known).get(dtype, ())
        found = [self.by_table(("quantize", each), rows) for each in leaves_out]
        us = price.us - sum(each.us for each in found if each is not None)
        return Price(max(us, self.device.launch_us), price.basis) if found else price

    def matrix(self, dtype: str, sizes: Sizes, in_turn: bool = False) -> Price | None:
        """The time of a product by the table of its dtype; None if there is none. Several products of one shape take as long as one that has all of their
        rows, if rows fill tiles; `in_turn` they are kernels of their own.

        Transformer Engine's are kernels of cuBLAS, one for each expert, on four streams that share the device (`multi_stream_cublas_gemm`).
        """
        batch = sizes["batch"]
        if in_turn:
            single = self.by_table(("product", dtype), {**sizes, "batch": np.float64(1)})
            return None if single is None else Price(single.us * float(batch), Basis.RULE)
        one = {"m": sizes["m"] * batch, "n": sizes["n"], "k": sizes["k"]}
        found = self.by_table(("product", dtype), one)
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
        seconds = max(2 * batch * m * n * k / peak, moved / self.memory_rate)
        return Price(1e6 * seconds + self.device.launch_us, Basis.ROOFLINE)

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
            return self.moved(compute.num_bytes, compute.num_ops)
        us, basis = sum(part.us for part in known), max(part.basis for part in known)
        if kernel.kind == Work.DELTA_RULE_GRAD:
            us *= compute.num_ops / float(delta_rule_flops(sizes))
            basis = Basis.RULE
        return Price(us, basis)

    def delta_steps(self, sizes: Sizes, count: int) -> Price | None:
        """The time to compute one token of each of `count` sequences, which share a kernel; None if there is no table."""
        found = self.by_table(("delta_step", "bf16"), of_sequences(sizes, count))
        if found is None or sizes["state_bytes"] == MEASURED_STATE_BYTES:
            return found
        return Price(found.us, Basis.RULE)

    def delta_chunks(self, sizes: Sizes, kinds: Sequence[tuple[int, int]]) -> Price | None:
        """The time to compute sequences with several new positions: `kinds` are pairs of a number of sequences and their new positions. All of them together
        fill the device, as in `attention`. None if there is no table.

        Each kind takes its share, by positions, of what the kernel would take if all were of that kind. The state of a sequence goes from chunk to chunk,
        so that none is done sooner than its kind is alone.
        """
        positions = sum(n * new for n, new in kinds)
        us, longest, basis = 0.0, 0.0, Basis.MEASURED if len(kinds) == 1 else Basis.RULE
        for count, new in kinds:
            own = {**sizes, "seq": np.float64(new)}
            alone = self.by_table(("delta_rule", "bf16"), of_sequences(own, count))
            alike = self.by_table(("delta_rule", "bf16"), of_sequences(own, positions / new))
            if alone is None or alike is None:
                return None
            us += alike.us * count * new / positions
            longest = max(longest, alone.us)
            basis = max(basis, alone.basis)
        return Price(max(us, longest), basis)

    def attention(self, compute: Compute, kernel: Kernel) -> Price:
        """The time of attention: one kernel for all sequences with several new positions, and one for all with a single one.

        Their sequences may have any lengths (`varlen` kernels of FlashAttention, paged decoding): blocks of all of them fill the device together.
        So each kind of sequences takes its share, by pairs of positions, of what the kernel would take if all of its pairs were of that kind.
        """
        sizes = {name: np.float64(max(size, 1)) for name, size in kernel.sizes}
        if not kernel.requests:
            return self.one_attention(compute.num_ops, compute.num_bytes, kernel, sizes)
        # Of keys that devices share, one has fewer than there are new positions.
        kinds = [
            (n, s, max(k, 1), s * k - s * (min(s, k) - 1) / 2) for n, s, k in kernel.requests if n
        ]
        pairs = sum(n * each for n, _, _, each in kinds)
        positions = sum(n * (s + k) for n, s, k, _ in kinds)
        us, basis = 0.0, Basis.MEASURED
        for together in (
            [each for each in kinds if each[1] > 1],
            [each for each in kinds if each[1] == 1],
        ):
            own = sum(n * each for n, _, _, each in together)
            for count, new, keys, each in together:
                alike = own / each
                batch = sizes["batch"] * np.float64(alike)
                one = {**sizes, "batch": batch, "seq": np.float64(new), "keys": np.float64(keys)}
                moved = compute.num_bytes * alike * (new + keys) / positions
                price = self.one_attention(compute.num_ops * own / pairs, moved, kernel, one)
                us += price.us * count / alike
                basis = max(basis, price.basis)
        return Price(us, basis)

    def one_attention(
        self, num_ops: float, num_bytes: float, kernel: Kernel, sizes: dict[str, np.float64]
    ) -> Price:
        """The time of attention for sequences of equal lengths. It is that of the table of causal prefill times the ratio of FLOPs, which differ with another
        mask, another width of heads, or in a backward pass.
        """
        cache = self.cache_of(kernel)
        if kernel.kind == Work.LATENT_ATTENTION:
            return self.latent(num_ops, num_bytes, cache, sizes)
        backward = kernel.kind == Work.ATTENTION_GRAD
        width = int(sizes["head_dim"])
        if sizes["seq"] == 1:
            return self.decode(num_ops, num_bytes, cache, sizes)
        measured = {**sizes, "window": np.float64(0)}
        if self.trains:
            seen = {**sizes, "window": sizes.get("reach", sizes["keys"])}
            if seen["window"] < sizes["keys"]:
                trained = self.trained_attention(num_ops, backward, seen, "window")
                if trained is not None:
                    # A window takes no longer than all positions, which is what some kernels compute with any.
                    pairs = score_pairs(sizes["seq"], sizes["keys"], seen["window"])
                    more = float(score_pairs(sizes["seq"], sizes["keys"], sizes["keys"]) / pairs)
                    all_positions = {name: sizes[name] for name in sizes if name != "reach"}
                    whole = self.one_attention(num_ops * more, num_bytes, kernel, all_positions)
                    return min(trained, whole, key=lambda each: each.us)
            trained = self.trained_attention(num_ops, backward, measured)
            if trained is not None:
                return trained
        if sizes["keys"] > sizes["seq"]:
            return self.resumed_attention(num_ops, num_bytes, kernel, sizes)
        known = [name for name in ("64", "128", "192", "256") if int(name) >= width] or ["128"]
        whole = BACKWARD_PRODUCTS / FORWARD_PRODUCTS if backward else 1.0
        slower = whole / self.device.backward_attention_rate if backward else 1.0
        found, least, is_other, share = None, None, False, 1.0
        for dtype, name in product((*self.attended, "bf16"), (str(width), *known)):
            key = ("attention", dtype, name)
            own = {**measured, "head_dim": np.float64(int(name))}
            causal = 2 * float(own["batch"] * own["heads"] * own["seq"] ** 2 * own["head_dim"])
            share = max(num_ops / (causal * whole), self.share_of_window(sizes))
            found, least = (self.by_cache(key, cache, each) for each in (own, {**own, **LEAST}))
            if found is not None:
                is_other = dtype != self.attends
                break
        if found is None or least is None:
            peak = self.device.peak("bf16") or 1.0
            return Price(max(1e6 * num_ops / peak, self.moved(num_bytes).us), Basis.ROOFLINE)
        is_rule = backward or is_other or abs(share - 1) > 0.01
        basis = Basis.RULE if is_rule else found.basis
        converted = self.converted_us(sizes, backward) if self.trains else 0.0
        us = stretched(found.us, least.us, share * slower)
        return Price(max(us, self.device.launch_us) + converted, basis)

    @property
    def attended(self) -> tuple[str, ...]:
        """The dtypes whose tables of attention apply, the nearest first."""
        return (self.attends, "fp8") if self.attends == "mxfp8" else (self.attends,)

    def trained_attention(
        self, num_ops: float, backward: bool, sizes: dict[str, np.float64], *windowed: str
    ) -> Price | None:
        """The time of attention by the table of a training kernel; None if there is none. Beyond the table's lengths, and forward with fewer heads than it has,
        the time changes as that of an inference engine's kernel of the same width does.

        Backward a kernel has a block of threads for each head and 128 keys, so that its time grows in proportion to the heads from where multiprocessors
        have as much to do as the longest block (`fewest_heads`). cuDNN takes 1,469, 837, 386, 204, 116 and 110 us with 128, 64, 32, 16, 8 and 4 heads of
        4,096 positions on B200 (SimuMax, `sdp_bwd`), and with 32 and 40 heads of 6,144 to 17,556 positions, without a mask, 0.96 to 1.09 of what 128 heads
        take for as many FLOPs on GB200 and GB300 (`cudnn-frontend` at 3929da2: `ltx2` and `wan22` beside `llama3.1`).

        With more heads the time grows in proportion, since those of the tables fill the device: on H100 cuDNN reaches 613 TFLOP/s with 32 heads of 128 and
        4,096 positions (`cudnn-frontend`), and with 64 an older release 518 (FlashAttention-3, figure 5), where an engine's kernel gains 15 % from 32 to 64.
        How many heads of queries share keys makes no difference without a window: on H200 cuDNN takes as long with 64 heads of queries and 8 of keys as with
        as many of both (`cudnn-frontend`, df73764 and de355c7). An engine's kernel, measured with what writes its cache, is 8 % faster where four share.
        Nor does it under a window where no engine's kernel was measured (mxfp8): in 8 bits a backward pass computes all positions, so that bytes do not decide.
        On GB300 it takes 0.79 ms for 128 heads of 4,096 positions of which eight share keys (fp8, df73764), and 1.48 ms for 256 that share none (3929da2).
        """
        whose = () if self.trains == "cudnn" else (self.trains,)
        step = f"{'backward' if backward else 'forward'} pass"
        width = int(sizes["head_dim"])
        # FlashAttention-2 multiplies heads between two widths that were measured as it does the wider.
        wider = [w for w in TRAINED_WIDTHS if w > width] if self.trains == "flash2" else []
        keys = [
            ("attention", each, str(w), *windowed)
            for each in self.attended
            for w in (width, *wider)
        ]
        key = next((each for each in keys if (*each, step, *whose) in self.device.tables), None)
        if key is None:
            return None
        table, dtype = self.device.tables[*key, step, *whose], key[1]
        kind = KINDS["attention"]
        pairs = score_pairs(sizes["seq"], sizes["seq"], sizes["window"])
        flops = 4 * sizes["batch"] * sizes["heads"] * pairs * sizes["head_dim"]
        share = num_ops / (flops * (BACKWARD_PRODUCTS / FORWARD_PRODUCTS if backward else 1.0))
        share = max(share, 0.0 if windowed else self.share_of_window(sizes))
        own = {**sizes, "cache_bytes": np.float64(bytes_per_element(dtype))}
        axes, engine = kind.axes(own), self.device.tables.get(key)

        def us(own: Sizes, by_heads: bool = False) -> float:
            axes = kind.axes(own)
            at = {x.name: np.clip(axes[x.name], 2**x.first, 2**x.last) for x in table.axes}
            at["heads"] = axes["heads"] if by_heads else np.maximum(axes["heads"], at["heads"])
            if engine is None or not windowed:
                axes["sharing"] = at["sharing"]
                own = {**own, "kv_heads": own["heads"] / at["sharing"]}
            changes = 1.0 if engine is None else engine.factor(axes) / engine.factor(at)
            return float(kind.rule(self.device, dtype, own) * table.factor(axes) * changes)

        covered = bool(table.covers(axes)) and abs(share - 1) < 0.01 and key[2] == str(width)
        fixed, by_heads = us({**own, **LEAST}), backward and not windowed
        alone = max(stretched(us(own, by_heads), fixed, share), self.device.launch_us)
        if by_heads:
            most = next(2.0**each.last for each in table.axes if each.name == "heads")
            heads = min(self.fewest_heads(own), most) / own["batch"]
            longest_block = us({**own, "heads": heads}, by_heads)
            alone = max(alone, stretched(longest_block, fixed, min(share, 1.0)))
        longest = alone + self.converted_us(sizes, backward)
        return Price(longest, Basis.MEASURED if covered else Basis.RULE)

    def fewest_heads(self, sizes: Sizes) -> float:
        """With how many heads of all sequences a multiprocessor has as much to do in a causal backward kernel as the longest block has, which goes over all
        queries, the mean one over half of them. A kernel with fewer heads takes as long.
        """
        return 2 * self.device.units / float(np.ceil(sizes["seq"] / BACKWARD_KEYS))

    def share_of_window(self, sizes: Sizes) -> float:
        """The time of attention whose queries look back to a window only, over that of attention to all positions; the fixed time counts in neither. It is
        larger than the share of pairs that the window leaves.

        Both times are from the tables of an engine's kernels. 0 if the window is no limit, or no table knows windows.
        """
        window = sizes.get("reach", sizes["keys"])
        if window >= sizes["keys"]:
            return 0.0
        key, all_positions = ("attention", "bf16", str(int(sizes["head_dim"]))), np.float64(0)
        whole = self.by_cache(key, "", {**sizes, "window": all_positions})
        least = self.by_cache(key, "", {**sizes, **LEAST, "window": all_positions})
        part = self.by_cache((*key, "window"), "", {**sizes, "window": window})
        if whole is None or least is None or part is None:
            return 0.0
        more = whole.us - least.us
        return min(max(part.us - least.us, 0.0) / more, 1.0) if more > 0 else 1.0

    def converted_us(self, sizes: dict[str, np.float64], backward: bool) -> float:
        """The time in µs to convert what attention in 8 bits reads from bf16, and what it makes to bf16 (`FusedAttnFunc` of Transformer Engine 2).

        In fp8 queries, keys and values are converted in front of it and its output behind it, in the backward pass the gradient of the output and those of
        the three: as much in both directions (`combine_and_quantize`, `combine_and_dequantize`). In mxfp8 what it makes is bf16, and what it reads is
        written along rows and along columns, the three once for both passes (`mxfp8_quantize_fast_path`, release 2.16).
        """
        if self.attends not in ("fp8", "mxfp8"):
            return 0.0
        of_head = sizes["batch"] * sizes["head_dim"]
        queries = of_head * sizes["seq"] * sizes["heads"]
        three = queries + 2 * of_head * sizes["keys"] * sizes.get("kv_heads", sizes["heads"])
        narrow = bytes_per_element(self.attends)
        if self.attends == "mxfp8":
            return self.moved(
                float((WIDE_BYTES + 2 * narrow) * (queries if backward else three))
            ).us
        each = WIDE_BYTES + narrow
        return self.moved(float(each * three)).us + self.moved(float(each * queries)).us

    def resumed_attention(
        self, num_ops: float, num_bytes: float, kernel: Kernel, sizes: dict[str, np.float64]
    ) -> Price:
        """The time of attention from new positions to earlier ones as well: that of a causal prefill with as many pairs, or, if longer, of reading all keys
        for one token.
        """
        per_pair = 2 * (sizes["head_dim"] + sizes["value_dim"]) * sizes["batch"] * sizes["heads"]
        length = np.sqrt(2 * num_ops / per_pair)
        whole = {**sizes, "seq": np.maximum(length, 2), "keys": np.maximum(length, 2)}
        whole.pop("reach", None)
        computed = self.one_attention(num_ops, num_bytes, kernel, whole)
        one = {**sizes, "seq": np.float64(1)}
        read = self.decode(num_ops, num_bytes, self.cache_of(kernel), one)
        longer = max(computed, read, key=lambda price: price.us)
        return Price(longer.us, max(longer.basis, Basis.RULE))

    def latent(
        self, num_ops: float, num_bytes: float, cache: str, sizes: dict[str, np.float64]
    ) -> Price:
        """The time of attention to DeepSeek's latent cache, by the table for one token. Several tokens of a sequence count as that many times the heads, as
        FlashMLA tiles them.
        """
        one = {"batch": sizes["batch"], "context": sizes["keys"]}
        heads = sizes["heads"] * sizes["seq"]
        key = ("decode_latent_attention", "bf16")
        found = self.by_cache(key, cache, {**one, "heads": heads})
        if found is None:
            return self.moved(num_bytes, num_ops)
        measured = 2 * float(one["batch"] * one["context"] * heads) * (2 * LATENT + ROTARY)
        share = num_ops / measured
        return Price(
            max(found.us * share, self.device.launch_us),
            max(found.basis, Basis.RULE) if share != 1 else found.basis,
        )

    def decode(self, num_ops: float, num_bytes: float, cache: str, sizes: Sizes) -> Price:
        """The time of attention from one token to a cache. Tables differ by the dtype of the cache alone: none are published by what kernels multiply in."""
        one = {**sizes, "context": sizes["keys"], "window": np.float64(0)}
        key = ("decode_attention", "bf16", str(int(sizes["head_dim"])))
        return self.by_cache(key, cache, one) or self.moved(num_bytes, num_ops)

    def cache_of(self, kernel: Kernel) -> str:
        """The dtype in which keys and values are read; empty if it is the one that attention multiplies in, as in a step that trains, which has no cache."""
        return "" if self.trains else kernel.stored

    def by_cache(self, key: tuple[str, ...], cache: str, sizes: Sizes) -> Price | None:
        """The time by the table for a cache of this dtype, or without one by the table of the nearest dtype: then the time changes with the bytes of the
        cache as the rule of its kind says. None if there is no table at all.
        """
        cache = cache or key[1]
        read = {**sizes, "cache_bytes": np.float64(bytes_per_element(cache))}
        alike = (cache, *(("fp8",) if cache in QUANTIZED else ()), key[1])
        for each in alike:
            found = self.by_table((*key, *cache_part(key[1], each)), read)
            if found is not None:
                same = bytes_per_element(each) == bytes_per_element(cache)
                return found if same else Price(found.us, Basis.RULE)
        return None

    def by_table(self, key: tuple[str, ...], sizes: Sizes) -> Price | None:
        """The time by one of the device's tables: measured within it, a rule beyond it. None if the device does not have the table."""
        asked = (key, tuple(sizes.items()))
        if asked not in self._by_table:
            self._by_table[asked] = self.find_by_table(key, sizes)
        return self._by_table[asked]

    def find_by_table(self, key: tuple[str, ...], sizes: Sizes) -> Price | None:
        """Compute what `by_table` keeps."""
        table = self.device.tables.get(key)
        if table is None:
            return None
        kind = KINDS[key[0]]
        axes = kind.axes(sizes)
        dtype = key[1] if len(key) > 1 else ""
        us = float(np.asarray(kind.rule(self.device, dtype, sizes)) * table.factor(axes))
        return Price(us, Basis.MEASURED if bool(table.covers(axes)) else Basis.RULE)


QUARTER = 0.25
"""Of the way between two points of a table: so closely times are compared that are to grow."""


def of_sequences(sizes: Sizes, count: float) -> Sizes:
    """The sizes of a kernel with `count` times the sequences."""
    return {**sizes, "batch": sizes["batch"] * count}


def stretched(us: float, least_us: float, share: float) -> float:
    """The time of a kernel that computes `share` times as much as one that takes `us`. The fixed time (`least_us`) does not change."""
    fixed = min(us, least_us)
    return fixed + (us - fixed) * share


def at_most(flops_per_s: float | None, price: Price, flops: float) -> Price:
    """The price, but no less than what so many FLOPs take at that rate, if there is one. Tables are made of short measurements, and between the points of a
    table its rule may be a little too fast.
    """
    least = 0.0 if flops_per_s is None else 1e6 * flops / flops_per_s
    return Price(max(price.us, least), price.basis)


def scaled(price: Price, share: Floats | float) -> Price:
    """The price times a factor."""
    return Price(float(price.us * share), price.basis)
