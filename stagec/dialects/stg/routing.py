"""Mixture of experts: which experts a token goes to, the way there, and the way back.

    %g, %i = stg.topk %scores over "X" to "A"          // [B, S, X] -> [B, S, A] twice: weights, and numbers of experts
    %r, %n = stg.dispatch %x by %i to "X" "C"          // [B, S, D] -> [X, C, D]: C tokens for each expert
    %o = stg.combine %y by %i weights %g               // [X, C, D] -> [B, S, D]

The dim of an expert's tokens, `C`, is the tokens' dims flattened: axes that split those split it. Which tokens are where in it means nothing, so
its axes have no order of their own. A dispatch is local; that experts live elsewhere is a change of placement, an all-to-all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr, UnitAttr
from xdsl.ir import SSAValue
from xdsl.irdl import (
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
)
from xdsl.utils.exceptions import VerifyException

from stagec.dialects.attributes import Dim, SizeAttr
from stagec.dialects.interfaces import elements
from stagec.dialects.op import op_definition
from stagec.dialects.stg.base import (
    PLACEMENT,
    Indices,
    InferredOp,
    LocalStatisticsOp,
    TensorOp,
    tensor_type,
)
from stagec.dialects.stg.interface import BackwardPass, Call, CallError, Cotangents, Signature, only
from stagec.dialects.types import TensorType
from stagec.dialects.uneven_parts import PART
from stagec.dialects.work import Work
from stagec.symbolic import ZERO, Size


def check_choice(call: Call) -> None:
    """As many can be chosen as asked for; groups are equal and have two experts or more each."""
    over, to = call.dim("over"), call.dim("to")
    many, chosen = call.sizes[over], call.sizes[to]
    if many is None or chosen is None:
        return
    available, where = many, ""
    groups, limit = call.size("groups"), call.size("limit")
    if groups is not None and limit is not None:
        parts, allowed = call.number_of(groups), call.number_of(limit)
        if parts < 1 or many % parts or many // parts < 2:
            raise CallError(
                f"`{over} = {many}` does not divide into {parts} groups of two or more",
                option="groups",
            )
        if not 1 <= allowed <= parts:
            raise CallError(f"{allowed} of {parts} groups cannot be chosen", option="limit")
        available, where = many // parts * allowed, f" in {allowed} group" + "s" * (allowed != 1)
    if chosen > available:
        raise CallError(
            f"`{to} = {chosen}` is more than there are: {available}{where}", option="to"
        )


@op_definition
class TopkOp(LocalStatisticsOp, InferredOp):
    """The `to` largest scores of each token over `over`, and which they are.

    `normalise` divides them by their sum. The backward pass reads weights and numbers. A `bias` for each of `over` is added
    to the scores for the choice alone: no gradient passes it (Wang et al., arXiv:2408.15664). With `groups`, so many equal
    parts of `over`, experts are chosen from `limit` of them, those whose two best scores have the largest sum
    (DeepSeek-V3, arXiv:2412.19437, section 2.1.2, and its released code).

    `scores` [B, S, X] -> weights [B, S, A] and experts [B, S, A]. FLOPs: a comparison for each score, an addition of the bias, one more for groups.
    """

    name = "stg.topk"
    SIGNATURES: ClassVar[tuple[Signature, ...]] = (
        Signature.of(
            "topk(scores, bias?, over = dim, to = dim, groups? = size, limit? = size, normalise? = bool)",
            "the largest scores over a dim, and which they are",
        ),
    )

    scores = operand_def(TensorType)
    bias = opt_operand_def(TensorType)
    over = prop_def(StringAttr)
    to = prop_def(StringAttr)
    groups = opt_prop_def(SizeAttr)
    limit = opt_prop_def(SizeAttr)
    normalise = opt_prop_def(UnitAttr)
    weights = result_def(TensorType)
    experts = result_def(TensorType)

    def made(self) -> Sequence[TensorType]:
        source = tensor_type(self.scores)
        chosen = source.with_names({self.over.data: self.to.data})
        return [chosen, chosen.with_dtype("i32")]

    @classmethod
    def check_call(cls, call: Call) -> None:
        call.need_float(0, 1)
        over, to = call.dim("over"), call.dim("to")
        scores, *bias = call.types
        call.need_dim(0, over, "over")
        if to in scores.names:
            raise CallError(f"`{to}` is already a dim of the scores", option="to")
        if bias and bias[0].names != (over,):
            raise CallError(
                f"a bias is [{over}], one number for each, not [{', '.join(bias[0].names)}]",
                operand=1,
            )
        for option, other in (("groups", "limit"), ("limit", "groups")):
            if option in call.options and other not in call.options:
                raise CallError(
                    f"`{option}` needs `{other}`",
                    option=option,
                    help="`groups` says into how many the experts are divided, `limit` of how many a token's experts are",
                )
        check_choice(call)

    def verify_(self) -> None:
        source, over = tensor_type(self.scores), self.over.data
        if over not in source.names:
            raise self.mistake(f"scores <{source.body}> are not over `{over}`")
        if self.bias is not None and tensor_type(self.bias).names != (over,):
            raise self.mistake(
                f"the bias is <{tensor_type(self.bias).body}>, not one number for each of `{over}`"
            )
        if (self.groups is None) != (self.limit is None):
            raise self.mistake("groups have a limit, and a limit is of groups")
        super().verify_()
        weights, experts = tensor_type(self.weights), tensor_type(self.experts)
        if weights.dtype != source.dtype:
            raise self.mistake(f"weights are {source.dtype} as scores are")
        expect_numbers(self, experts)

    def indices(self) -> Indices:
        base = super().indices()
        blocked = frozenset((self.over.data, self.to.data))
        return Indices(base.operands, base.results, blocked=blocked, statistics=blocked)

    def flops(self) -> Size:
        # A comparison for each score, an addition of the bias; with groups their two best and the masked choice.
        passes = 1 + (self.bias is not None) + (self.groups is not None)
        return elements(self.scores) * passes

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        if dys[0] is None:
            return
        dweights = dys[0]
        gradients.emit(
            self.scores,
            lambda: TopkGradOp(dweights, self.weights, self.experts, like=tensor_type(self.scores)),
        )


@op_definition
class TopkGradOp(LocalStatisticsOp, InferredOp):
    """The gradient for the scores: that of each weight at its expert, zero elsewhere.

    `dweights`, `weights` and `experts` [B, S, A] -> [B, S, X]. FLOPs: 1 for each score.
    """

    name = "stg.topk_grad"
    FLOPS: ClassVar[tuple[int, str]] = (1, "dscores")
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)

    dweights = operand_def(TensorType)
    weights = operand_def(TensorType)
    experts = operand_def(TensorType)
    dscores = result_def(TensorType)

    def verify_(self) -> None:
        super().verify_()
        expect_numbers(self, tensor_type(self.experts))
        names = {tensor_type(v).names for v in self.operands}
        if len(names) != 1:
            raise self.mistake("weights and experts have the dims of dweights")
        chosen, scores = tensor_type(self.dweights), tensor_type(self.dscores)
        pairs = list(zip(chosen.names, scores.names, strict=False))
        if len(chosen.names) != len(scores.names) or sum(a != b for a, b in pairs) != 1:
            raise self.mistake(f"<{chosen.body}> is not a choice from scores <{scores.body}>")

    def indices(self) -> Indices:
        base = super().indices()
        chosen = set(base.operands[0]) - set(base.results[0])
        return Indices(base.operands, base.results, statistics=frozenset(chosen))


class SendsTokens(TensorOp):
    """Shared by ops whose first result are copies of tokens on their way to experts: `stg.dispatch`, `stg.fan_out`."""

    x = operand_def(TensorType)
    dropless = opt_prop_def(UnitAttr)
    counts = result_def(TensorType)

    @property
    def sent(self) -> SSAValue:
        return self.results[0]


class CollectsTokens(TensorOp):
    """Shared by ops whose first operand is what experts made of copies: `stg.combine`, `stg.fan_in`."""


class RoutedOp(LocalStatisticsOp, InferredOp):
    """Shared by ops between tokens [..., D] and the tokens of each expert [X, C, D]."""

    ROUTED: ClassVar[int] = 0
    """Which operand has the latter, before the experts of tokens."""

    def merged_index(self) -> tuple[str, tuple[str, ...]]:
        """The index of an expert's tokens, and those of the tokens that it is made of."""
        routed, experts = self.operands[self.ROUTED : self.ROUTED + 2]
        return tensor_type(routed).names[1], tensor_type(experts).names[:-1]

    def verify_routing(
        self, tokens: SSAValue, routed: SSAValue, experts: SSAValue, weights: SSAValue | None
    ) -> None:
        """What splits the tokens splits those of the experts; the rest is whole on each device."""
        many, chosen = tensor_type(tokens), tensor_type(experts)
        bins = tensor_type(routed)
        self.verify_operands()
        expect_chosen(self, chosen)
        if len(bins.dims) != 3 or many.names[-1:] != bins.names[-1:]:
            raise self.mistake(f"tokens <{many.body}> do not go to experts as <{bins.body}>")
        if chosen.names[:-1] != many.names[:-1]:
            raise self.mistake(f"experts <{chosen.body}> are not those of tokens <{many.body}>")
        if weights is not None and tensor_type(weights).dims != chosen.dims:
            raise self.mistake(
                f"weights <{tensor_type(weights).body}> are not those of experts <{chosen.body}>"
            )
        if PLACEMENT not in self.properties:
            verify_splits(self.name, many, bins, chosen)


