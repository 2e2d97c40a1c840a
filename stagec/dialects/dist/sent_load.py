"""How many tokens experts have where devices send other numbers of them.

    dist.sent_load "T.load" of "T" experts "X" over [ep] sums [S]

`T.load` stands where `T` does in the tokens of a device's own experts: as many as all devices along `over` send on average. `T.load.max` is in what
is exchanged: what the device sends that has most. `S.sum` and `S.most` are what a sum of `dist.sequences` is on all of these devices, and on
the one where it is largest; their numbers are `stagec.analysis.sequences`.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import StringAttr
from xdsl.irdl import prop_def

from stagec.dialects.attributes import NamesAttr
from stagec.dialects.dist.expert_load import SUFFIX
from stagec.dialects.op import DialectOp, op_definition

TOTAL, MOST = ".sum", ".most"
"""End the names of what a sum over sequences is on all devices that exchange tokens, and on the one where it is largest."""


@op_definition
class SentLoadOp(DialectOp):
    """Experts have what the devices along `over` send on average; `sums` are those of the sizes that `tokens` depends on."""

    name = "dist.sent_load"

    dim = prop_def(StringAttr)
    tokens = prop_def(StringAttr)
    experts = prop_def(StringAttr)
    over = prop_def(NamesAttr)
    sums = prop_def(NamesAttr)

    assembly_format = "$dim `of` $tokens `experts` $experts `over` $over `sums` $sums attr-dict"

    def __init__(self, tokens: str, experts: str, over: Sequence[str], sums: Sequence[str]) -> None:
        super().__init__(
            dim=f"{tokens}{SUFFIX}", tokens=tokens, experts=experts, over=over, sums=sums
        )

    def verify_(self) -> None:
        if not self.over.data:
            raise self.mistake("tokens are sent along some axis")
        if not self.sums.data:
            raise self.mistake("tokens of experts depend on some sum")
