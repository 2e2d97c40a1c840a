"""`stagec check`: reads any Chakra trace set and proves that it can run, or says why not."""

from stagec.checking.check import TARGETS, check_traces
from stagec.checking.findings import Finding, Place
from stagec.checking.report import Report, SetSummary

__all__ = ["TARGETS", "Finding", "Place", "Report", "SetSummary", "check_traces"]
