"""What kind of work a kernel is: an op says it, its task keeps it, and estimates and sums read it there.

Names of nodes are for readers: `contract` in a trace may be a product, or what a model calls an op of its own.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from xdsl.irdl import irdl_attr_definition

from stagec.dialects.text_forms import WrittenData, word


class Work(StrEnum):
    """How a device does it. What is none of these moves memory, and is a kernel of its own."""

    OTHER = "other"
    PRODUCT = "product"
    """A matrix product: of two operands, over the dims that both have and the result lacks."""
    CONVOLUTION = "convolution"
    """By matrix units, as products of patches."""
    SCAN = "scan"
    """The scan of a state-space model, in chunks that are products (Dao and Gu 2024)."""
    SCAN_GRAD = "scan_grad"
    DELTA_RULE = "delta_rule"
    """The recurrence of a gated delta net, in chunks that are solved and are products (Yang et al. 2024)."""
    DELTA_RULE_GRAD = "delta_rule_grad"
    ATTENTION = "attention"
    """Fused: of queries, keys and values."""
    ATTENTION_GRAD = "attention_grad"
    """The gradient of a fused attention, which makes the scores again."""
    LATENT_ATTENTION = "latent_attention"
    """The attention of queries in two parts to a latent cache."""
    ELEMENTWISE = "elementwise"
    """Each element of elements at the same place."""
    ROTATION = "rotation"
    """Elementwise, of pairs of elements: one kernel of a rotary embedding, with its angles."""
    CAST = "cast"
    """Elementwise: the same numbers in another dtype."""
    QUANTIZE = "quantize"
    """Elementwise: the same numbers in fewer bits, with scales."""
    REDUCTION = "reduction"
    """Elementwise, with sums over a dim."""
    LOSS_GRAD = "loss_grad"
    """Elementwise: of the logits of a cross-entropy, from what it kept of each row."""
    NORM_WEIGHT_GRAD = "norm_weight_grad"
    """Made by the kernel of the gradient of the norm's input, which reads the same."""
    SLICE = "slice"
    """A part of the operand."""
    BAG = "bag"
    """Rows of tables that categories name, added up."""
    DISPATCH = "dispatch"
    """Tokens to the places of the experts that they go to."""
    APPEND = "append"
    """What is new to a cache."""
    COMBINE = "combine"
    """What experts made of tokens, weighed and added up."""
    ORTHOGONALIZATION = "orthogonalization"
    """The orthogonalization of matrices by products of an optimizer, which are no FLOPs of a model."""
    PRECONDITIONING = "preconditioning"
    """The preconditioning of gradients by products and decompositions in single precision, which are no FLOPs of a model."""
    WAIT = "wait"
    """No kernel: what follows waits."""

    @property
    def on_matrix_units(self) -> bool:
        """Whether its FLOPs are those that published training FLOPs count."""
        return self in MATRIX

    @property
    def keeps_values(self) -> bool:
        """Whether the result is the operand in another dtype."""
        return self in (Work.CAST, Work.QUANTIZE)


MATRIX = frozenset(
    (
        *(Work.PRODUCT, Work.CONVOLUTION, Work.SCAN, Work.SCAN_GRAD),
        *(Work.DELTA_RULE, Work.DELTA_RULE_GRAD),
        *(Work.ATTENTION, Work.ATTENTION_GRAD, Work.LATENT_ATTENTION),
    )
)


@irdl_attr_definition
class WorkAttr(WrittenData[Work]):
    """The kind of a task's work: `product`."""

    name = "sched.work"
    FORM: ClassVar = word("a kind of work", {str(work): work for work in Work})
