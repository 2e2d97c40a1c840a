"""Ops that a user declares: `op scan(x[B, S, D]) -> [B, S, D] { flops = 6*B*S*D, bytes = 4*B*S*D }`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stagec import symbolic
from stagec.diagnostics import Diagnostics, did_you_mean, quoted
from stagec.frontend import syntax
from stagec.frontend.numbers import Sizes, as_read, whole
from stagec.symbolic import ONE, ZERO, Size

COSTS = ("flops", "bytes")
BACKWARD_COSTS = ("backward_flops", "backward_bytes")
"""What an op says of itself. Its gradient costs twice as much unless the op says otherwise."""
KERNELS = ("kernels", "backward_kernels")
"""How many it is, and its gradient: one each."""
SCALARS = ("scalars", "backward_scalars")
"""How many elements these compute one by one, where they do not load vectors: none."""
BACKWARD_READS = "backward_reads"
"""The operands that its gradient reads: all, unless it says which."""
STATE, OVER = "state", "over"
"""What it keeps of each request, and the dim of tokens that it goes along."""


@dataclass(frozen=True)
class Declared:
    """What an op says of itself: all of its costs, which operands its gradient reads where these are not all, and its state, if it keeps one."""

    costs: Mapping[str, Size]
    backward_reads: tuple[int, ...] | None = None
    state: tuple[str, ...] = ()
    over: str = ""


def read_op(op: syntax.Op, sizes: Sizes, findings: Diagnostics) -> Declared | None:
    """What a declaration says; None after a finding."""
    numbers = (*COSTS, *BACKWARD_COSTS, *KERNELS, *SCALARS)
    known = (*numbers, BACKWARD_READS, STATE, OVER)
    costs: dict[str, Size] = {}
    first: dict[str, syntax.Setting] = {}
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
            where = [(first[name].name.span, "first here")]
            findings.say("E0402", message, span, secondary=where, help="leave one of them out")
        first[name] = entry
        if name not in numbers:
            continue
        found = whole(entry.value, sizes, findings, f"`{name}`", least=int(name in KERNELS))
        wrong = wrong or found is None
        if found is not None:
            costs[name] = symbolic.constant(as_read(found)) if name in KERNELS else found.size
    missing = [cost for cost in COSTS if cost not in first]
    if missing:
        message = f"op `{op.name}` does not say its {quoted(missing)}"
        help_ = f"add `{missing[0]} = 2*B*S*D`, for the whole tensors"
        findings.say("E0402", message, op.name.span, help=help_)
    state = read_state(op, first, findings)
    reads = None
    if BACKWARD_READS in first:
        reads = read_backward(op, first[BACKWARD_READS], findings)
        wrong = wrong or reads is None
    if wrong or missing or state is None:
        return None
    for forward, backward in zip(COSTS, BACKWARD_COSTS, strict=True):
        costs.setdefault(backward, costs[forward] * 2)
    for name in KERNELS:
        costs.setdefault(name, ONE)
    for name in SCALARS:
        costs.setdefault(name, ZERO)
    return Declared(costs, reads, *state)


def read_backward(
    op: syntax.Op, said: syntax.Setting, findings: Diagnostics
) -> tuple[int, ...] | None:
    """The operands that a gradient reads, by number; None after a finding."""
    operands = [parameter.name.text for parameter in op.parameters]
    value = said.value
    listed = value.values if isinstance(value, syntax.ListValue) else ()
    names = [each.name.text if isinstance(each, syntax.Reference) else "" for each in listed]
    if isinstance(value, syntax.ListValue) and {*names} <= {*operands}:
        return tuple(operands.index(name) for name in dict.fromkeys(names))
    message = f"`{BACKWARD_READS}` lists operands of `{op.name}`: {quoted(operands)}"
    help_ = (
        f"write `{BACKWARD_READS} = [{', '.join(operands)}]`, or `[]` where a gradient reads none"
    )
    findings.say("E0402", message, value.span, help=help_)
    return None


def read_state(
    op: syntax.Op, said: Mapping[str, syntax.Setting], findings: Diagnostics
) -> tuple[tuple[str, ...], str] | None:
    """The shape of a state, and the dim that the op goes along: both of its results; empty without one, None after a finding."""
    if not {STATE, OVER} & said.keys():
        return (), ""
    help_ = "write `state = [B, D, N], over = S`: what is kept of each sequence, and the dim of its tokens"
    if len({STATE, OVER} & said.keys()) == 1:
        (name,) = {STATE, OVER} & said.keys()
        message = f"op `{op.name}` says `{name}` without `{OVER if name == STATE else STATE}`"
        findings.say("E0402", message, said[name].name.span, help=help_)
        return None
    names = [
        each.name.text for each in op.results[0].shape.dims if isinstance(each, syntax.Reference)
    ]
    used = {*names}
    for parameter in op.parameters:
        used |= {
            each.name.text for each in parameter.shape.dims if isinstance(each, syntax.Reference)
        }
    kept, over = said[STATE].value, said[OVER].value
    listed = kept.values if isinstance(kept, syntax.ListValue) else ()
    state = tuple(each.name.text for each in listed if isinstance(each, syntax.Reference))
    along = over.name.text if isinstance(over, syntax.Reference) else ""
    if along not in names[1:]:
        message = f"`{OVER}` is a dim of the result behind that of sequences, [{', '.join(names)}]"
        findings.say("E0402", message, over.span, help=help_)
        return None
    if (
        not state
        or len(state) < len(listed)
        or state[0] != names[0]
        or along in state
        or not {*state} <= used
    ):
        message = f"a state begins with the dim of sequences, `{names[0]}`, and has dims of operands but `{along}`"
        findings.say("E0402", message, kept.span, help=help_)
        return None
    return state, along
