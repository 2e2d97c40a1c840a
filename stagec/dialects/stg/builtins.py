"""The functions of the language: what each takes, what it makes, and the op that it becomes.

`BUILTINS` is what the checker looks names up in and `stagec ops` lists. A mistake in a call is an
`InferError`, which the frontend turns into a diagnostic at the operand or option that it names.
"""

from __future__ import annotations

from xdsl.ir import Operation

from stagec.dialects.stg.attention import AttentionOp, RopeOp
from stagec.dialects.stg.builtin import Builtin, Option, Values
from stagec.dialects.stg.contraction import EmbeddingOp, RepeatHeadsOp
from stagec.dialects.stg.elementwise import (
    UNARY_FUNCTIONS,
    CastOp,
    CausalMaskOp,
    DropoutOp,
    UnaryOp,
)
from stagec.dialects.stg.inference import (
    Options,
    concat_sizes,
    infer_attention,
    infer_cast,
    infer_causal_mask,
    infer_combine,
    infer_concat,
    infer_cross_entropy,
    infer_dispatch,
    infer_embedding,
    infer_first,
    infer_norm,
    infer_reduce,
    infer_repeat_heads,
    infer_rope,
    infer_softmax,
    infer_split,
    infer_topk,
    joined_dims,
    normalised_dims,
    split_sizes,
    topk_sizes,
)
from stagec.dialects.stg.joining import ConcatOp, SplitOp
from stagec.dialects.stg.loss import CrossEntropyOp, LogSoftmaxLossOp
from stagec.dialects.stg.normalization import LayerNormOp, RmsNormOp, SoftmaxOp
from stagec.dialects.stg.reduction import ReduceOp
from stagec.dialects.stg.routing import CombineOp, DispatchOp, TopkOp
from stagec.dialects.stg.sequence_builtins import SEQUENCE_BUILTINS
from stagec.dialects.types import DTYPE_BITS
from stagec.symbolic import Size


def build_dispatch(values: Values, options: Options) -> Operation:
    return DispatchOp(
        values[0],
        values[1],
        str(options["experts"]),
        str(options["tokens"]),
        dropless=bool(options.get("dropless", True)),
    )


def _norm_over(values: Values, options: Options) -> tuple[str, ...]:
    types = [v.type for v in values]
    return normalised_dims(types, options)  # pyright: ignore[reportArgumentType]


def build_rms_norm(values: Values, options: Options) -> Operation:
    weight = values[1] if len(values) > 1 else None
    return RmsNormOp(values[0], weight, _norm_over(values, options))


def build_layer_norm(values: Values, options: Options) -> Operation:
    return LayerNormOp(values[0], values[1:], _norm_over(values, options))


def build_attention(values: Values, options: Options) -> Operation:
    window = options.get("window")
    assert window is None or isinstance(window, Size)
    return AttentionOp(
        *values,
        causal=bool(options.get("causal", False)),
        count=str(options.get("count", "causal")),
        window=window,
        softcap=str(options["softcap"]) if "softcap" in options else None,
    )


def build_topk(values: Values, options: Options) -> Operation:
    groups, limit = options.get("groups"), options.get("limit")
    assert groups is None or isinstance(groups, Size)
    assert limit is None or isinstance(limit, Size)
    return TopkOp(
        values[0],
        str(options["over"]),
        str(options["to"]),
        normalise=bool(options.get("normalise", False)),
        bias=values[1] if len(values) > 1 else None,
        groups=groups,
        limit=limit,
    )


def build_concat(values: Values, options: Options) -> Operation:
    types = [v.type for v in values]
    over = joined_dims(types, options)  # pyright: ignore[reportArgumentType]
    return ConcatOp(values, over, str(options["to"]))


def build_causal_mask(values: Values, options: Options) -> Operation:
    return CausalMaskOp(values[0], str(options["query"]), str(options["key"]))


def names_of(options: Options, option: str) -> tuple[str, ...]:
    names = options[option]
    assert isinstance(names, tuple)
    return names


def unary(function: str) -> Builtin:
    return Builtin(
        function,
        ("x",),
        f"{function} of each element",
        infer_first,
        lambda values, options: UnaryOp(function, values[0]),
    )


def reduction(kind: str) -> Builtin:
    return Builtin(
        kind,
        ("x",),
        f"the {kind} over dims",
        infer_reduce,
        lambda values, options: ReduceOp(kind, values[0], names_of(options, "over")),
        (Option("over", "dims", required=True),),
    )


_OVER = Option("over", "dims")

