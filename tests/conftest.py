"""What holds of all tests: which of them an ordinary run leaves out, and how often garbage is collected.

An ordinary run takes a few minutes. Further cases of a rule, and tests that take long beside others of their subject,
are marked `seldom`: `pytest --all -m seldom` runs them, as `.ci/run` does.
Garbage is collected seldom: a run keeps thousands of tests and the modules that they import, and walks over them each time it looks.
What Python makes of the modules, and Lark of the grammar, is written before workers start: else each of them, and in a container that sets
`PYTHONDONTWRITEBYTECODE` each of the forty processes that tests start, would make it anew. So is what pytest makes of the tests' `assert`s, a
fourth of what a worker does before its first test: the next run has it.
"""

import compileall
import gc
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

gc.set_threshold(100_000, 20, 100)
sys.dont_write_bytecode = False


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    for folder in ("stagec", "passes"):
        compileall.compile_dir(ROOT / folder, quiet=2, workers=0)
    if not list(ROOT.glob("grammar/__pycache__/*.tables")):
        write_tables()


def write_tables() -> None:
    parser = import_module("stagec.frontend.parser")
    parser.build_parser(tables=parser.tables_file())


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
