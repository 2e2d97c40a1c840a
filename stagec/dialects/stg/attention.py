"""Rotary embedding and fused attention, forward and backward.

Attention's operands end in sequence, heads, width: q [..., S, H, E], k [..., T, K, E],
v [..., T, K, G]. H and K are one index at two granularities (grouped queries), unless `copies` says that ranks share heads of keys. The sequence of queries
and of keys are two indices, even where they share a name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from xdsl.dialects.builtin import StringAttr, UnitAttr
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import (
    operand_def,
    opt_operand_def,
    opt_prop_def,
    opt_result_def,
    prop_def,
    result_def,
    var_operand_def,
)

from stagec import symbolic
from stagec.dialects.attributes import NamesAttr, SizeAttr
from stagec.dialects.interfaces import Bytes, elements, num_bytes
from stagec.dialects.memory import ALONE, PLAIN, Effects, Overwrite
from stagec.dialects.op import op_definition, shared_properties
from stagec.dialects.stg.base import (
    PLACEMENT,
    SHARED,
    Indices,
    InferredOp,
    LikeOp,
    RequestsOp,
    TensorOp,
    expect_dims,
    tensor_type,
)
from stagec.dialects.stg.caching import PAIRS, paired
from stagec.dialects.stg.interface import (
    BackwardPass,
    Call,
    CallError,
    Cotangents,
    Signature,
    dims_in_words,
    only,
)
from stagec.dialects.types import TensorType
from stagec.dialects.work import Work
from stagec.symbolic import ONE, ZERO, Size

KEY = "key."
"""Marks the index of keys and values apart from the queries' of the same name."""

PARTS = ".parts"
"""After the names of axes: the dim of the parts in which keys are spread over their ranks."""


def parts_over(axes: Sequence[str]) -> str:
    """The dim of the parts in which keys are spread over some axes."""
    return f"{'.'.join(axes)}{PARTS}"


class FusedAttention(RequestsOp, InferredOp, ABC):
    """Attention without the scores in memory: to keys and values, or to latent vectors that are both.

    With `spread`, its results are those of the parts in which keys are on the ranks along these axes, each as if there were no other keys:
    `[dcp.parts, B, S, H, E]`, with the log-sum-exp of each, `[dcp.parts, B, S, H]`. `stg.combine_attention` makes of them what all keys give.
    """

    KEY_OPERANDS: ClassVar[tuple[int, ...]]
    """Operands that have the positions that are attended to."""

    causal = opt_prop_def(UnitAttr)
    pairs = opt_prop_def(SizeAttr)
    spread = opt_prop_def(NamesAttr)

    @property
    @abstractmethod
    def key_dim(self) -> str:
        """The positions that are attended to."""

    @property
    @abstractmethod
    def query_dim(self) -> str: ...

    @property
    def key_index(self) -> str:
        return KEY + self.key_dim

    def made_by_part(self, *types: TensorType) -> list[TensorType]:
        """The types of results, likewise: each is of a part first."""
        parts = [] if self.spread is None else [parts_over(self.spread.data)]
        return [TensorType.of([*parts, *each.names], each.dtype) for each in types]

    def results_by_part(self, *results: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
        """The indices of results, which have one for each part of the keys where these are spread."""
        return tuple(
            (self.key_index, *each) if self.spread is not None else each for each in results
        )

    def verify_(self) -> None:
        first = tensor_type(self.results[0]).names[:1]
        if self.spread is not None and first != (parts_over(self.spread.data),):
            raise self.mistake(
                f"keys are spread over [{', '.join(self.spread.data)}], and the result is not of `{parts_over(self.spread.data)}`"
            )
        super().verify_()
        if self.spread is None:
            return
        keys = tensor_type(self.operands[self.KEY_OPERANDS[0]]).dim(self.key_dim).split
        if PLACEMENT not in self.properties and keys not in ((), self.spread.data):
            raise self.mistake(
                f"keys are spread over [{', '.join(self.spread.data)}], and split over [{', '.join(keys)}]"
            )


@op_definition
class RopeOp(LikeOp):
    """Rotary position embedding (Su et al. 2021): rotates pairs within the last dim.

    The gradient is the inverse rotation; the tables of sines are buffers, nothing is saved.

    `x` [..., E] -> the same. FLOPs: 3 for each element, 4 multiplications and 2 additions for a pair.
    """

    name = "stg.rope"
    WORK: ClassVar[Work] = Work.ROTATION
    FLOPS: ClassVar[tuple[int, str]] = (3, "x")
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)
    SIGNATURES: ClassVar[tuple[Signature, ...]] = (
        Signature.of("rope(x)", "rotary position embedding of the last dim"),
    )

    x = operand_def(TensorType)
    inverse = opt_prop_def(UnitAttr)
    result = result_def(TensorType)

    assembly_format = "(`inverse` $inverse^)? $x attr-dict `:` functional-type(operands, results)"

    @classmethod
    def check_call(cls, call: Call) -> None:
        call.need_float(0)
        if not call.types[0].names:
            raise CallError("a number has no positions to rotate", operand=0)

    def indices(self) -> Indices:
        base = super().indices()
        return Indices(base.operands, base.results, blocked=frozenset(base.operands[0][-1:]))

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        gradients.emit(self.x, lambda: RopeOp(only(dys), inverse=self.inverse is None))


