"""A model spread over devices, after every pass, computes the loss and gradients of one device."""

from __future__ import annotations

import pytest

from tests.unit.numeric.models import BIASED, CAPPED, GPT, LLAMA, SINKS
from tests.unit.numeric.training import Model, passes_of
from tests.unit.seldom import some

MODELS = {"llama": LLAMA, "gpt": GPT}

TENSOR = "shard B over dp\nshard H, K, F, V over tp"
SEQUENCE = f"{TENSOR}\nshard S over tp"
MESH = "mesh dp = 2, tp = 2"
CONTEXT = "mesh dp = 2, cp = 2\nshard B over dp\nshard S over cp"

COPIES = "mesh dp = 2, tp = 4\nshard B over dp"
SHARED = "shard K over tp { replicate = true }"

PLANS = {
    "data": "mesh dp = 2\nshard B over dp\nmicrobatch 1",
    "tensor": f"{MESH}\n{TENSOR}",
    "sequence": f"{MESH}\n{SEQUENCE}",
    "biases_first": f"{MESH}\n{SEQUENCE}\ncollectives {{ bias = before }}",
    "eager": f"{MESH}\n{SEQUENCE}\ncollectives {{ reduce = eager }}",
    "pieces": f"{MESH}\n{SEQUENCE}\nmicrobatch 1\noverlap {{ tp = true, pieces = 2 }}",
    "width": f"{MESH}\nshard B over dp\nshard D over tp",
    "width_first": f"{MESH}\nshard D over tp\n{TENSOR}",
    "keys": "mesh cp = 2\nshard T over cp",
    "gathered_logits": f"{MESH}\n{SEQUENCE}\nshard Llama.logits over none",
    "zero1": "mesh dp = 4\nshard B over dp\nzero 1 over dp",
    "zero2": f"{MESH}\n{SEQUENCE}\nmicrobatch 1\nzero 2 over dp",
    "zero3": f"{MESH}\n{SEQUENCE}\nmicrobatch 1\nzero 3 over dp",
    "zero3_units": f"{MESH}\n{TENSOR}\nzero 3 over dp\nunit Block",
    "zero_over_tensor_axis": f"{MESH}\n{TENSOR}\nzero 3 over dp, tp",
    "zero3_kept_over_some": f"{MESH}\n{SEQUENCE}\nmicrobatch 1\nzero 3 over dp, tp {{ reshard_over = dp }}\nunit Block",
    "recompute_whole": f"{MESH}\n{SEQUENCE}\nrecompute whole in Block",
    "recompute": f"{MESH}\n{SEQUENCE}\nrecompute full",
    "recompute_attention": f"{MESH}\n{SEQUENCE}\nrecompute attention, add in Block",
    "gathered_again": f"{MESH}\n{SEQUENCE}\ncollectives {{ keep = shard }}",
    "gathered_again_in": f"{MESH}\n{SEQUENCE}\ncollectives {{ keep = shard, keep_in = [Attention] }}",
    "keys_gathered": f"{CONTEXT}\ncontext cp {{ method = all_gather, balance = none }}",
    "heads_exchanged": f"{CONTEXT}\ncontext cp {{ method = ulysses, balance = none }}",
    "offloaded": f"{MESH}\n{SEQUENCE}\nmicrobatch 1\noffload {{ activations = all, optimizer = true }}",
    "offloaded_zero1": f"{MESH}\n{SEQUENCE}\nzero 1 over dp\noffload {{ optimizer = true }}",
    "offloaded_zero3": f"{MESH}\n{TENSOR}\nzero 3 over dp\nunit Block\n"
    "offload { activations = inputs, optimizer = true, parameters = true, prefetch = 2 }\nrecompute full in Block",
    "offloaded_parameters": f"{MESH}\n{TENSOR}\noffload {{ parameters = true }}",
    "chunked": f"{MESH}\n{SEQUENCE}\nmicrobatch 1\nloss_chunks 2",
    "chunked_tensor": f"{MESH}\n{TENSOR}\nloss_chunks 4\nrecompute full",
    "chunked_zero3": f"{MESH}\n{TENSOR}\nzero 3 over dp\nunit Block\nloss_chunks 2\n"
    "offload { parameters = true }",
    "chunked_context": f"{CONTEXT}\ncontext cp {{ method = all_gather, balance = none }}\nloss_chunks 2",
    "autocast": f"{MESH}\n{SEQUENCE}\nmicrobatch 1\nprecision {{ weights = fp32, activations = bf16 }}",
    "autocast_zero3": f"{MESH}\n{TENSOR}\nzero 3 over dp\nunit Block\nprecision {{ weights = fp32, activations = bf16 }}",
    "fp8": f"{MESH}\n{SEQUENCE}\nmicrobatch 1\nprecision {{ products = fp8_1x128 }}",
    "fp8_stored": f"{MESH}\n{SEQUENCE}\nmicrobatch 1\nzero 1 over dp\n"
    "precision { products = fp8_1x128, product_weights = fp8_128x128 }",
    "fp8_wide": f"{MESH}\n{TENSOR}\nzero 3 over dp\nrecompute full\n"
    "precision { products = mxfp8, weight_gradients = bf16, unquantized = [SwiGLU, wo] }",
    "fp8_saved": f"{MESH}\n{SEQUENCE}\nrecompute mul, silu\nprecision {{ saved_values = [rope, contract] }}",
    "fp8_again": f"{MESH}\n{SEQUENCE}\ncollectives {{ keep = shard }}\nprecision {{ products = fp4 }}",
    "clipped": f"{MESH}\n{SEQUENCE}\nzero 1 over dp",
    "zero2_once": f"{MESH}\n{SEQUENCE}\nmicrobatch 1\nzero 2 over dp\ngradients {{ reduce = step }}",
    "zero3_once": f"{MESH}\n{SEQUENCE}\nmicrobatch 1\nzero 3 over dp\ngradients {{ reduce = step }}",
    "host_sums": f"{MESH}\n{TENSOR}\nmicrobatch 1\nzero 3 over dp {{ like = fsdp2 }}\nunit Block\n"
    "offload { optimizer = true, update = host }",
    "returned_sums": f"{MESH}\n{SEQUENCE}\nmicrobatch 1\nzero 2 over dp {{ like = deepspeed }}\n"
    "offload { optimizer = true, update = host }",
    "deepspeed": f"{MESH}\n{SEQUENCE}\nmicrobatch 1\nzero 2 over dp {{ like = deepspeed }}",
    "gathered_ahead": f"{MESH}\n{SEQUENCE}\nmicrobatch 1\nzero 1 over dp\noverlap {{ param_gather = true }}",
    "gathered_ahead_in_buckets": "mesh dp = 2\nshard B over dp\nzero 1 over dp { like = megatron }\n"
    "gradients { overlap = true, bucket_bytes = 1KiB }\noverlap { param_gather = true }",
    "megatron": f"{MESH}\n{SEQUENCE}\nmicrobatch 1\nzero 1 over dp {{ like = megatron }}",
    "shared_heads": f"{COPIES}\nshard H over tp\n{SHARED}\nshard F, V, S over tp",
    "shared_heads_first": f"{COPIES}\n{SHARED}\nshard H, F, V over tp\nrecompute full",
    "shared_heads_zero3": f"{COPIES}\nshard H over tp\n{SHARED}\nshard S over tp\nmicrobatch 1\nzero 3 over dp\n"
    "unit Block",
    "shared_heads_exchanged": "mesh cp = 2, tp = 4\nshard H over tp\n"
    + SHARED
    + "\nshard S over cp\n"
    "context cp { method = all_gather, balance = none }",
    "zero3_persistent": f"{MESH}\n{SEQUENCE}\nmicrobatch 1\nzero 3 over dp {{ persist = 8 }}",
    "zero3_persistent_offloaded": f"{MESH}\n{TENSOR}\nzero 3 over dp {{ persist = 8 }}\nunit Block\n"
    "offload { optimizer = true, parameters = true, update = host }",
    "zero3_gathered_once": f"{MESH}\n{TENSOR}\nzero 3 over dp {{ reshard = false }}",
}

