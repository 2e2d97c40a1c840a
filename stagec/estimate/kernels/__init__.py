"""How long a kernel takes on a device, in µs. There are three ways to find out, the best one first (`Basis`):

- *measured*: the device's file has a table of measurements for the kind of kernel and its dtype, and the sizes are within it.
- *rule*: the sizes are beyond the table, or the time follows from that of another kernel: attention's backward pass from its forward pass, or a product
  whose rows are dealt to experts from one product with as many tiles.
- *roofline*: there is no table. The time is that of the FLOPs at the dtype's peak, or of the bytes at the share of the memory's bandwidth that copies
  reach, whichever is longer.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from stagec.dialects.sched.actions import Compute, Kernel
from stagec.dialects.work import Work
from stagec.estimate.kernels.attention import AttentionPrices
from stagec.estimate.kernels.besides import Besides
from stagec.estimate.kernels.choices import KernelChoices
from stagec.estimate.kernels.experts import ExpertPrices
from stagec.estimate.kernels.measured import MeasuredKernels
from stagec.estimate.kernels.price import Basis, Price, at_most
from stagec.estimate.kernels.products import ProductPrices
from stagec.estimate.kernels.recurrences import RecurrencePrices


@dataclass(frozen=True)
class KernelPrices(KernelChoices):
    """The times of kernels on one device, under the settings of a plan that decide which kernels run."""

    _known: dict[object, Price] = field(default_factory=dict, compare=False)

    @cached_property
    def measured(self) -> MeasuredKernels:
        return MeasuredKernels(self.device)

    @cached_property
    def experts(self) -> ExpertPrices:
        return ExpertPrices(self, self.measured)

    @cached_property
    def products(self) -> ProductPrices:
        return ProductPrices(self, self.measured, self.experts)

    @cached_property
    def besides(self) -> Besides:
        return Besides(self, self.measured)

    @cached_property
    def attention(self) -> AttentionPrices:
        return AttentionPrices(self, self.measured)

    @cached_property
    def recurrences(self) -> RecurrencePrices:
        return RecurrencePrices(self, self.measured)

    def price(self, compute: Compute, backward: bool = False) -> Price:
        """How long a node that computes takes. `backward`: it belongs to the backward pass."""
        kernel = compute.kernel
        key = (kernel, compute.num_ops, compute.num_bytes, backward)
        if key not in self._known:
            self._known[key] = self.find(compute, backward)
        return self._known[key]

    def find(self, compute: Compute, backward: bool) -> Price:
        """Compute what `price` keeps, by the kind of the kernel."""
        kernel, besides = compute.kernel, self.besides
        if kernel is None:
            return self.measured.moved(compute.num_bytes, compute.num_ops)
        if kernel.kind == Work.QUANTIZE:
            return self.quantized(kernel, compute.num_bytes)
        if kernel.kind == Work.OTHER:
            moved = self.measured.moved(compute.num_bytes, compute.num_ops)
            price = besides.one_by_one(moved, kernel)
            return price.plus(besides.added_us(kernel) + besides.copied_us(kernel))
        if kernel.kind == Work.PRODUCT:
            price = self.products.price(kernel, backward)
            more = besides.columnwise_us(kernel) + besides.summed_us(kernel)
            more += besides.swizzled_us(kernel)
            return price.plus(more + besides.filled_us(kernel) + besides.copied_us(kernel))
        if kernel.kind == Work.CONVOLUTION:
            # An implicit product: patches are read where they are in the image (Chetlur et al., cuDNN, 2014, section 3).
            price = self.products.price(kernel, backward)
            price = price.plus(besides.added_us(kernel) + besides.copied_us(kernel))
            return replace(price, basis=max(price.basis, Basis.RULE))
        if kernel.kind in (Work.ORTHOGONALIZATION, Work.PRECONDITIONING):
            return self.products.in_turn(compute, kernel.dtype)
        if kernel.kind in (Work.SCAN, Work.SCAN_GRAD):
            return self.recurrences.scan(compute, kernel.kind == Work.SCAN_GRAD)
        if kernel.kind in (Work.DELTA_RULE, Work.DELTA_RULE_GRAD):
            return self.recurrences.delta_rule(compute, kernel)
        is_grad = kernel.kind == Work.ATTENTION_GRAD
        most = self.device.most_of_attention(self.attends, is_grad)
        return at_most(most, self.attention.price(compute, kernel), compute.num_ops)

    def quantized(self, kernel: Kernel, num_bytes: float) -> Price:
        """The time to read an operand and write it in fewer bits; operands of several experts may take a kernel each.

        Transformer Engine has one kernel for all with delayed scaling (`multi_tensor_quantize_impl`: "Quantize kernels individually") and in nvfp4
        (`split_quantize_nvfp4_impl`, since release 2.11).
        """
        experts = self.kernels_of(kernel)
        return self.measured.moved(num_bytes / experts).times(experts)

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
        reorders = len(self.besides.swizzled(action.kernel))
        us = (kernels - 1) * each[kind] + reorders * device.host_kernel_us
        return us / device.host_launch_us
