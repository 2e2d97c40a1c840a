"""Cases that an ordinary run leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def mostly(often: Callable[[Any], bool], cases: Iterable[Any]) -> list[Any]:
    """The cases of a parametrized test: those that are not `often` run are marked `seldom`. A case of several parameters is a tuple."""
    return [
        case
        if often(case)
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.seldom)
        for case in cases
    ]


def some(cases: Iterable[Any], one_of: int = 2) -> list[Any]:
    """The cases of a parametrized test: one of so many is run often, and the others seldom."""
    numbered = list(enumerate(cases))
    often = {id(case) for number, case in numbered if number % one_of == 0}
    return mostly(lambda case: id(case) in often, [case for _, case in numbered])