ONE_MODEL = {
    "biases_first": "gpt",
    "recompute_whole": "llama",
    "shared_heads_exchanged": "llama",
    "fp8_wide": "llama",
    "fp8_saved": "llama",
    "fp8_again": "llama",
    "autocast_zero3": "llama",
    "deepspeed": "llama",
    "megatron": "llama",
    "gathered_logits": "llama",
    "keys": "gpt",
    "chunked": "llama",
    "chunked_tensor": "llama",
    "chunked_zero3": "llama",
    "chunked_context": "llama",
    "keys_gathered": "llama",
    "heads_exchanged": "llama",
}
"""Plans about what only one of the models has."""

AFTER_EACH_PASS = [
    "data",
    "eager",
    "zero2",
    "zero3_units",
    "recompute_attention",
    "gathered_again_in",
    "heads_exchanged",
    "offloaded",
    "offloaded_zero3",
    "chunked_zero3",
    "fp8_stored",
    "fp8_saved",
    "deepspeed",
    "shared_heads",
    "biases_first",
    "pieces",
]
"""Plans under which a model is computed after each pass; under the others only after the last one that leaves what can be computed."""


CASES = [
    (ONE_MODEL.get(plan, "llama" if plan in AFTER_EACH_PASS or n % 2 else "gpt"), plan)
    for n, plan in enumerate(PLANS)
]
"""The models take turns at the plans of both; what is computed after each pass is that of Llama."""


