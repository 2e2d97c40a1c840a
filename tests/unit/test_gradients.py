"""Each gradient rule against the central difference of the loss, on one device and spread over a mesh."""

from __future__ import annotations

import pytest
from xdsl.utils.test_value import create_ssa_value

from stagec.diagnostics import CompileError
from stagec.dialects import stg
from stagec.dialects.types import TensorType
from stagec.rewriting import programs
from tests.unit.numeric.training import Model
from tests.unit.seldom import some

SIZES = """
dim B = 2
dim S = 4
dim T = S
dim D = 4
dim H = 4
dim K = 2
dim V = 4
dim C = 3
dim N = D + C + D
dim Y = 4
dim X = 6
dim I = 2
dim J = 3
dim P = (Y / I) * (X / J)
dim W = 3
dim R = 2
"""

SPREAD = "mesh a = 2\nshard D over a\nshard H, K, V over a\noptimizer sgd"
"""Splits what most ops work on."""


def model(body: str, inputs: str = "x[B, S, D]") -> Model:
    return Model(f"{SIZES}\nmodel M({inputs}) {{\n{body}\n}}")


def elementwise(text: str) -> Model:
    """A loss that is no sum of what is tested, so that cotangents differ."""
    return model(
        f"weight w[S, D], u[D]\n y = x * w\n z = {text}\n loss = mean(z * x * z, over = [B, S, D])"
    )


UNARY = {f"unary_{f}": elementwise(f"{f}(y)") for f in stg.UNARY_FUNCTIONS if f != "neg"}
UNARY["unary_abs"] = elementwise("abs(y - x)")
UNARY["unary_neg"] = elementwise("-y")

