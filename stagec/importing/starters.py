"""The plans that an imported model starts with: one node, data parallel with sharded storage, tensor parallel."""

from __future__ import annotations

from stagec.importing.text import Module, Writer


def starter_plans(w: Writer, model: Module) -> list[str]:
    """Plans that hold for any sizes of that model."""
    del w, model
    return []
