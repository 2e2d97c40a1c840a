"""stagec: compile a model and a plan for spreading it into one Chakra execution trace per rank.

`stagec.traces(...)` yields them; the command line writes them. Read `driver.py` first: the whole
compiler on one page.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stagec.api import traces

__version__ = "0.1.0"

__all__ = ["__version__", "traces"]


def __getattr__(name: str) -> object:
    # Imported when it is used: `stagec --version` takes no compiler.
    if name == "traces":
        return import_module("stagec.api").traces
    raise AttributeError(f"module `stagec` has no `{name}`")