@op_definition
class DispatchOp(RoutedOp, SendsTokens):
    """Copy each token to its experts' tokens; `counts` says how many each expert has from this device.

    `dropless`: sizes depend on the data, so that devices exchange counts before tokens. With `weights` a copy is
    scaled by its weight: the transpose of a weighted `stg.combine`.

    `x` [B, S, D], `experts` [B, S, A] -> [X, N, D]. FLOPs: a multiplication for each element of `routed` if it is weighted.
    """

    name = "stg.dispatch"
    WORK: ClassVar[Work] = Work.DISPATCH
    NUM_STATISTICS: ClassVar[int] = 1
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)
    SIGNATURES: ClassVar[tuple[Signature, ...]] = (
        Signature.of(
            "dispatch(x, experts, experts = dim, tokens = dim, dropless? = bool)",
            "each token, copied to the tokens of its experts",
        ),
    )

    x = operand_def(TensorType)
    experts = operand_def(TensorType)
    weights = opt_operand_def(TensorType)
    over = prop_def(StringAttr)
    tokens = prop_def(StringAttr)
    dropless = opt_prop_def(UnitAttr)
    routed = result_def(TensorType)
    counts = result_def(TensorType)

    assembly_format = (
        "$x `by` $experts (`weights` $weights^)? `to` $over $tokens (`dropless` $dropless^)? attr-dict "
        "`:` functional-type(operands, results)"
    )

    def made(self) -> Sequence[TensorType]:
        source = tensor_type(self.x)
        axes = [a for d in tensor_type(self.experts).dims[:-1] for a in d.split]
        over = Dim(self.over.data)
        dims = [over, Dim(self.tokens.data, tuple(axes)), source.dims[-1]]
        return [TensorType.of(dims, source.dtype, source.partial), TensorType.of([over], "i64")]

    def local_types(self) -> Sequence[TensorType]:
        """Whose tokens an expert's are is no index: they are split as those that they are made of."""
        routed, counts = (tensor_type(v) for v in self.results)
        return [routed.with_partial(tensor_type(self.x).partial), counts]

    @classmethod
    def check_call(cls, call: Call) -> None:
        x, experts = call.types
        call.need_float(0)
        call.need_ids(1)
        if experts.names[:-1] != x.names[:-1]:
            raise CallError(
                f"tokens are [{', '.join(x.names)}], their experts [{', '.join(experts.names)}]",
                operand=1,
                notes=["they differ in their last dim"],
            )
        over, tokens = call.dim("experts"), call.dim("tokens")
        if over == tokens or {over, tokens} & set(x.names):
            raise CallError("the dims of experts and of their tokens are new ones", option="tokens")

    @classmethod
    def from_call(cls, call: Call, operands: Sequence[SSAValue]) -> TensorOp:
        over, tokens = call.dim("experts"), call.dim("tokens")
        dropless = call.flag("dropless", True)
        return DispatchOp(*operands, over=over, tokens=tokens, dropless=dropless)

    def indices(self) -> Indices:
        base = super().indices()
        chosen = base.operands[1][-1]
        blocked = frozenset((self.over.data, self.tokens.data, chosen))
        # Counts are a device's own, of the tokens that it has: no part of a sum.
        everything = frozenset(n for names in base.operands for n in names) | {self.tokens.data}
        return Indices(base.operands, base.results, blocked=blocked, statistics=everything)

    def merged_index(self) -> tuple[str, tuple[str, ...]]:
        return self.tokens.data, tensor_type(self.experts).names[:-1]

    def verify_(self) -> None:
        self.verify_routing(self.x, self.routed, self.experts, self.weights)
        x, routed, counts = (tensor_type(v) for v in (self.x, self.routed, self.counts))
        if routed.names[:2] != (self.over.data, self.tokens.data):
            raise self.mistake(
                f"<{routed.body}> does not begin with `{self.over.data}` and `{self.tokens.data}`"
            )
        if (routed.dtype, routed.partial) != (x.dtype, x.partial):
            raise self.mistake(f"copies of <{x.body}> are not <{routed.body}>: a dispatch moves")
        whole = TensorType.of([Dim(self.over.data)], "i64")
        own = counts.with_splits({}) if PLACEMENT in self.properties else counts
        # Those of all experts are as many where a device takes the tokens of its own, uneven part of them.
        total = TensorType.of([Dim(self.over.data.removesuffix(PART))], "i64")
        split = whole.with_splits({self.over.data: routed.dims[0].split})
        if own not in (whole, split, total):
            raise self.mistake(f"counts are <[{self.over.data}], i64>")

    def flops(self) -> Size:
        return elements(self.routed) if self.weights is not None else ZERO

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        gradients.emit(self.x, lambda: CombineOp(only(dys), self.experts))


