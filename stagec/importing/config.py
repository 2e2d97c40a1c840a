"""A configuration of a model as Hugging Face publishes it: what the file says, over what its class says.

`defaults.json` has the defaults of each configuration class of transformers 5.23, by `model_type`, and its other names for keys.
A key that is absent has the class's default; one that is null is null.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from math import isfinite
from typing import Any

MOST = 10**12
"""What a size is at most: no product of a few overflows then."""
MOST_LAYERS = 1000
"""Layers are looked at one by one, to find those that repeat."""


@cache
def classes() -> dict[str, dict[str, Any]]:
    """`model_type` to what its configuration class says: `class`, `defaults`, `aliases`, `parts`, `absent`."""
    text = resources.files("stagec.importing").joinpath("defaults.json").read_text()
    return json.loads(text)


class Unsupported(Exception):
    """What a configuration asks for and the language, or its class here, has not."""

    def __init__(self, message: str, help: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.help = help


@dataclass
class Config:
    """One configuration, or the part of one for a tower."""

    data: Mapping[str, Any]
    model_type: str
    read: set[str] = field(default_factory=set)
    """Keys that were asked for."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    absent: Mapping[str, Any] = field(default_factory=dict)
    """What a class takes for a part that is absent, beyond what that part's own class says."""

    @staticmethod
    def of(data: Mapping[str, Any], model_type: str) -> Config:
        known = classes().get(model_type, {})
        return Config(
            data,
            model_type,
            aliases=known.get("aliases", {}),
            defaults=known.get("defaults", {}),
            parts=known.get("parts", {}),
            absent=known.get("absent", {}),
        )

    def names(self, key: str) -> tuple[str, ...]:
        """All spellings of a key: its own, and those of the class."""
        return (
            key,
            *(theirs for ours, theirs in self.aliases.items() if ours == key),
            *(ours for ours, theirs in self.aliases.items() if theirs == key),
        )

    def has(self, key: str) -> bool:
        return any(name in self.data for name in self.names(key))

    def get(self, key: str, otherwise: Any = None) -> Any:
        """What the file says, else the class; `otherwise` if neither has it, or it is null."""
        names = self.names(key)
        self.read.update(names)
        given = [name for name in names if name in self.data]
        for other in given[1:]:
            if self.data[other] != self.data[given[0]]:
                raise Unsupported(
                    f"`{given[0]}` is {self.data[given[0]]!r} and `{other}` is {self.data[other]!r}: they are one key of this class"
                )
        for source in (self.data, self.defaults):
            for name in names:
                if name in source:
                    value = source[name]
                    return otherwise if value is None else value
        return otherwise

    def real(self, key: str, otherwise: float | None = None) -> float:
        """A number. `Unsupported` if there is none."""
        value = self.get(key, otherwise)
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise Unsupported(f"`{key}` is {value!r}, not a number")
        return float(value)

    def number(self, key: str, otherwise: int | None = None) -> int:
        """A size. `Unsupported` if there is none."""
        value = self.count(key, otherwise)
        if value < 1:
            raise Unsupported(f"`{key} = {value}`: sizes are 1 or more")
        return value

    def count(self, key: str, otherwise: int | None = 0) -> int:
        """A number that may be 0."""
        value = self.get(key, otherwise)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
            raise Unsupported(f"`{key}` is {value!r}, not a whole number")
        if value < 0:
            raise Unsupported(f"`{key} = {value}`: no size is less than 0")
        if value > MOST:
            raise Unsupported(f"`{key} = {value:g}`: sizes are at most {MOST:g}")
        if value > MOST_LAYERS and key.endswith("layers"):
            raise Unsupported(f"`{key} = {int(value):,}`: at most {MOST_LAYERS:,} layers are read")
        return int(value)

    def flag(self, key: str, otherwise: bool = False) -> bool:
        return bool(self.get(key, otherwise))

    def part(self, key: str, model_type: str = "") -> Config:
        """The configuration of a part, such as `text_config`."""
        self.read.add(key)
        inner = self.data.get(key)
        if not isinstance(inner, Mapping):
            inner = self.absent.get(key, {})
        return Config.of(inner, model_type or inner.get("model_type") or self.parts.get(key, ""))

    def rope(self) -> Mapping[str, Any]:
        """What is said about rotary embeddings, in any of the spellings."""
        found: dict[str, Any] = {}
        for key in ("rope_scaling", "rope_parameters"):
            value = self.get(key)
            if isinstance(value, Mapping):
                found |= value
        return found

    def layer_types(self) -> Sequence[str] | None:
        value = self.get("layer_types")
        return value if isinstance(value, list | tuple) else None
