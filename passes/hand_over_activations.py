"""Hand activations and their gradients over between pools that train, as messages between single ranks.

Before `hand-over-activations`:

    !x = !stg.tensor<[B/(mb*dp), D], bf16>
    stg.dim "mb" = "2"
    dist.mesh <dp = 1>
    dist.pool "text" ranks 2 to 3 of 3
    dist.takes "forward 0" of "vision" from 0 mesh <dp = 2> as <[B/(mb*dp), D], bf16> moving "B*D/mb" channel 0 microbatches 1
    stg.program "M" () {
      stg.accumulate over "mb" {
        %v = dist.tower_recv "forward" 0 of "vision" : !x
        stg.yield
      }
      stg.output
    }

After:

    !x = !stg.tensor<[B/(mb*dp), D], bf16>
    stg.dim "mb" = "2"
    dist.mesh <dp = 1>
    dist.pool "text" ranks 2 to 3 of 3
    dist.takes "forward 0" of "vision" from 0 mesh <dp = 2> as <[B/(mb*dp), D], bf16> moving "B*D/mb" channel 0 microbatches 1
    stg.program "M" () {
      stg.accumulate over "mb" {
        %v = dist.pool_recv from "vision" going "forward" rank "0" channel 0 in "bf16" bytes "B*D/mb" {made_by = "hand-over-activations"} : -> !x
        %v2 = dist.pool_recv (%v) from "vision" going "forward" rank "1" channel 0 in "bf16" bytes "B*D/mb" {made_by = "hand-over-activations"} : !x -> !x
        stg.yield
      }
      stg.output
    }

Each device is sent every byte that it holds once, from those that have it: a dim that both sides split is cut into the parts that both
divide, and what several devices have, each sends a share of (`stagec.analysis.handing_over`). So pools need neither the same width of data
parallelism nor of tensor parallelism, and no gather stands before a send. Megatron-LM's bridge between modules on grids of their own
(`megatron/core/pipeline_parallel/bridge_communicator.py`) sends from one rank of a tensor-parallel group to one of another, which broadcasts.

A module of which nobody said what other pools hold (`dist.gives`, `dist.takes`) is left as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, UnitAttr
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from stagec.analysis.handing_over import Messages, PoolSide, messages, other_side
from stagec.analysis.sizes import mesh_of
from stagec.dialects import dist, sched
from stagec.dialects.attributes import LayerStagesAttr
from stagec.dialects.types import TensorType, tensor_of
from stagec.rewriting import insert_before, programs

NAME = "hand-over-activations"


@dataclass(frozen=True)
class HandOverActivations(ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        handed = [each for each in op.body.ops if isinstance(each, dist.HandedOp)]
        said = {each.path.data: each for each in handed}
        for program in programs(op):
            for crossing in list(program.walk()):
                if isinstance(crossing, dist.TowerSendOp) and crossing.path in said:
                    send(op, crossing, said[crossing.path])
                elif isinstance(crossing, dist.TowerRecvOp) and crossing.path in said:
                    receive(op, crossing, said[crossing.path])


def send(module: ModuleOp, op: dist.TowerSendOp, said: dist.HandedOp) -> None:
    made = [dist.PoolSendOp([op.value], each) for each in one_each(module, op, said)]
    mark_exchange(module, made)
    insert_before(op, made, NAME)
    Rewriter.erase_op(op)


def receive(module: ModuleOp, op: dist.TowerRecvOp, said: dist.HandedOp) -> None:
    """The first part of it makes the buffer, the others are written into that."""
    made: list[dist.PoolRecvOp] = []
    for message in one_each(module, op, said):
        before = made[-1].result if made else None
        made.append(dist.PoolRecvOp(before, message, op.value.type))
    mark_exchange(module, made)
    insert_before(op, made, NAME)
    made[-1].result.name_hint = op.value.name_hint
    op.value.replace_all_uses_with(made[-1].result)
    Rewriter.erase_op(op)


def mark_exchange(module: ModuleOp, made: Sequence[dist.PoolSendOp | dist.PoolRecvOp]) -> None:
    """Within layers tokens go to experts or come back: what reads the last part waits, and another microbatch may go first."""
    if is_within_layers(module):
        for each in made:
            each.purpose = StringAttr("ep")
        if isinstance(made[-1], dist.PoolRecvOp):
            made[-1].gives_way = UnitAttr()


def is_within_layers(module: ModuleOp) -> bool:
    return any(isinstance(op, dist.ExpertsOp) for op in module.body.ops)


def messages_of(module: ModuleOp, holds: TensorType, said: dist.HandedOp) -> Messages:
    pool = next(each for each in module.body.ops if isinstance(each, dist.PoolOp))
    stages = next((each for each in module.body.ops if isinstance(each, dist.StagesOp)), None)
    axis = stages.axis.data if stages is not None else ""
    own = PoolSide(pool.first.value.data, dict(mesh_of(module)), holds, 1, axis)
    gives = isinstance(said, dist.GivesOp)
    return messages(own, other_side(said), said.moving.data, holds.names[0], gives)


def one_each(
    module: ModuleOp, op: dist.TowerSendOp | dist.TowerRecvOp, said: dist.HandedOp
) -> list[sched.PoolMessage]:
    """One with each rank of the other pool, in each stage that has its end there."""
    value = tensor_of(op.value.type)
    found = messages_of(module, value, said)
    pool, channel = said.pool.data, said.channel.value.data
    # What is told once per step, or within layers, is no transfer that a pipeline's schedule places.
    is_placed = op.direction.data != dist.TIED and not is_within_layers(module)
    direction = op.direction.data if is_placed else ""
    stages = [None]
    if said.stages is not None:
        stages = [LayerStagesAttr((stage,)) for stage in said.stages.data]
    return [
        sched.PoolMessage(pool, rank, channel, value.dtype, found.num_bytes, stage, direction)
        for stage in stages
        for rank in found.ranks
    ]
