"""What an op of `sched` is in a trace, in numbers: the action of a node. Each op says its own (`NodeOp.action`)."""

from __future__ import annotations

from dataclasses import dataclass

from stagec.dialects.work import Work
from stagec.symbolic import Size


@dataclass(frozen=True, slots=True)
class Kernel:
    """A product or attention, by its sizes, or a quantization, by its format: see `stagec.analysis.kernels`."""

    kind: Work
    dtype: str
    sizes: tuple[tuple[str, int], ...]
    requests: tuple[tuple[int, int, int], ...] = ()
    """Of attention about several kinds of sequences in a row: how many of each, of how many new positions, that attend to how many."""
    stored: str = ""
    """Of attention what keys and values, or latents, are read in: a cache may be narrower than queries. Of a product the format of a weight that is
    stored quantized."""
    agreed: tuple[str, ...] = ()
    """Of a quantization whose result is gathered, the axes of the ranks that gather it. Where the format has a scale of the whole tensor, these ranks agree on
    the largest number first."""
    behind: str = ""
    """Of a quantization that alone reads what it reads, what made that: a `norm`, or an `activation` of what linear layers made, or its gradient."""


@dataclass(frozen=True, slots=True)
class Compute:
    """Work on the device: `num_ops` FLOPs and `num_bytes` moved to and from its memory."""

    num_ops: int
    num_bytes: int
    num_written: int = 0
    """How many of the bytes are written."""
    kernel: Kernel | None = None
    """None for what moves memory more than it computes."""
    work: Work = Work.OTHER
    num_kernels: int = 1
    """The number of kernels that the host launches for it."""
    read_before: float = 0.0
    """The share of what it reads that elementwise ops in front of it read too, which can be one kernel with it: see `stagec.analysis.kernels`."""


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective over the group of ranks that differ only along `axes`.

    `kind` is `all_gather`, `all_reduce`, `reduce_scatter` or `all_to_all`. Bytes are those of one
    rank's buffers before and after. `among` keeps of the group the ranks with these coordinates
    along an axis: `(("pp", (0, 15)),)` for an embedding that the first and last stage share.
    """

    kind: str
    axes: tuple[str, ...]
    operand_bytes: int
    result_bytes: int
    dtype: str
    among: tuple[tuple[str, tuple[int, ...]], ...] = ()
    ranks: int = 0
    """How many ranks all pools of the job have together, for a collective over all of them."""

    @property
    def over(self) -> str:
        """The axes."""
        return "+".join(self.axes)


@dataclass(frozen=True, slots=True)
class Peer:
    """A rank of another pool, by its number in the whole job: a size in the coordinates (`tp.index`) of a rank of this one."""

    pool: str
    rank: Size
    handed: int | None = None
    """In a series: which handover of its iteration the message is part of."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A send or a receive: the peer is `shift` further along `axes` (as one axis, modulo its size), or a rank of another pool.

    Both ends carry the same tag: `channel`, and the instance's `tag`, decide it.
    """

    kind: str  # "send" | "recv"
    axes: tuple[str, ...]
    shift: int
    num_bytes: int
    channel: int
    dtype: str
    peer: Peer | None = None

    @property
    def over(self) -> str:
        """The axes, or the pool at the other end."""
        return self.peer.pool if self.peer is not None else "+".join(self.axes)


@dataclass(frozen=True, slots=True)
class HostCopy:
    """An offload: `load` brings bytes from host memory to the device, `store` takes them there; between NVMe and host memory it is `read` and `write`."""

    kind: str  # "load" | "store" | "read" | "write"
    num_bytes: int

    @property
    def is_of_nvme(self) -> bool:
        return self.kind in ("read", "write")


@dataclass(frozen=True, slots=True)
class HostUpdate:
    """The optimizer's step on the CPU of the host, which moves bytes of its memory."""

    num_ops: int
    num_bytes: int

    @property
    def kind(self) -> str:
        return "update"


NodeAction = Compute | Collective | Transfer | HostCopy | HostUpdate

Sum = tuple[Size, ...]
"""Sizes that are rounded up, each for itself, and added."""
