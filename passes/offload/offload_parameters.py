"""Keep parameters in the memory of the host, and load them where they are used.

Before `offload-parameters{prefetch=1}`:

    stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
      %ws = stg.weight "w" : !stg.stack<"L" x !stg.tensor<[D], bf16>>
      %y = stg.repeat "L" carry(%h = %x : !stg.tensor<[B, D], bf16>)
          slice(%w = %ws : !stg.stack<"L" x !stg.tensor<[D], bf16>>) -> (!stg.tensor<[B, D], bf16>) {
        %m = stg.mul %h, %w : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
        stg.yield %m : !stg.tensor<[B, D], bf16>
      }
      stg.output
    }

After:

    stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
      %ws = stg.weight "w" : !stg.stack<"L" x !stg.tensor<[D], bf16>>
      %y = stg.repeat "L" carry(%h = %x : !stg.tensor<[B, D], bf16>)
          slice(%w = %ws : !stg.stack<"L" x !stg.tensor<[D], bf16>>) -> (!stg.tensor<[B, D], bf16>) {
        %d = dist.load (%w) {phase = "fwd", prefetch = 1 : i64, made_by = "offload-parameters"}
          : (!stg.tensor<[D], bf16>) -> !stg.tensor<[D], bf16>
        %m = stg.mul %h, %d : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
        stg.yield %m : !stg.tensor<[B, D], bf16>
      }
      stg.output
    }

ZeRO-Infinity (Rajbhandari et al. 2021, arXiv:2104.07857, sections 5 and 6): the parameters of a layer are loaded as a whole,
`prefetch` layers ahead, for its forward pass and again for its backward pass, and are on the device no longer than that. Under `zero 3`
the rank's shards are loaded, then gathered; a gather that is itself issued ahead has its load `prefetch` layers before that. A
parameter outside of layers is loaded alone, and gathered, when it is due. What is `persistent` stays on the device, as in DeepSpeed (`_partition_param` of
`partition_parameters.py`). The update is `offload-optimizer`'s.

With `nvme` they are read from NVMe into the memory of the host one layer before they are loaded, as DeepSpeed reads those that come behind what it fetches
(`__prefetch_nvme_param_partitions` in `partitioned_param_coordinator.py`), and that memory is free again behind the load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, UnitAttr, i64
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from stagec.dialects import dist, stg
from stagec.dialects.op import ancestor_in, block_of
from stagec.rewriting import insert_before, programs

NAME = "offload-parameters"


@dataclass(frozen=True)
class OffloadParameters(ModulePass):
    name = NAME

    prefetch: int = 1
    """How many layers ahead parameters are loaded."""
    nvme: bool = False
    """Whether they are on NVMe, and read from there a layer before they are loaded."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for program in programs(op):
            Loading(self, program).run()


@dataclass
class Loading:
    options: OffloadParameters
    program: stg.ProgramOp
    on_host: dict[SSAValue, None] = field(default_factory=dict)
    """Parameters, and what repeats slice of them."""

    def run(self) -> None:
        for op in list(self.program.walk()):
            if isinstance(op, stg.WeightOp) and op.persistent is None:
                self.on_host[op.weight] = None
            elif isinstance(op, stg.RepeatOp) and stg.phase_of(op) != "optim":
                for argument, stack in zip(op.slice_args, op.stacks, strict=True):
                    if stack in self.on_host:
                        self.on_host[argument] = None
        places: dict[tuple[Block, bool], dict[SSAValue, list[Operation]]] = {}
        for value in self.on_host:
            for use in value.uses:
                reader = use.operation
                if computes_with(reader, use.index):
                    key = (layer_of(reader), stg.phase_of(reader) == "fwd")
                    places.setdefault(key, {}).setdefault(value, []).append(reader)
        for (block, _), readers in places.items():
            if isinstance(block.parent_op(), stg.RepeatOp):
                self.load(block, readers, is_layer=True)
            else:
                for value, own in readers.items():
                    self.load(block, {value: own}, is_layer=False)

    def load(self, block: Block, readers: dict[SSAValue, list[Operation]], is_layer: bool) -> None:
        """One load of parameters before the first op that reads one of them."""
        every = [op for ops in readers.values() for op in ops]
        holders = [ancestor_in(block, op) for op in every]
        first = min(holders, key=block.get_operation_index)
        if not is_layer:
            for reader in every:
                stg.marks(reader).pop("prefetch", None)
        ahead = self.options.prefetch + max(issued_ahead(reader) for reader in every)
        found: Sequence[SSAValue] = list(readers)
        if self.options.nvme:
            found = self.copied(dist.ReadOp(found), ahead + 1 if is_layer else None, first)
        found = self.copied(dist.LoadOp(found), ahead if is_layer else None, first)
        for value, loaded in zip(readers, found, strict=True):
            for reader in readers[value]:
                reader.operands = [loaded if x is value else x for x in reader.operands]

    def copied(self, op: dist.HostOp, ahead: int | None, first: Operation) -> Sequence[SSAValue]:
        """Issue a copy before what reads it: so many layers ahead, or alone."""
        stg.marks(op)["phase"] = StringAttr(stg.phase_of(first))
        if ahead is not None:
            stg.marks(op)["prefetch"] = IntegerAttr(ahead, i64)
        else:
            stg.marks(op)["apart"] = UnitAttr()
        insert_before(first, [op], NAME)
        return op.outputs


def computes_with(op: Operation, index: int) -> bool:
    """Whether an op reads a parameter in the forward or backward pass, rather than hand it to an inner repeat."""
    if isinstance(op, stg.OutputOp | stg.OptimizerStepOp) or stg.phase_of(op) == "optim":
        return False
    return not isinstance(op, stg.RepeatOp) or index < op.num_carried


def layer_of(op: Operation) -> Block:
    """The block that a parameter is loaded in: the body of a layer, not that of steps of one op."""
    block = block_of(op)
    parent = block.parent_op()
    if parent is not None and stg.STEPS in parent.properties:
        return layer_of(parent)
    return block


def issued_ahead(op: Operation) -> int:
    """How many layers before its place a gather may begin."""
    keys: Sequence[str] = ("prefetch", "lag")
    found = [stg.marks(op).get(key) for key in keys]
    return max((each.value.data for each in found if isinstance(each, IntegerAttr)), default=0)