HALF = ONE / 2


@dataclass(frozen=True)
class Reach:
    """How far back a query looks: at as many keys as a `window` has, or to the start of its `chunk` of the sequence; else to that of the sequence.

    `both_ways`: there is no causal mask, and half of the window's keys are behind the query.
    """

    window: Size | None = None
    chunk: Size | None = None
    both_ways: bool = False

    def area(self, position: Size, keys: Size) -> Size:
        """Pairs that are seen of the queries before a position, of a sequence of so many keys."""
        if not self.both_ways:
            return self.causal_area(position)
        before, after = (self.one_way.causal_area(x) for x in (position, keys - position))
        return before + self.one_way.causal_area(keys) - after

    @property
    def one_way(self) -> Reach:
        """The half of a window around a query that lies before it."""
        assert self.window is not None
        return Reach(self.window * HALF)

    def causal_area(self, position: Size) -> Size:
        """Pairs that a causal mask leaves of the queries before a position."""
        if self.chunk is not None:
            whole = symbolic.call("floordiv", position, self.chunk)
            rest = position - whole * self.chunk
            return (whole * self.chunk * self.chunk + rest * rest) * HALF
        if self.window is None:
            return position * position * HALF
        reach = symbolic.call("min", position, self.window)
        return position * reach - reach * reach * HALF


def score_pairs(q: TensorType, k: TensorType, causal: bool, reach: Reach) -> Size:
    """Pairs of a query and a key that count.

    All of them, or half under a causal mask, which is how FlashAttention's authors count what their kernel computes
    (`flops` in flash-attention's benchmarks: 4 S^2 H E / 2). A window of W keys leaves S W - W^2 / 2 (causal) or, around the query, S W - W^2 / 4, as
    their `window_size = (W / 2, W / 2)` is counted in `hopper/benchmark_attn.py`; chunks of C keys leave S C / 2.
    """
    queries, keys = q.dims[-3].size, k.dims[-3].size
    if reach.both_ways:
        return queries * 2 * reach.one_way.causal_area(keys) / keys
    if reach.chunk is not None:
        return reach.causal_area(keys) * (ONE if causal else 2)
    if reach.window is not None:
        seen = symbolic.call("min", reach.window, keys)
        return queries * seen - (seen * seen * HALF if causal else ZERO)
    return queries * keys * (HALF if causal else ONE)


