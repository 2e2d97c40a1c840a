"""Let tokens reach experts in two steps: one copy for each node, which goes on to each device there that has experts of its own.

Before `split-exchanges{batch="B" microbatch=1}`:

    stg.dim "B" = "8"
    stg.dim "S" = "16"
    stg.dim "X" = "16"
    stg.dim "A" = "4"
    stg.dim "T" = "32"
    dist.mesh <en = 4, el = 2>
    stg.program "M" (%s : !stg.tensor<[B/(en*el), S, X], bf16>, %x : !stg.tensor<[B/(en*el), S, D], bf16>) {
      %g, %i = stg.topk %s over "X" to "A" groups "4" limit "2"
        : (!stg.tensor<[B/(en*el), S, X], bf16>) -> (!stg.tensor<[B/(en*el), S, A], bf16>, !stg.tensor<[B/(en*el), S, A], i32>)
      %r, %n = stg.dispatch %x by %i to "X" "T" dropless : (!stg.tensor<[B/(en*el), S, D], bf16>, !stg.tensor<[B/(en*el), S, A], i32>)
        -> (!stg.tensor<[X, T/(en*el), D], bf16>, !stg.tensor<[X], i64>)
      %e = dist.reshard %r : !stg.tensor<[X, T/(en*el), D], bf16> -> !stg.tensor<[X/(en*el), T, D], bf16>
      %b = dist.reshard %e : !stg.tensor<[X/(en*el), T, D], bf16> -> !stg.tensor<[X, T/(en*el), D], bf16>
      %o = stg.combine %b by %i weights %g : (!stg.tensor<[X, T/(en*el), D], bf16>, !stg.tensor<[B/(en*el), S, A], i32>,
        !stg.tensor<[B/(en*el), S, A], bf16>) -> !stg.tensor<[B/(en*el), S, D], bf16>
      stg.output
    }

After:

    stg.dim "B" = "8"
    stg.dim "S" = "16"
    stg.dim "X" = "16"
    stg.dim "A" = "4"
    stg.dim "T" = "32"
    dist.mesh <en = 4, el = 2>
    stg.dim "X.outer" = "en"
    stg.dim "T.outer" = "2*B*S/en"
    stg.dim "X.inner" = "el*en"
    stg.dim "T.inner" = "51*B*S/(16*el*en)"
    stg.program "M" (%s : !stg.tensor<[B/(en*el), S, X], bf16>, %x : !stg.tensor<[B/(en*el), S, D], bf16>) {
      %g, %i = stg.topk %s over "X" to "A" groups "4" limit "2"
        : (!stg.tensor<[B/(en*el), S, X], bf16>) -> (!stg.tensor<[B/(en*el), S, A], bf16>, !stg.tensor<[B/(en*el), S, A], i32>)
      %c, %n = stg.dispatch %x by %i to "X.outer" "T.outer" dropless : (!stg.tensor<[B/(en*el), S, D], bf16>,
        !stg.tensor<[B/(en*el), S, A], i32>) -> (!stg.tensor<[X.outer, T.outer/(el*en), D], bf16>, !stg.tensor<[X.outer], i64>)
      %d = dist.reshard %c : !stg.tensor<[X.outer, T.outer/(el*en), D], bf16> -> !stg.tensor<[X.outer/en, T.outer/el, D], bf16>
      %f, %m = stg.fan_out %d to "X.inner" "T.inner" dropless forwards {part_of = "dispatch"} : (!stg.tensor<[X.outer/en, T.outer/el, D], bf16>)
        -> (!stg.tensor<[X.inner/en, T.inner/el, D], bf16>, !stg.tensor<[X.inner/en], i64>)
      %h = dist.reshard %f : !stg.tensor<[X.inner/en, T.inner/el, D], bf16> -> !stg.tensor<[X.inner/(en*el), T.inner, D], bf16>
      %e, %k = stg.fan_out %h to "X" "T" {part_of = "dispatch"}
        : (!stg.tensor<[X.inner/(en*el), T.inner, D], bf16>) -> (!stg.tensor<[X/(en*el), T, D], bf16>, !stg.tensor<[X/(en*el)], i64>)
      %p = stg.fan_in %e weights %g to "X.inner" "T.inner" {part_of = "combine"} : (!stg.tensor<[X/(en*el), T, D], bf16>,
        !stg.tensor<[B/(en*el), S, A], bf16>) -> !stg.tensor<[X.inner/(en*el), T.inner, D], bf16>
      %q = dist.reshard %p : !stg.tensor<[X.inner/(en*el), T.inner, D], bf16> -> !stg.tensor<[X.inner/en, T.inner/el, D], bf16>
      %u = stg.fan_in %q to "X.outer" "T.outer" forwards {part_of = "combine"}
        : (!stg.tensor<[X.inner/en, T.inner/el, D], bf16>) -> !stg.tensor<[X.outer/en, T.outer/el, D], bf16>
      %v = dist.reshard %u : !stg.tensor<[X.outer/en, T.outer/el, D], bf16> -> !stg.tensor<[X.outer, T.outer/(el*en), D], bf16>
      %o = stg.combine %v by %i : (!stg.tensor<[X.outer, T.outer/(el*en), D], bf16>, !stg.tensor<[B/(en*el), S, A], i32>)
        -> !stg.tensor<[B/(en*el), S, D], bf16>
      stg.output
    }

The way of DeepSeek-V3 (arXiv:2412.19437, section 3.2.2) and of its kernels, DeepEP: a token goes over the network once to each node
that has experts of its own, to the device with the same place there, and from that over the node's links once to each device. What a
device's experts made of a token is weighted and added up there, then in its node, then by who sent it. Experts are chosen of two of four
groups here, which are nodes: two copies of each token. How many devices that are is `analysis/token_copies.py`: 54 / 17 on average, 51
copies of the 16 tokens that a device has at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from stagec import symbolic
from stagec.analysis.exchanges import Routed, changes_beside, check_exchanges, placements
from stagec.analysis.sizes import size_values
from stagec.analysis.token_copies import num_copies, routing_of
from stagec.diagnostics import CompileError, Diagnostic, quoted, span_of
from stagec.dialects import dist, stg
from stagec.dialects.attributes import Dim
from stagec.dialects.types import TensorType
from stagec.rewriting import defined, rewrite
from stagec.symbolic import symbol

NAME = "split-exchanges"


@dataclass(frozen=True)
class SplitExchanges(ModulePass):
    name = NAME

    batch: str = ""
    """The dim that microbatches are made of."""
    microbatch: int = 0
    """How much of it a device computes with at a time; 0: all that it has. Copies are counted for so many tokens."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        axes = "two axes: `shard X over ep`"
        check_exchanges(op, "no exchange is hierarchical", "exchange", axes)
        rewrite(op, SplitExchange(self, op, size_values(op)), NAME, once=True)


