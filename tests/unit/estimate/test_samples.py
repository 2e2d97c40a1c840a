"""How many samples and tokens a step has: its batch is the dim of samples that the program states, whatever else its inputs have."""

from __future__ import annotations

import pytest

from stagec.driver import Stops, compile_model, compile_text
from stagec.estimate.step import batch_of

LOCAL = Stops(after="localize-shapes")


@pytest.mark.parametrize(
    ("name", "samples", "tokens"),
    [("gpt2", 512, 512 * 1024), ("t5_base", 128, 128 * 512)],
)
def test_models_whose_other_inputs_are_longer_than_a_batch(
    name: str, samples: int, tokens: int
) -> None:
    """Positions that are looked up, and distances, are no samples."""
    assert batch_of(compile_model(f"examples/{name}.stg", stops=LOCAL)) == (samples, tokens)


@pytest.mark.parametrize(("batch", "prototypes"), [(8, 32), (32, 8)])
def test_a_further_input_is_no_batch(batch: int, prototypes: int) -> None:
    text = f"""
dim B = {batch}
dim M = {prototypes}
dim D = 64
dim N = 128
model Near(x[B, D], prototypes[M, D]) {{
  weight mix[D, N]
  loss = mean((x @ mix) @ (prototypes @ mix), over = [B, M])
}}
plan p {{ mesh dp = 2 shard B over dp }}
"""
    assert batch_of(compile_text(text, stops=LOCAL)) == (batch, None)
