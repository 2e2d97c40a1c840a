"""Say what of a causal mask falls to each rank where the sequence is split.

Before `count-attention-pairs`:

    dist.mesh <cp = 4>
    dist.context "all_gather" over [cp] rotate "send_recv" balance "none"
    stg.program "M" (%q : !stg.tensor<[B, S/cp, H, E], bf16>, %k : !stg.tensor<[B, S, H, E], bf16>) {
      %o, %lse = stg.attention %q, %k, %k causal count "causal"
        : (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S, H, E], bf16>, !stg.tensor<[B, S, H, E], bf16>)
        -> (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H], fp32>)
      stg.output
    }

After:

    dist.mesh <cp = 4>
    dist.context "all_gather" over [cp] rotate "send_recv" balance "none"
    stg.program "M" (%q : !stg.tensor<[B, S/cp, H, E], bf16>, %k : !stg.tensor<[B, S, H, E], bf16>) {
      %o, %lse = stg.attention %q, %k, %k causal count "causal" pairs "S**2*cp.index/cp**2 + S**2/(2*cp**2)"
        : (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S, H, E], bf16>, !stg.tensor<[B, S, H, E], bf16>)
        -> (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H], fp32>)
      stg.output
    }

Later queries see more keys: without balance the last rank of n does 2n-1 times the work of the first, and each is a class of
its own. With a chunk from the head and one from the tail all ranks do the same, which needs no saying, but for a `window`,
with which the queries at the very start (and, without a mask, at the very end) see fewer keys, and for chunks of the
sequence. Rings count step by step (`expand-ring-attention`).

Of documents that are packed into a sequence, pairs are those within each. With `balance = documents` all ranks have the same of them; else a rank has
what its chunks happen to hold, and is a class of its own. E0401 if no attention is among their tokens.

The chunks from head and tail are those of Llama 3 (arXiv:2407.21783, section 3.3.2) and of Megatron-LM (`get_batch_on_this_cp_rank`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from stagec.analysis.contexts import (
    AttentionOps,
    Contexts,
    is_masked,
    is_of_itself,
    ring_of,
    share_of_mask,
)
from stagec.analysis.documents import PackedDocuments
from stagec.analysis.sizes import mesh_of, size_values
from stagec.diagnostics import CompileError, Diagnostic
from stagec.dialects import dist, stg
from stagec.rewriting import programs, rewrite

NAME = "count-attention-pairs"


@dataclass(frozen=True)
class CountAttentionPairs(ModulePass):
    name = NAME

    sequence: str = ""
    """The dim into which documents are packed, if any are."""
    lengths: tuple[int, ...] = ()
    """The lengths of these documents, one after the other."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        contexts, values = Contexts.of(op), size_values(op)
        documents = PackedDocuments.packed(
            self.sequence, self.lengths, values.get(self.sequence, 1)
        )
        attention = [each for each in op.walk() if isinstance(each, AttentionOps)]
        if self.lengths and not any(map(documents.are_of, attention)):
            message = f"no attention is among the tokens of `{self.sequence}`"
            span = dist.clause_span(programs(op)[0], "documents.span")
            help_ = "write `attention(q, k, v)`, whose queries and keys have that dim"
            raise CompileError([Diagnostic("E0401", message, span, help=help_)])
        rewrite(op, CountPairs(contexts, mesh_of(op), documents, values), once=True)


@dataclass(frozen=True)
class CountPairs(RewritePattern):
    """Writes down the pairs of an op whose queries are split, unless its shapes say them."""

    contexts: Contexts
    mesh: Mapping[str, int]
    documents: PackedDocuments
    values: Mapping[str, int]

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: AttentionOps, rewriter: PatternRewriter) -> None:
        queries = stg.tensor_type(op.q).dims[-3]
        if self.documents.are_of(op) and not ring_of(op, self.mesh):
            pairs = self.documents.share(op, self.contexts, self.values)
            op.properties["pairs"] = stg.SizeAttr(pairs)
            return
        is_limited = op.reach.both_ways and is_of_itself(op)
        counted = op.pairs is None and op.count.data == "causal" and (is_masked(op) or is_limited)
        if not counted or not self.contexts.along(queries.split) or ring_of(op, self.mesh):
            return
        balanced = self.contexts.balanced(queries.split)
        if op.reach != stg.Reach() or not balanced:
            op.properties["pairs"] = stg.SizeAttr(share_of_mask(queries, op.reach, balanced))
