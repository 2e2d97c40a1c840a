"""FLOPs and bytes of ops against numbers computed by hand, each with its source."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from xdsl.ir import SSAValue
from xdsl.utils.test_value import create_ssa_value

from stagec.dialects import dist, stg
from stagec.dialects.interfaces import CostInterface
from stagec.dialects.types import Dim, ShardType, StackType, TensorType
from stagec.symbolic import Size, parse, symbol


def value(*dims: str, dtype: str = "bf16") -> SSAValue:
    """A tensor of dims as in text: `S/tp`."""
    named = [
        Dim(name, (axis,) if axis else ()) for name, _, axis in (d.partition("/") for d in dims)
    ]
    return create_ssa_value(TensorType.of(named, dtype))


def reads_and_writes(op: CostInterface) -> tuple[Size, Size]:
    moved = op.moved_bytes()
    return moved.read, moved.written


# Contractions


def test_a_contraction_is_two_per_multiply_add():
    """2 m n k of a matrix product (Golub and Van Loan 2013, table 1.1.2), over the whole iteration space."""
    op = stg.ContractOp(value("B/dp", "S", "D"), value("D", "H/tp", "E"), ["D"])
    assert op.flops() == parse("2*B*S*D*H*E/(dp*tp)")
    assert reads_and_writes(op) == (
        parse("2*B*S*D/dp + 2*D*H*E/tp"),
        parse("2*B*S*H*E/(dp*tp)"),
    )


def test_a_contraction_over_a_split_dim_is_a_share():
    op = stg.ContractOp(value("B", "F/tp"), value("F/tp", "D"), ["F"])
    assert op.flops() == parse("2*B*F*D/tp")


def test_a_transformer_layer_of_gpt3():
    """24 B s h^2 + 4 B s^2 h forward (Narayanan et al. 2021, section 5.1), of GPT-3 175B: s = 2048, h = 12288."""
    x = value("B", "S", "D")
    products: list[stg.TensorOp] = [
        stg.ContractOp(x, value("D", "H", "E"), ["D"]),
        stg.ContractOp(x, value("D", "H", "E"), ["D"]),
        stg.ContractOp(x, value("D", "H", "E"), ["D"]),
        stg.ContractOp(value("B", "S", "H", "E"), value("H", "E", "D"), ["H", "E"]),
        stg.ContractOp(x, value("D", "F"), ["D"]),
        stg.ContractOp(value("B", "S", "F"), value("F", "D"), ["F"]),
    ]
    q = value("B", "S", "H", "E")
    products.append(stg.AttentionOp(q, q, q))
    sizes = {"B": 1, "S": 2048, "D": 12288, "H": 96, "E": 128, "F": 4 * 12288}
    made = sum(op.flops().integer(sizes) for op in products)
    assert made == 24 * 2048 * 12288**2 + 4 * 2048**2 * 12288


# Attention


def attention(causal: bool, count: str = "causal", window: str | None = None) -> stg.AttentionOp:
    q, k = value("B", "S", "H", "E"), value("B", "S", "K", "E")
    size = parse(window) if window else None
    return stg.AttentionOp(q, k, k, causal=causal, count=count, window=size)


def backward(op: stg.AttentionOp) -> stg.AttentionGradOp:
    return stg.AttentionGradOp(value("B", "S", "H", "E"), op)


@pytest.mark.parametrize(
    ("op", "pairs"),
    [
        (attention(causal=False), "S**2"),
        # `flops` in benchmarks/benchmark_flash_attention.py of Dao-AILab/flash-attention: // 2 if causal.
        (attention(causal=True), "S**2/2"),
        (attention(causal=True, count="full"), "S**2"),
        # Each query sees W keys; under a mask the first W see a triangle.
        (attention(causal=False, window="W"), "2*S*min(S, W/2) - min(S, W/2)**2"),
        (attention(causal=True, window="64"), "S*min(64, S) - min(64, S)**2/2"),
    ],
)
def test_attention_counts_pairs(op: stg.AttentionOp, pairs: str):
    """4 FLOPs per pair, head and element of a head forward (FlashAttention, `flops`: 4 B S^2 H E), 2.5 times that backward."""
    assert op.flops() == 4 * parse("B*H*E") * parse(pairs)
    assert backward(op).flops() == 10 * parse("B*H*E") * parse(pairs)


def test_a_soft_cap_by_hand():
    """A division, a tanh and a product for each pair and head; backward once more, and 1 - tanh^2 as a factor."""
    q = value("B", "S", "H", "E")
    plain, capped = stg.AttentionOp(q, q, q), stg.AttentionOp(q, q, q, softcap="50")
    assert capped.flops() == plain.flops() + parse("3*B*H*S**2")
    assert backward(capped).flops() == backward(plain).flops() + parse("6*B*H*S**2")


def test_biases_of_scores_by_hand():
    """An addition for each pair and head; backward the scores again, and a term of the bias's gradient. ALiBi: a product and a sum.

    The products are those that PyTorch 2.13 counts of 8 sequences of 512 tokens, 12 heads of 64 (`_scaled_dot_product_efficient_attention` with a
    bias of [1, 12, 512, 512]).
    """
    q, k = value("B", "S", "H", "E"), value("B", "T", "H", "E")
    bias, pairs = value("S", "T", "H"), parse("B*H*S*T")
    sizes = {"B": 8, "S": 512, "T": 512, "H": 12, "E": 64}
    plain, biased = stg.AttentionOp(q, k, k), stg.AttentionOp(q, k, k, [bias])
    sloped = stg.AttentionOp(q, k, k, alibi=True)
    assert plain.flops().integer(sizes) == 6_442_450_944
    assert biased.flops() == plain.flops() + pairs
    assert sloped.flops() == plain.flops() + 2 * pairs
    dy = value("B", "S", "H", "E")
    assert stg.AttentionGradOp(dy, plain).flops().integer(sizes) == 16_106_127_360
    grads = [stg.AttentionGradOp(dy, biased, trains_bias=trained) for trained in (False, True)]
    assert [g.flops() - backward(plain).flops() for g in grads] == [pairs, 2 * pairs]
    assert stg.AttentionGradOp(dy, sloped).flops() == backward(plain).flops() + 2 * pairs
    whole = parse("2*H*S*T")
    read = [op.moved_bytes().read for op in (plain, sloped, biased, grads[1])]
    assert [read[1] - read[0], read[2] - read[0]] == [parse("0"), whole]
    assert grads[1].moved_bytes().written == grads[0].moved_bytes().written + whole
    # Half of the pairs are seen under a causal mask, and none of the others is read.
    masked = [
        stg.AttentionOp(q, k, k, [b] if b else [], causal=True).moved_bytes().read
        for b in (bias, None)
    ]
    assert masked[0] == masked[1] + parse("H*S*T")


def test_keys_and_values_of_different_width_by_hand():
    """As in latent attention: forward 2 (E + G) for each pair and head, backward 2 (3 E + 2 G)."""
    q, v = value("B", "S", "H", "E"), value("B", "S", "H", "G")
    op = stg.AttentionOp(q, q, v)
    assert op.flops() == 2 * parse("B*H*S**2*(E + G)")
    assert stg.AttentionGradOp(v, op).flops() == 2 * parse("B*H*S**2*(3*E + 2*G)")


def test_a_window_under_a_mask_is_nearly_the_pairs():
    """Of S queries, number i sees min(i + 1, W) keys; the diagonal counts as half, as it does without a window."""
    sizes = {"B": 1, "S": 1024, "H": 1, "K": 1, "E": 1}
    seen = sum(min(i + 1, 64) for i in range(1024))
    counted = attention(causal=True, window="64").flops().integer(sizes) // 4
    assert counted == seen - 64 // 2


@pytest.mark.parametrize("window", [1, 33, 64, 1023, 2047, 5000])
def test_a_window_around_a_query_is_nearly_the_pairs(window: int):
    """As many keys on either side, of those that there are."""
    sizes = {"B": 1, "S": 1024, "H": 1, "K": 1, "E": 1}
    at = np.arange(1024)
    seen = int((abs(at[:, None] - at) <= window // 2).sum())
    counted = attention(causal=False, window=f"{window}").flops().evaluate(sizes) / 4
    off = 0 if window % 2 else 1024
    assert abs(counted - seen) <= off + 1


def test_keys_and_values_of_different_width():
    """Multi-head latent attention: scores over 192, values of 128 (DeepSeek-V2, arXiv:2405.04434, section 2.1)."""
    q, v = value("S", "H", "E"), value("S", "H", "G")
    op = stg.AttentionOp(q, q, v)
    sizes = {"S": 10, "H": 2, "E": 192, "G": 128}
    assert op.flops().integer(sizes) == 2 * 10 * 10 * 2 * (192 + 128)
    # Scores again, dq, dk over 192; dp, dv over 128.
    grad = stg.AttentionGradOp(v, op)
    assert grad.flops().integer(sizes) == 2 * 10 * 10 * 2 * (3 * 192 + 2 * 128)


def test_attention_never_writes_scores():
    op = attention(causal=True)
    read, written = reads_and_writes(op)
    assert read == parse("2*B*S*H*E + 4*B*S*K*E")
    # The result, and a log-sum-exp in fp32 for each query and head.
    assert written == parse("2*B*S*H*E + 4*B*S*H")


# Tables, norms, losses


def test_an_embedding_reads_rows_and_not_the_table():
    op = stg.EmbeddingOp(value("B", "S", dtype="i32"), value("V", "D"))
    assert op.flops() == 0
    assert reads_and_writes(op) == (parse("4*B*S + 2*B*S*D"), parse("2*B*S*D"))


def test_the_gradient_of_a_table_is_written_whole():
    """A dense gradient, as `nn.Embedding(sparse=False)` makes: each row of dy is added once."""
    ids, dy = value("B", "S", dtype="i32"), value("B", "S", "D")
    op = stg.EmbeddingGradOp(ids, dy, like=TensorType.of(["V", "D"], "bf16"))
    assert op.flops() == parse("B*S*D")
    assert reads_and_writes(op) == (parse("4*B*S + 2*B*S*D"), parse("2*V*D"))


def test_a_target_logit_is_one_number_per_position():
    op = stg.TargetLogitOp(value("B", "V/tp"), value("B", dtype="i32"), value("B", dtype="fp32"))
    assert reads_and_writes(op) == (parse("2*B + 4*B + 4*B"), parse("4*B"))


@pytest.mark.parametrize(
    ("op", "per_element"),
    [
        # square, sum, scale; and the weight
        (stg.RmsNormOp(value("B", "D"), None, ["D"]), 3),
        (stg.RmsNormOp(value("B", "D"), value("D"), ["D"]), 4),
        # sum, subtract, square, sum, scale; weight; bias
        (stg.LayerNormOp(value("B", "D"), [], ["D"]), 5),
        (stg.LayerNormOp(value("B", "D"), [value("D"), value("D")], ["D"]), 7),
        # maximum, subtract, exp, sum, divide
        (stg.SoftmaxOp(value("B", "D"), ["D"]), 5),
        (stg.UnaryOp("gelu", value("B", "D")), 1),
        (stg.AddOp(value("B", "D"), value("D")), 1),
        (stg.ReduceOp("sum", value("B", "D"), ["D"]), 1),
        # Of each pair: 4 multiplications and 2 additions (Su et al. 2021, equation 34).
        (stg.RopeOp(value("B", "D")), 3),
        (stg.CastOp(value("B", "D"), "fp32"), 0),
    ],
)
def test_operations_per_element(op: stg.TensorOp, per_element: int):
    assert op.flops() == parse("B*D") * per_element


# The optimizer


def test_adamw_with_master_weights():
    """16 bytes of state per parameter under mixed precision (Rajbhandari et al. 2020, section 3.1): 2 + 2 + 12.

    A step reads the fp32 gradient (4), master weight (4) and moments (8), and writes all but the gradient, and the bf16
    weight (2).
    """
    weight, gradient = value("D", "F/tp"), value("D", "F/tp", dtype="fp32")
    op = stg.OptimizerStepOp([weight], [gradient], algorithm="adamw", states="fp32", master="fp32")
    assert reads_and_writes(op) == (parse("16*D*F/tp"), parse("14*D*F/tp"))


def test_sgd_without_state():
    weight = value("D", dtype="fp32")
    op = stg.OptimizerStepOp([weight], [weight], algorithm="sgd", states="fp32")
    assert reads_and_writes(op) == (parse("8*D"), parse("4*D"))
    assert op.flops() == parse("2*D")


def test_a_step_over_stacks_and_shards():
    tensor = TensorType.of(["D", "F"], "fp32")
    stack = create_ssa_value(StackType.of(symbol("L"), ShardType.of(tensor, ("dp",))))
    op = stg.OptimizerStepOp([stack], [stack], algorithm="sgd_momentum", states="fp32")
    elements = parse("L*ceildiv(D, dp)*F")
    assert reads_and_writes(op) == (12 * elements, 8 * elements)


# Ops of a model, views


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize(
    ("kind", "operations", "reads", "writes"),
    [("finite", 2, 1, 1), ("norm", 3, 2, 1), ("factors", 0, 1, 0), ("lengths", 0, 1, 0)],
)
def test_gradients_are_scaled_in_place(
    kind: str, operations: int, reads: int, writes: int, dtype: str
):
    """A check of finite numbers divides by the scale of the loss as it reads (`_amp_foreach_non_finite_check_and_unscale_`); a norm is found in one pass
    and multiplied by in another (`_get_total_norm` and `_clip_grads_with_norm_` of `torch.nn.utils.clip_grad`). The step has no cost of it."""
    gradients = [value("D", "F/tp", dtype=dtype), value("D", dtype=dtype)]
    size = parse("D*F/tp + D")
    num_bytes = size * (2 if dtype == "bf16" else 4)
    found = stg.GradientStatisticOp(kind, gradients, ["tp"])
    assert found.flops() == size * operations
    assert reads_and_writes(found) == (num_bytes * reads, num_bytes * writes + 4)
    weights = [value("D", "F/tp"), value("D")]
    step = stg.OptimizerStepOp(weights, gradients, algorithm="adamw", states="fp32", master="fp32")
    scaled = step.of(step.weights, step.gradients, scale=found.result)
    assert scaled.flops() == step.flops()
    assert scaled.moved_bytes() == step.moved_bytes()


def test_an_average_is_a_kernel_that_reads_the_new_weights():
    """`AveragedModel` reads the average and the weights [D], and writes the average: 4 + 2 and 4 bytes more than the step without."""
    weight, gradient = value("D"), value("D", dtype="fp32")
    steps = [
        stg.OptimizerStepOp([weight], [gradient], algorithm="sgd", states="fp32", average=average)
        for average in (None, "fp32")
    ]
    (read, written), (more_read, more_written) = map(reads_and_writes, steps)
    assert (more_read - read, more_written - written) == (parse("6*D"), parse("4*D"))
    assert steps[1].flops() - steps[0].flops() == parse("3*D")


def test_a_users_op_is_divided_by_what_splits_it():
    x = value("B/dp", "D")
    made = TensorType.of([Dim("B", ("dp",)), Dim("F", ("tp",))], "bf16")
    costs = {"flops": parse("8*B*F"), "bytes": parse("2*B*F")}
    op = stg.UserOp([x], "f", **costs, like=[made])
    assert op.flops() == parse("8*B*F/(dp*tp)")
    assert op.moved_bytes().moved == parse("2*B*F/(dp*tp)")


def test_a_concat_is_a_copy_and_a_part_is_read_once():
    x, y = value("S", "H", "N"), value("S", "R")
    op = stg.ConcatOp([x, y], ["N", "R"], "E")
    assert op.flops() == parse("0")
    assert reads_and_writes(op) == (parse("2*S*H*N + 2*S*R"), parse("2*S*H*E"))


def test_views_are_free_and_slices_are_copies():
    x = value("S", "D")
    assert stg.RenameOp(x, ["S"], ["T"]).IS_VIEW
    assert stg.TransposeOp(x, ["D", "S"]).IS_VIEW
    assert stg.BroadcastOp(x, like=TensorType.of(["B", "S", "D"], "bf16")).IS_VIEW
    assert stg.SplitOp(x, "D", ["E", "F"]).IS_VIEW
    assert not stg.CastOp(x, "fp32").IS_VIEW
    piece = dist.SliceOp(x, "S", ["tp"])
    assert piece.moved_bytes().moved == parse("4*S*D/tp")


# Shares


@given(
    st.sampled_from([("dp",), ("tp",), ("dp", "tp")]),
    st.sampled_from(["B", "D", "F"]),
)
def test_ranks_share_a_contraction(axes: tuple[str, ...], split: str):
    """FLOPs summed over the ranks that split an op are those of the op on one device."""

    def tensor(*names: str) -> SSAValue:
        return create_ssa_value(
            TensorType.of([Dim(n, axes if n == split else ()) for n in names], "bf16")
        )

    op = stg.ContractOp(tensor("B", "D"), tensor("D", "F"), ["D"])
    sizes = {"B": 64, "D": 128, "F": 256, "dp": 4, "tp": 8}
    ranks = 1
    for axis in axes:
        ranks *= sizes[axis]
    assert op.flops().evaluate(sizes) * ranks == 2 * 64 * 128 * 256


def test_a_class_of_ones_own_may_say_otherwise():
    class Loud(stg.UnaryOp):
        def flops(self) -> Size:
            return parse("17")

    assert Loud("exp", value("B")).flops() == 17
    assert stg.UnaryOp("exp", value("B")).flops() == symbol("B")


# Convolutions and scans


def test_a_patch_embedding_is_a_product_over_the_pixels_of_patches():
    """ViT-B/16 (Dosovitskiy et al. 2020): 196 patches of 3 x 16 x 16 pixels become 768 numbers."""
    image, kernel = value("B", "C", "Y", "X"), value("C", "I", "J", "D")
    op = stg.PatchEmbeddingOp(image, kernel, "P")
    assert op.flops() == parse("2*B*P*C*I*J*D")
    assert reads_and_writes(op) == (parse("2*B*C*Y*X + 2*C*I*J*D"), parse("2*B*P*D"))
    dy = value("B", "P/tp", "D")
    weights, pixels = stg.tensor_type(kernel), stg.tensor_type(image)
    for gradient in (
        stg.PatchKernelGradOp(dy, image, like=weights),
        stg.PatchImageGradOp(dy, kernel, like=pixels),
    ):
        assert gradient.flops() == parse("2*B*P*C*I*J*D/tp")


def test_a_filter_is_two_per_element_and_tap():
    x, kernel = value("B", "S", "D/tp"), value("W", "D/tp")
    op = stg.CausalConvOp(x, kernel, "S")
    assert op.flops() == parse("2*B*S*D*W/tp")
    assert reads_and_writes(op) == (parse("2*B*S*D/tp + 2*W*D/tp"), parse("2*B*S*D/tp"))
    gradient = stg.CausalConvKernelGradOp(x, x, "S", like=stg.tensor_type(kernel))
    assert gradient.flops() == parse("2*B*S*D*W/tp")


def scan(*state: str, chunk: str = "Q") -> stg.SsdScanOp:
    x, dt, a = value("B", "S", "H", "E"), value("B", "S", "H"), value("H")
    b = value(*state)
    return stg.SsdScanOp(x, dt, a, b, b, parse(chunk))


def test_a_scan_by_chunks():
    """Dao and Gu 2024, section 6.3: BMM(T/Q, Q, Q, N), BMM(T/Q, Q, E, Q), BMM(T/Q, N, E, Q) and BMM(T/Q, Q, E, N), a scan over T/Q states."""
    sizes = {"B": 2, "S": 2048, "H": 80, "E": 64, "N": 128, "Q": 256, "G": 8}
    tokens, heads, width, state, chunk, groups = 2 * 2048, 80, 64, 128, 256, 8
    chunks = tokens // chunk
    within = 2 * chunks * heads * chunk * chunk * width
    states = 2 * 2 * chunks * heads * state * width * chunk
    passed = 2 * chunks * heads * state * width
    shared = 2 * chunks * chunk * chunk * state
    assert scan("B", "S", "N").flops().integer(sizes) == shared + within + states + passed
    grouped = scan("B", "S", "G", "N").flops().integer(sizes)
    assert grouped == groups * shared + within + states + passed


def test_a_chunk_is_no_longer_than_the_sequence():
    sizes = {"B": 1, "S": 64, "H": 2, "E": 4, "N": 8}
    short, exact = (scan("B", "S", "N", chunk=c).flops().integer(sizes) for c in ("256", "64"))
    assert short == exact


def test_a_scan_hands_states_from_kernel_to_kernel():
    """States of chunks in fp32 are written, read and written when passed on, and read; c b^T is written and read."""
    sizes = {"B": 1, "S": 8, "H": 2, "E": 4, "N": 8, "Q": 4}
    states, pairs = 4 * 2 * 2 * 4 * 8, 4 * 8 * 4
    read, written = (each.integer(sizes) for each in reads_and_writes(scan("B", "S", "N")))
    assert read == 2 * (64 + 16 + 2 + 64 + 64) + 2 * states + pairs
    assert written == 2 * 64 + 2 * states + pairs


def test_a_scan_backward():
    """Two products for each of four, and three again: c b^T, the chunks' states, dy x^T (mamba_ssm, ssd_combined.py)."""
    op = scan("B", "S", "N")
    gradient = stg.SsdScanGradOp(value("B", "S", "H", "E"), op)
    sizes = {"B": 1, "S": 8, "H": 2, "E": 4, "N": 8, "Q": 4}
    inner, outer, state, passed = (
        2 * 8 * 4 * 8,
        2 * 8 * 2 * 4 * 4,
        2 * 8 * 2 * 4 * 8,
        2 * 2 * 2 * 4 * 8,
    )
    wanted = 2 * (inner + outer + 2 * state) + inner + outer + state + 2 * passed
    assert gradient.flops().integer(sizes) == wanted