class ScoredAttention(InferredOp, ABC):
    """What `stg.attention` and its gradient share: the same scores, of queries, keys and values."""

    FIRST: ClassVar[int]
    """The number of the operand that the queries are; keys and values are behind them."""

    causal = opt_prop_def(UnitAttr)
    count = prop_def(StringAttr)
    window = opt_prop_def(SizeAttr)
    chunk = opt_prop_def(SizeAttr)
    softcap = opt_prop_def(StringAttr)
    scale = opt_prop_def(StringAttr)
    alibi = opt_prop_def(UnitAttr)
    pairs = opt_prop_def(SizeAttr)
    copies = opt_prop_def(NamesAttr)

    @property
    @abstractmethod
    def bias(self) -> SSAValue | None: ...

    @property
    def scored(self) -> tuple[TensorType, TensorType, TensorType]:
        """Queries, keys and values."""
        q, k, v = map(tensor_type, self.operands[self.FIRST : self.FIRST + 3])
        return q, k, v

    @property
    def ring_axes(self) -> tuple[str, ...]:
        """The axes that split both queries and keys, round which the keys have still to go; none if the op is about one block of those."""
        if self.pairs is not None:
            return ()
        q, k, _ = self.scored
        return tuple(a for a in k.dims[-3].split if a in q.dims[-3].split)

    @property
    def reach(self) -> Reach:
        window, chunk = (x.data if x is not None else None for x in (self.window, self.chunk))
        return Reach(window, chunk, both_ways=window is not None and self.causal is None)

    @property
    def scored_indices(self) -> tuple[tuple[str, ...], ...]:
        """Indices of q, k, v, of the output and of the log-sum-exp."""
        q, k, v = self.scored
        *batch, queries, heads, width = q.names
        keys, value_width = KEY + k.names[-3], v.names[-1]
        key_heads = heads if self.copies is None else SHARED + k.names[-2]
        return (
            (*batch, queries, heads, width),
            (*batch, keys, key_heads, width),
            (*batch, keys, key_heads, value_width),
            (*batch, queries, heads, value_width),
            (*batch, queries, heads),
        )

    @property
    def bias_indices(self) -> tuple[tuple[str, ...], ...]:
        """The indices of a bias, if there is one."""
        if self.bias is None:
            return ()
        keys = self.scored[1].names[-3]
        names = tensor_type(self.bias).names
        return (tuple(KEY + name if name == keys else name for name in names),)

    def blocked(self) -> frozenset[str]:
        """Widths, keys, and the heads of keys where these follow those of queries: no rule splits them for themselves."""
        q, k, v, *_ = self.scored_indices
        return frozenset((q[-1], v[-1], k[-3], *(() if self.copies is None else (k[-2],))))

    def verify_(self) -> None:
        if self.count.data not in ("causal", "full"):
            raise self.mistake(f"FLOPs count `{self.count.data}`, not `causal` or `full`")
        if self.softcap is not None and not is_positive(self.softcap.data):
            raise self.mistake(f"a cap is a number above 0, not `{self.softcap.data}`")
        super().verify_()
        self.verify_copies()

    def verify_copies(self) -> None:
        """Heads of keys are split as those of queries are, but over `copies`."""
        if self.copies is None or PLACEMENT in self.properties:
            return
        heads, keys = (each.dims[-2].split for each in self.scored[:2])
        copies = self.copies.data
        is_split = set(copies) <= set(heads) or not heads
        if not is_split or keys != tuple(a for a in heads if a not in copies):
            raise self.mistake(
                f"heads of queries are split over [{', '.join(heads)}], those of keys over "
                f"[{', '.join(keys)}], and copies are along [{', '.join(copies)}]"
            )

    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        """A kernel of a window is another one than that of all positions."""
        tasks = super().lowered(mesh)
        if self.window is not None:
            tasks[0].properties["window"] = self.window
        return tasks

    def num_pairs(self) -> Size:
        """Pairs of a query and a key that count, of one head of one sequence."""
        if self.pairs is not None:
            return self.pairs.data
        counted = self.causal is not None and self.count.data == "causal"
        return score_pairs(*self.scored[:2], counted, self.reach)

    def products(self, of_keys: int, of_values: int, of_cap: int, of_bias: int = 1) -> Size:
        """FLOPs of so many products over the width of keys, and so many over that of values: 2 per pair and element.

        What softmax does is not counted, as FlashAttention's authors do not; what caps scores is: so many for each pair. So is what biases them: an addition,
        and where the bias is a slope times a distance, that product.
        """
        q, _, v = self.scored
        batch = symbolic.product(d.size for d in (*q.dims[:-3], q.dims[-2]))
        each = 2 * (of_keys * q.dims[-1].size + of_values * v.dims[-1].size)
        each += of_cap if self.softcap is not None else 0
        each += of_bias if self.bias is not None else 0
        each += 2 if self.alibi is not None else 0
        return batch * self.num_pairs() * each

    def moved_bytes(self) -> Bytes:
        """No kernel reads what of a bias belongs to pairs that a mask hides."""
        moved = super().moved_bytes()
        if self.bias is None:
            return moved
        q, k, _ = self.scored
        bias = tensor_type(self.bias)
        all_pairs = symbolic.product(bias.dim(n).size for n in positions_of_bias(q, k, bias))
        unread = num_bytes(self.bias) - bias.num_bytes / all_pairs * self.num_pairs()
        return Bytes(moved.read - unread, moved.written)


