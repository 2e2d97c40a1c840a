"""Garbage is collected seldom: a run keeps thousands of tests and the modules that they import, and walks over them each time it looks."""

import gc

import pytest

gc.set_threshold(100_000, 20, 100)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is there by now, stays."""
    gc.freeze()
