"""Units of parameters: what is gathered, and reduced, as one buffer (FSDP's term)."""

from __future__ import annotations

from collections.abc import Sequence

ROOT = ""
"""The unit of all parameters that belong to no other."""


def unit_of(path: str, units: Sequence[str]) -> str:
    """The unit of a weight: the named module innermost on its path, or the root."""
    parts = path.split(".")[:-1]
    for end in range(len(parts), 0, -1):
        if parts[end - 1] in units:
            return ".".join(parts[:end])
    return ROOT
