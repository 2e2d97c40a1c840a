"""The order of the tests: those of one plan of an example come one after the other, and share what is compiled.

Nor has any example of hypothesis a deadline: how long it takes depends on what else the machine does. Examples are the same in every run, so that
a clone either passes or does not; `HYPOTHESIS_PROFILE=fresh pytest` draws new ones, and more of them. Constants of our modules are among those
alone: hypothesis reads them off the sources of what is imported so far, which is other modules in another order of tests, and takes seconds.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

settings.register_profile("same", deadline=None, derandomize=True, max_examples=40)
settings.register_profile("fresh", deadline=None)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "same")
settings.load_profile(PROFILE)
if PROFILE == "same":
    providers.is_local_module_file = lambda path: False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    groups: dict[object, list[pytest.Item]] = {}
    for item in items:
        callspec = getattr(item, "callspec", None)
        params = callspec.params if callspec is not None else {}
        key = (params["path"], params["plan"]) if {"path", "plan"} <= params.keys() else item
        groups.setdefault(key, []).append(item)
    items[:] = [item for group in groups.values() for item in group]
