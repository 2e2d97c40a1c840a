"""What is wrong with the tokens of experts between `dispatch` and `combine`: W0203, E0205."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from stagec.diagnostics import Diagnostic, span_of
from stagec.dialects import stg


def summed_experts(module: ModuleOp) -> list[Diagnostic]:
    """A warning for each product that sums over the experts that tokens went to, and keeps the rows of tokens.

    Row 3 of one expert is another token than row 3 of the next, so that their sum means nothing. A product sums over all dims that its
    operands share, but for those that the text names for its result.
    """
    found: list[Diagnostic] = []
    for op in module.walk():
        if isinstance(op, stg.DispatchOp):
            experts, tokens = op.over.data, op.tokens.data
            found += [
                Diagnostic(
                    "W0203",
                    f"`@` sums over `{experts}`: it adds up tokens of different experts",
                    span_of(each.location),
                    help=f"name the dims of the result, `{experts}` among them: "
                    f"`y[{', '.join((experts, *stg.tensor_type(each.result).names))}] = ...`",
                )
                for each in dict.fromkeys(products(op.routed, experts, tokens))
                if experts in each.over.data
            ]
    return found


def transposed_experts(module: ModuleOp) -> list[Diagnostic]:
    """An error for each `combine` of rows whose experts are not the first dim, as those of the `dispatch` by the same choice are."""
    found: list[Diagnostic] = []
    for op in module.walk():
        if isinstance(op, stg.CombineOp):
            names = stg.tensor_type(op.routed).names
            sent = [use.operation for use in op.experts.uses]
            wanted = {(s.over.data, s.tokens.data) for s in sent if isinstance(s, stg.DispatchOp)}
            if tuple(reversed(names[:2])) in wanted and names[:2] not in wanted:
                experts, tokens = names[1], names[0]
                found.append(
                    Diagnostic(
                        "E0205",
                        f"experts' tokens are [{experts}, {tokens}, {names[2]}], but this is [{', '.join(names)}]",
                        span_of(op.location),
                        help=f"name the dims in the order of `dispatch`: `y[{experts}, {tokens}, {names[2]}] = ...`",
                    )
                )
    return found


def products(value: SSAValue, experts: str, tokens: str) -> Iterator[stg.ContractOp]:
    """The products that keep the rows of tokens, up to the first that sums over the experts."""
    for use in value.uses:
        op = use.operation
        if isinstance(op, stg.ContractOp):
            if tokens not in stg.tensor_type(op.result).names:
                continue
            yield op
            if experts in op.over.data:
                continue
        elif not isinstance(op, stg.TensorOp) or isinstance(op, stg.CombineOp):
            continue
        for result in op.results:
            yield from products(result, experts, tokens)
