"""What other libraries call things."""

from __future__ import annotations

import re

from stagec.dialects import stg
from stagec.frontend.foreign_names import _HELP, written_here


def test_none_is_a_function_here() -> None:
    """Or nobody would ever read its help; and what a help calls is one."""
    functions = stg.FUNCTIONS
    assert not {*_HELP} & {*functions}
    called = {name for help_ in _HELP.values() for name in re.findall(r"(\w+)\(", help_)}
    assert called <= {*functions} | {"shard"}


def test_unknown() -> None:
    assert written_here("frobnicate") == ""
