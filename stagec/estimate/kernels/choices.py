"""Which kernels a device runs, by the settings of a plan."""

from __future__ import annotations

from dataclasses import dataclass

from stagec.devices.model import DeviceModel
from stagec.dialects.sched.actions import Compute, Kernel
from stagec.dialects.types import SCALES
from stagec.dialects.work import Work


@dataclass(frozen=True)
class KernelChoices:
    """Which kernels run on one device, under the settings of a plan."""

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

    @property
    def serves(self) -> bool:
        """Whether the kernels are those of an inference engine."""
        return not self.trains

    @property
    def takes_turns(self) -> bool:
        """Whether kernels are those of Transformer Engine, which multiplies the tokens of one expert after the other."""
        return self.trains == "cudnn" and self.engine != "grouped"

    @property
    def accesses(self) -> int:
        """How often kernels read or write a sum of gradients before ranks add up theirs: one divides it (`averages`), one finds its norm (`checks`)."""
        return 2 * self.averages + self.checks

    @property
    def attended(self) -> tuple[str, ...]:
        """The dtypes whose tables of attention apply, the nearest first."""
        return (self.attends, "fp8") if self.attends == "mxfp8" else (self.attends,)

    def kernels_of(self, kernel: Kernel) -> int:
        """How many kernels a product or a quantization consists of: one for each expert where experts are computed one after the other."""
        together = kernel.kind == Work.QUANTIZE and (
            kernel.dtype == "nvfp4" or (kernel.dtype == "fp8" and self.scales_are_known)
        )
        # Products of pairs of matrices that are none of experts are one kernel, such as scores that are written out.
        is_one = not self.takes_turns or together
        return 1 if is_one else max(int(dict(kernel.sizes).get("experts", 1)), 1)

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

    def cache_of(self, kernel: Kernel) -> str:
        """The dtype in which keys and values are read; empty if it is the one that attention multiplies in, as in a step that trains, which has no cache."""
        return "" if self.trains else kernel.stored
