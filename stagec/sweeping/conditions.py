"""Which plans of a sweep are left (`Feasible`), and the value that each named size has in each of them (`Columns`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from stagec.frontend import CheckedModel
from stagec.symbolic import Size, symbol
from stagec.symbolic.columns import Columns, times


@dataclass
class Feasible:
    """The plans of a sweep that nothing was found wrong with so far, and how many were dropped for each reason."""

    left: np.ndarray
    """`[plan]`: whether the plan is still left."""
    reasons: Counter[str] = field(default_factory=Counter)

    def require(self, holds: np.ndarray, reason: str) -> None:
        """Drop the plans in which `holds` (`[plan]`) is false. A plan that was dropped before is not counted again."""
        dropped = self.left & ~np.asarray(holds, bool)
        number = int(dropped.sum())
        if number:
            self.reasons[reason] += number
            self.left = self.left & ~dropped

    def drop(self, rows: np.ndarray, reason: str) -> None:
        """Drop the plans with these numbers."""
        holds = np.ones(len(self.left), bool)
        holds[rows] = False
        self.require(holds, reason)


def with_definitions(sizes: Columns, definitions: Mapping[str, Size]) -> Columns:
    """The same plans, with values also for the names that the compiler made, each of which `definitions` defines by other names."""
    found = Columns(sizes.names, sizes.count, definitions)
    made = {name: symbol(name) for name in definitions if name not in sizes.names}
    numbers = {name: found.number(own) for name, own in made.items() if found.has(own)}
    return Columns({**sizes.names, **numbers}, sizes.count)


def named_sizes(
    checked: CheckedModel,
    columns: Mapping[str, np.ndarray],
    count: int,
    leave: Collection[str] = (),
) -> Columns:
    """The value of every dim and axis of a model in each of `count` plans. `columns` gives those that the sweep varies; names in `leave` get none.

    A size that is not whole is rounded up here, since compilation refuses such a plan. For a dim that a rule pads, `columns` gives the size before padding,
    as the text writes it.
    """
    table = checked.sizes
    columns = {table.unpadded.get(name, name): column for name, column in columns.items()}
    leave = {table.unpadded.get(name, name) for name in leave}
    found = Columns(dict(columns), count)
    pending = {
        name: entry.size
        for entries in (table.dims, table.axes)
        for name, entry in entries.items()
        if name not in columns and name not in leave
    }
    # Conditions name what the text says of a dim that `serve` sizes.
    served = {n: size.size for n, size in table.served.items() if n in pending and size is not None}
    pending |= served
    while True:
        for name, parts in table.products.items():
            if name not in found.names and all(part in found.names for part in parts):
                product = found.constant(1)
                for part in parts:
                    product = times(product, found.names[part])
                found.names = {**found.names, name: product}
        ready = [n for n, size in pending.items() if size.names <= found.names.keys()]
        if not ready:
            return found
        for name in ready:
            found.names = {**found.names, name: found.number(pending.pop(name))}