@op_definition
class AttentionOp(ScoredAttention, FusedAttention):
    """softmax(q k^T) v without the scores in memory (FlashAttention, Dao et al. 2022).

    Keeps the output and `lse`, the log-sum-exp of each query and head in fp32. `count` says how FLOPs
    count a causal mask: `causal` what a fused kernel computes, `full` all of it. `window` limits how
    far back a query looks, or without a causal mask at how many keys around it, `chunk` to its own part of so many positions (Llama 4).
    `softcap` c makes of each score s c tanh(s / c) (Gemma 2, arXiv:2408.00118).
    `pairs` is the number of pairs of a query and a key that this device computes, where the shapes do not say: its share of a mask, or one block
    of a ring. `sinks` [H] are a score for each head that no value goes with: softmax shares out less than 1 among the keys
    (gpt-oss, arXiv:2508.10925; Xiao et al., arXiv:2309.17453), and `lse` counts it.

    `bias` [S, T, H], or of fewer or more of the dims of scores but of both positions, is added to them (T5, arXiv:1910.10683; Swin, arXiv:2103.14030):
    it is read once for all that share it, where a mask leaves pairs. Of a row of several sequences it is that of each: [S.T.pairs, H].
    `alibi` adds a slope of each head times the distance (Press et al., arXiv:2108.12409), which the kernel computes.
    `scale` is what the products of queries and keys are multiplied by, in place of 1 / sqrt(E).

    `copies` are axes that split the heads of queries and not those of keys: their ranks have the same keys, of which a gradient is then partial.

    Keys split over an axis that splits the queries, without `pairs`, are a ring to come (`expand-ring-attention`):
    each device's queries meet the keys of all devices. With `pairs` they meet one device's keys.
    """

    name = "stg.attention"
    SOURCE: ClassVar[str] = "Dao et al., FlashAttention, 2022 (arXiv:2205.14135)"
    WORK: ClassVar[Work] = Work.ATTENTION
    KEY_OPERANDS: ClassVar[tuple[int, ...]] = (1, 2)
    FIRST: ClassVar[int] = 0
    NUM_STATISTICS: ClassVar[int] = 1
    SIGNATURES: ClassVar[tuple[Signature, ...]] = (
        Signature.of(
            "attention(q, k, v, sinks?, bias?, causal? = bool, count? = causal | full, window? = size, "
            "chunk? = size, softcap? = number, scale? = number, alibi? = bool)",
            "fused softmax(q k^T) v; operands end in sequence, heads, width",
        ),
    )

    q = operand_def(TensorType)
    k = operand_def(TensorType)
    v = operand_def(TensorType)
    of_scores = var_operand_def(TensorType)
    """`sinks`, and a `bias`."""
    result = result_def(TensorType)
    lse = result_def(TensorType)

    assembly_format = (
        "$q `,` $k `,` $v (`with` $of_scores^)? (`causal` $causal^)? `count` $count (`window` $window^)? "
        "(`chunk` $chunk^)? (`softcap` $softcap^)? (`scale` $scale^)? (`alibi` $alibi^)? (`pairs` $pairs^)? "
        "(`copies` $copies^)? (`spread` $spread^)? (`requests` $requests^)? attr-dict `:` functional-type(operands, results)"
    )

    def __init__(self, *given: Any, count: str = "causal", **named: Any) -> None:
        super().__init__(*given, count=count, **named)

    def made(self) -> Sequence[TensorType]:
        q, _, v = self.scored
        output = TensorType.of([*q.names[:-1], v.names[-1]], q.dtype)
        return self.made_by_part(output, TensorType.of(q.names[:-1], "fp32"))

    @classmethod
    def check_call(cls, call: Call) -> None:
        call.need_float(*range(len(call.types)))
        q, k, v, *more = call.types
        for position, (role, operand) in enumerate(zip("qkv", (q, k, v), strict=True)):
            if len(operand.names) < 3:
                raise CallError(
                    f"`{role}` ends in sequence, heads, width, but is [{', '.join(operand.names)}]",
                    operand=position,
                )
        if k.names[-1] != q.names[-1]:
            raise CallError(f"queries have width `{q.names[-1]}`, keys `{k.names[-1]}`", operand=1)
        if k.names[:-1] != v.names[:-1]:
            raise CallError(
                f"keys are [{', '.join(k.names)}], values [{', '.join(v.names)}]",
                operand=2,
                notes=["they differ in their last dim at most"],
            )
        if q.names[:-3] != k.names[:-3]:
            raise CallError(
                f"queries start with [{', '.join(q.names[:-3])}], keys with "
                f"[{', '.join(k.names[:-3])}]",
                operand=1,
            )
        for position, operand in enumerate(more, 3):
            if is_bias(operand):
                if why := wrong_bias(q, k, operand):
                    own_name = f"give those of keys and values a name of their own: `k[{q.names[-3]} -> T]`"
                    shared = q.names[-3] == k.names[-3]
                    raise CallError(why, operand=position, help=own_name if shared else "")
            elif operand.names != q.names[-2:-1]:
                raise CallError(
                    f"sinks are [{q.names[-2]}], a score for each head, not {dims_in_words(operand)}",
                    operand=position,
                )
        if len(more) > 1 and [is_bias(each) for each in more] != [False, True]:
            raise CallError("sinks come first, then a bias", operand=4)
        if call.size("chunk") is not None:
            if call.size("window") is not None:
                raise CallError(
                    "queries look back to a `window`, or in their `chunk`",
                    option="window",
                    help="leave one of the two out",
                )
            if not call.flag("causal"):
                raise CallError(
                    "chunks are of a causal mask",
                    option="chunk",
                    help="write `causal = true` too, or leave `chunk` out",
                )
        for option, what in (("softcap", "a cap"), ("scale", "a factor")):
            number = call.optional_word(option)
            if number is not None and not is_positive(number):
                raise CallError(f"{what} is above 0, not {number}", option=option)

    @classmethod
    def from_call(cls, call: Call, operands: Sequence[SSAValue]) -> TensorOp:
        q, k, v, *more = operands
        return AttentionOp(q, k, v, more, **call.options)  # pyright: ignore[reportArgumentType]

    def indices(self) -> Indices:
        q, k, v, output, lse = self.scored_indices
        sinks = (q[-2:-1],) if self.sinks is not None else ()
        results = self.results_by_part(output, lse)
        return Indices((q, k, v, *sinks, *self.bias_indices), results, blocked=self.blocked())

    def verify_(self) -> None:
        q, k, _ = self.scored
        sinks, bias = self.sinks, self.bias
        if sinks is not None:
            expect_dims(self, q, tensor_type(sinks), q.names[-2:-1])
        if [each for each in (sinks, bias) if each is not None] != [*self.of_scores]:
            raise self.mistake("what comes with scores are sinks, and a bias behind them")
        if bias is not None and (why := wrong_bias(q, k, tensor_type(bias))):
            raise self.mistake(f"{why}")
        super().verify_()

    @property
    def sinks(self) -> SSAValue | None:
        return next((each for each in self.of_scores if not is_bias(tensor_type(each))), None)

    @property
    def bias(self) -> SSAValue | None:
        return next((each for each in self.of_scores if is_bias(tensor_type(each))), None)

    @property
    def shared_heads(self) -> tuple[str, str]:
        """The index of the queries' heads, and of the keys' that follow it."""
        q, k, *_ = self.scored_indices
        return q[-2], k[-2]

    @property
    def key_dim(self) -> str:
        return tensor_type(self.k).names[-3]

    @property
    def query_dim(self) -> str:
        return tensor_type(self.q).names[-3]

    def flops(self) -> Size:
        # q k^T, and the probabilities times v. A cap divides, takes the tanh and multiplies.
        return self.products(1, 1, 3)

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        if not any(gradients.wants(x) for x in self.operands):
            return
        operands = [x for x in (self.q, self.k, self.v, self.bias) if x is not None]
        trains_bias = self.bias is not None and gradients.wants(self.bias)
        made = gradients.insert(AttentionGradOp(only(dys), self, trains_bias), self.q)
        for operand, cotangent in zip(operands, made.results, strict=False):
            if gradients.wants(operand):
                gradients.contribute(operand, cotangent)
        sinks = self.sinks
        if sinks is not None:
            kept = self.result, self.lse, sinks
            gradients.emit(sinks, lambda: AttentionSinksGradOp(only(dys), *kept))


