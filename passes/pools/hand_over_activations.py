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

Where devices that dispatch have other sequences each (`dist.sequences ... together`), each message with one of them has the size of what that one sends.
So it is where experts are not equally busy (`dist.expert_load`): what a device gets is of its experts, from all devices alike.
Nobody splits those tokens again (E0423).

A module of which nobody said what other pools hold (`dist.gives`, `dist.takes`) is left as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, UnitAttr
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from stagec.analysis.expert_loads import ExpertLoad, Loads
from stagec.analysis.handing_over import Messages, PoolSide, messages, other_side
from stagec.analysis.sequences import ModuleSequences, at_device
from stagec.analysis.sizes import mesh_of, module_of
from stagec.diagnostics import CompileError, refused, span_of
from stagec.dialects import dist, sched, stg
from stagec.dialects.attributes import LayerStagesAttr
from stagec.dialects.types import TIME_AXES, TensorType, tensor_of
from stagec.rewriting import insert_before, programs, rewrite
from stagec.symbolic import ZERO, Size, constant, symbol

NAME = "hand-over-activations"


@dataclass(frozen=True)
class HandOverActivations(ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        handed = [each for each in op.body.ops if isinstance(each, dist.HandedOp)]
        said = {each.path.data: each for each in handed}
        rewrite(op, HandOver(op, said), NAME, once=True)


@dataclass(frozen=True)
class HandOver(RewritePattern):
    module: ModuleOp
    said: Mapping[str, dist.HandedOp]

    @op_type_rewrite_pattern
    def match_and_rewrite(
        self, op: dist.TowerSendOp | dist.TowerRecvOp, rewriter: PatternRewriter
    ) -> None:
        if op.path not in self.said:
            return
        messages = one_each(self.module, op, self.said[op.path])
        is_recv = isinstance(op, dist.TowerRecvOp)
        made = (
            received(op, messages)
            if is_recv
            else [dist.PoolSendOp([op.value], message=m) for m in messages]
        )
        # Within layers tokens go to experts or come back: what reads the last part waits, and another microbatch may go first.
        if is_within_layers(self.module):
            for each in made:
                each.purpose = StringAttr("ep")
            if isinstance(made[-1], dist.PoolRecvOp):
                made[-1].gives_way = UnitAttr()
        rewriter.replace(op, made)


def received(op: dist.TowerRecvOp, messages: Sequence[sched.PoolMessage]) -> list[dist.PoolRecvOp]:
    """The first part of it makes the buffer, the others are written into that."""
    made: list[dist.PoolRecvOp] = []
    for message in messages:
        before = made[-1].result if made else None
        made.append(dist.PoolRecvOp(before, message=message, like=op.value.type))
    return made


def is_within_layers(module: ModuleOp) -> bool:
    return any(isinstance(op, dist.ExpertsOp) for op in module.body.ops)


def messages_of(module: ModuleOp, holds: TensorType, said: dist.HandedOp) -> Messages:
    pool = next(each for each in module.body.ops if isinstance(each, dist.PoolOp))
    axis = dist.stage_axis(module)
    own = PoolSide(pool.first.value.data, dict(mesh_of(module)), holds, 1, axis)
    gives = isinstance(said, dist.GivesOp)
    return messages(own, other_side(said), said.moving.data, holds.names[0], gives)


def one_each(
    module: ModuleOp, op: dist.TowerSendOp | dist.TowerRecvOp, said: dist.HandedOp
) -> list[sched.PoolMessage]:
    """One with each rank of the other pool, in each stage that has its end there."""
    value = tensor_of(op.value.type)
    loads = Loads.of(module).loads
    same = {load.op.dim.data: load.op.tokens.data for load in loads}
    found = messages_of(module, value.with_names(same), said)
    sizes = sizes_by_device(module, op, said, found)
    for load in loads:
        if load.op.tokens.data in said.holds.names:
            sizes = loaded(load, op, said, found, sizes)
    pool, channel = said.pool.data, said.channel.value.data
    # What is told once per step, or within layers, is no transfer that a pipeline's schedule places.
    is_placed = op.direction.data != dist.TIED and not is_within_layers(module)
    direction = op.direction.data if is_placed else ""
    stages = [None]
    if said.stages is not None:
        stages = [LayerStagesAttr((stage,)) for stage in said.stages.data]
    return [
        sched.PoolMessage(pool, rank, channel, value.dtype, size, stage, direction)
        for stage in stages
        for rank, size in zip(found.ranks, sizes, strict=True)
    ]


def loaded(
    load: ExpertLoad,
    op: dist.TowerSendOp | dist.TowerRecvOp,
    said: dist.HandedOp,
    found: Messages,
    sizes: Sequence[Size],
) -> list[Size]:
    """The bytes of each message where experts are not equally busy: of what those of the device that has them have."""
    tokens, experts = load.op.tokens.data, load.op.experts.data
    holds, mesh = tensor_of(op.value.type), dict(mesh_of(module_of(op)))
    if load.elsewhere:
        holds, mesh = said.holds, dict(said.mesh.data.axes)
    if any(axis not in TIME_AXES and mesh[axis] > 1 for axis in holds.dims[1].split):
        raise split_again(op, "experts are not equally busy, and their tokens")
    made: list[Size] = []
    for size, place in zip(sizes, found.places, strict=True):
        name = load.at(place[experts].integer({})) if load.elsewhere else load.op.dim.data
        made.append(size.substitute({tokens: symbol(name)}))
    return made


def split_again(op: Operation, what: str) -> CompileError:
    """E0423 for tokens of which devices have not as many, and which other devices would have parts of."""
    help_ = "split experts, or their widths, over the devices of the pool that computes them"
    return refused(
        "E0423", f"{what} are split again where they arrive", span_of(op.location), help=help_
    )


def sizes_by_device(
    module: ModuleOp, op: dist.TowerSendOp | dist.TowerRecvOp, said: dist.HandedOp, found: Messages
) -> list[Size]:
    """The bytes of each message: of what the device at the other end has of tokens, where that is not the same on each."""
    alike = [found.num_bytes] * len(found.ranks)
    sequences = ModuleSequences.of(module)
    if sequences is None or not sequences.of_devices:
        return alike
    ways = sequences.apart.num_devices
    size = sequences.in_sums(found.num_bytes)
    names = sorted(size.names & sequences.op.sizes.keys())
    dims = [n for n in said.holds.names if sequences.concern(symbol(n)) and n in found.places[0]]
    places = [next((p[n] for n in dims if p[n].names or p[n] != ZERO), ZERO) for p in found.places]
    sizes = dict(said.mesh.data.axes)
    split = prod(sizes.get(axis, 1) for name in dims for axis in said.holds.dim(name).split)
    if any(place.names for place in places) or split != ways:
        raise split_again(op, "devices dispatch tokens of sequences of their own, and these")
    made: list[Size] = []
    for place in places:
        at = place.integer({})
        own = {name: at_device(name, at) for name in names}
        for other in own.values():
            add_dim(module, other, int(sequences.each[0].columns(0).names[other][0]))
        made.append(size.substitute({name: ways * symbol(other) for name, other in own.items()}))
    return made


def add_dim(module: ModuleOp, name: str, number: int) -> None:
    """A sum of one device of the other pool, as a name of sizes."""
    block = module.body.block
    if not any(isinstance(op, stg.DimOp) and op.dim.data == name for op in block.ops):
        op, program = stg.DimOp(name, constant(number)), programs(module)[0]
        insert_before(program, [op])
