"""Cases that an ordinary run leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def mostly(often: Callable[[Any], bool], cases: Iterable[Any], one_of: int = 1) -> list[Any]:
    """The cases of a parametrized test: one of so many for which `often` holds is run often, the others seldom. A case of several parameters is a tuple."""
    listed = list(cases)
    chosen = {id(case) for case in [case for case in listed if often(case)][::one_of]}
    return [
        case
        if id(case) in chosen
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.seldom)
        for case in listed
    ]


def some(cases: Iterable[Any], one_of: int = 2) -> list[Any]:
    """The cases of a parametrized test: one of so many is run often, and the others seldom."""
    return mostly(lambda _: True, cases, one_of)
