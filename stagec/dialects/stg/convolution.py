"""Convolutions that models of tokens have: images cut into patches, and short causal filters along a sequence.

    %p = stg.patch_embedding %image, %kernel to "P"       // [B, C, Y, X] and [C, I, J, D] -> [B, P, D]
    %y = stg.causal_conv %x, %kernel over "S"             // [B, S, H, E] and [W, H, E] -> [B, S, H, E]

A patch embedding has a stride as long as its kernel, so that each pixel is in one patch: it is a product over the pixels of a
patch (Dosovitskiy et al., arXiv:2010.11929, section 3.1). A causal convolution has a filter of its own for each channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr, UnitAttr
from xdsl.ir import SSAValue
from xdsl.irdl import operand_def, opt_prop_def, prop_def, result_def

from stagec import symbolic
from stagec.dialects.interfaces import elements
from stagec.dialects.op import op_definition
from stagec.dialects.stg.base import (
    PLACEMENT,
    Indices,
    InferredOp,
    LikeOp,
    StatefulOp,
    TensorOp,
    expect_dims,
    tensor_type,
)
from stagec.dialects.stg.interface import (
    BackwardPass,
    Call,
    CallError,
    Cotangents,
    Requests,
    Signature,
    dims_in_words,
    only,
)
from stagec.dialects.stg.recurrent import ResumedConvOp, num_resumed
from stagec.dialects.types import TensorType
from stagec.dialects.work import Work
from stagec.symbolic import Size


def need_whole(op: TensorOp, tensor: TensorType, *names: str) -> None:
    """Each device has these dims whole, once ops agree with their operands."""
    for name in names:
        if PLACEMENT not in op.properties and tensor.dim(name).split:
            raise op.mistake(f"each device needs all of `{name}` in <{tensor.body}>")


def need_dims(op: TensorOp, tensor: TensorType, least: int, kind: str) -> None:
    if len(tensor.dims) < least:
        raise op.mistake(f"<{tensor.body}> is no {kind}")


def patch_products(patches: TensorType, kernel: TensorType) -> Size:
    """2 per multiply-add: each patch's pixels times each column of the kernel."""
    pixels = symbolic.product(d.size for d in kernel.dims[:-1])
    return 2 * patches.num_elements * pixels


def check_tiles(call: Call) -> None:
    """Patches tile the image, and there are as many as fit."""
    image, kernel = call.types
    total = 1
    for whole, part in zip(image.names[-2:], kernel.names[1:3], strict=True):
        length, step = call.sizes[whole], call.sizes[part]
        if length is None or step is None:
            return
        if length % step:
            raise CallError(
                f"patches of `{part} = {step}` do not tile `{whole} = {length}`", operand=1
            )
        total *= length // step
    patches = call.dim("patches")
    if call.sizes[patches] not in (None, total):
        ratios = [f"({a} / {b})" for a, b in zip(image.names[-2:], kernel.names[1:3], strict=True)]
        raise CallError(
            f"there are {total} patches, not `{patches} = {call.sizes[patches]}`",
            option="patches",
            help=f"write `dim {patches} = {' * '.join(ratios)}`",
        )