def is_bias(operand: TensorType) -> bool:
    """Whether an operand behind queries, keys and values is no list of sinks: it has more dims than heads."""
    return len(operand.names) > 1 or any(name.endswith(PAIRS) for name in operand.names)


def positions_of_bias(q: TensorType, k: TensorType, bias: TensorType) -> tuple[str, ...]:
    """The dims of a bias that say whose it is: positions of queries and keys, or the pairs of several sequences."""
    queries, keys = q.names[-3], k.names[-3]
    both = paired(queries, keys)
    return (both,) if both in bias.names else (queries, keys)


def wrong_bias(q: TensorType, k: TensorType, bias: TensorType) -> str:
    """What is wrong with the dims of a bias; empty if nothing is."""
    queries, keys = q.names[-3], k.names[-3]
    if queries == keys:
        return f"queries and keys both have positions `{queries}`, so that no dim of a bias says whose they are"
    others = [name for name in q.names[:-1] if name != queries]
    positions = {*positions_of_bias(q, k, bias)}
    if positions <= {*bias.names} <= {*positions, *others}:
        return ""
    return f"a bias has the positions `{queries}` and `{keys}`, and may have [{', '.join(others)}], but is {dims_in_words(bias)}"


def is_positive(text: str) -> bool:
    try:
        return Fraction(text) > 0
    except ValueError:
        return False


