"""Hand what a pool of ranks computes of caches to another pool, and take it there.

Before `hand-over-caches`:

    !c = !stg.tensor<[B, T.stored, K/tp, E], bf16>
    !n = !stg.tensor<[B, S, K/tp, E], bf16>
    !k = !stg.tensor<[B, T, K/tp, E], bf16>
    dist.mesh <tp = 2>
    dist.pool "prefill" ranks 0 to 2 of 6
    dist.gives "k" to "decode" from 2 mesh <tp = 4> as <[B, T.stored, K/tp, E], bf16> moving "64*E*K" channel 0 microbatches 1
    stg.program "M" (%x : !n) {
      %cache = stg.cache "k" : !c
      %all = stg.append %cache, %x over "S" into "T" : (!c, !n) -> !k
      stg.output
    }

After:

    !c = !stg.tensor<[B, T.stored, K/tp, E], bf16>
    !n = !stg.tensor<[B, S, K/tp, E], bf16>
    !k = !stg.tensor<[B, T, K/tp, E], bf16>
    dist.mesh <tp = 2>
    dist.pool "prefill" ranks 0 to 2 of 6
    dist.gives "k" to "decode" from 2 mesh <tp = 4> as <[B, T.stored, K/tp, E], bf16> moving "64*E*K" channel 0 microbatches 1
    stg.program "M" (%x : !n) {
      %cache = stg.cache "k" : !c
      %all = stg.append %cache, %x over "S" into "T" : (!c, !n) -> !k
      dist.pool_send (%all) to "decode" rank "2 + 2*tp.index" channel 0 in "bf16" bytes "32*E*K" {apart, made_by = "hand-over-caches"} : !k
      dist.pool_send (%all) to "decode" rank "3 + 2*tp.index" channel 0 in "bf16" bytes "32*E*K" {apart, made_by = "hand-over-caches"} : !k
      stg.output
    }

A send waits for what writes the cache in its layer, and for nothing after it: it overlaps the layers that follow, as Splitwise transfers a
prompt's cache layer by layer (Patel et al. 2024, arXiv:2311.18677). The other end writes into the cache, before anything reads it there.
Which messages there are is `stagec.analysis.handing_over`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from stagec.analysis.handing_over import Messages, PoolSide, messages, other_side
from stagec.analysis.sizes import mesh_of, size_values
from stagec.dialects import dist, sched, stg
from stagec.dialects.op import block_of
from stagec.dialects.types import TIME_AXIS, tensor_of
from stagec.rewriting import insert_after, insert_before, programs

NAME = "hand-over-caches"

WRITERS = (stg.AppendOp, stg.FillOp, stg.ResumedOp)
"""Ops that write what requests keep."""


@dataclass(frozen=True)
class HandOverCaches(ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        pool = dist.pool_of(op)
        if pool is None:
            return
        # What is received takes the place of a cache where it is read, so what writes it is looked for before.
        for kind in (dist.GivesOp, dist.TakesOp):
            for said in [each for each in op.body.ops if isinstance(each, kind)]:
                for program in programs(op):
                    hand_over(op, pool, said, program)


def hand_over(
    module: ModuleOp, pool: dist.PoolOp, said: dist.GivesOp | dist.TakesOp, program: stg.ProgramOp
) -> None:
    """One cache, in the program of one kind of stage."""
    for op in list(program.walk()):
        if not isinstance(op, stg.CacheOp) or op.path.data != said.path.data:
            continue
        for cache in in_layers(op.cache):
            found = messages_of(module, pool, said, cache)
            if isinstance(said, dist.GivesOp):
                send(cache, said, found)
            else:
                receive(cache, said, found)


def in_layers(cache: SSAValue) -> Iterator[SSAValue]:
    """A cache where ops see it: as a slice in the repeats that take it apart."""
    is_read = False
    for use in list(cache.uses):
        if isinstance(use.operation, stg.RepeatOp):
            number = list(use.operation.stacks).index(cache)
            yield from in_layers(use.operation.slice_args[number])
        else:
            is_read = True
    if is_read:
        yield cache


def messages_of(
    module: ModuleOp, pool: dist.PoolOp, said: dist.GivesOp | dist.TakesOp, cache: SSAValue
) -> Messages:
    values = size_values(module)
    axis = dist.stage_axis(module)
    holds = tensor_of(cache.type)
    own = PoolSide(pool.first.value.data, dict(mesh_of(module)), holds, values[TIME_AXIS], axis)
    other = other_side(said)
    return messages(own, other, said.moving.data, holds.names[0], isinstance(said, dist.GivesOp))


def send(cache: SSAValue, said: dist.GivesOp, found: Messages) -> None:
    """Behind what writes the cache."""
    for op in [use.operation for use in cache.uses if isinstance(use.operation, WRITERS)]:
        written = op.results[0]
        made = [
            dist.PoolSendOp([written], message=message) for message in one_each(cache, said, found)
        ]
        set_apart(made)
        insert_after(op, made, NAME)


def receive(cache: SSAValue, said: dist.TakesOp, found: Messages) -> None:
    """Before anything in its block sees it."""
    uses = list(cache.uses)
    block = block_of(uses[0].operation)
    readers = {use.operation for use in uses}
    first = next(op for op in block.ops if any(inner in readers for inner in op.walk()))
    made: list[dist.PoolRecvOp] = []
    value = cache
    for message in one_each(cache, said, found):
        op = dist.PoolRecvOp(value, message=message)
        made.append(op)
        value = op.result
    for use in uses:
        use.operation.operands[use.index] = value
    set_apart(made)
    insert_before(first, made, NAME)


def one_each(cache: SSAValue, said: dist.HandedOp, found: Messages) -> Iterator[sched.PoolMessage]:
    """One with each rank of the other pool."""
    channel, dtype = said.channel.value.data, tensor_of(cache.type).dtype
    for rank in found.ranks:
        yield sched.PoolMessage(said.pool.data, rank, channel, dtype, found.num_bytes, said.stages)


def set_apart(made: Sequence[dist.PoolSendOp | dist.PoolRecvOp]) -> None:
    """Each is issued apart from its neighbours."""
    for op in made:
        stg.marks(op)["apart"] = UnitAttr()