MODELS = UNARY | {
    "add": elementwise("y + u"),
    "sub": elementwise("y - u"),
    "mul": elementwise("y * u"),
    "div": elementwise("y / u"),
    "div_same": elementwise("y / (y + u)"),
    "cast": elementwise("cast(y, dtype = fp64)"),
    "transpose_of_broadcast": elementwise("u + y"),
    "transpose": Model(
        f"{SIZES}\nmodule F(x[D, S, B]) -> [D, S, B] {{ return tanh(x) }}\n"
        "model M(x[B, S, D]) {\n weight w[D]\n loss = mean(F(x * w), over = [B, S, D])\n}"
    ),
    "rename": model("weight w[S]\n y = x * w\n loss = sum(y[S -> T] @ exp(y), over = [S, T])"),
    "concat": model(
        "weight w[D], u[H, C]\n y = concat(x * w, tanh(w), tanh(u * u)[H -> S], over = [D, D, C], to = N)\n"
        "loss = mean(exp(y) * y, over = [B, S, N])"
    ),
    "split": model(
        "weight w[B, S, N]\n a, _, b = split(w * w, over = N, to = [D, C, D])\n"
        "loss = mean(exp(a) * b * x, over = [B, S, D])"
    ),
    "reduce_sum": elementwise("y * sum(y, over = D)"),
    "reduce_mean": elementwise("y * mean(y, over = [S, D])"),
    "reduce_max": elementwise("y * max(y, over = D)"),
    "dropout": elementwise("dropout(y, rate = 0.5)"),
    "contract": model("weight w[D, H], v[H]\n loss = sum(exp(x @ w) @ v, over = [B, S])"),
    "contract_batched": model(
        "weight w[S, D, H]\n y[B, S, H] = x @ w\n loss = mean(y * y, over = [B, S, H])"
    ),
    "outer_product": model(
        "weight w[H]\n y[B, S, D, H] = x @ w\n loss = mean(y * y, over = [B, S, D, H])"
    ),
    "embedding": model(
        "weight w[V, D], u[D]\n y = embedding(i, w)\n loss = sum(y * y * u, over = [B, S, D])",
        "i[B, S]: i32",
    ),
    "repeat_heads": model(
        "weight w[K, D]\n y = repeat_heads(x * w, heads = K, to = H)\n loss = mean(y * y, over = [B, H, D])",
        "x[B, K, D]",
    ),
    "rope": elementwise("rope(y)"),
    "rms_norm": elementwise("rms_norm(y, u)"),
    "rms_norm_without_weight": elementwise("rms_norm(y)"),
    "rms_norm_of_two_dims": elementwise("rms_norm(y, w)"),
    "layer_norm": elementwise("layer_norm(y, u, u * 0.5)"),
    "layer_norm_without_bias": elementwise("layer_norm(y, u)"),
    "layer_norm_without_weight": elementwise("layer_norm(y, over = [S, D])"),
    "softmax": elementwise("softmax(y, over = D)"),
    "softmax_of_two_dims": elementwise("softmax(y, over = [S, D])"),
    "causal_mask": model(
        "weight w[S, T]\n"
        "p = softmax(causal_mask(w + x, query = S, key = T), over = T)\n"
        "loss = mean(p * p * x, over = [B, S, T])",
        "x[B, S, T]",
    ),
    "attention": model(
        "weight w[H, D], v[K, D]\n"
        "y = attention(x * w, k * v, exp(k) * v, causal = true)\n"
        "loss = mean(y * y, over = [B, S, H, D])",
        "x[B, S, H, D], k[B, S, K, D]",
    ),
    "attention_softcap": model(
        "weight w[H, D], v[K, D]\n"
        "y = attention(x * w, k * v, exp(k) * v, causal = true, softcap = 0.5)\n"
        "loss = mean(y * y, over = [B, S, H, D])",
        "x[B, S, H, D], k[B, S, K, D]",
    ),
    "attention_window": model(
        "weight w[H, D]\n"
        "y = attention(x * w, x, x, causal = true, window = 2)\n"
        "loss = mean(y * y, over = [B, S, H, D])",
        "x[B, S, H, D]",
    ),
    "cross_entropy in two kernels": model(
        "weight w[D, V]\n loss = cross_entropy(x @ w, i, fused = false) * 3.0",
        "x[B, S, D], i[B, S]: i32",
    ),
    "patch_embedding": model(
        "weight w[C, I, J, D], u[C]\n y = patch_embedding(x * u, w, patches = P)\n"
        "loss = mean(y * y, over = [B, P, D])",
        "x[B, C, Y, X]",
    ),
    "embedding_bag": model(
        "weight w[H, V, D], u[D]\n y = embedding_bag(i, w, over = S)\n"
        "loss = sum(y * y * u, over = [B, H, D])",
        "i[B, H, S]: i32",
    ),
    "each pair": model(
        "weight u[S, D], v[H, D]\n p[H, S, D] = u * v\n q[H, S, D] = u - v\n r[S, D, H] = u / v\n"
        "loss = mean(p * q * r * x, over = [B, S, H, D])",
        "x[B, S, H, D]",
    ),
    "tables of two lookups": model(
        "weight w[V, D], u[D]\n y = embedding_bag(i, w, over = S) + mean(embedding(i, w), over = S)\n"
        "loss = sum(y * y * u, over = [B, D])",
        "i[B, S]: i32",
    ),
    "embedding_bag_of_several_lengths": model(
        "weight w[V, D], u[D]\n y = embedding_bag(i, w, over = S, to = C)\n"
        "loss = sum(y * y * u, over = [B, C, D])",
        "i[B, S]: i32",
    ),
    "causal_conv": model(
        "weight w[W, H], u[H, D]\n y = causal_conv(x * u, w, over = S)\n"
        "loss = mean(y * y * x, over = [B, S, H, D])",
        "x[B, S, H, D]",
    ),
    "ssd_scan": model(
        "weight a[H], b[B, S, R], u[H, D], t[H]\n"
        "y = ssd_scan(x * u, dt * t, -a, b, tanh(b), chunk = 2)\n"
        "loss = mean(y * y, over = [B, S, H, D])",
        "x[B, S, H, D], dt[B, S, H]",
    ),
    "ssd_scan_of_groups": model(
        "weight a[H], b[B, S, K, R], u[H, D]\n"
        "y = ssd_scan(x * u, dt, -a, tanh(b), b)\n"
        "loss = mean(y * y, over = [B, S, H, D])",
        "x[B, S, H, D], dt[B, S, H]",
    ),
    "gated_delta_rule": model(
        "weight u[H, D], b[H], k[B, S, K, R]\n"
        "y = gated_delta_rule(k * q, tanh(k), x * u, -exp(t * b), sigmoid(t * b), chunk = 2)\n"
        "loss = mean(y * y, over = [B, S, H, D])",
        "x[B, S, H, D], q[B, S, K, R], t[B, S, H]",
    ),
    "gated_delta_rule_by_channel": model(
        "weight u[H, D], b[H, R], k[B, S, K, R]\n"
        "y = gated_delta_rule(k * q, tanh(k), x * u, -exp(d * b), sigmoid(t), chunk = 2)\n"
        "loss = mean(y * y, over = [B, S, H, D])",
        "x[B, S, H, D], q[B, S, K, R], t[B, S, H], d[B, S, H, R]",
    ),
    "cross_entropy": model(
        "weight w[D, V]\n loss = cross_entropy(x @ w, i) * 3.0", "x[B, S, D], i[B, S]: i32"
    ),
    "override": model("weight w[D, H]\n y = x @ w\n loss = mean(y * y, over = [B, S, H])"),
    "repeat": model(
        "weight u[D]\n y = x * u\n"
        "repeat 3 {\n weight w[D]\n y = tanh(y * w) + y * u\n}\n"
        "loss = mean(y * y, over = [B, S, D])"
    ),
    "repeat_in_repeat": model(
        "weight u[D]\n y = x * u\n"
        "repeat 2 {\n repeat 3 {\n weight w[D]\n y = tanh(y * w) + y * u\n}\n y = y * 0.5\n}\n"
        "loss = mean(y * y, over = [B, S, D])"
    ),
    "one_weight_twice": model(
        "weight w[V, D]\n loss = cross_entropy(tanh(embedding(i, w)) @ w, i)", "i[B, S]: i32"
    ),
}

