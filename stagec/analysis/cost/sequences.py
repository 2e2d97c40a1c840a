"""Costs of convolutions and of the state-space scan."""

from __future__ import annotations

from stagec import symbolic
from stagec.analysis.cost.base import Bytes, all_bytes, elements, flops, op_bytes
from stagec.dialects import stg
from stagec.symbolic import Size

STATE_BYTES = 4
"""Of an element of a chunk's state, and of c b^T: mamba_ssm's kernels hand both on in fp32."""


def patch_products(patches: stg.TensorType, kernel: stg.TensorType) -> Size:
    """2 per multiply-add: each patch's pixels times each column of the kernel."""
    pixels = symbolic.product(d.size for d in kernel.dims[:-1])
    return 2 * patches.num_elements * pixels


@flops.register
def _(op: stg.PatchEmbeddingOp) -> Size:
    return patch_products(stg.tensor_type(op.result), stg.tensor_type(op.kernel))


@flops.register
def _(op: stg.PatchKernelGradOp) -> Size:
    return patch_products(stg.tensor_type(op.dy), stg.tensor_type(op.dkernel))


@flops.register
def _(op: stg.PatchImageGradOp) -> Size:
    return patch_products(stg.tensor_type(op.dy), stg.tensor_type(op.kernel))


@flops.register
def _(op: stg.CausalConvOp) -> Size:
    return 2 * elements(op.x) * stg.tensor_type(op.kernel).dims[0].size


@flops.register
def _(op: stg.CausalConvKernelGradOp) -> Size:
    return 2 * elements(op.x) * stg.tensor_type(op.dkernel).dims[0].size


# State-space scan


def scan_products(op: stg.SsdScanOp | stg.SsdScanGradOp) -> tuple[Size, Size, Size, Size]:
    """FLOPs of the four products of a scan by chunks (Dao and Gu 2024, section 6.3).

    With T steps of H heads, chunks of Q, width E, state N and G groups: c b^T within chunks, 2 T Q N G; that times x, 2 T Q E H; the state
    that each chunk makes, and what each step reads of the state before its chunk, 2 T N E H each. All Q x Q pairs of a chunk count, as its kernels compute
    them; elementwise work (decay, cumulative sums) does not.
    """
    x, b = stg.tensor_type(op.x), stg.tensor_type(op.b)
    chunk = symbolic.call("min", op.chunk.data, x.dims[-3].size)
    inner = 2 * chunk * b.num_elements
    outer = 2 * chunk * x.num_elements
    state = 2 * x.num_elements * b.dims[-1].size
    return inner, outer, state, state


def recurrence(op: stg.SsdScanOp | stg.SsdScanGradOp) -> Size:
    """FLOPs from chunk to chunk: each element of a state decays and takes in another, 2 (T/Q) N E H."""
    return 2 * states(op)


def states(op: stg.SsdScanOp | stg.SsdScanGradOp) -> Size:
    """Elements of the states of all chunks."""
    x, b = stg.tensor_type(op.x), stg.tensor_type(op.b)
    *rows, sequence, heads, width = x.dims
    chunks = symbolic.ceildiv(sequence.size, op.chunk.data)
    return chunks * symbolic.product(d.size for d in (*rows, heads, width, b.dims[-1]))


def pair_elements(op: stg.SsdScanOp | stg.SsdScanGradOp) -> Size:
    """Elements of c b^T, a Q x Q square per chunk and group."""
    x, b = stg.tensor_type(op.x), stg.tensor_type(op.b)
    chunk = symbolic.call("min", op.chunk.data, x.dims[-3].size)
    return symbolic.product(d.size for d in b.dims[:-1]) * chunk


@flops.register
def _(op: stg.SsdScanOp) -> Size:
    return symbolic.total(scan_products(op)) + recurrence(op)


@op_bytes.register
def _(op: stg.SsdScanOp) -> Bytes:
    # Five kernels (mamba_ssm, ssd_combined.py): states are written, passed on from chunk to chunk (read, written) and
    # read again; c b^T is written and read.
    between = STATE_BYTES * (2 * states(op) + pair_elements(op))
    return Bytes(all_bytes(op.operands) + between, all_bytes(op.results) + between)


@flops.register
def _(op: stg.SsdScanGradOp) -> Size:
    # For both operands of each of the four products, and again of those whose results were not kept: c b^T, the states, and
    # dy x^T, which the gradients of c b^T and of the decay make apart (`_mamba_chunk_scan_combined_bwd`). The recurrence runs
    # forward again, and backward.
    inner, outer, made, read = scan_products(op)
    return 3 * inner + 3 * outer + 3 * made + 2 * read + 2 * recurrence(op)


@op_bytes.register
def _(op: stg.SsdScanGradOp) -> Bytes:
    # Both states and their gradients go through memory as in the forward pass, c b^T and its gradient too.
    between = STATE_BYTES * 2 * (2 * states(op) + pair_elements(op))
    return Bytes(all_bytes(op.operands) + between, all_bytes(op.results) + between)
