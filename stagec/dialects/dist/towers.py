"""Parts of a model on pools of ranks of their own, and what crosses from one to another: towers that train, and experts that serve.

    dist.towers ["vision" 1 ["LV"], "text" 4 ["L"]]
    dist.experts with [Shared] on "experts" others on "attention"
    %p = dist.tower_recv "forward" 0 of "vision" trained : !stg.tensor<[B, P, D], bf16>
    dist.tower_send "backward" 0 to "vision" %dp : !stg.tensor<[B, P, D], bf16>

Towers run one pipeline, each some ranks of it in a row. A value has its number in the whole model, so that both ends of it, and of
its gradient on the way back, know each other. As which messages it travels follows from how the devices of both pools hold it
(`stagec.analysis.handing_over`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import IntegerAttr, StringAttr, UnitAttr, i64
from xdsl.irdl import (
    irdl_attr_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
)

from stagec.dialects.attributes import NamesAttr
from stagec.dialects.op import DefaultBuilder, op_definition
from stagec.dialects.sched.crossing import DIRECTIONS, CrossingOp
from stagec.dialects.text_forms import NUMBER, WrittenData, listed, record, text
from stagec.dialects.types import TensorType


@dataclass(frozen=True)
class PoolPart:
    """A pool that trains: its ranks along the pipeline, and the counts of the repeats that it runs."""

    pool: str
    ranks: int
    counts: tuple[str, ...]


POOL = text("the name of a pool")


@irdl_attr_definition
class TowersAttr(WrittenData[tuple[PoolPart, ...]]):
    """In the order of the pipeline: `["vision" 1 ["LV"], "text" 4 ["L"]]`."""

    name = "dist.tower_list"
    FORM: ClassVar = listed(
        record(PoolPart, pool=POOL, ranks=NUMBER, counts=listed(text("a count")))
    )


@op_definition
class TowersOp(DefaultBuilder):
    """Which pools the model is spread over. The module is the program of the one that `dist.pool` names."""

    name = "dist.towers"

    towers = prop_def(TowersAttr)

    assembly_format = "$towers attr-dict"

    def verify_(self) -> None:
        towers = self.towers.data
        if len({each.pool for each in towers}) != len(towers) or not towers:
            raise self.mistake("each pool is listed once")
        if any(each.ranks < 1 or not each.counts for each in towers):
            raise self.mistake("a pool has ranks, and repeats that it runs")

    def number_of(self, pool: str) -> int:
        """The place of a pool among all."""
        return [each.pool for each in self.towers.data].index(pool)

    def first_rank(self, number: int) -> int:
        """The place of a pool's first rank along the pipeline."""
        return sum(each.ranks for each in self.towers.data[:number])


@op_definition
class SharedOp(DefaultBuilder):
    """A weight that several pools train. Each hands the sum of its own gradients to every other: `first + i*n + j` is what the i-th of n gives the j-th."""

    name = "dist.shared"

    weight = prop_def(StringAttr)
    first = prop_def(IntegerAttr.constr(i64))
    pools = prop_def(NamesAttr)

    assembly_format = "$weight `first` $first `of` $pools attr-dict"

    def verify_(self) -> None:
        pools = self.pools.data
        if len(set(pools)) != len(pools) or len(pools) < 2 or self.first.value.data < 0:
            raise self.mistake("a weight is of several pools, each listed once")

    def number(self, giver: str, taker: str) -> int:
        pools = self.pools.data
        return self.first.value.data + pools.index(giver) * len(pools) + pools.index(taker)


TIED = "tied"
"""The way of a gradient that other pools have of the same weight: once per step."""


@op_definition
class ExpertsOp(DefaultBuilder):
    """The experts of all layers are on a pool of their own, with some modules; another has everything else. The module is the program of the one that
    `dist.pool` names.
    """

    name = "dist.experts"

    modules = opt_prop_def(NamesAttr)
    experts = prop_def(StringAttr)
    others = prop_def(StringAttr)

    assembly_format = "(`with` $modules^)? `on` $experts `others` `on` $others attr-dict"

    def verify_(self) -> None:
        if self.experts.data == self.others.data:
            raise self.mistake("experts are on a pool of their own")


class TowerCrossing(CrossingOp):
    """Shared by the two ends: the other pool, which way it goes, and as which of the values that cross."""

    WAYS: ClassVar[tuple[str, ...]] = (*DIRECTIONS, TIED)

    pool = prop_def(StringAttr)

    @property
    def path(self) -> str:
        """What `dist.gives` and `dist.takes` call it."""
        return path_of_crossing(*self.crossing)


@op_definition
class TowerSendOp(TowerCrossing):
    """Hand a value to another pool: a tensor as this pool's devices hold it, once per microbatch."""

    name = "dist.tower_send"

    value = operand_def(TensorType)

    assembly_format = "$direction $number `to` $pool $value attr-dict `:` type($value)"


@op_definition
class TowerRecvOp(TowerCrossing):
    """A value that another pool hands over, as this pool's devices hold it. One that is `trained` depends on weights that are: its gradient goes back.

    Of tokens that came by a dispatch of the other pool, `tokens` is the dim that counts those of an expert, `chosen` are those of the numbers of their experts.
    """

    name = "dist.tower_recv"

    trained = opt_prop_def(UnitAttr)
    tokens = opt_prop_def(StringAttr)
    chosen = opt_prop_def(NamesAttr)
    value = result_def(TensorType)

    assembly_format = "$direction $number `of` $pool (`trained` $trained^)? (`tokens` $tokens^ `chosen` $chosen)? attr-dict `:` type($value)"


def path_of_crossing(direction: str, number: int) -> str:
    return f"{direction} {number}"
