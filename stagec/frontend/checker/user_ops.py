"""Ops that a user declares: `op scan(x[B, S, D]) -> [B, S, D] { flops = 6*B*S*D, bytes = 4*B*S*D }`."""

from __future__ import annotations

from collections.abc import Mapping

from stagec import symbolic
from stagec.diagnostics import Findings, Span, did_you_mean, quoted
from stagec.frontend import syntax
from stagec.frontend.numbers import Sizes, as_read, whole
from stagec.symbolic import ONE, Size

COSTS = ("flops", "bytes")
BACKWARD_COSTS = ("backward_flops", "backward_bytes")
"""What an op says of itself. Its gradient costs twice as much unless the op says otherwise."""
KERNELS = ("kernels", "backward_kernels")
"""How many it is, and its gradient: one each."""


def read_costs(op: syntax.Op, sizes: Sizes, findings: Findings) -> Mapping[str, Size] | None:
    """The costs of an op, all six; None after a finding."""
    known = (*COSTS, *BACKWARD_COSTS, *KERNELS)
    costs: dict[str, Size] = {}
    first: dict[str, Span] = {}
    wrong = False
    for entry in op.settings.entries:
        name, span = entry.name.text, entry.name.span
        if name not in known:
            help_ = did_you_mean(name, known) or f"an op states {quoted(known)}"
            findings.say("E0402", f"`op` has no setting `{name}`", span, help=help_)
            wrong = True
            continue
        if name in first:
            message = f"`{name}` is set twice"
            where = [(first[name], "first here")]
            findings.say("E0402", message, span, secondary=where)
        first[name] = span
        found = whole(entry.value, sizes, findings, f"`{name}`", least=int(name in KERNELS))
        wrong = wrong or found is None
        if found is not None:
            costs[name] = symbolic.constant(as_read(found)) if name in KERNELS else found.size
    missing = [cost for cost in COSTS if cost not in first]
    if missing:
        message = f"op `{op.name}` does not say its {quoted(missing)}"
        help_ = f"add `{missing[0]} = 2*B*S*D`, for the whole tensors"
        findings.say("E0402", message, op.name.span, help=help_)
    if wrong or missing:
        return None
    for forward, backward in zip(COSTS, BACKWARD_COSTS, strict=True):
        costs.setdefault(backward, costs[forward] * 2)
    for name in KERNELS:
        costs.setdefault(name, ONE)
    return costs
