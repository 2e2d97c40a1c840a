"""A configuration of a model as Hugging Face publishes it: what the file says, over what its class says.

`defaults.json` has the defaults of each configuration class of transformers 5.23, by `model_type`, and its other names for keys.
A key that is absent has the class's default; one that is null is null.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from math import isfinite
from typing import Any

from stagec.diagnostics import suggestion

MOST = 10**12
"""What a size is at most: no product of a few overflows then."""
MOST_LAYERS = 1000
"""Layers are looked at one by one, to find those that repeat."""


@cache
def classes() -> dict[str, dict[str, Any]]:
    """`model_type` to what its configuration class says: `class`, `defaults`, `aliases`, `parts`, `absent`."""
    text = resources.files("stagec.importing").joinpath("defaults.json").read_text()
    return json.loads(text)


Place = tuple[str, ...]
"""A key, behind those of the parts that it is in."""


WITHOUT = "import the configuration without it, and write it into the text of the model"


class Unsupported(Exception):
    """What a configuration asks for and the language, or its class here, has not."""

    def __init__(self, message: str, at: Sequence[Place], help: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.at = at
        """What it is about: the first of these that the file has."""
        self.help = help or WITHOUT


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
    path: Place = ()
    """Which part it is."""
    asked: list[Place] = field(default_factory=list)
    """What of the file was asked for, in that order, of all parts."""

    @staticmethod
    def of(
        data: Mapping[str, Any],
        model_type: str,
        path: Place = (),
        asked: list[Place] | None = None,
    ) -> Config:
        known = classes().get(model_type, {})
        return Config(
            data,
            model_type,
            aliases=known.get("aliases", {}),
            defaults=known.get("defaults", {}),
            parts=known.get("parts", {}),
            absent=known.get("absent", {}),
            path=path,
            asked=[] if asked is None else asked,
        )

    def at(self, *keys: str) -> list[Place]:
        """Where these are written, in any of their spellings."""
        return [(*self.path, name) for key in keys for name in self.names(key)]

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
        self.asked += [(*self.path, name) for name in given[:1]]
        for other in given[1:]:
            if self.data[other] != self.data[given[0]]:
                raise Unsupported(
                    f"`{given[0]}` is {self.data[given[0]]!r} and `{other}` is {self.data[other]!r}: they are one key of this class",
                    [(*self.path, other)],
                    "leave out one of the two",
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
            raise self.wrong(key, f"`{key}` is {shown(value)}, not a number", unquoted(value))
        return float(value)

    def number(self, key: str, otherwise: int | None = None) -> int:
        """A size. `Unsupported` if there is none."""
        value = self.count(key, otherwise)
        if value < 1:
            raise self.wrong(key, f"`{key} = {value}`: sizes are 1 or more")
        return value

    def count(self, key: str, otherwise: int | None = 0) -> int:
        """A number that may be 0."""
        value = self.get(key, otherwise)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not isfinite(value) or value != int(value):
            message = f"`{key}` is {shown(value)}, not a whole number"
            raise self.wrong(key, message, unquoted(value))
        if value < 0:
            raise self.wrong(key, f"`{key} = {value}`: no size is less than 0")
        if value > MOST:
            raise self.wrong(key, f"`{key} = {value:g}`: sizes are at most {MOST:g}")
        if value > MOST_LAYERS and key.endswith("layers"):
            message = f"`{key} = {int(value):,}`: at most {MOST_LAYERS:,} layers are read"
            raise self.wrong(key, message)
        return int(value)

    def wrong(self, key: str, message: str, help: str = "") -> Unsupported:
        """About one key."""
        return self.unsupported(message, key, help=help or f"write the `{key}` that the model has")

    def unsupported(self, message: str, *keys: str, help: str = "") -> Unsupported:
        """About some keys, of which the first that is written says it."""
        return Unsupported(message, self.at(*keys), help)

    def flag(self, key: str, otherwise: bool = False) -> bool:
        return bool(self.get(key, otherwise))

    def part(self, key: str, model_type: str = "") -> Config:
        """The configuration of a part, such as `text_config`."""
        self.read.add(key)
        inner = self.data.get(key)
        if not isinstance(inner, Mapping):
            inner = self.absent.get(key, {})
        kind = model_type or inner.get("model_type") or self.parts.get(key, "")
        return Config.of(inner, kind, (*self.path, key), self.asked)

    def rope(self) -> Mapping[str, Any]:
        """What is said about rotary embeddings, in any of the spellings."""
        found: dict[str, Any] = {}
        for key in ("rope_scaling", "rope_parameters"):
            value = self.get(key)
            if isinstance(value, Mapping):
                for each in (value, *value.values()):
                    self.check_rope(key, each)
                found |= value
        return found

    def check_rope(self, key: str, said: Any) -> None:
        """`Unsupported` for a kind of rotary embedding that no class has: these are of all layers, or of those of one kind."""
        kind = (said.get("rope_type") or said.get("type")) if isinstance(said, Mapping) else None
        if kind is not None and kind not in ROPE_TYPES:
            help_ = suggestion(str(kind), ROPE_TYPES)
            raise self.wrong(key, f"`{key}` has the type {shown(kind)}, which no class has", help_)

    def layer_types(self) -> Sequence[str] | None:
        value = self.get("layer_types")
        return value if isinstance(value, list | tuple) else None


ROPE_TYPES = (
    *("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional"),
    *("su", "mrope", "axial", "ntk"),
)
"""`ROPE_INIT_FUNCTIONS` in transformers' `modeling_rope_utils.py`; of single classes, or formerly, the others."""


def anywhere(*keys: str) -> list[Place]:
    """Keys of the model, or of one of its parts."""
    return [(*part, key) for part in ((), ("text_config",), ("vision_config",)) for key in keys]


def shown(value: Any) -> str:
    """A value as JSON has it."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def unquoted(value: Any) -> str:
    """What to write for a number in quotes."""
    is_number = isinstance(value, str) and re.fullmatch(r"\s*\d+(\.\d+)?\s*", value, re.ASCII)
    return f"write `{value.strip()}`, without quotes" if is_number else ""
