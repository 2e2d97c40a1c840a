"""How rows of measured serving are read."""

from __future__ import annotations

import pytest

from tests.fidelity.serving import layout, row_of, without_copies

CELLS = {
    "source": "s",
    "engine": "sglang",
    "model": "deepseek-ai/DeepSeek-V3",
    "gpu": "b200_sxm",
    "input_tokens": "1024",
    "output_tokens": "1024",
    "gemm_quant": "nvfp4",
    "moe_quant": "nvfp4",
    "batch": "64",
    "tp": "4",
    "pp": "1",
    "attention_dp": "1",
    "moe_tp": "4",
    "ep": "1",
    "concurrency": "64",
    "ttft_ms": "100",
    "tpot_ms": "10.004",
    "group": "g",
}


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({}, (4, 1, 1)),
        ({"moe_tp": "1", "ep": "4"}, (4, 1, 4)),
        ({"tp": "16", "ep": "4"}, (4, 1, 4)),
        ({"tp": "64", "moe_tp": "8", "ep": "8"}, (8, 1, 8)),
        (
            {"engine": "trtllm", "tp": "1", "attention_dp": "64", "moe_tp": "8", "ep": "8"},
            (1, 8, 8),
        ),
        ({"engine": "vllm", "attention_dp": "4", "moe_tp": "1", "ep": "16"}, (4, 1, 4)),
        (
            {"engine": "vllm", "tp": "2", "attention_dp": "2", "moe_tp": "1", "ep": "4"}
            | {"concurrency": "256"},
            (1, 2, 2),
        ),
    ],
)
def test_ranks_are_counted_once(cells: dict[str, str], expected: tuple[int, int, int]) -> None:
    assert layout({**CELLS, **cells}) == expected


def test_a_measurement_is_judged_once() -> None:
    """Under two layouts, and with fewer digits; not that of other requests."""
    one = row_of("a", {**CELLS, "moe_tp": "1", "ep": "4"})
    again = row_of("b", {**CELLS, "tp": "16", "ep": "4", "tpot_ms": "10.0"})
    other = row_of("c", {**CELLS, "tp": "16", "ep": "4", "concurrency": "32"})
    assert [row.name for row in without_copies([one, again, other])] == ["a", "c"]
