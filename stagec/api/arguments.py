"""Arguments of another kind than a function says: one `TypeError` that names what was expected, before anything is computed."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from numbers import Integral
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

P = ParamSpec("P")
R = TypeVar("R")

WORDS = {
    str: ("a string", "strings"),
    Path: ("a path", "paths"),
    int: ("a whole number", "whole numbers"),
    bool: ("True or False", "True or False"),
    NoneType: ("None", "None"),
}
"""What one value of a kind is called, and several."""
MOST_SHOWN = 60
"""Letters of a value in a message."""


def checks_arguments(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function of the public API, called `name`, whose arguments are of the kinds that it says."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            hints = get_type_hints(function)
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise TypeError(f"{name}: {error}") from None
            for parameter, value in given.items():
                if parameter in hints:
                    check(name, signature.parameters[parameter], value, hints[parameter])
            return function(*args, **kwargs)

        return call

    return decorate


def check(name: str, parameter: inspect.Parameter, value: Any, hint: Any) -> None:
    values = {parameter.name: value}
    if parameter.kind is parameter.VAR_POSITIONAL:
        values = {f"{parameter.name}[{number}]": each for number, each in enumerate(value)}
    elif parameter.kind is parameter.VAR_KEYWORD:
        values = dict(value)
    for each, given in values.items():
        if not fits(given, hint):
            text = repr(given)
            text = text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}..."
            kind = type(given).__name__
            raise TypeError(f"`{each}` of `{name}` is {described(hint)}; this is {kind}: {text}")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a kind. Numbers may be those of numpy, and what holds several of them an array."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(fits(value, each) for each in inner)
    if origin is Literal:
        return value in inner
    if origin is Mapping:
        return isinstance(value, Mapping) and all(
            fits(key, inner[0]) and fits(each, inner[1]) for key, each in value.items()
        )
    if origin is Sequence:
        several = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
        return several and all(fits(each, inner[0]) for each in value)
    if hint is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if hint is Path:
        return isinstance(value, os.PathLike)
    return isinstance(value, hint)


def described(hint: Any, several: bool = False) -> str:
    """A kind, for people."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(described(each, several) for each in inner)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin is Mapping:
        return f"a mapping of names to {described(inner[1], True)}"
    if origin is Sequence:
        return f"a list of {described(inner[0], True)}"
    return WORDS[hint][several] if hint in WORDS else str(hint)
