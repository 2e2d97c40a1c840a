"""Attention to latent vectors, which are keys and values at once (DeepSeek-V2, arXiv:2405.04434, section 2.1).

    %y, %lse = stg.latent_attention %near, %far, %latents, %rotated causal   // [B, S, H, C], [B, S, H, R], [B, T, C], [B, T, R]

All heads share them: a score is near . latent + far . rotated, and what is returned are latents, which a product makes values of. The products
that make keys and values of latents are absorbed into those before and behind it, as engines decode (FlashMLA): a latent is read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.irdl import operand_def, result_def

from stagec import symbolic
from stagec.dialects.op import op_definition
from stagec.dialects.stg.attention import HALF, KEY, FusedAttention
from stagec.dialects.stg.base import Indices, tensor_type
from stagec.dialects.stg.interface import Call, CallError, Signature, dims_in_words
from stagec.dialects.types import TensorType
from stagec.dialects.work import Work
from stagec.symbolic import ONE, Size


@op_definition
class LatentAttentionOp(FusedAttention):
    """softmax(near latents^T + far rotated^T) latents, without the scores in memory.

    `pairs` is the number of pairs of a query and a position for each row, where the shapes do not say. Nothing is differentiated through it:
    training makes keys and values.

    `near` [B, S, H, C], `far` [B, S, H, R], `latents` [B, T, C], `rotated` [B, T, R] -> [B, S, H, C].
    FLOPs: 2 for each pair and head, times C + R for the scores and C for the result (DeepSeek-V2, arXiv:2405.04434, section 2.1).
    """

    name = "stg.latent_attention"
    SOURCE: ClassVar[str] = (
        "DeepSeek-AI, DeepSeek-V2, 2024 (arXiv:2405.04434), section 2.1; FlashMLA"
    )
    WORK: ClassVar[Work] = Work.LATENT_ATTENTION
    NUM_STATISTICS: ClassVar[int] = 1
    KEY_OPERANDS: ClassVar[tuple[int, ...]] = (2, 3)
    SIGNATURES: ClassVar[tuple[Signature, ...]] = (
        Signature.of(
            "latent_attention(near, far, latents, rotated, causal? = bool)",
            "fused softmax(near latents^T + far rotated^T) latents: all heads share keys, which are values, too",
        ),
    )

    near = operand_def(TensorType)
    far = operand_def(TensorType)
    latents = operand_def(TensorType)
    rotated = operand_def(TensorType)
    result = result_def(TensorType)
    lse = result_def(TensorType)

    def made(self) -> Sequence[TensorType]:
        near = tensor_type(self.near)
        return self.made_by_part(near, TensorType.of(near.names[:-1], "fp32"))

    @classmethod
    def check_call(cls, call: Call) -> None:
        call.need_float(0, 1, 2, 3)
        near, far, latents, rotated = call.types
        if len(near.names) < 3:
            raise CallError(
                f"queries end in sequence, heads, width, but this is {dims_in_words(near)}",
                operand=0,
            )
        *rows, _, _, width = near.names
        if far.names[:-1] != near.names[:-1]:
            raise CallError(
                f"`near` is {dims_in_words(near)}, `far` {dims_in_words(far)}",
                operand=1,
                notes=["they differ in their last dim at most"],
            )
        if len(latents.names) != len(rows) + 2 or latents.names[:-2] != tuple(rows):
            raise CallError(
                f"latents are [{', '.join([*rows, 'positions', width])}], not {dims_in_words(latents)}",
                operand=2,
            )
        if latents.names[-1] != width:
            raise CallError(
                f"queries have width `{width}`, latents `{latents.names[-1]}`", operand=2
            )
        if rotated.names != (*latents.names[:-1], far.names[-1]):
            wanted = ", ".join((*latents.names[:-1], far.names[-1]))
            raise CallError(f"rotated keys are [{wanted}], not {dims_in_words(rotated)}", operand=3)

    @property
    def key_dim(self) -> str:
        return tensor_type(self.latents).names[-2]

    @property
    def query_dim(self) -> str:
        return tensor_type(self.near).names[-3]

    def indices(self) -> Indices:
        near, far, latents, rotated = (tensor_type(v).names for v in self.operands)
        positions = KEY + latents[-2]
        operands = (
            near,
            far,
            (*latents[:-2], positions, latents[-1]),
            (*rotated[:-2], positions, rotated[-1]),
        )
        blocked = frozenset((near[-1], far[-1], positions))
        return Indices(operands, self.results_by_part(near, near[:-1]), blocked=blocked)

    def verify_(self) -> None:
        near, far, latents, rotated = (tensor_type(v) for v in self.operands)
        fits = (
            len(near.dims) > 2
            and far.names[:-1] == near.names[:-1]
            and (*latents.names[:-2], latents.names[-1]) == (*near.names[:-3], near.names[-1])
            and rotated.names == (*latents.names[:-1], far.names[-1])
        )
        if not fits:
            shapes = ", ".join(f"<{each.body}>" for each in (near, far, latents, rotated))
            raise self.mistake(f"{shapes} do not fit together")
        super().verify_()

    def flops(self) -> Size:
        # 2 for each pair, head, and element: scores over C + R, latents of the result over C. Softmax is not counted, as in `stg.attention`.
        near, far, latents, _ = (tensor_type(v) for v in self.operands)
        if self.pairs is not None:
            pairs = self.pairs.data
        else:
            counted = HALF if self.causal is not None else ONE
            pairs = near.dims[-3].size * latents.dims[-2].size * counted
        rows = symbolic.product(d.size for d in (*near.dims[:-3], near.dims[-2]))
        return 2 * rows * pairs * (2 * near.dims[-1].size + far.dims[-1].size)
