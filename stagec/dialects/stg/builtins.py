"""The functions of the language: what each takes, what it makes, and the op that it becomes.

`BUILTINS` is what the checker looks names up in and `stagec ops` lists. A mistake in a call is an
`InferError`, which the frontend turns into a diagnostic at the operand or option that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.ir import Operation, SSAValue

from stagec.dialects.stg.attention import AttentionOp, RopeOp
from stagec.dialects.stg.base import InferError
from stagec.dialects.stg.contraction import EmbeddingOp, RepeatHeadsOp
from stagec.dialects.stg.elementwise import (
    UNARY_FUNCTIONS,
    CastOp,
    CausalMaskOp,
    DropoutOp,
    UnaryOp,
)
from stagec.dialects.stg.loss import CrossEntropyOp
from stagec.dialects.stg.normalization import LayerNormOp, RmsNormOp, SoftmaxOp
from stagec.dialects.stg.reduction import ReduceOp
from stagec.dialects.stg.routing import CombineOp, DispatchOp, TopkOp
from stagec.dialects.types import DTYPE_BITS, TensorType
from stagec.symbolic import Size

Options = Mapping[str, object]
Types = Sequence[TensorType]
Values = Sequence[SSAValue]


@dataclass(frozen=True)
class Option:
    """A named argument. `kind`: `bool`, `dim`, `dims`, `size`, `number`, `dtype`, or `choice`.

    Values reach `infer` and `build` as bool, str, tuple of str, `Size`, decimal text, str, str.
    """

    name: str
    kind: str
    choices: tuple[str, ...] = ()
    required: bool = False


@dataclass(frozen=True)
class Builtin:
    """A function of the language."""

    name: str
    operands: tuple[str, ...]
    summary: str
    infer: Callable[[Types, Options], tuple[TensorType, ...]]
    """Result types from operand types and options; raises `InferError`."""
    build: Callable[[Values, Options], Operation]
    """The op; its first results are the function's results."""
    options: tuple[Option, ...] = ()
    optional_operands: int = 0
    """How many of the last operands may be left out."""
    num_results: int = field(default=1)


def need_float(types: Types, *positions: int) -> None:
    for position in positions:
        if position < len(types) and not types[position].dtype.startswith(("fp", "bf")):
            raise InferError(
                f"this has to be floating point, but is {types[position].dtype}", operand=position
            )


def need_ids(types: Types, position: int) -> None:
    if types[position].dtype not in ("i8", "i16", "i32", "i64"):
        raise InferError(
            f"this has to be whole numbers, but is {types[position].dtype}",
            operand=position,
            help="declare it as `: i32`",
        )


def need_dim(operand: TensorType, name: str, option: str) -> None:
    if name not in operand.names:
        raise InferError(f"there is no dim `{name}` in [{', '.join(operand.names)}]", option=option)


def infer_first(types: Types, options: Options) -> tuple[TensorType, ...]:
    need_float(types, 0)
    return (types[0],)


def infer_embedding(types: Types, options: Options) -> tuple[TensorType, ...]:
    ids, table = types
    need_ids(types, 0)
    need_float(types, 1)
    if len(table.names) < 2:
        raise InferError(
            "a table has rows, and a dim along each row", operand=1, help="declare it as `[V, D]`"
        )
    for name in table.names:
        if name in ids.names and name != table.names[0]:
            raise InferError(f"`{name}` is a dim of the numbers and of the rows", operand=1)
    return (TensorType.of([*ids.names, *table.names[1:]], table.dtype),)


def normalised_dims(types: Types, options: Options) -> tuple[str, ...]:
    over = options.get("over")
    if over is not None:
        assert isinstance(over, tuple)
        for name in over:
            need_dim(types[0], name, "over")
        return over
    if len(types) > 1:
        return types[1].names
    return types[0].names[-1:]


def infer_norm(types: Types, options: Options) -> tuple[TensorType, ...]:
    need_float(types, 0, 1, 2)
    over = normalised_dims(types, options)
    for position, affine in enumerate(types[1:], start=1):
        if affine.names != over:
            missing = [n for n in affine.names if n not in types[0].names]
            if missing:
                raise InferError(
                    f"the values have no dim `{missing[0]}`",
                    operand=position,
                    notes=[f"they are [{', '.join(types[0].names)}]"],
                )
            raise InferError(
                f"this is [{', '.join(affine.names)}], but the norm is over [{', '.join(over)}]",
                operand=position,
            )
    if not over:
        raise InferError("there is nothing to normalise over", operand=0)
    return (types[0],)


def infer_softmax(types: Types, options: Options) -> tuple[TensorType, ...]:
    need_float(types, 0)
    over = options["over"]
    assert isinstance(over, tuple)
    for name in over:
        need_dim(types[0], name, "over")
    return (types[0],)


def infer_reduce(types: Types, options: Options) -> tuple[TensorType, ...]:
    infer_softmax(types, options)
    over = options["over"]
    assert isinstance(over, tuple)
    return (TensorType.of([n for n in types[0].names if n not in over], types[0].dtype),)


