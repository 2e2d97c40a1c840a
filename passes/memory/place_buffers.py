"""Give every buffer of a rank an offset in one arena.

Before `place-buffers`:

    !t = !stg.tensor<[B, D], bf16>
    stg.dim "mb" = "2"
    dist.mesh <dp = 1>
    stg.program "M" (%x : !t) {
      stg.accumulate over "mb" {
        %h = sched.compute "gelu" (%x) flops "B" reads "B" writes "B" on "compute" in F.0 memory <[temporaries]> : (!t) -> !t
        %g = sched.compute "gelu_grad" (%h, %x) flops "B" reads "B" writes "B" on "compute" in B.1
          memory <[temporaries], frees 0 1> : (!t, !t) -> !t
        stg.yield
      }
      stg.output
    }
    stg.dim "B" = "8"
    stg.dim "D" = "64"
    sched.tasks @model of "" layers {} {
      F = "0",
      B = "1"
    }
    sched.program @all runs [0 @model] order "(F:0.0+1 B:0.0+1)*2"
    sched.ranks "all" at {} run @all
    sched.stored of "" {}

After:

    ...
    sched.stored of "" {}
    sched.arena of "all" bytes 3072 live 3072 {
      0 = "0 1024",
      1 = "2048"
    } "(0 1)*2"

Buffers are placed by their lives, which `plan-memory` wrote down and `stagec.memory` unrolls: how, says `stagec/memory/arena.py`. Offsets are
numbers, so this is of the sizes and the order that there are, and each class of ranks has its own. A task lists what comes to be in it, node by
node; tasks that place alike share a pattern, in which what layers repeat is written once.

It costs as much as to print a plan of memory does, and no trace depends on it: it runs where somebody asks, with `--memory` or `--stop-after place-buffers`.

The largest buffer first, each in the tightest gap, is "greedy by size" of TensorFlow Lite's planner (Pisarchyk and Lee, arXiv:2001.03288).
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from stagec.dialects import sched
from stagec.memory import plan_module
from stagec.memory.arena import arena_op
from stagec.symbolic import conditions

NAME = "place-buffers"


@dataclass(frozen=True)
class PlaceBuffers(ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for old in list(op.body.ops):
            if isinstance(old, sched.ArenaOp):
                old.detach()
                old.erase()
        with conditions.unrecorded():
            for plan in plan_module(op):
                op.body.block.add_op(arena_op(plan))