@dataclass(frozen=True)
class SplitExchange(RewritePattern):
    options: SplitExchanges
    module: ModuleOp
    values: Mapping[str, int]

    @op_type_rewrite_pattern
    def match_and_rewrite(
        self, op: stg.DispatchOp | stg.CombineOp, rewriter: PatternRewriter
    ) -> None:
        changes = changes_beside(op)
        for change in changes:
            if (wrong := mistake(self.module, op, change)) is not None:
                raise CompileError([wrong])
            steps = Steps(op, *placements(op, change), self.copies(op, change), rewriter)
            if isinstance(op, stg.DispatchOp):
                steps.there(op, change)
            else:
                steps.back(op, change)
        if changes and isinstance(op, stg.DispatchOp):
            rewriter.erase(op)

    def copies(self, routed: Routed, change: dist.ReshardOp) -> tuple[Copies, Copies]:
        """The dims of copies for nodes and for devices, as large as all tokens of a step make them."""
        own, _ = placements(routed, change)
        experts, tokens, _ = own.names
        here = self.tokens_at_a_time(stg.tensor_type(routed.experts))
        routing = routing_of(routed, self.values)
        every = symbolic.product(map(symbol, stg.tensor_type(routed.experts).names[:-1]))
        found: list[Copies] = []
        for suffix, axes in ((".outer", own.dims[0].split[:1]), (".inner", own.dims[0].split)):
            parts = symbolic.product(map(symbol, axes))
            number = num_copies(routing, prod(self.values[a] for a in axes), here)
            share = symbolic.constant(Fraction(number, here))
            sizes = {experts + suffix: parts, tokens + suffix: every * share / parts}
            found.append(Copies(*defined(self.module, routed, sizes)))
        return found[0], found[1]

    def tokens_at_a_time(self, chosen: TensorType) -> int:
        """Tokens of a microbatch on a device."""
        local = {
            d.name: Fraction(self.values[d.name], prod(self.values[a] for a in d.split))
            for d in chosen.dims[:-1]
        }
        batch, microbatch = local.get(self.options.batch), self.options.microbatch
        # A microbatch that does not divide the batch is found by `split-microbatches`.
        if microbatch and batch is not None and not batch % microbatch:
            local[self.options.batch] = Fraction(microbatch)
        return prod(local.values(), start=Fraction(1)).numerator


@dataclass(frozen=True)
class Copies:
    """The dims of copies for parts of the experts."""

    experts: str
    tokens: str


