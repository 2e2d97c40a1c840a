"""Nodes of a compiled text beside their prices."""

from __future__ import annotations

from collections.abc import Iterator

from stagec.backend.program import Node
from stagec.driver import compile_text
from stagec.estimate.prices import Prices


def priced_nodes(text: str) -> Iterator[tuple[Node, float, float]]:
    """Of the first class of ranks in a microbatch: each node, its time in all layers [us], and how many kernels the host launches for it."""
    compiled = compile_text(text)
    prices = Prices.of(compiled.trace_set, compiled.plan)
    rank_class = compiled.trace_set.classes[0]
    program = rank_class.program
    for index, segment in enumerate(program.segments):
        us = prices.segment(rank_class, index).us
        launches = prices.launches(segment.nodes, prices.escaping(program)[index])
        for node, own, launched in zip(segment.nodes, us, launches, strict=True):
            yield node, float(own), float(launched)