def infer_rope(types: Types, options: Options) -> tuple[TensorType, ...]:
    need_float(types, 0)
    if not types[0].names:
        raise InferError("a number has no positions to rotate", operand=0)
    return (types[0],)


def infer_attention(types: Types, options: Options) -> tuple[TensorType, ...]:
    need_float(types, 0, 1, 2)
    q, k, v = types
    for position, (role, operand) in enumerate(zip("qkv", types, strict=True)):
        if len(operand.names) < 3:
            raise InferError(
                f"`{role}` ends in sequence, heads, width, but is [{', '.join(operand.names)}]",
                operand=position,
            )
    if k.names[-1] != q.names[-1]:
        raise InferError(f"queries have width `{q.names[-1]}`, keys `{k.names[-1]}`", operand=1)
    if k.names[:-1] != v.names[:-1]:
        raise InferError(
            f"keys are [{', '.join(k.names)}], values [{', '.join(v.names)}]",
            operand=2,
            notes=["they differ in their last dim at most"],
        )
    if q.names[:-3] != k.names[:-3]:
        raise InferError(
            f"queries start with [{', '.join(q.names[:-3])}], keys with "
            f"[{', '.join(k.names[:-3])}]",
            operand=1,
        )
    return (TensorType.of([*q.names[:-1], v.names[-1]], q.dtype),)


def infer_causal_mask(types: Types, options: Options) -> tuple[TensorType, ...]:
    need_float(types, 0)
    for option in ("query", "key"):
        need_dim(types[0], str(options[option]), option)
    return (types[0],)


def infer_repeat_heads(types: Types, options: Options) -> tuple[TensorType, ...]:
    need_float(types, 0)
    heads, to = str(options["heads"]), str(options["to"])
    need_dim(types[0], heads, "heads")
    if to in types[0].names and to != heads:
        raise InferError(f"`{to}` is already a dim of the operand", option="to")
    names = [to if n == heads else n for n in types[0].names]
    return (TensorType.of(names, types[0].dtype),)


def infer_cast(types: Types, options: Options) -> tuple[TensorType, ...]:
    return (types[0].with_dtype(str(options["dtype"])),)


def infer_cross_entropy(types: Types, options: Options) -> tuple[TensorType, ...]:
    logits, targets = types
    need_float(types, 0)
    need_ids(types, 1)
    if logits.names[:-1] != targets.names:
        raise InferError(
            f"the logits are [{', '.join(logits.names)}], the targets [{', '.join(targets.names)}]",
            operand=1,
            help="targets have all dims of the logits but the last",
        )
    return (TensorType.of((), "fp32"),)


def infer_topk(types: Types, options: Options) -> tuple[TensorType, ...]:
    need_float(types, 0)
    over, to = str(options["over"]), str(options["to"])
    need_dim(types[0], over, "over")
    if to in types[0].names:
        raise InferError(f"`{to}` is already a dim of the scores", option="to")
    names = [*(n for n in types[0].names if n != over), to]
    return TensorType.of(names, types[0].dtype), TensorType.of(names, "i32")


def infer_dispatch(types: Types, options: Options) -> tuple[TensorType, ...]:
    x, experts = types
    need_float(types, 0)
    need_ids(types, 1)
    if experts.names[:-1] != x.names[:-1]:
        raise InferError(
            f"tokens are [{', '.join(x.names)}], their experts [{', '.join(experts.names)}]",
            operand=1,
            notes=["they differ in their last dim"],
        )
    over, tokens = str(options["experts"]), str(options["tokens"])
    if over == tokens or {over, tokens} & set(x.names):
        raise InferError("the dims of experts and of their tokens are new ones", option="tokens")
    return (TensorType.of([over, tokens, x.names[-1]], x.dtype),)


def infer_combine(types: Types, options: Options) -> tuple[TensorType, ...]:
    routed, weights, experts = types
    need_float(types, 0, 1)
    need_ids(types, 2)
    if len(routed.names) != 3:
        raise InferError(
            f"experts' tokens are [experts, tokens, width], but this is [{', '.join(routed.names)}]",
            operand=0,
        )
    if weights.names != experts.names:
        raise InferError(
            f"weights are [{', '.join(weights.names)}], experts [{', '.join(experts.names)}]",
            operand=2,
        )
    return (TensorType.of([*experts.names[:-1], routed.names[-1]], routed.dtype),)


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
    )


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
            ("scores",),
            "the largest scores over a dim, and which they are",
            infer_topk,
            lambda values, options: TopkOp(
                values[0],
                str(options["over"]),
                str(options["to"]),
                normalise=bool(options.get("normalise", False)),
            ),
            (
                Option("over", "dim", required=True),
                Option("to", "dim", required=True),
                Option("normalise", "bool"),
            ),
            num_results=2,
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
            lambda values, options: CrossEntropyOp(*values),
        ),
        *(reduction(kind) for kind in ("sum", "mean", "max")),
        *(unary(function) for function in UNARY_FUNCTIONS),
    )
}
