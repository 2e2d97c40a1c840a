"""What holds of all tests: which of them an ordinary run leaves out, and how often garbage is collected.

An ordinary run has some cases of every rule. More cases of the same rule are marked `seldom`: `pytest --all -m seldom` runs them, as `.ci/run` does.
Garbage is collected seldom: a run keeps thousands of tests and the modules that they import, and walks over them each time it looks.
"""

import gc

import pytest

gc.set_threshold(100_000, 20, 100)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also run the cases marked `seldom`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all"):
        return
    left_out = [item for item in items if item.get_closest_marker("seldom")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not item.get_closest_marker("seldom")]


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is there by now, stays."""
    gc.freeze()
