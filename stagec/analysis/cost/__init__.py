"""FLOPs, and bytes read and written, of one op on one device, as exact expressions.

2 FLOPs per multiply-add. An elementwise function counts as one operation per element, whatever the
hardware makes of it: what matters of such an op is its bytes. `flops` and `op_bytes` dispatch on the op's
class; register a class of your own with `@flops.register`.
"""

from stagec.analysis.cost import rules as rules
from stagec.analysis.cost import sequences as sequences
from stagec.analysis.cost.base import Bytes, elements, flops, is_free, num_bytes, op_bytes

MATRIX_OPS = frozenset(
    {
        "attention",
        "attention_grad",
        "contract",
        "patch_embedding",
        "patch_image_grad",
        "patch_kernel_grad",
        "ssd_scan",
        "ssd_scan_grad",
    }
)
"""Ops that run on matrix units: the FLOPs that published training FLOPs count."""

__all__ = [
    "MATRIX_OPS",
    "Bytes",
    "elements",
    "flops",
    "is_free",
    "num_bytes",
    "op_bytes",
]