@dataclass(frozen=True)
class Steps:
    """One exchange in two steps."""

    routed: Routed
    own: TensorType
    """Tokens where their experts are: [X/(outer*inner), T/rest, D]."""
    sent: TensorType
    """Where they come from: [X, T/(rest*outer*inner), D]."""
    copies: tuple[Copies, Copies]
    rewriter: PatternRewriter

    @property
    def rest(self) -> list[str]:
        """Axes that split the tokens of an expert, and stay as they are."""
        return [a for a in self.sent.dims[1].split if a not in self.own.dims[0].split]

    def copies_at(self, level: Copies, over: int) -> TensorType:
        """Copies of a level when their parts are split over so many axes, outer first; the others split the copies."""
        axes = self.own.dims[0].split
        dims = [
            Dim(level.experts, axes[:over]),
            Dim(level.tokens, (*self.rest, *reversed(axes[over:]))),
            self.sent.dims[-1],
        ]
        return TensorType.of(dims, self.sent.dtype, self.sent.partial)

    def there(self, dispatch: stg.DispatchOp, change: dist.ReshardOp) -> None:
        outer, inner = self.copies
        tokens = stg.DispatchOp(
            dispatch.x,
            dispatch.experts,
            over=outer.experts,
            tokens=outer.tokens,
            dropless=True,
            like=self.copies_at(outer, 0),
        )
        to_node = dist.ReshardOp(tokens.routed, self.copies_at(outer, 1))
        in_node = stg.FanOutOp(
            to_node.result, None, inner.experts, inner.tokens, dropless=True, forwards=True
        )
        to_device = dist.ReshardOp(in_node.copies, self.copies_at(inner, 2))
        experts, bins, _ = self.own.names
        on_device = stg.FanOutOp(to_device.result, None, experts, bins)
        made: list[Operation] = [tokens, to_node, in_node, to_device, on_device]
        arrived = on_device.copies
        if arrived.type != self.own:
            made.append(dist.ReshardOp(arrived, self.own))
            arrived = made[-1].results[0]
        self.replace(change, made, arrived)

    def back(self, combine: stg.CombineOp, change: dist.ReshardOp) -> None:
        outer, inner = self.copies
        made: list[Operation] = []
        value = change.operand
        names = dict(zip(self.own.names[:2], (inner.experts, inner.tokens), strict=True))
        whole = self.copies_at(inner, 2).with_names({new: old for old, new in names.items()})
        if value.type != whole:
            # Terms of a sum are added up before they are weighted and travel.
            made.append(dist.ReshardOp(value, whole))
            value = made[-1].results[0]
        on_device = stg.FanInOp(value, combine.weights, inner.experts, inner.tokens)
        to_node = dist.ReshardOp(on_device.result, self.copies_at(inner, 1))
        in_node = stg.FanInOp(to_node.result, None, outer.experts, outer.tokens, forwards=True)
        to_tokens = dist.ReshardOp(in_node.result, self.copies_at(outer, 0))
        result = stg.CombineOp(to_tokens.result, combine.experts)
        self.replace(
            combine, [*made, on_device, to_node, in_node, to_tokens, result], result.result
        )
        self.rewriter.erase(change)

    def replace(self, op: Operation, made: Sequence[Operation], result: SSAValue) -> None:
        """New ops in the place of one, which say whose part they are."""
        kind = self.routed.name.partition(".")[2]
        for each in made:
            stg.add_names(each, (*stg.names_of(self.routed), *stg.names_of(op)))
            if isinstance(each, stg.FanOutOp | stg.FanInOp):
                stg.marks(each)[stg.PART_OF] = StringAttr(kind)
        self.rewriter.replace(op, made, [result])


# Mistakes


def mistake(module: ModuleOp, routed: Routed, change: dist.ReshardOp) -> Diagnostic | None:
    """E0313: there are two axes, and each token travels over both; what travels is no padded buffer."""
    own, sent = placements(routed, change)
    experts, axes = own.names[0], own.dims[0].split
    if isinstance(routed, stg.DispatchOp) and routed.dropless is None:
        return Diagnostic(
            "E0313",
            "experts of a capacity get a buffer each, so that no copy of a token stands for several",
            span_of(routed.location),
            help="leave out `dropless = false`, or `exchange = hierarchical` in the plan's `collectives`",
        )
    apart = [a for a in axes if a not in sent.dims[1].split]
    if len(axes) == 2 and not apart:
        return None
    if apart:
        message = f"tokens are the same along {quoted(apart)}, so that they do not travel over it"
        help_ = f"split the tokens over {quoted(apart)} too, or split `{experts}` over other axes"
    else:
        one = axes[0] if len(axes) == 1 else "ep"
        message = (
            f"experts are split over {quoted(axes)}: a hierarchical exchange is over two axes, "
            "one of nodes and one of the devices of a node"
        )
        help_ = f"make `{one}` a product of two axes: `mesh nodes = 8, local = 8, {one} = nodes * local`"
    rules = [r for r in module.body.ops if isinstance(r, dist.RuleOp) and experts in r.dims.data]
    span = span_of(rules[0].location) if rules else span_of(routed.location)
    label = f"splits `{experts}`" if rules else ""
    return Diagnostic("E0313", message, span, label=label, help=help_)