PLANS = {
    "override": f"{SPREAD}\nshard M.y over none",
    "patch_embedding": "mesh a = 2, b = 3\nshard P over a\nshard C over b\noptimizer sgd",
    "embedding_bag": "mesh a = 2, b = 2, c = 2, d = 2\nshard H over a\nshard V over b\n"
    "shard D over c\nshard B over d\noptimizer sgd { tables = rowwise_adagrad }",
    "tables of two lookups": "mesh a = 2, b = 2, c = 2\nshard V over a\nshard D over b\nshard B over c\n"
    "microbatch 1\noptimizer sgd { tables = sgd }",
    "embedding_bag_of_several_lengths": "mesh a = 2, b = 2\nshard V over a\nshard S, B over b\noptimizer sgd",
    "ssd_scan": "mesh a = 2, b = 2\nshard R over a\nshard B over b\nshard H over b\noptimizer sgd",
    "gated_delta_rule": "mesh a = 2, b = 2, c = 2\nshard K, H over a\nshard B over b\nshard D over c\noptimizer sgd",
    "gated_delta_rule_by_channel": "mesh a = 2, b = 2, c = 2\nshard K, H over a\nshard B over b\nshard D over c\noptimizer sgd",
    "ssd_scan_of_groups": "mesh a = 2, b = 2\nshard K, H over a\nshard S over b\noptimizer sgd",
}

WITHOUT_NUMBERS = {
    # Costs, and no formula.
    "stg.user",
    # Numbers of experts depend on what is computed; test_routing.py counts them.
    "stg.topk",
    "stg.dispatch",
    "stg.combine",
}

OF_GRADIENTS = {"stg.sum_heads", "stg.broadcast"}
"""Made by gradients alone: only a second derivative would ask for theirs."""

OF_PASSES = {
    "stg.fan_out",
    "stg.fan_in",
    "stg.spread_choice",
    "stg.send_weights",
    "stg.weight_copies",
    "stg.quantize",
}
"""Made of a dispatch and a combine, whose numbers depend on what is computed; test_hierarchical_exchange.py and test_fidelity_megatron.py count them.
Rounding has no derivative: what comes back passes through."""


TENSOR_OPS = [op for op in stg.OPS if issubclass(op, stg.TensorOp)]


@pytest.mark.parametrize("name", some(MODELS, 4))
def test_gradients_are_derivatives(name: str):
    for path, gradient, difference in MODELS[name].differences():
        assert gradient == pytest.approx(difference, rel=1e-5, abs=1e-7), path


@pytest.mark.parametrize("name", some(MODELS, 8))
def test_spread_gradients_are_those_of_one_device(name: str):
    MODELS[name].check(PLANS.get(name, SPREAD))


def test_every_rule_is_tested():
    tested = set()
    for each in MODELS.values():
        (program,) = programs(each.module("propagate-shardings"))
        tested |= {op.name for op in program.walk()}
    known = {op.name for op in TENSOR_OPS if op.gradient is not stg.TensorOp.gradient}
    assert known - tested - {"stg.place"} == WITHOUT_NUMBERS | OF_GRADIENTS | OF_PASSES


def test_an_op_without_a_rule():
    dy = create_ssa_value(TensorType.of(["B"], "bf16"))
    with pytest.raises(CompileError, match=r"E0218\]: `stg\.unary_grad` has no gradient rule"):
        stg.UnaryGradOp("silu", dy, dy).gradient([dy], None)  # pyright: ignore[reportArgumentType]
