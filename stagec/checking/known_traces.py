"""Traces that were read before, kept to compare others with."""

from collections import OrderedDict
from collections.abc import Iterator

import numpy as np

from stagec.checking.analysis import KnownTrace, TraceAnalysis

TEMPLATE_BYTES = 96 << 20
"""The most memory for templates, in each process."""
_CANDIDATES = 4
"""KnownTraces of one size that a file is compared with."""


class KnownTraces:
    """The last few templates, by the size of their files."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, int], KnownTrace] = OrderedDict()
        self._num_bytes = 0
        self._next = 0

    def __len__(self) -> int:
        return len(self._kept)

    def patched(self, buffer: np.ndarray, compressed: bool) -> tuple[int, TraceAnalysis] | None:
        """The analysis of a trace that differs from a template in groups, peers and tags alone, and its number."""
        for key, template in self._candidates(buffer.size):
            if template.analysis.summary.compressed != compressed:
                continue
            patched = template.patch(buffer)
            if patched is not None:
                self._kept.move_to_end(key)
                return key[1], patched
        return None

    def _candidates(self, size: int) -> Iterator[tuple[tuple[int, int], KnownTrace]]:
        keys = [key for key in reversed(self._kept) if key[0] == size]
        for key in keys[:_CANDIDATES]:
            yield key, self._kept[key]

    def remember(self, analysis: TraceAnalysis) -> int | None:
        """Compare later traces with this one, if that is possible. KnownTraces are numbered from 1."""
        if not KnownTrace.suits(analysis):
            return None
        template = KnownTrace(analysis)
        assert template.analysis.table is not None
        self._next += 1
        number = self._next
        self._kept[template.analysis.table.buffer.size, number] = template
        self._num_bytes += template.num_bytes
        while self._num_bytes > TEMPLATE_BYTES and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._num_bytes -= oldest.num_bytes
        return number