@op_definition
class PatchEmbeddingOp(InferredOp):
    """Each patch of an image [..., C, Y, X] times a kernel [C, I, J, D]: [..., P, D], row by row of patches.

    An image is whole on each device, its patches need not be: a device makes those that it is asked for.

    FLOPs: 2 for each element of the result and of a patch.
    """

    name = "stg.patch_embedding"
    SOURCE: ClassVar[str] = "Dosovitskiy et al., ViT, 2020 (arXiv:2010.11929), section 3.1"
    WORK: ClassVar[Work] = Work.CONVOLUTION
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)
    SIGNATURES: ClassVar[tuple[Signature, ...]] = (
        Signature.of(
            "patch_embedding(image, kernel, patches = dim)",
            "each patch of an image times a kernel: a convolution whose stride is its kernel",
        ),
    )

    image = operand_def(TensorType)
    kernel = operand_def(TensorType)
    patches = prop_def(StringAttr)
    result = result_def(TensorType)

    assembly_format = (
        "$image `,` $kernel `to` $patches attr-dict `:` functional-type(operands, results)"
    )

    def made(self) -> Sequence[TensorType]:
        image, kernel = tensor_type(self.image), tensor_type(self.kernel)
        dims = [*image.names[:-3], self.patches.data, kernel.names[-1]]
        return [TensorType.of(dims, image.dtype)]

    @classmethod
    def check_call(cls, call: Call) -> None:
        image, kernel = call.types
        call.need_float(0, 1)
        if len(image.names) < 3:
            raise CallError(
                f"an image ends in channels, rows, columns, but is {dims_in_words(image)}",
                operand=0,
            )
        if len(kernel.names) != 4:
            raise CallError(
                f"a kernel is channels, rows, columns, width, but is {dims_in_words(kernel)}",
                operand=1,
            )
        channels = image.names[-3]
        if kernel.names[0] != channels:
            raise CallError(
                f"images have channels `{channels}`, the kernel `{kernel.names[0]}`", operand=1
            )
        for name in kernel.names[1:]:
            if name in image.names:
                raise CallError(f"`{name}` is a dim of the image and of the kernel", operand=1)
        if call.dim("patches") in (*image.names, *kernel.names):
            raise CallError("the dim of patches is a new one", option="patches")
        check_tiles(call)

    def indices(self) -> Indices:
        base = super().indices()
        return Indices(
            base.operands, base.results, blocked=frozenset(pixels(self.image, self.kernel))
        )

    def verify_(self) -> None:
        self.verify_operands()
        image, kernel, result = (tensor_type(v) for v in (self.image, self.kernel, self.result))
        check_patches(self, image, kernel, result)
        if result.names[-2] != self.patches.data:
            raise self.mistake(
                f"the patches are `{self.patches.data}`, "
                f"not `{result.names[-2]}` of <{result.body}>"
            )
        # Which patches a device makes is its own choice: they are a dim of no operand.
        super().verify_()

    def flops(self) -> Size:
        return patch_products(tensor_type(self.result), tensor_type(self.kernel))

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        image, kernel = tensor_type(self.image), tensor_type(self.kernel)
        gradients.emit(self.image, lambda: PatchImageGradOp(only(dys), self.kernel, like=image))
        gradients.emit(self.kernel, lambda: PatchKernelGradOp(only(dys), self.image, like=kernel))


def pixels(image: SSAValue, kernel: SSAValue) -> tuple[str, ...]:
    """Dims that say where a pixel is: in the image, and in its patch."""
    return (*tensor_type(image).names[-2:], *tensor_type(kernel).names[1:3])


def check_patches(op: TensorOp, image: TensorType, kernel: TensorType, patches: TensorType) -> None:
    """[..., C, Y, X] and [C, I, J, D] make [..., P, D], of pixels that each device has."""
    need_dims(op, image, 3, "image [..., channels, rows, columns]")
    if len(kernel.dims) != 4 or kernel.names[0] != image.names[-3]:
        raise op.mistake(f"<{kernel.body}> is not a kernel for images <{image.body}>")
    need_dims(op, patches, 2, "row of patches")
    expect_dims(op, image, patches, [*image.names[:-3], patches.names[-2], kernel.names[-1]])
    need_whole(op, image, *image.names[-2:])
    need_whole(op, kernel, *kernel.names[1:3])


@op_definition
class PatchKernelGradOp(InferredOp):
    """The gradient for the kernel: the sum of dy times pixels over images and patches.

    `dy` [..., P, D], `image` [..., C, Y, X] -> [C, I, J, D]. FLOPs: 2 for each element of `dy` and of a patch.
    """

    name = "stg.patch_kernel_grad"
    WORK: ClassVar[Work] = Work.CONVOLUTION
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)

    dy = operand_def(TensorType)
    image = operand_def(TensorType)
    dkernel = result_def(TensorType)

    def verify_(self) -> None:
        dy, image, dkernel = (tensor_type(v) for v in (self.dy, self.image, self.dkernel))
        check_patches(self, image, dkernel, dy)
        super().verify_()

    def flops(self) -> Size:
        return patch_products(tensor_type(self.dy), tensor_type(self.dkernel))


@op_definition
class PatchImageGradOp(InferredOp):
    """The gradient for the image: each patch's dy times the kernel, at its pixels.

    `dy` [..., P, D], `kernel` [C, I, J, D] -> [..., C, Y, X]. FLOPs: 2 for each element of `dy` and of a patch.
    """

    name = "stg.patch_image_grad"
    WORK: ClassVar[Work] = Work.CONVOLUTION
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)

    dy = operand_def(TensorType)
    kernel = operand_def(TensorType)
    dimage = result_def(TensorType)

    def verify_(self) -> None:
        dy, kernel, dimage = (tensor_type(v) for v in (self.dy, self.kernel, self.dimage))
        check_patches(self, dimage, kernel, dy)
        super().verify_()

    def flops(self) -> Size:
        return patch_products(tensor_type(self.dy), tensor_type(self.kernel))


