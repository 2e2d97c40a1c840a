"""A pass that leaves IR which does not verify."""

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from stagec.dialects import dist


@dataclass(frozen=True)
class Spoils(ModulePass):
    name = "spoils"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for each in list(op.walk()):
            if isinstance(each, dist.AllReduceOp):
                Rewriter.replace_value_with_new_type(each.results[0], each.operands[0].type)