@op_definition
class CombineOp(RoutedOp, CollectsTokens):
    """Add up what a token's experts made of it, weighted if there are `weights`.

    `routed` [X, N, D], `experts` [B, S, A] -> [B, S, D]. FLOPs: an addition for each element of `routed`, and a multiplication if it is weighted.
    """

    name = "stg.combine"
    WORK: ClassVar[Work] = Work.COMBINE
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)
    SIGNATURES: ClassVar[tuple[Signature, ...]] = (
        Signature.of(
            "combine(routed, weights, experts)",
            "what a token's experts made of it, weighted and added up",
        ),
    )

    routed = operand_def(TensorType)
    experts = operand_def(TensorType)
    weights = opt_operand_def(TensorType)
    result = result_def(TensorType)

    assembly_format = (
        "$routed `by` $experts (`weights` $weights^)? attr-dict "
        "`:` functional-type(operands, results)"
    )

    def made(self) -> Sequence[TensorType]:
        routed, chosen = tensor_type(self.routed), tensor_type(self.experts)
        return [TensorType.of([*chosen.names[:-1], routed.names[-1]], routed.dtype)]

    @classmethod
    def check_call(cls, call: Call) -> None:
        routed, weights, experts = call.types
        call.need_float(0, 1)
        call.need_ids(2)
        if len(routed.names) != 3:
            raise CallError(
                f"experts' tokens are [experts, tokens, width], but this is [{', '.join(routed.names)}]",
                operand=0,
            )
        for name in routed.names[:2]:
            if name in experts.names:
                raise CallError(f"`{name}` is a dim of tokens, not of what experts have", operand=0)
        if weights.names != experts.names:
            raise CallError(
                f"weights are [{', '.join(weights.names)}], experts [{', '.join(experts.names)}]",
                operand=2,
            )

    @classmethod
    def from_call(cls, call: Call, operands: Sequence[SSAValue]) -> TensorOp:
        routed, weights, experts = operands
        return CombineOp(routed, experts, weights)

    def indices(self) -> Indices:
        base = super().indices()
        over, tokens, _ = base.operands[0]
        blocked = frozenset((over, tokens, base.operands[1][-1]))
        # A sum over some of the experts is a term of the sum over all.
        return Indices(base.operands, base.results, blocked=blocked, statistics=blocked - {over})

    def verify_(self) -> None:
        self.verify_routing(self.result, self.routed, self.experts, self.weights)
        routed, result = tensor_type(self.routed), tensor_type(self.result)
        terms = routed.partial if PLACEMENT in self.properties else terms_of(routed)
        if (result.dtype, set(result.partial)) != (routed.dtype, set(terms)):
            raise self.mistake(f"what experts made is <{routed.body}>, the sum <{result.body}>")

    def flops(self) -> Size:
        # An addition for each copy, and a multiplication if it is weighted.
        return elements(self.routed) * (2 if self.weights is not None else 1)

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        dy, routed = only(dys), tensor_type(self.routed)
        weights = self.weights
        gradients.emit(
            self.routed,
            lambda: DispatchOp(dy, self.experts, weights, *routed.names[:2], like=routed),
        )
        if weights is not None:
            read, like = (self.routed, self.experts), tensor_type(weights)
            gradients.emit(weights, lambda: CombineWeightGradOp(dy, *read, like=like))


