"""Clauses as a user writes them, for help that proposes one."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from stagec.plans.clauses import Clause

UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def written(head: str, clause: Clause, **changed: object) -> str:
    """A clause with the settings that it was given, and with those that change: `pipeline L over pp { schedule = gpipe, microbatch = 1 }`."""
    kinds = {each.name: each.metadata["kind"].name for each in fields(clause) if each.metadata}
    said = {name: getattr(clause, name) for name in clause.given if name in kinds} | changed
    settings = [f"{name} = {value_text(value, kinds[name])}" for name, value in said.items()]
    return f"{head} {{ {', '.join(settings)} }}" if settings else head


def value_text(value: Any, kind: str = "") -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, str):
        return name_text(value)
    if kind == "bytes":
        return bytes_text(value)
    return str(int(value)) if value == int(value) else str(value)


def name_text(name: str) -> str:
    """A word as it is, a path or a file in quotes."""
    return name if re.fullmatch(r"\w+", name) else f'"{name}"'


def bytes_text(num_bytes: int) -> str:
    """All of them, in the largest unit of which they are a whole number."""
    for unit, size in UNITS:
        if num_bytes % size == 0:
            return f"{num_bytes // size}{unit}"
    return str(num_bytes)
