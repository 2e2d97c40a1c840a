"""Calculon's published method on a decoder: what it says that a step takes, in seconds.

Isaev, McDonald, Dennison and Vuduc 2023, "Calculon: a methodology and tool for high-level co-design of systems and large language models",
and the equations and system files of its repository (calculon-ai/calculon, commit caa4b11f; facts only). Each layer of a block takes its FLOPs over
a rate plus its bytes over a bandwidth, both with an efficiency by size; tensor-parallel collectives are exposed; the pipeline's bubble is `p - 1`
microbatches; gradients and parameters are exchanged beside the backward pass. As there, a step is its blocks: no embedding and no head, and
attention writes its scores.

Ours is what its blocks have not: the width of grouped keys, and a gate, which is a second product of the first one's size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

BYTES = 2
"""Of an element; states of the optimizer have 4."""
Curve = Sequence[tuple[float, float]]
"""Efficiency from a size on, the largest first."""
MATRIX: Curve = ((128e9, 0.95), (16e9, 0.9), (1e9, 0.6), (0, 0.1))
VECTOR: Curve = ((16e9, 0.95), (1e9, 0.5), (0, 0.1))
MEMORY: Curve = ((100e6, 0.9), (10e6, 0.75), (1e6, 0.6), (0, 0.3))


@dataclass(frozen=True)
class Net:
    """A tier of a network. A collective of n ranks moves `scale * (1 + offset / n)` of its bytes."""

    bytes_per_s: float
    efficiency: float
    latency_s: float
    gather: tuple[float, float] = (1, 0)
    reduce: tuple[float, float] = (1, 0)
    """Of an all-reduce."""

    def seconds(self, size: float, ranks: int, scale: float, offset: float) -> float:
        moved = size * scale
        moved += moved / ranks * offset
        return self.latency_s + moved / (self.bytes_per_s * self.efficiency)

    def gathered(self, size: float, ranks: int) -> float:
        """An all-gather, or a reduce-scatter."""
        return self.seconds(size, ranks, *self.gather)

    def reduced(self, size: float, ranks: int) -> float:
        return self.seconds(size, ranks, *self.reduce)

    def sent(self, size: float) -> float:
        return self.seconds(size, 2, 1, 0)


@dataclass(frozen=True)
class System:
    """`a100_80g.json` and `h100_80g_nvl8.json` of the repository."""

    matrix: float
    vector: float
    memory: float
    node: Net
    between: Net


NODE = 8
SYSTEMS = {
    "a100": System(
        312e12,
        78e12,
        2048e9,
        Net(300e9, 0.65, 1e-5, (1.5, -1), (2, -1)),
        Net(25e9, 0.9, 2e-5),
    ),
    "h100": System(
        1000e12, 120e12, 3072e9, Net(450e9, 0.65, 1e-5, reduce=(1, 1)), Net(50e9, 0.9, 2e-5)
    ),
}


@dataclass(frozen=True)
class Job:
    """A decoder and how it is spread."""

    system: str
    layers: int
    width: int
    inner: int
    heads: int
    key_heads: int
    sequence: int
    microbatch: int
    microbatches: int
    tp: int
    pp: int
    dp: int
    gated: bool = False
    sequence_parallel: bool = False
    recomputes: bool = False
    """Whole blocks."""
    zero: bool = False


@dataclass(frozen=True)
class Layer:
    """FLOPs and elements, forward and backward."""

    flops: tuple[float, float, float]
    """Of the forward pass, and of the gradients of its input and of its weights."""
    elements: tuple[float, float, float]
    weights: float = 0
    is_product: bool = False


def step_seconds(job: Job) -> float:
    system = SYSTEMS[job.system]
    layers = block(job)
    forward, inputs, weights = (
        sum(layer_seconds(system, layer, part) for layer in layers) for part in range(3)
    )
    again = forward if job.recomputes else 0.0
    collectives = tensor_parallel(job, system)
    per_rank = -(-job.layers // job.pp)
    size = job.microbatch * job.sequence * job.width * BYTES
    crossing = between_stages(job, system).sent(size) if job.pp > 1 else 0.0
    block_forward = forward + collectives
    block_backward = again + inputs + weights + collectives * (2 if job.recomputes else 1)
    chunk = per_rank * (block_forward + block_backward) + 2 * crossing
    missing = (job.pp - job.layers % job.pp) if job.layers % job.pp else 0
    bubble = (job.pp - 1) * chunk - missing * (block_forward + block_backward)
    own = sum(layer.weights for layer in layers)
    return (
        job.microbatches * chunk
        + max(bubble, 0)
        + per_rank * optimizer(job, system, layers)
        + exchange(job, system, own * BYTES, per_rank, block_backward)
    )


def layer_seconds(system: System, layer: Layer, part: int) -> float:
    flops, moved = layer.flops[part], layer.elements[part] * BYTES
    peak, curve = (system.matrix, MATRIX) if layer.is_product else (system.vector, VECTOR)
    computing = flops / (peak * efficiency(curve, flops))
    return computing + moved / (system.memory * efficiency(MEMORY, moved))


def efficiency(curve: Curve, size: float) -> float:
    return next(reached for least, reached in curve if size >= least)


def block(job: Job) -> list[Layer]:
    """The layers of a block on one rank."""
    tokens, tp = job.microbatch * job.sequence, job.tp
    head = job.width // job.heads
    whole = tokens * job.width
    spread = whole / tp if job.sequence_parallel else whole
    keys = job.key_heads * head / tp
    heads = job.microbatch * job.heads / tp
    scores = heads * job.sequence**2
    inner = job.inner / tp
    attention = [
        fork(spread, 2),
        norm(spread, job.width),
        fork(whole, 3),
        linear(tokens, job.width, job.width / tp),
        linear(tokens, job.width, keys),
        linear(tokens, job.width, keys),
        batched(heads, job.sequence, head, job.sequence),
        elementwise(scores, 5, 8),
        elementwise(scores, 1, 1),
        batched(heads, job.sequence, job.sequence, head),
        linear(tokens, job.width / tp, job.width),
        elementwise(spread, 1, 1),
        elementwise(spread, 1, 2, inputs=2),
    ]
    feed_forward = [
        fork(spread, 2),
        norm(spread, job.width),
        linear(tokens, job.width, inner),
        *([linear(tokens, job.width, inner)] if job.gated else []),
        elementwise(tokens * inner, 8, 13),
        linear(tokens, inner, job.width),
        elementwise(spread, 1, 1),
        elementwise(spread, 1, 2, inputs=2),
    ]
    return list(chain(attention, feed_forward))


def linear(m: float, n: float, k: float) -> Layer:
    flops = 2 * m * n * k
    moved = m * n + m * k + n * k
    return Layer((flops, flops, flops), (moved, moved, moved), n * k, True)


def batched(batch: float, m: float, n: float, k: float) -> Layer:
    flops = 2 * batch * m * n * k
    moved = batch * (m * n + n * k + m * k)
    return Layer((flops, 2 * flops, 0), (moved, moved, 0), 0, True)


def norm(size: float, width: int) -> Layer:
    moved = 2 * size + 2 * width
    return Layer((9 * size, 14 * size, 7 * size), (moved, moved, moved), 2 * width)


def elementwise(size: float, forward: int, backward: int, inputs: int = 1) -> Layer:
    moved = (inputs + 1) * size
    return Layer((forward * size, backward * size, 0), (moved, moved, 0))


def fork(size: float, users: int) -> Layer:
    """Gradients of all its users are added up."""
    return Layer((0, users * size, 0), (0, (users + 1) * size, 0))


def tensor_parallel(job: Job, system: System) -> float:
    """Seconds of a block's collectives in one pass: two gathers and two reduce-scatters, or two all-reduces."""
    if job.tp == 1:
        return 0.0
    net = system.node if job.tp <= NODE else system.between
    size = job.microbatch * job.sequence * job.width * BYTES
    if job.sequence_parallel:
        return 4 * net.gathered(size, job.tp)
    return 2 * net.reduced(size, job.tp)


def between_stages(job: Job, system: System) -> Net:
    return system.node if job.tp * job.pp <= NODE else system.between


def optimizer(job: Job, system: System, layers: Sequence[Layer]) -> float:
    """Adam: 11 FLOPs a weight, and a copy and two moments in fp32."""
    ways = job.dp if job.zero else 1
    found = 0.0
    for layer in layers:
        flops, moved = 11 * layer.weights / ways, 12 * layer.weights / ways
        if flops:
            found += flops / (system.vector * efficiency(VECTOR, flops))
            found += moved / (system.memory * efficiency(MEMORY, moved))
    return found


def exchange(job: Job, system: System, size: float, blocks: int, backward: float) -> float:
    """What gradients and parameters take beyond the backward pass of the blocks before the last."""
    if job.dp == 1:
        return 0.0
    net = system.node if job.tp * job.pp * job.dp <= NODE else system.between
    one = 2 * net.gathered(size, job.dp) if job.zero else net.reduced(size, job.dp)
    return one + max(0.0, (blocks - 1) * (one - backward))
