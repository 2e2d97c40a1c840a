"""Blocks that vLLM allotted on real cards."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fidelity.blocks import Row, found_of, read_rows
from tests.unit.seldom import some


@pytest.mark.parametrize("row", some(read_rows(), 3), ids=lambda row: row.name)
def test_blocks_of_vllm(row: Row) -> None:
    assert found_of(row).wrong == []


def test_a_wrong_cache_is_seen() -> None:
    row = next(row for row in read_rows() if "cache_gib" in row.numbers)
    assert len(found_of(replace(row, cache="fp8")).wrong) == 2