@op_definition
class CausalConvOp(StatefulOp, LikeOp):
    """y[s] = sum over w of kernel[w] * x[s - W + 1 + w], for each channel by itself; before the sequence x is zero.

    The channels are the dims of the kernel but its first. `reverse` looks ahead instead, as the gradient for x does:
    x[s] is in y[s] to y[s + W - 1]. Over a split sequence a device would need its neighbour's last elements: it is whole.

    [B, S, C] and a kernel [W, C] -> [B, S, C]. FLOPs: 2 W for each element.
    """

    name = "stg.causal_conv"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)
    SIGNATURES: ClassVar[tuple[Signature, ...]] = (
        Signature.of(
            "causal_conv(x, kernel, over = dim, state? = cache)",
            "a filter along a sequence for each channel, which sees nothing later",
        ),
    )
    STATE: ClassVar[str] = "h[B, W, H, E]"

    x = operand_def(TensorType)
    kernel = operand_def(TensorType)
    over = prop_def(StringAttr)
    reverse = opt_prop_def(UnitAttr)
    result = result_def(TensorType)

    assembly_format = (
        "(`reverse` $reverse^)? $x `,` $kernel `over` $over attr-dict "
        "`:` functional-type(operands, results)"
    )

    @property
    def goes_along(self) -> str:
        return self.over.data

    @classmethod
    def check_call(cls, call: Call) -> None:
        x, kernel = call.types
        call.need_float(0, 1)
        over = call.dim("over")
        call.need_dim(0, over, "over")
        if not kernel.names:
            raise CallError("a filter has a width", operand=1, help="declare it as `[W, ...]`")
        width, *channels = kernel.names
        if width in x.names:
            raise CallError(
                f"`{width}` is a dim of what is filtered: the first dim of a filter is its width",
                operand=1,
            )
        for name in channels:
            if name not in x.names or name == over:
                raise CallError(
                    f"`{name}` is not a channel of {dims_in_words(x)}",
                    operand=1,
                    notes=["a filter is its width, then channels of what is filtered"],
                )

    @classmethod
    def state_of(cls, call: Call) -> tuple[str, tuple[str, ...]]:
        over = call.dim("over")
        first, *channels = [name for name in call.types[0].names if name != over]
        return over, (first, call.types[1].names[0], *channels)

    @classmethod
    def with_state(
        cls, call: Call, operands: Sequence[SSAValue], state: SSAValue, requests: Requests
    ) -> TensorOp:
        return ResumedConvOp(*operands, state, call.dim("over"), resumed=num_resumed(requests))

    def indices(self) -> Indices:
        base = super().indices()
        return Indices(
            base.operands, base.results, blocked=frozenset((self.over.data, base.operands[1][0]))
        )

    def verify_(self) -> None:
        check_filter(self, tensor_type(self.x), tensor_type(self.kernel), self.over.data)
        super().verify_()

    def flops(self) -> Size:
        return 2 * elements(self.x) * tensor_type(self.kernel).dims[0].size

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        over, kernel = self.over.data, tensor_type(self.kernel)
        gradients.emit(self.x, lambda: CausalConvOp(only(dys), self.kernel, over, reverse=True))
        made = partial(CausalConvKernelGradOp, only(dys), self.x, over, like=kernel)
        gradients.emit(self.kernel, made)


def check_filter(op: TensorOp, x: TensorType, kernel: TensorType, over: str) -> None:
    """A filter [W, channels...] along the whole of `over`."""
    if over not in x.names:
        raise op.mistake(f"there is no dim `{over}` in <{x.body}>")
    need_dims(op, kernel, 1, "filter [width, channels...]")
    width, *channels = kernel.names
    if width in x.names or over in channels or not set(channels) <= set(x.names):
        raise op.mistake(f"<{kernel.body}> is not a filter along `{over}` of <{x.body}>")
    need_whole(op, x, over)
    need_whole(op, kernel, width)


@op_definition
class CausalConvKernelGradOp(InferredOp):
    """The gradient for the kernel: the sum of dy[s] * x[s - W + 1 + w] over all dims but the channels.

    `dy` and `x` [B, S, C] -> [W, C]. FLOPs: 2 W for each element of `x`.
    """

    name = "stg.causal_conv_kernel_grad"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)

    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    over = prop_def(StringAttr)
    dkernel = result_def(TensorType)

    def verify_(self) -> None:
        dy, x = tensor_type(self.dy), tensor_type(self.x)
        check_filter(self, x, tensor_type(self.dkernel), self.over.data)
        expect_dims(self, x, dy, x.names)
        super().verify_()

    def flops(self) -> Size:
        return 2 * elements(self.x) * tensor_type(self.dkernel).dims[0].size
