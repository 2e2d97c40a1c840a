"""In which plans of a sweep the pools agree on the values that they hand to each other, where each pool trains a part of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stagec.analysis.sizes import dim_sizes
from stagec.dialects.types import TIME_AXIS
from stagec.explaining.names import Names
from stagec.pools.towers import PoolKnown, bytes_of_message
from stagec.sweeping.conditions import with_definitions
from stagec.symbolic.columns import Columns

PARTS_DISAGREE = "pools have other numbers of microbatches, or other sizes of what is handed over, or that does not divide over their devices (E0423)"


def agreeing(pools: Sequence[PoolKnown], sizes: Mapping[str, Columns]) -> np.ndarray:
    """`[plan]`: whether the pools agree on numbers of microbatches and on the sizes of what they hand over (`stagec.pools.said_after_all` asks it of one plan).

    `sizes` has the columns of each pool by name.
    """
    own = {pool.name: with_sizes_of(pool, sizes[pool.name]) for pool in pools}
    by_name = {pool.name: pool for pool in pools}
    one = own[pools[0].name]
    agree = np.ones(one.count, bool)
    for columns in own.values():
        agree &= np.asarray(columns.names[TIME_AXIS] == one.names[TIME_AXIS], bool)
    for giver in pools:
        here = own[giver.name]
        for path, end in giver.ends.items():
            taker = by_name[end.other]
            if not end.sends or path not in taker.ends:
                continue
            there = own[taker.name]
            for name in end.holds.names:
                if name in here.names and name in there.names:
                    agree &= np.asarray(here.names[name] == there.names[name], bool)
            size = bytes_of_message(giver, taker, path)
            if not size.names & giver.averages:
                agree &= here.whole(size)
    return agree


def with_sizes_of(pool: PoolKnown, columns: Columns) -> Columns:
    """The values of all names of a pool's module, the number of its microbatches included."""
    number = Names(pool.module, pool.plan).num_microbatches
    return with_definitions(columns, {**dim_sizes(pool.module), TIME_AXIS: number})
