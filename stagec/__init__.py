"""stagec: compile a model and a plan for spreading it into one Chakra execution trace per rank.

`stagec.compile(...)` makes an object that can be asked (docs/python.md), `stagec.traces(...)` yields traces; the command line writes
them. Read `driver.py` first: the whole compiler on one page.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stagec.api import (
        Explanation,
        Job,
        PoolsJob,
        Table,
        compile_job as compile,
        compile_pools_job as compile_pools,
        traces,
    )
    from stagec.backend.errors import TraceError
    from stagec.diagnostics import CompileError

__version__ = "0.1.0"

__all__ = [
    "CompileError",
    "Explanation",
    "Job",
    "PoolsJob",
    "Table",
    "TraceError",
    "__version__",
    "compile",
    "compile_pools",
    "traces",
]

_PLACES = {
    "CompileError": ("stagec.diagnostics", "CompileError"),
    "Explanation": ("stagec.api", "Explanation"),
    "Job": ("stagec.api", "Job"),
    "PoolsJob": ("stagec.api", "PoolsJob"),
    "Table": ("stagec.api", "Table"),
    "TraceError": ("stagec.backend.errors", "TraceError"),
    "compile": ("stagec.api", "compile_job"),
    "compile_pools": ("stagec.api", "compile_pools_job"),
    "traces": ("stagec.api", "traces"),
}
"""Imported when they are used: `stagec --version` takes no compiler."""


def __getattr__(name: str) -> object:
    if name in _PLACES:
        module, what = _PLACES[name]
        return getattr(import_module(module), what)
    raise AttributeError(f"module `stagec` has no `{name}`")


def __dir__() -> list[str]:
    """What a notebook completes."""
    return __all__
