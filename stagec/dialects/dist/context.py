"""How attention sees a sequence that a plan splits.

    dist.context "ring" over [cp] rotate "all_to_all" balance "head_tail"

What follows from it is `stagec.analysis.contexts`.
"""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr
from xdsl.irdl import prop_def

from stagec.dialects.attributes import NamesAttr
from stagec.dialects.op import DefaultBuilder, op_definition

METHODS = ("ring", "all_gather", "ulysses", "partial")
ROTATIONS = ("all_to_all", "all_gather", "send_recv")
BALANCES = ("head_tail", "none", "documents")


@op_definition
class ContextOp(DefaultBuilder):
    """`context cp { method = ring, rotate = all_to_all, balance = head_tail }` of a plan.

    `ring`: queries stay, blocks of keys and values go round, by `rotate` (Liu et al. 2023). `all_gather`: each device gets
    all keys and values (Llama 3, arXiv:2407.21783, section 3.3.2). `ulysses`: within attention heads are split
    instead of the sequence (Jacobs et al. 2023). `partial`, of caches alone: each device attends to its own part of the keys with all queries, as
    `spread` of the ops says.

    `balance` says which part of the sequence a device of n has, as a causal mask gives later queries more to do:
    `head_tail` the chunks i and 2n-1-i of 2n, `none` the i-th of n; `documents` the chunks i and 2n-1-i of each document that is packed into it, as
    Transformer Engine has it (`thd_get_partitioned_indices`).
    """

    name = "dist.context"

    method = prop_def(StringAttr)
    axes = prop_def(NamesAttr)
    rotate = prop_def(StringAttr)
    balance = prop_def(StringAttr)

    assembly_format = "$method `over` $axes `rotate` $rotate `balance` $balance attr-dict"

    def verify_(self) -> None:
        for what, chosen, choices in (
            ("method", self.method.data, METHODS),
            ("rotation", self.rotate.data, ROTATIONS),
            ("balance", self.balance.data, BALANCES),
        ):
            if chosen not in choices:
                raise self.mistake(f"there is no {what} `{chosen}`")
        if not self.axes.data:
            raise self.mistake("a context is over some axis")
