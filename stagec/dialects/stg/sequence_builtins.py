"""The functions of convolutions, scans and bags of rows."""

from __future__ import annotations

from xdsl.ir import Operation

from stagec.dialects.stg.builtin import Builtin, Option, Values
from stagec.dialects.stg.convolution import CausalConvOp, PatchEmbeddingOp
from stagec.dialects.stg.inference import Options
from stagec.dialects.stg.lookup import EmbeddingBagOp
from stagec.dialects.stg.scan import SsdScanOp
from stagec.dialects.stg.sequence_inference import (
    infer_causal_conv,
    infer_embedding_bag,
    infer_patch_embedding,
    infer_ssd_scan,
    patch_sizes,
    scan_sizes,
)
from stagec.symbolic import Size, constant


def build_embedding_bag(values: Values, options: Options) -> Operation:
    to = options.get("to")
    return EmbeddingBagOp(
        values[0], values[1], str(options["over"]), str(to) if to is not None else None
    )


def build_ssd_scan(values: Values, options: Options) -> Operation:
    chunk = options.get("chunk", constant(256))
    assert isinstance(chunk, Size)
    return SsdScanOp(*values, chunk=chunk)


SEQUENCE_BUILTINS = (
    Builtin(
        "embedding_bag",
        ("ids", "table"),
        "rows of tables by number, added up",
        infer_embedding_bag,
        build_embedding_bag,
        (Option("over", "dim", required=True), Option("to", "dim")),
    ),
    Builtin(
        "patch_embedding",
        ("image", "kernel"),
        "each patch of an image times a kernel: a convolution whose stride is its kernel",
        infer_patch_embedding,
        lambda values, options: PatchEmbeddingOp(values[0], values[1], str(options["patches"])),
        (Option("patches", "dim", required=True),),
        check_sizes=patch_sizes,
    ),
    Builtin(
        "causal_conv",
        ("x", "kernel"),
        "a filter along a sequence for each channel, which sees nothing later",
        infer_causal_conv,
        lambda values, options: CausalConvOp(values[0], values[1], str(options["over"])),
        (Option("over", "dim", required=True),),
    ),
    Builtin(
        "ssd_scan",
        ("x", "dt", "a", "b", "c"),
        "the state-space recurrence of Mamba-2, chunk by chunk",
        infer_ssd_scan,
        build_ssd_scan,
        (Option("chunk", "size"),),
        check_sizes=scan_sizes,
    ),
)