@pytest.mark.parametrize(("name", "plan"), some(CASES, 9))
def test_spread_as_on_one_device(name: str, plan: str):
    optimizer = "adamw" if "optimizer = true" in PLANS[plan] else "sgd"
    if plan == "clipped":
        optimizer += " { clip = 1, loss_scale = dynamic }"
    text = f"{PLANS[plan]}\noptimizer {optimizer}"
    MODELS[name].check(text, after_each=name == "llama" and plan in AFTER_EACH_PASS)


@pytest.mark.seldom
def test_some_plan_is_computed_after_each_pass():
    def passes(plan: str) -> set[str]:
        return set(passes_of(LLAMA.spread(PLANS[plan])))

    seen = {each for plan in AFTER_EACH_PASS for each in passes(plan)}
    assert {each for plan in PLANS for each in passes(plan)} == seen


@pytest.mark.parametrize("name", some(MODELS, 2))
def test_gradients_are_derivatives(name: str):
    check_derivatives(MODELS[name])


def check_derivatives(model: Model) -> None:
    for path, gradient, difference in model.differences():
        assert gradient == pytest.approx(difference, rel=1e-5, abs=1e-8), path


@pytest.mark.parametrize("chunks", some([2, 4], 2))
@pytest.mark.parametrize("plan", ["data", "tensor", "sequence", "zero3"])
def test_chunks_of_a_loss_are_the_whole(plan: str, chunks: int):
    """With a bias, a soft cap, and a head that is the embedding."""
    CAPPED.check(f"{PLANS[plan]}\nloss_chunks {chunks}\noptimizer sgd")


@pytest.mark.parametrize("plan", ["data", "sequence", "zero3", "keys_gathered", "heads_exchanged"])
def test_attention_with_sinks(plan: str):
    SINKS.check(f"{PLANS[plan]}\noptimizer sgd".replace("H, K, F, V", "H, K, V"))


@pytest.mark.parametrize(
    "plan",
    some(["data", "sequence", "zero3", "shared_heads", "keys_gathered", "heads_exchanged"], 2),
)
def test_attention_with_a_bias(plan: str):
    """A learned one of all layers, and ALiBi."""
    BIASED.check(f"{PLANS[plan]}\noptimizer sgd".replace("H, K, F, V", "H, K, V"))


@pytest.mark.parametrize("model", [SINKS, BIASED])
def test_gradients_of_what_biases_scores_are_derivatives(model: Model):
    check_derivatives(model)