@op_definition
class AttentionGradOp(ScoredAttention):
    """Gradients of fused attention: scores are computed again, then four more products.

    dk and dv sum over queries: over axes that split those they are partial, unless the axes split keys too, and over `copies`.

    `dbias`, of a bias that is trained, is the scores' gradient, which is at hand, summed over the dims that the bias lacks: an addition for each pair. It is
    written whole, with zeros where a mask hides pairs.

    `dy` and `output` [B, S, H, E], `q` [B, S, H, E], `k` and `v` [B, T, K, E], `lse` [B, S, H] -> `dq`, `dk`, `dv`, `dbias` like `q`, `k`, `v`, `bias`.
    FLOPs: five products for the forward pass's two (Dao et al. 2022, appendix B).
    """

    name = "stg.attention_grad"
    SOURCE: ClassVar[str] = (
        "Dao et al., FlashAttention, 2022 (arXiv:2205.14135), appendix B: five products for two"
    )
    WORK: ClassVar[Work] = Work.ATTENTION_GRAD
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)
    FIRST: ClassVar[int] = 1

    dy = operand_def(TensorType)
    q = operand_def(TensorType)
    k = operand_def(TensorType)
    v = operand_def(TensorType)
    output = operand_def(TensorType)
    lse = operand_def(TensorType)
    bias = opt_operand_def(TensorType)  # pyright: ignore
    dq = result_def(TensorType)
    dk = result_def(TensorType)
    dv = result_def(TensorType)
    dbias = opt_result_def(TensorType)

    def __init__(self, dy: SSAValue, forward: AttentionOp, trains_bias: bool = False) -> None:
        scored, bias = (forward.q, forward.k, forward.v), forward.bias
        trained = (*scored, bias) if trains_bias and bias is not None else scored
        super().__init__(
            dy,
            *scored,
            *forward.results,
            bias,
            like=list(map(tensor_type, trained)),
            **shared_properties(forward, AttentionGradOp),
        )

    def indices(self) -> Indices:
        q, k, v, output, lse = self.scored_indices
        bias = self.bias_indices
        results = (q, k, v, *(bias if self.dbias is not None else ()))
        return Indices((output, q, k, v, output, lse, *bias), results, blocked=self.blocked())

    def flops(self) -> Size:
        # Five products for two: the scores again, dq and dk; dv and dp (Dao et al. 2022, appendix B).
        # Under a cap the scores are capped again, and its derivative 1 - tanh^2 is a factor.
        # The gradient of a bias is a term for each pair.
        return self.products(3, 2, 6, 2 if self.dbias is not None else 1)

    def flops_again(self) -> Size:
        # The scores, their cap and their bias.
        return self.products(1, 0, 3)


