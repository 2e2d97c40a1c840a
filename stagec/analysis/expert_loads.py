"""The numbers of `dist.expert_load`: how many tokens the experts of each device have, layer by layer.

All that is routed goes to some expert: shares become whole tokens by the largest remainder (Hamilton's method), so that
they add up. A token goes to an expert once, so that no expert has more than all tokens; what it would have more goes to the
others, by their shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, pairwise
from math import prod
from random import Random

from xdsl.dialects.builtin import ModuleOp

from stagec.analysis.apportioning import apportion
from stagec.analysis.coordinates import joint_index
from stagec.analysis.copy_loads import CopyLoad, copy_load
from stagec.analysis.dataflow import Dataflow
from stagec.analysis.sequences import at_device
from stagec.analysis.sizes import size_values
from stagec.analysis.token_copies import Routing
from stagec.dialects import dist, stg
from stagec.dialects.op import around
from stagec.dialects.uneven_parts import BALANCED, part_of
from stagec.symbolic import Size, constant

Values = Mapping[str, int | Fraction]

SCALE = 2**40
"""Shares by an exponent are rounded to this part of the largest: the same on every machine."""


def shares(distribution: dist.Distribution, experts: int, layer: int) -> list[int]:
    """The share of each expert in a layer, as whole numbers of no fixed sum."""
    rows = distribution.shares
    if rows:
        return list(rows[max(layer, 0) % len(rows)])
    exponent = float(distribution.zipf)
    found = [round(SCALE * rank**-exponent) for rank in range(1, experts + 1)]
    Random(f"{distribution.seed} {layer}").shuffle(found)
    return found


@dataclass(frozen=True)
class ExpertLoad:
    """One `dist.expert_load`, and the tokens that it deals out."""

    op: dist.ExpertLoadOp
    _counts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _copies: dict[int, CopyLoad] = field(default_factory=dict)
    _parts: list[int] = field(default_factory=list)

    @cached_property
    def names(self) -> frozenset[str]:
        if self.elsewhere:
            return frozenset(self.at(place) for place in range(self.elsewhere))
        dims = [self.op.dim.data, *(f"{c}{dist.SUFFIX}" for c in self.copies)]
        sent = (f"{c}{dist.SENT}" for c in self.copies)
        return frozenset((*dims, *(f"{dim}{dist.MAX}" for dim in dims), *sent))

    @property
    def elsewhere(self) -> int:
        """How many devices of another pool have the experts; 0 where this one has them."""
        return self.op.elsewhere.value.data if self.op.elsewhere is not None else 0

    def at(self, place: int) -> str:
        """The dim of what one of these gets."""
        return at_device(self.op.dim.data, place)

    @cached_property
    def copies(self) -> tuple[str, ...]:
        """The dims of copies for nodes and for devices."""
        return self.op.copies.data if self.op.copies is not None else ()

    def chosen_of(self, values: Values) -> tuple[int, int]:
        """Of how many experts each token goes to how many."""
        return int(values[self.op.chosen.data[-1]]), int(values[self.op.experts.data])

    def routed(self, values: Values) -> int:
        """Copies of tokens that the devices of one exchange route, in one microbatch."""
        sent = prod(values[dim] for dim in self.op.chosen.data)
        total = Fraction(sent, prod(values[a] for a in self.op.among.data))  # pyright: ignore
        assert total.denominator == 1, total
        return total.numerator

    def of_experts(self, layer: int, values: Values) -> list[int]:
        """Tokens of each expert in a layer."""
        total, (chosen, experts) = self.routed(values), self.chosen_of(values)
        return apportion(shares(self.op.distribution, experts, layer), total, -(-total // chosen))

    def of_devices(self, layer: int, values: Values) -> tuple[int, ...]:
        """Tokens of the experts of each device, by its place along the axes that split them."""
        if layer not in self._counts:
            each = self.of_experts(layer, values)
            starts = [0, *accumulate(self.parts(values))]
            self._counts[layer] = tuple(sum(each[a:b]) for a, b in pairwise(starts))
        return self._counts[layer]

    def parts(self, values: Values) -> list[int]:
        """How many experts each device has."""
        if not self._parts:
            ways = self.elsewhere or int(prod(values[a] for a in self.op.over.data))
            sizes = constant(int(values[self.op.experts.data])), constant(ways)
            how = self.op.uneven.data if self.op.uneven is not None else BALANCED
            self._parts.extend(part_of(how, *sizes, constant(at)).integer({}) for at in range(ways))
        return self._parts

    def place(self, values: Values) -> int:
        """A device's place along the axes that split experts; the first if all have the same."""
        known = {f"{axis}.index": 0 for axis in self.op.over.data} | dict(values)
        return joint_index(self.op.over.data).integer(known)

    def sizes(self, layer: int, values: Values) -> dict[str, Fraction]:
        """What its names are in a layer on a device: so that its experts, times `tokens / among`, are the number of tokens; of the largest, if
        all had as many experts."""
        counts, place = self.of_devices(layer, values), self.place(values)
        among = prod(int(values[a]) for a in self.op.among.data)
        parts = self.parts(values)
        if self.elsewhere:
            each = enumerate(zip(counts, parts, strict=True))
            return {self.at(at): count * Fraction(among, part) for at, (count, part) in each}
        dim = self.op.dim.data
        found = {
            dim: counts[place] * Fraction(among, parts[place]),
            f"{dim}{dist.MAX}": max(counts) * Fraction(among * len(parts), sum(parts)),
        }
        return found | self.sizes_of_copies(layer, values)

    # Copies

    def of_copies(self, layer: int, values: Values) -> CopyLoad:
        """Copies that travel to nodes and to devices."""
        if layer not in self._copies:
            chosen, experts = self.chosen_of(values)
            routing = Routing(experts, chosen)
            if self.op.groups is not None and self.op.limit is not None:
                groups, limit = (s.data.integer(values) for s in (self.op.groups, self.op.limit))
                routing = Routing(experts, chosen, groups, limit)
            nodes, local = (int(values[a]) for a in self.op.over.data)
            counts = self.of_experts(layer, values)
            self._copies[layer] = copy_load(routing, counts, nodes, local)
        return self._copies[layer]

    def sizes_of_copies(self, layer: int, values: Values) -> dict[str, Fraction]:
        """A device's own, times how many parts a dim of copies is split into besides.

        An exchange of nothing is one of a token: simulators complete none without bytes.
        """
        if not self.copies:
            return {}
        load, (outer, inner) = self.of_copies(layer, values), self.copies
        local = int(values[self.op.over.data[1]])
        node, device = divmod(self.place(values), local)
        among = Fraction(prod(int(values[a]) for a in self.op.among.data))
        return {
            f"{outer}{dist.SENT}": load.to_nodes[node][device] * among * local,
            f"{outer}{dist.SUFFIX}": load.in_nodes[node][device] * among * local,
            f"{outer}{dist.SUFFIX}{dist.MAX}": max(n[device] for n in load.in_nodes)
            * among
            * local,
            f"{inner}{dist.SENT}": load.to_devices[node][device] * among,
            f"{inner}{dist.SUFFIX}": load.on_devices[node][device] * among,
            f"{inner}{dist.SUFFIX}{dist.MAX}": max(1, *load.on_devices[node]) * among,
        }


