"""Configurations that ship, by the names that their models have on the hub: `stagec import Qwen/Qwen3-0.6B`.

`configurations.json` has one a line, without what says nothing of the mathematics (dtypes, tokens, dropout): published `config.json` files, most as
PyPI's aiconfigurator-core 0.12.0 (Apache-2.0) has them. A quantised copy ships where its original does not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any


@cache
def configurations() -> dict[str, dict[str, Any]]:
    text = resources.files("stagec.importing").joinpath("configurations.json").read_text()
    return json.loads(text)


def shipped(name: str) -> tuple[str, Mapping[str, Any]] | None:
    """The full name and the configuration that a name stands for: all of it, or what follows the organisation, in any case."""
    wanted = name.casefold()
    for full, data in configurations().items():
        if wanted in (full.casefold(), full.partition("/")[2].casefold()):
            return full, data
    return None
