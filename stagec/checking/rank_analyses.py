"""Traces read again, one at a time, when a finding needs the name of a node."""

from collections import OrderedDict

from stagec.checking.analysis import TraceAnalysis, analyse
from stagec.checking.findings import Place
from stagec.checking.node_decoding import load_trace
from stagec.checking.trace_file import TraceFile

_KEPT = 8


class RankAnalyses:
    """Full analyses of single ranks, the last few kept."""

    def __init__(self, files: dict[int, TraceFile], astra_sim: bool) -> None:
        self._files = files
        self._astra_sim = astra_sim
        self._kept: OrderedDict[int, TraceAnalysis] = OrderedDict()

    def file(self, rank: int) -> str:
        """The name of a rank's file."""
        return self._files[rank].name

    def analysis(self, rank: int) -> TraceAnalysis:
        if rank not in self._kept:
            self._kept[rank] = analyse(load_trace(self._files[rank].path), self._astra_sim)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(rank)
        return self._kept[rank]

    def place(self, rank: int, position: int | None, detail: str) -> Place:
        """A node as the place of a finding."""
        analysis = self.analysis(rank)
        # The file may have changed since it was scanned.
        if position is None or analysis.graph is None or position >= analysis.graph.num_nodes:
            return Place(self.file(rank), rank, detail=detail)
        node, name = analysis.label(position)
        return Place(self.file(rank), rank, node, name, detail)