@op_definition
class CombineWeightGradOp(RoutedOp):
    """The gradient for the weights: of each token and expert, the product of dy with what the expert made.

    `dy` [B, S, D], `routed` [X, N, D] -> [B, S, A]. FLOPs: 2 for each element of `routed`.
    """

    name = "stg.combine_weight_grad"
    FLOPS: ClassVar[tuple[int, str]] = (2, "routed")
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0, 1)
    ROUTED: ClassVar[int] = 1

    dy = operand_def(TensorType)
    routed = operand_def(TensorType)
    experts = operand_def(TensorType)
    dweights = result_def(TensorType)

    assembly_format = (
        "$dy `,` $routed `by` $experts attr-dict `:` functional-type(operands, results)"
    )

    def verify_(self) -> None:
        self.verify_routing(self.dy, self.routed, self.experts, self.dweights)
        dy, dweights = tensor_type(self.dy), tensor_type(self.dweights)
        routed = tensor_type(self.routed)
        if set(dy.partial) & set(routed.partial):
            raise self.mistake(f"terms <{dy.body}> and <{routed.body}> of one axis do not multiply")
        partial = {*dy.partial, *dy.dims[-1].split, *terms_of(routed)}
        if PLACEMENT not in self.properties and set(dweights.partial) != partial:
            raise self.mistake(
                f"the products are partial over "
                f"[{', '.join(sorted(partial))}], not <{dweights.body}>"
            )