def num_layers(module: ModuleOp) -> int:
    """How many numbers of layers there are, over all stages."""
    values, stages = size_values(module), dist.stages_of(module)
    listed = stages.stages.data if stages is not None else ()
    totals = map(sum, zip(*(stage.layers for stage in listed), strict=True))
    flow = Dataflow({**values, **dist.local_counts(list(totals))})
    found = 0
    for op in module.walk():
        if isinstance(op, stg.RepeatOp):
            inside = (r for r in reversed((op, *around(op))) if isinstance(r, stg.RepeatOp))
            repeats = tuple(r for r in inside if stg.STEPS not in r.properties)
            last = tuple(flow.count(each) - 1 for each in repeats)
            if min(last, default=-1) >= 0:
                found = max(found, flow.layer(repeats, last) + 1)
    return found


@dataclass(frozen=True)
class Loads:
    """All loads of a module."""

    loads: tuple[ExpertLoad, ...] = ()

    @staticmethod
    def of(module: ModuleOp) -> Loads:
        return Loads(
            tuple(ExpertLoad(op) for op in module.body.ops if isinstance(op, dist.ExpertLoadOp))
        )

    @staticmethod
    def around(program: stg.ProgramOp) -> Loads:
        """The loads of experts that the module around a program states."""
        module = program.parent_op()
        return Loads.of(module) if isinstance(module, ModuleOp) else Loads()

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for load in self.loads for name in load.names)

    def concern(self, *sizes: Size) -> bool:
        """Whether a size is not the same in every layer."""
        return any(size.names & self.names for size in sizes)

    def sizes(self, layer: int, values: Values) -> dict[str, Fraction]:
        return {
            name: size for load in self.loads for name, size in load.sizes(layer, values).items()
        }

    def written(self, size: Size, layer: int, values: Values) -> Size:
        """A size with the numbers of a layer in it."""
        if not self.concern(size):
            return size
        found = self.sizes(layer, values)
        return size.substitute({name: constant(number) for name, number in found.items()})

    @property
    def axes(self) -> set[str]:
        """Axes along which ranks have other numbers."""
        return {axis for load in self.loads for axis in load.op.over.data}

    def column(self, num_layers: int, values: Values) -> tuple[int | Fraction, ...]:
        """All that a device's place decides: the tokens of its experts in every layer, and the copies that travel."""
        return tuple(
            number
            for load in self.loads
            if not load.elsewhere
            for layer in range(-1, num_layers)
            for number in (
                load.of_devices(layer, values)[load.place(values)],
                *load.sizes_of_copies(layer, values).values(),
            )
        )
