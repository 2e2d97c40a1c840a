"""The plan of memory in traces: which tensors each node reads and writes, for trackers of local memory."""

from stagec.tracking.traces import with_tensors

__all__ = ["with_tensors"]
