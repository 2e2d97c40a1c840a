"""Rank classes that differ in the loads of their experts alone: rows are laid out once, and only numbers of segments are other ones."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from stagec.analysis.coordinates import axes_in, sizes_of
from stagec.backend.lowering.layout import Layout
from stagec.backend.lowering.templates import Owners, Templates, with_numbers
from stagec.backend.program import Segment, TraceProgram
from stagec.dialects import stg


class Arranged(Protocol):
    """What is shared of an arrangement: all but these."""

    layouts: Sequence[Layout]
    segments: Sequence[Segment]


A = TypeVar("A", bound=Arranged)


@dataclass
class LoadedClasses:
    """What classes of ranks share, by all that rows depend on."""

    _layouts: dict[Hashable, Layout] = field(default_factory=dict)
    _placed: dict[stg.ProgramOp, bool] = field(default_factory=dict)
    _arranged: dict[Hashable, Arranged] = field(default_factory=dict)
    _finished: dict[Hashable, tuple[Sequence[Segment], TraceProgram]] = field(default_factory=dict)

    def layout(
        self, program: stg.ProgramOp, values: Mapping[str, int], split: bool, owners: Owners
    ) -> Layout:
        """The tasks of a program on a device: as on the first one, if no more than loads of experts differ."""
        numbers = frozenset(item for item in values.items() if not axes_in(item[:1]))
        key = (program, numbers, split, frozenset(owners.items()))
        first = self._layouts.get(key)
        if first is None or not first.loads.loads or self.names_coordinates(program):
            self._layouts[key] = Layout(program, values, split, owners)
            return self._layouts[key]
        return on_device(first, values)

    def names_coordinates(self, program: stg.ProgramOp) -> bool:
        """Whether sizes depend on where a rank is, besides by loads of experts."""
        if program not in self._placed:
            self._placed[program] = any(axes_in(size.names) for size in sizes_of(program))
        return self._placed[program]

    def arranged(self, shape: Hashable, layouts: Sequence[Layout], make: Callable[[], A]) -> A:
        """An arrangement of these layouts: that of others like them, with their numbers."""
        if not any(layout.loads.loads for layout in layouts):
            return make()
        if shape not in self._arranged:
            self._arranged[shape] = make()
        first = self._arranged[shape]
        segments: list[Segment] = []
        for layout in {id(layout.segments): layout for layout in layouts}.values():
            segments += layout.segments
        segments += first.segments[len(segments) :]
        return replace(first, layouts=layouts, segments=segments)  # pyright: ignore

    def finished(
        self, shape: Hashable, arrangement: Arranged, make: Callable[[], TraceProgram]
    ) -> TraceProgram:
        """A program: that of another arrangement of this shape, with its numbers."""
        if not any(layout.loads.loads for layout in arrangement.layouts):
            return make()
        if shape not in self._finished:
            self._finished[shape] = arrangement.segments, make()
        segments, program = self._finished[shape]
        triples = zip(program.segments, segments, arrangement.segments, strict=True)
        made = [
            chained if old is new else with_actions(chained, new) for chained, old, new in triples
        ]
        return replace(program, segments=tuple(made))


def on_device(layout: Layout, values: Mapping[str, int]) -> Layout:
    """The same rows for a device with other coordinates, where experts have other loads."""
    other = copy(layout)
    other.templates, other.loaded = Templates(values, layout.templates.owners), {}
    other.segments = list(layout.segments)
    for number, (ops, layer) in layout.layered.items():
        templates = other.templates_of(layer)
        other.segments[number] = with_numbers(layout.segments[number], ops, templates)
    return other


def with_actions(segment: Segment, other: Segment) -> Segment:
    """A segment with the numbers of another."""
    nodes = (
        node if node.action == new.action else replace(node, action=new.action)
        for node, new in zip(segment.nodes, other.nodes, strict=True)
    )
    return replace(segment, nodes=tuple(nodes))