def delta_rule() -> stg.GatedDeltaRuleOp:
    q, v, gate = value("B", "S", "K", "E"), value("B", "S", "H", "G"), value("B", "S", "H")
    return stg.GatedDeltaRuleOp(q, q, v, gate, gate, parse("Q"))


DELTA_SIZES = {"B": 3, "S": 32, "K": 2, "H": 4, "E": 8, "G": 16, "Q": 8}


def test_a_delta_rule_by_chunks():
    """Yang et al. 2024, section 3.3, product by product, for each head of values."""
    chunk, key, width, heads, chunks = 8, 8, 16, 4, 3 * 32 // 8
    within = [(chunk, key, chunk)]  # k k^T
    within += [(chunk, chunk, key), (chunk, chunk, width)]  # its solution, times keys and values
    within += [(chunk, key, chunk), (chunk, chunk, width)]  # q k^T, times values
    states = [(chunk, key, width), (key, chunk, width), (chunk, key, width)]
    wanted = sum(2 * m * k * n for m, k, n in within + states) * chunks * heads
    assert delta_rule().flops().integer(DELTA_SIZES) == wanted


def test_a_delta_rule_hands_on_what_its_kernels_make():
    """The solution, what it makes of keys and of values, values as they are added, and the states before chunks, in bf16."""
    tokens, chunks = 3 * 32 * 4, 3 * 4
    between = 2 * (tokens * (8 + 8 + 2 * 16) + chunks * 4 * 8 * 16)
    read, written = (each.integer(DELTA_SIZES) for each in reads_and_writes(delta_rule()))
    assert read == 2 * (2 * 3 * 32 * 2 * 8 + tokens * 16 + 2 * tokens) + between
    assert written == 2 * tokens * 16 + between