def verify_splits(name: str, tokens: TensorType, routed: TensorType, experts: TensorType) -> None:
    axes = {a for d in tokens.dims[:-1] for a in d.split}
    if axes != set(routed.dims[1].split):
        raise VerifyException(
            f"{name}: tokens are split over [{', '.join(sorted(axes))}], experts' tokens over "
            f"[{', '.join(routed.dims[1].split)}]"
        )
    if experts.dims[:-1] != tokens.dims[:-1] or routed.dims[-1] != tokens.dims[-1]:
        raise VerifyException(
            f"{name}: tokens <{tokens.body}>, experts <{experts.body}> and experts' tokens "
            f"<{routed.body}> are not split alike"
        )
    if experts.dims[-1].split:
        raise VerifyException(f"{name}: each device needs all of `{experts.names[-1]}`")


def terms_of(routed: TensorType) -> list[str]:
    """What a sum over the experts of a token is partial over: the axes that split the experts."""
    return sorted({*routed.partial, *routed.dims[0].split})


def expect_numbers(op: TensorOp, experts: TensorType) -> None:
    if experts.dtype not in ("i32", "i64"):
        raise op.mistake(f"numbers of experts are i32 or i64, not {experts.dtype}")


def expect_chosen(op: TensorOp, experts: TensorType) -> None:
    """Numbers of experts, or a boolean for each of all."""
    if experts.dtype != "bool":
        expect_numbers(op, experts)


def merged_axes(
    splits: dict[str, tuple[str, ...]], parts: Sequence[str], like: TensorType
) -> tuple[str, ...]:
    """The axes of an expert's tokens, in the order that makes the way to the experts short.

    First those that split them there too, last those that split the experts: these are exchanged.
    """
    axes = [a for part in parts for a in splits.get(part, ())]
    kept = [a for a in like.dims[1].split if a in axes]
    exchanged = [a for a in like.dims[0].split if a in axes]
    rest = [a for a in axes if a not in kept and a not in exchanged]
    return (*kept, *rest, *exchanged)