@op_definition
class AttentionSinksGradOp(LikeOp):
    """The gradient for sinks: minus the sum over queries of exp(sink - lse), its share of softmax, times dy . output.

    `dy` and `output` [B, S, H, E], `lse` [B, S, H], `sinks` [H] -> [H]. FLOPs: 2 for each element of `dy`, 4 for each of `lse`.
    """

    name = "stg.attention_sinks_grad"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)
    LIKE: ClassVar[int | None] = 3

    dy = operand_def(TensorType)
    output = operand_def(TensorType)
    lse = operand_def(TensorType)
    sinks = operand_def(TensorType)
    dsinks = result_def(TensorType)

    def verify_(self) -> None:
        dy = tensor_type(self.dy)
        expect_dims(self, dy, tensor_type(self.output), dy.names)
        expect_dims(self, dy, tensor_type(self.lse), dy.names[:-1])
        expect_dims(self, dy, tensor_type(self.sinks), dy.names[-2:-1])
        super().verify_()

    def flops(self) -> Size:
        # dy . output, and for each query and head exp of a difference, a product and a sum.
        return 2 * elements(self.dy) + 4 * elements(self.lse)


@op_definition
class MergeAttentionOp(InferredOp):
    """Attention to two sets of keys from attention to each: the online softmax (Liu et al. 2023).

    `output` and `lse` are of the keys so far, `block` and `block_lse` of some more. With w = sigmoid(block_lse - lse)
    the output becomes output - w (output - block), and lse becomes lse - log(sigmoid(lse - block_lse)).

    `output` and `block` [B, S, H, E], `lse` and `block_lse` [B, S, H] -> the same. FLOPs: 3 for each element of `output`, 5 for each of `lse`.
    """

    name = "stg.merge_attention"
    SOURCE: ClassVar[str] = "Liu et al., Ring Attention, 2023 (arXiv:2310.01889)"

    output = operand_def(TensorType)
    lse = operand_def(TensorType)
    block = operand_def(TensorType)
    block_lse = operand_def(TensorType)
    merged = result_def(TensorType)
    merged_lse = result_def(TensorType)

    assembly_format = (
        "$output `,` $lse `and` $block `,` $block_lse attr-dict "
        "`:` functional-type(operands, results)"
    )

    def made(self) -> Sequence[TensorType]:
        return [tensor_type(self.output), tensor_type(self.lse)]

    def verify_(self) -> None:
        super().verify_()
        given = [tensor_type(v).body for v in (self.output, self.lse)]
        made = [tensor_type(v).body for v in self.results]
        if given != made:
            given_text, made_text = (" and ".join(f"<{t}>" for t in both) for both in (given, made))
            raise self.mistake(f"{given_text} do not become {made_text}")

    def flops(self) -> Size:
        # output - w (output - block); a difference, sigmoid(d), log(sigmoid(-d)) and its subtraction for each lse.
        return 3 * elements(self.output) + 5 * elements(self.lse)


