"""How many tokens experts have: not all as many.

    dist.expert_load "T.load" of "T" experts "X" chosen [B, S, A] over [ep] among [mb, edp] zipf "1.2" seed 0

`T.load` stands where `T` does in the tokens of a device's own experts; `T.load.max` in what is exchanged. What
numbers they have is `stagec.analysis.expert_loads`. Where tokens go to nodes first (`split-exchanges`), copies have loads too:

    dist.expert_load "T.load" of "T" experts "X" chosen [B, S, A] over [en, el] among [mb] copies ["T.outer", "T.inner"] groups "8" limit "4" zipf "1.2"

`T.outer.sent` and `T.outer.load` are what a device sends to nodes, and what it gets for its own. Where another pool has the experts,

    dist.expert_load "T.load" of "T" experts "X" chosen [B, S, A] over [] elsewhere 8 among [mb] zipf "1.2" seed 0

says what each of its eight devices gets: `T.load.at0` and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, StringAttr
from xdsl.irdl import opt_prop_def, prop_def

from stagec.dialects.attributes import NamesAttr, SizeAttr
from stagec.dialects.op import DialectOp, op_definition

SUFFIX = ".load"
"""Ends the name of the dim that stands for experts' tokens where experts are not equally busy."""

SENT = ".sent"
"""Ends the name of the dim of copies that are sent, where these are not as many from each device."""

MAX = ".max"
"""Ends the name of its largest size over the devices that exchange tokens."""


@dataclass(frozen=True)
class Distribution:
    """The load of experts: `zipf` and `seed`, or for each layer the shares of each expert."""

    zipf: str = ""
    seed: int = 0
    shares: tuple[tuple[int, ...], ...] = ()


@op_definition
class ExpertLoadOp(DialectOp):
    """The load of experts: the i-th busiest of them has a share of i^-`zipf`, which one that is being drawn by `seed` for each
    layer; or each has the `shares` of the layer, or of all layers if there is one row.

    `chosen` are the dims of the numbers of experts that are chosen, of which the last counts those of a token; it goes to each of them once. What is routed
    is as many as these numbers, whatever `tokens` rounds up. `over` are the axes that split the experts, `among` those that split the tokens of each. How
    parts of `uneven` experts differ is what their rule says. `copies` are the dims of copies for nodes,
    along the first of two axes, and for devices; experts are then chosen from a `limit` of `groups`, if there are groups. Experts that are `elsewhere` are
    split over so many devices of another pool.
    """

    name = "dist.expert_load"

    dim = prop_def(StringAttr)
    tokens = prop_def(StringAttr)
    experts = prop_def(StringAttr)
    chosen = prop_def(NamesAttr)
    over = prop_def(NamesAttr)
    elsewhere = opt_prop_def(IntegerAttr)
    among = prop_def(NamesAttr)
    copies = opt_prop_def(NamesAttr)
    groups = opt_prop_def(SizeAttr)
    limit = opt_prop_def(SizeAttr)
    zipf = opt_prop_def(StringAttr)
    seed = opt_prop_def(IntegerAttr)
    uneven = opt_prop_def(StringAttr)
    shares = opt_prop_def(ArrayAttr[StringAttr])

    assembly_format = (
        "$dim `of` $tokens `experts` $experts `chosen` $chosen `over` $over (`elsewhere` $elsewhere^)? (`uneven` $uneven^)? `among` $among "
        "(`copies` $copies^)? (`groups` $groups^)? (`limit` $limit^)? "
        "(`zipf` $zipf^)? (`seed` $seed^)? (`shares` $shares^)? attr-dict"
    )

    def __init__(
        self,
        tokens: str,
        experts: str,
        chosen: Sequence[str],
        over: Sequence[str],
        among: Sequence[str],
        distribution: Distribution,
        copies: Sequence[str] = (),
        groups: SizeAttr | None = None,
        limit: SizeAttr | None = None,
        elsewhere: int | None = None,
    ) -> None:
        rows = [StringAttr(" ".join(map(str, row))) for row in distribution.shares]
        super().__init__(
            dim=f"{tokens}{SUFFIX}",
            tokens=tokens,
            experts=experts,
            chosen=chosen,
            over=over,
            elsewhere=elsewhere,
            among=among,
            copies=copies or None,
            groups=groups,
            limit=limit,
            shares=ArrayAttr(rows) if rows else None,
            zipf=None if rows else distribution.zipf,
            seed=None if rows else distribution.seed,
        )

    @property
    def distribution(self) -> Distribution:
        if self.shares is not None:
            return Distribution(
                shares=tuple(tuple(map(int, row.data.split())) for row in self.shares.data)
            )
        assert self.zipf is not None
        return Distribution(self.zipf.data, self.seed.value.data if self.seed is not None else 0)

    def verify_(self) -> None:
        if not self.chosen.data:
            raise self.mistake("what chooses experts has a dim of those that a token goes to")
        if (self.zipf is None) == (self.shares is None):
            raise self.mistake("a load is `zipf` or `shares`")
        if self.zipf is not None and not is_number(self.zipf.data):
            raise self.mistake(f"an exponent is a number, not `{self.zipf.data}`")
        if bool(self.over.data) == (self.elsewhere is not None):
            raise self.mistake("experts are split over some axis, or over devices elsewhere")
        if self.copies is not None and (len(self.copies.data), len(self.over.data)) != (2, 2):
            raise self.mistake("copies are for nodes and for devices, along two axes")
        if (self.groups is None) != (self.limit is None):
            raise self.mistake("groups have a limit, and a limit is of groups")
        for row in self.shares.data if self.shares is not None else ():
            if not row.data.split() or not all(word.isdecimal() for word in row.data.split()):
                raise self.mistake(f"shares are whole numbers, not `{row.data}`")


def is_number(text: str) -> bool:
    try:
        return float(text) >= 0
    except ValueError:
        return False
