"""Attention to keys that devices share is attention to all of them, before and after collectives are there."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from stagec.analysis.sizes import size_values
from stagec.dialects import stg
from stagec.dialects.types import tensor_of
from stagec.driver import Stops, compile_text
from stagec.passes import load_pass
from stagec.rewriting import programs
from tests.unit.numeric.interpreter import run
from tests.unit.numeric.machine import Array
from tests.unit.numeric.training import shape_of

GROUPED = """
dim B = 4
dim S = 1
dim T = 24
dim D = 6
dim H = 8
dim K = 2
dim E = 4

model Net(x[B, S, D]) {
  weight wq[D, H, E], wk[D, K, E], wv[D, K, E], wo[H, E, D]
  cache k[B, T, K, E], v[B, T, K, E]
  return attention(x @ wq, append(k, x @ wk), append(v, x @ wv)) @ wo
}
"""

LATENT = """
dim B = 4
dim S = 1
dim T = 24
dim D = 6
dim H = 8
dim C = 4
dim R = 2

model Net(x[B, S, D]) {
  weight near[D, H, C], far[D, H, R], kv[D, C], shared[D, R], wo[H, C, D]
  cache latents[B, T, C], rotated[B, T, R]
  return latent_attention(x @ near, x @ far, append(latents, x @ kv), append(rotated, x @ shared)) @ wo
}
"""

ONE = "plan p { serve { decode 4 at 23 } }"

PLANS = {
    "heads_too": (GROUPED, "mesh tp = 2, cp = 4", "shard H over tp, cp shard K over tp", ""),
    "exchanged": (
        GROUPED,
        "mesh tp = 2, cp = 4",
        "shard H over tp, cp shard K over tp",
        ", combine = all_to_all",
    ),
    "copies_of_heads": (
        GROUPED,
        "mesh kv = 4, cp = 2, tp = kv * cp",
        "shard H over tp shard K over kv { replicate = true }",
        "",
    ),
    "copies_exchanged": (
        GROUPED,
        "mesh cp = 2, kv = 4",
        "shard K over kv { replicate = true } shard H over kv, cp",
        ", combine = all_to_all",
    ),
    "copies_of_queries_too": (
        GROUPED,
        "mesh kv = 4, cp = 2",
        "shard K over kv { replicate = true }",
        "",
    ),
    "positions_alone": (GROUPED, "mesh cp = 3", "", ""),
    "sequences": (GROUPED, "mesh dp = 2, cp = 2", "shard B over dp shard H over cp", ""),
    "latents": (LATENT, "mesh cp = 4", "shard H over cp", ""),
    "latents_exchanged": (LATENT, "mesh cp = 4", "shard H over cp", ", combine = all_to_all"),
    "latents_beside": (LATENT, "mesh tp = 2, cp = 2", "shard H over tp, cp", ""),
}


def placed(text: str) -> ModuleOp:
    """Of one device each, with changes of placement."""
    return compile_text(text, stops=Stops(after="localize-shapes")).module


def numbers_of(module: ModuleOp) -> dict[str, Array]:
    """Weights and caches, drawn."""
    generator, values = np.random.default_rng(3), size_values(module)
    (program,) = programs(module)
    kept = [op for op in program.body.block.ops if isinstance(op, stg.WeightOp | stg.CacheOp)]
    return {
        op.path.data: generator.normal(size=shape_of(op.results[0].type, values)) for op in kept
    }


PROMPTS = {
    "gathered": (GROUPED, "mesh cp = 4 shard S over cp", "all_gather"),
    "heads_too": (GROUPED, "mesh tp = 2, cp = 4 shard S over cp shard H, K over tp", "all_gather"),
    "latents": (LATENT, "mesh tp = 2, cp = 2 shard S over cp shard H over tp", "all_gather"),
    "exchanged": (GROUPED, "mesh cp = 2 shard S over cp shard H, K over cp", "ulysses"),
    "exchanged_whole": (GROUPED, "mesh cp = 2 shard S over cp", "ulysses"),
    "latents_exchanged": (LATENT, "mesh cp = 4 shard S over cp", "ulysses"),
    "positions_too": (
        GROUPED,
        "mesh cp = 2, dcp = 3 shard S over cp shard T over dcp context dcp { method = partial }",
        "all_gather",
    ),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_parts_of_a_prompt_are_all_of_it(name: str):
    """New positions that devices share, of which each writes what its cache has."""
    text, rules, method = PROMPTS[name]
    served = "serve { prefill 4 x 8 at 16, logits = all }"
    whole = placed(f"{text}\nplan p {{ {served} }}")
    numbers, x = numbers_of(whole), np.random.default_rng(4).normal(size=(4, 8, 6))
    (expected,) = run(whole, numbers, [x]).outputs
    plan = f"plan p {{ {rules} context cp {{ method = {method} }} {served} }}"
    module = placed(f"{text}\n{plan}")
    (query,) = {
        tensor_of(op.operands[0].type).dim("S").split
        for op in module.walk()
        if isinstance(op, stg.FusedAttention)
    }
    assert query == (() if method == "ulysses" else ("cp",))
    for step in (None, "insert-collectives"):
        if step is not None:
            load_pass(step)().apply(Context(), module)
        (found,) = run(module, numbers, [x]).outputs
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", PLANS)
def test_parts_of_attention_are_all_of_it(name: str):
    text, mesh, rules, combine = PLANS[name]
    whole = placed(f"{text}\n{ONE}")
    numbers, x = numbers_of(whole), np.random.default_rng(4).normal(size=(4, 1, 6))
    (expected,) = run(whole, numbers, [x]).outputs
    plan = f"plan p {{ {mesh} {rules} shard T over cp context cp {{ method = partial{combine} }} serve {{ decode 4 at 23 }} }}"
    module = placed(f"{text}\n{plan}")
    assert any(isinstance(op, stg.CombineAttentionOp) for op in module.walk())
    for step in (None, "insert-collectives"):
        if step is not None:
            load_pass(step)().apply(Context(), module)
        (found,) = run(module, numbers, [x]).outputs
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