BUILTINS: dict[str, Builtin] = {
    builtin.name: builtin
    for builtin in (
        Builtin(
            "embedding",
            ("ids", "table"),
            "rows of a table by number",
            infer_embedding,
            lambda values, options: EmbeddingOp(values[0], values[1]),
        ),
        Builtin(
            "rms_norm",
            ("x", "weight"),
            "x / rms(x) * weight, over the weight's dims or `over`",
            infer_norm,
            build_rms_norm,
            (_OVER,),
            optional_operands=1,
        ),
        Builtin(
            "layer_norm",
            ("x", "weight", "bias"),
            "(x - mean) / std * weight + bias, over the weight's dims or `over`",
            infer_norm,
            build_layer_norm,
            (_OVER,),
            optional_operands=2,
        ),
        Builtin(
            "softmax",
            ("x",),
            "exp(x) / sum(exp(x)) over dims",
            infer_softmax,
            lambda values, options: SoftmaxOp(values[0], names_of(options, "over")),
            (Option("over", "dims", required=True),),
        ),
        Builtin(
            "rope",
            ("x",),
            "rotary position embedding of the last dim",
            infer_rope,
            lambda values, options: RopeOp(values[0]),
        ),
        Builtin(
            "attention",
            ("q", "k", "v"),
            "fused softmax(q k^T) v; operands end in sequence, heads, width",
            infer_attention,
            build_attention,
            (
                Option("causal", "bool"),
                Option("count", "choice", ("causal", "full")),
                Option("window", "size"),
                Option("softcap", "number"),
            ),
        ),
        Builtin(
            "causal_mask",
            ("scores",),
            "scores of keys after their query become -inf",
            infer_causal_mask,
            build_causal_mask,
            (Option("query", "dim", required=True), Option("key", "dim", required=True)),
        ),
        Builtin(
            "concat",
            ("a", "b"),
            "operands side by side: a dim of each becomes one",
            infer_concat,
            build_concat,
            (Option("over", "parts"), Option("to", "dim", required=True)),
            more_operands=True,
            check_sizes=concat_sizes,
        ),
        Builtin(
            "split",
            ("x",),
            "a dim cut into parts, a result for each",
            infer_split,
            lambda values, options: SplitOp(
                values[0], str(options["over"]), names_of(options, "to")
            ),
            (Option("over", "dim", required=True), Option("to", "parts", required=True)),
            check_sizes=split_sizes,
        ),
        Builtin(
            "repeat_heads",
            ("x",),
            "each key or value head, repeated for the queries that share it",
            infer_repeat_heads,
            lambda values, options: RepeatHeadsOp(
                values[0], str(options["heads"]), str(options["to"])
            ),
            (Option("heads", "dim", required=True), Option("to", "dim", required=True)),
        ),
        Builtin(
            "topk",
            ("scores", "bias"),
            "the largest scores over a dim, and which they are",
            infer_topk,
            build_topk,
            (
                Option("over", "dim", required=True),
                Option("to", "dim", required=True),
                Option("groups", "size"),
                Option("limit", "size"),
                Option("normalise", "bool"),
            ),
            optional_operands=1,
            check_sizes=topk_sizes,
        ),
        Builtin(
            "dispatch",
            ("x", "experts"),
            "each token, copied to the tokens of its experts",
            infer_dispatch,
            build_dispatch,
            (
                Option("experts", "dim", required=True),
                Option("tokens", "dim", required=True),
                Option("dropless", "bool"),
            ),
        ),
        Builtin(
            "combine",
            ("routed", "weights", "experts"),
            "what a token's experts made of it, weighted and added up",
            infer_combine,
            lambda values, options: CombineOp(values[0], values[2], values[1]),
        ),
        Builtin(
            "dropout",
            ("x",),
            "zero a share of the elements",
            infer_first,
            lambda values, options: DropoutOp(values[0], str(options["rate"])),
            (Option("rate", "number", required=True),),
        ),
        Builtin(
            "cast",
            ("x",),
            "the same numbers in another dtype",
            infer_cast,
            lambda values, options: CastOp(values[0], str(options["dtype"])),
            (Option("dtype", "dtype", tuple(DTYPE_BITS), required=True),),
        ),
        Builtin(
            "cross_entropy",
            ("logits", "targets"),
            "mean of log-sum-exp(logits) - logits[target]",
            infer_cross_entropy,
            lambda values, options: (
                CrossEntropyOp(*values) if options.get("fused", True) else LogSoftmaxLossOp(*values)
            ),
            (Option("fused", "bool"),),
        ),
        *SEQUENCE_BUILTINS,
        *(reduction(kind) for kind in ("sum", "mean", "max")),
        *(unary(function) for function in UNARY_FUNCTIONS),
    )
}
