"""Collects the lit tests below this folder and runs them in this process.

The same files run unchanged under real `lit` (lit.cfg.py), which starts five processes for each. Here
`stagec`, `stagec-opt` and `filecheck` are function calls: 10 ms a file instead of a second.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.lit.tools.script import Failure, run_test

SUFFIXES = (".mlir", ".stg")
FOLDERS_WITHOUT_TESTS = {"Output", "inputs"}
"""`inputs` holds files that tests read. lit.cfg.py says the same."""
LONG = "REQUIRES: long_tests"
"""What LLVM's tests say that take long. An ordinary run of pytest leaves them out, lit has them."""


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.suffix in SUFFIXES and not set(file_path.parts) & FOLDERS_WITHOUT_TESTS:
        return LitFile.from_parent(parent, path=file_path)
    return None


class LitFile(pytest.File):
    def collect(self) -> Iterable[pytest.Item]:
        test = LitTest.from_parent(self, name="lit")
        if LONG in self.path.read_text("utf-8"):
            test.add_marker("seldom")
        yield test


class LitTest(pytest.Item):
    """One file. It fails as a whole, as under lit."""

    def runtest(self) -> None:
        run_test(self.path)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        if isinstance(excinfo.value, Failure):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo, style))

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, str(self.path)