def test_decays_of_channels_multiply_as_one_of_a_head_and_are_handed_on():
    """`chunk_kda_fwd` of flash-linear-attention: decays of a chunk so far, in fp32, and keys with them."""
    one, key, decays = delta_rule(), value("B", "S", "K", "E"), value("B", "S", "H", "E")
    made = stg.GatedDeltaRuleOp(key, key, one.v, decays, one.beta, parse("Q"))
    assert made.flops() == one.flops()
    tokens = 3 * 32 * 4
    more = tokens * 8 * (4 + 2)
    found = zip(reads_and_writes(made), reads_and_writes(one), strict=True)
    read, written = (a.integer(DELTA_SIZES) - b.integer(DELTA_SIZES) for a, b in found)
    assert (read, written) == (more + 2 * tokens * (8 - 1), more)
    grads = [stg.GatedDeltaRuleGradOp(value("B", "S", "H", "G"), each) for each in (made, one)]
    assert grads[0].flops() == grads[1].flops()


def test_a_delta_rule_backward():
    """`chunk_gated_delta_rule_bwd` of flash-linear-attention, kernel by kernel: `tl.dot` of each."""
    gradient = stg.GatedDeltaRuleGradOp(value("B", "S", "H", "G"), delta_rule())
    tokens, chunk, key, width = 3 * 32 * 4, 8, 8, 16
    again = [chunk * key + chunk * width, 2 * key * width]
    local = [chunk * key + chunk * width]
    from_the_end = [3 * key * width]
    of_operands = [3 * key * width + chunk * width + 2 * chunk * key]
    of_solutions = [5 * chunk * key + 2 * chunk * width + 2 * chunk * chunk]
    kernels = again + local + from_the_end + of_operands + of_solutions
    assert gradient.flops().integer(DELTA_SIZES) == 2 * tokens * sum(kernels)


# Bags of rows


def test_a_bag_is_an_addition_per_element_of_its_rows():
    """DLRM (Naumov et al. 2019, section 2.1.1): J rows of each of T tables for a sample, added up."""
    op = stg.EmbeddingBagOp(value("B", "T/dp", "J", dtype="i32"), value("T/dp", "R", "E"), "J")
    assert op.flops() == parse("B*T*J*E/dp")
    assert reads_and_writes(op) == (
        parse("4*B*T*J/dp + 2*B*T*J*E/dp"),
        parse("2*B*T*E/dp"),
    )
    gradient = stg.EmbeddingBagGradOp(
        op.ids, value("B", "T/dp", "E"), op.over, like=stg.tensor_type(op.table)
    )
    assert gradient.flops() == parse("B*T*J*E/dp")
    assert reads_and_writes(gradient)[1] == parse("2*T*R*E/dp")


def test_a_device_finds_its_share_of_split_rows():
    op = stg.EmbeddingBagOp(value("B", "N", dtype="i32"), value("R/tp", "E"), "N", "T")
    assert op.flops() == parse("B*N*E/tp")
    assert reads_and_writes(op) == (parse("4*B*N + 2*B*N*E/tp"), parse("2*B*T*E"))
