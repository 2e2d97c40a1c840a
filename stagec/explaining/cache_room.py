"""How many blocks of a paged cache a device has room for, as an engine allots them when it starts.

vLLM (`Worker.determine_available_memory`, `get_num_blocks`) runs one iteration, takes what that needs beside the cache from the memory that it may use, and
divides what is left by the bytes of a block, of all layers; ranks that serve sequences together have as many blocks as the one with the least room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stagec.dialects import stg
from stagec.dialects.memory import Kind
from stagec.dialects.types import tensor_of
from stagec.explaining.job import NamedJob
from stagec.explaining.kv_cache import bytes_each, is_positional
from stagec.pictures.scales import size_of
from stagec.symbolic import Size
from stagec.unrolling.rank import RankRun


@dataclass(frozen=True)
class CacheRoom:
    """The room for caches on the ranks that have room for the fewest blocks."""

    where: str
    """The class of these ranks."""
    memory_bytes: int
    """The bytes of memory that an engine may use."""
    other_bytes: int
    """The bytes that an iteration needs beside caches."""
    block_bytes: int
    """The bytes of what the rank has of a block, in all of its layers."""
    block: int
    """Positions of a sequence in a block, on all ranks that share them."""

    @property
    def blocks(self) -> int:
        return max(0, self.memory_bytes - self.other_bytes) // self.block_bytes

    @property
    def positions(self) -> int:
        return self.blocks * self.block

    @property
    def notes(self) -> tuple[str, ...]:
        """How it is counted, for readers."""
        left = max(0, self.memory_bytes - self.other_bytes)
        of = "" if self.where == "all" else f" of {self.where}, which has least room,"
        blocks = f"{self.blocks:,} blocks of {self.block}" if self.block > 1 else "caches"
        return (
            f"of {size_of(self.memory_bytes)} an iteration{of} needs {size_of(self.other_bytes)} for other things",
            f"{size_of(left)} are left for {blocks}: {self.positions:,} positions, all sequences together",
        )


def cache_room(job: NamedJob, block: int | None = None) -> CacheRoom | None:
    """The room for caches of a plan that serves on a device whose memory is known, and whose caches grow; else nothing.

    `block` replaces the plan's size of a block.
    """
    device, batch = job.compiled.plan.device, job.compiled.checked.batch
    memory = device.memory if device.memory is not None else device.capacity
    if batch is None or memory is None:
        return None
    length = batch.serve.block if block is None else block
    found: list[CacheRoom] = []
    for each, plan in zip(job.classes, job.memory, strict=True):
        size, positions = block_of(each.run, lambda name: length * batch.sharers(name))
        if size:
            other = plan.peak_bytes - plan.static.num_bytes[Kind.CACHE]
            found.append(CacheRoom(each.name, memory, other, size, positions))
    return min(found, key=lambda room: room.blocks, default=None)


def block_of(run: RankRun, allotted: Callable[[str], Size]) -> tuple[int, int]:
    """The bytes that a rank has of a block, and the block's positions, of those that are allotted at a time by their dim."""
    size, positions = 0, 0
    for stage in run.stages:
        for op, name in positional(stage.program):
            block = allotted(name)
            size += int((block * bytes_each(op)).evaluate(stage.values))
            positions = int(block.evaluate(stage.values))
    return size, positions


def positional(program: stg.ProgramOp) -> Iterator[tuple[stg.CacheOp, str]]:
    """The caches that grow with a sequence, and the dim of their positions."""
    for op in program.body.block.ops:
        if isinstance(op, stg.CacheOp) and is_positional(op):
            name = next(n for n in tensor_of(op.cache.type).names if stg.is_stored(n))
            yield op, stg.position_dim(name)
