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