REDUCE_SCATTER, ALL_TO_ALL = "reduce_scatter", "all_to_all"
COMBINED_BY = (REDUCE_SCATTER, ALL_TO_ALL)


@op_definition
class CombineAttentionOp(InferredOp):
    """Attention to all keys from attention to the parts in which they are spread, each weighted by its share exp(lse_i - lse) of the softmax.

    `by "reduce_scatter"`: a rank has the log-sum-exp of all parts and weights its own output, which makes it a term of a sum (vLLM,
    `cp_lse_ag_out_rs`). `by "all_to_all"`: a rank has all parts of some heads, and adds them up (Helix, arXiv:2507.07120; vLLM, `dcp_a2a_lse_reduce`).

    `outputs` [P, B, S, H, E], `lse` [P, B, S, H] -> [B, S, H, E]. FLOPs: for each `lse` the maximum, a difference, exp and a sum, and for each query and head a
    logarithm and a sum; for each part that is weighted a difference and exp, and a product for each element, and a sum where parts are added up.
    """

    name = "stg.combine_attention"

    outputs = operand_def(TensorType)
    lse = operand_def(TensorType)
    spread = prop_def(NamesAttr)
    by = prop_def(StringAttr)
    result = result_def(TensorType)

    assembly_format = (
        "$outputs `,` $lse `over` $spread `by` $by attr-dict `:` functional-type(operands, results)"
    )

    def made(self) -> Sequence[TensorType]:
        each = tensor_type(self.outputs)
        return [TensorType.of(each.names[1:], each.dtype)]

    @property
    def is_sum(self) -> bool:
        return self.by.data == REDUCE_SCATTER

    @property
    def part_index(self) -> str:
        return tensor_type(self.outputs).names[0]

    def indices(self) -> Indices:
        part, *rest = tensor_type(self.outputs).names
        # A rank weights its own part by what it knows of all.
        others = (KEY if self.is_sum else "") + part
        operands = ((part, *rest), (others, *rest[:-1]))
        return Indices(operands, (tuple(rest),), blocked=frozenset((part, others)))

    def effects(self) -> Effects:
        return Effects((Overwrite(0, 0, ALONE),)) if self.is_sum else PLAIN

    def flops(self) -> Size:
        width = tensor_type(self.outputs).dims[-1].size
        weighted, queries = elements(self.outputs), elements(self.result) / width
        return (
            4 * elements(self.lse)
            + 2 * queries
            + 2 * weighted / width
            + (1 if self.is_sum else 2) * weighted
        )

    def verify_(self) -> None:
        super().verify_()
        outputs, lse = tensor_type(self.outputs), tensor_type(self.lse)
        if self.by.data not in COMBINED_BY:
            raise self.mistake(f"parts are combined by {' or '.join(COMBINED_BY)}")
        if outputs.names[:1] != (parts_over(self.spread.data),):
            raise self.mistake(
                f"<{outputs.body}> has no parts over [{', '.join(self.spread.data)}]"
            )
        expect_dims(self, outputs, lse, outputs.names[:-1])
