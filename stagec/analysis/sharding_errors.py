"""Shardings that cannot hold: an axis that does not divide, a sequence that attention needs whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import gcd, isqrt, prod

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from stagec import symbolic
from stagec.analysis.placement import Splits
from stagec.analysis.sizes import averages, size_values
from stagec.diagnostics import Diagnostic, Diagnostics, quoted, span_of
from stagec.dialects import dist, stg
from stagec.dialects.attributes import Dim
from stagec.dialects.op import first_op
from stagec.dialects.types import TensorType, tensor_of
from stagec.dialects.uneven_parts import CHUNK, INTERLEAVED, last_part
from stagec.symbolic import conditions, symbol


class ShardingErrors:
    """Collects what is wrong with the shardings of a module, to be reported at once."""

    def __init__(self, module: ModuleOp) -> None:
        self.sizes = size_values(module)
        self.rules = [op for op in module.body.ops if isinstance(op, dist.RuleOp)]
        self.contexts = [op for op in module.body.ops if isinstance(op, dist.ContextOp)]
        dims = [op for op in module.body.ops if isinstance(op, stg.DimOp)]
        self.pads = {op.dim.data: op.pads.data for op in dims if op.pads is not None}
        self.formulas = {op.dim.data: str(op.size.data) for op in dims if op.size.data.names}
        self.slots = {op.dim.data: op.slots.data for op in dims if op.slots is not None}
        """Dims of experts and their copies, and those of experts alone."""
        self.averages = averages(module)
        plan = first_op(module, dist.PlanOp)
        self.batch = plan.batch_dim if plan is not None else ""
        self.dispatches = [op for op in module.walk() if isinstance(op, stg.DispatchOp)]
        trains = plan is not None and plan.is_training
        sent = {op.tokens.data for op in self.dispatches if op.dropless is not None and trains}
        self.shared_out = self.averages.keys() | sent
        """Dims of tokens that a router shares out: parts of them need not be whole."""
        self.may_differ = self.shared_out | (
            {self.batch} if plan is not None and not trains else set()
        )
        """These, and sequences that are served, of which ranks have one more than others."""
        self.findings = Diagnostics()
        self.seen: set[tuple[str, tuple[str, ...]]] = set()

    def check_value(self, value: SSAValue, splits: Splits) -> None:
        for dim in tensor_of(value.type).with_splits(splits).dims:
            self.check_dim(dim, value.name_hint or "")

    def check_op(self, op: stg.TensorOp, splits: Splits) -> None:
        if isinstance(op, stg.DispatchOp):
            self.check_routing(op)
        for operand, indices in zip(op.operands, op.indices().operands, strict=True):
            placed: TensorType = stg.placed(tensor_of(operand.type), indices, splits)
            kind = op.name.partition(".")[2]
            for dim, index in zip(placed.dims, indices, strict=True):
                same = index != dim.name and index in self.sizes
                note = f"`{kind}` splits `{dim.name}` as it splits `{index}`"
                if same and self.is_uneven(dim) and not self.agree(dim, index):
                    self.findings.add(self.linked(dim, index, note))
                    continue
                self.check_dim(dim, operand.name_hint or "", [note] if same else [])

    def check_routing(self, op: stg.DispatchOp) -> None:
        """E0310: without drops the experts' tokens are the tokens, once for each of their experts, or the next whole number for each expert."""
        routed, chosen = tensor_of(op.routed.type), tensor_of(op.experts.type)
        sent = symbolic.product(symbol(n) for n in chosen.names)
        # Experts that pad have tokens too: those that are sent go to the experts of the text.
        experts, each = (symbol(self.unpadded(n)) for n in routed.names[:2])
        share = symbolic.ceildiv(sent, experts)
        if self.unpadded(routed.names[1]) in self.averages:
            share, each = sent / experts, self.averages[self.unpadded(routed.names[1])]
        reason = f"experts have not the `{sent}` tokens that are sent"
        if op.dropless is None or conditions.compare(share, "==", each, self.sizes, reason):
            return
        number, tokens = routed.names[0], routed.names[1]
        all_sent = " * ".join(chosen.names)
        divides = (sent / experts).evaluate(self.sizes).denominator == 1
        text = self.slots.get(number, number)
        wanted = f"{all_sent} / {text}" if divides else f"ceildiv({all_sent}, {text})"
        padded = [n for n in chosen.names if self.sizes[n] != self.sizes[self.unpadded(n)]]
        self.findings.say(
            "E0310",
            f"{sent.evaluate(self.sizes)} tokens are sent, but the {self.sizes[number]} experts have "
            f"`{tokens} = {self.sizes[tokens]}` each",
            span_of(op.location),
            notes=[
                f"a rule pads `{n}` from {self.sizes[self.unpadded(n)]} to {self.sizes[n]}, and `{tokens}` follows it only by its name"
                for n in padded
            ],
            help=f"write `dim {tokens} = {wanted}`, or `dropless = false` for a capacity",
        )

    def unpadded(self, name: str) -> str:
        """A dim as the text has it."""
        return self.pads.get(name, name)

    def check_dim(self, dim: Dim, value: str, notes: Sequence[str] = ()) -> None:
        """E0301: the axes that split a dim do not divide it."""
        if not dim.split or (dim.name, dim.split) in self.seen or dim.name in self.shared_out:
            return
        self.seen.add((dim.name, dim.split))
        if dim.name not in self.sizes:
            return
        how = self.uneven(dim)
        if splits(dim, how, self.sizes):
            return
        rule = self.rule_of(dim)
        differs = rule is not None and rule.uneven is not None
        experts = self.slots.get(dim.name, "")
        shares = rule is not None and dim.name in rule.dims.data and rule.copies is not None
        message, note, help_ = cannot_split(
            *(dim, how, differs, self.sizes, experts),
            is_batch=dim.name == self.batch,
            shares=shares,
            beside=split_beside(
                dim.split[-1],
                [(r.dims.data, r.axes.data) for r in self.rules if r.uneven is None],
                {name: size for name, size in self.sizes.items() if name not in self.may_differ},
            ),
            formula=self.formulas.get(dim.name, ""),
            chunks=chunks_along(
                dim.split, [(c.axes.data, c.method.data, c.balance.data) for c in self.contexts]
            ),
        )
        sending = self.sending(dim, rule)
        if sending:
            own = rule.axes.data if rule is not None and dim.name in rule.dims.data else ()
            axes = as_written(sorted(dim.split, key=lambda a: a not in own), self.sizes)
            help_ = f"name all of them in its rule: `shard {dim.name} over {', '.join(axes)} {{ pad = 1 }}`"
        self.findings.say(
            "E0301",
            message,
            span_of(rule.location) if rule is not None else None,
            label=f"splits `{value}`" if value else "",
            secondary=[
                (span, f"splits the tokens that are sent over {quoted(each.axes.data)}")
                for each in sending
                if each is not rule and (span := span_of(each.location))
            ],
            notes=[*notes, *note],
            help=help_,
        )

    def sending(self, dim: Dim, rule: dist.RuleOp | None) -> list[dist.RuleOp]:
        """The rules by which tokens are split before experts get them, where axes of these split experts' tokens whose own rule has others."""
        own = rule.axes.data if rule is not None and dim.name in rule.dims.data else ()
        brought = {axis for axis in dim.split if axis not in own}
        sent = {
            name
            for op in self.dispatches
            if op.tokens.data == dim.name
            for name in tensor_of(op.experts.type).names
        }
        return [r for r in self.rules if sent & set(r.dims.data) and brought & set(r.axes.data)]

    def divides(self, dim: Dim) -> bool:
        """Whether the axes that split a dim divide it."""
        return splits(dim, None, self.sizes)

    def is_uneven(self, dim: Dim) -> bool:
        """Whether a rule lets parts of a dim differ, and they do."""
        return self.uneven(dim) is not None and not conditions.whole(dim.size, self.sizes)

    def agree(self, dim: Dim, index: str) -> bool:
        """Whether another dim that is split alike can have as many times the parts, as heads of queries have that share heads of keys."""
        if self.uneven(dim) != self.uneven(Dim(index, dim.split)):
            return False
        return conditions.whole(symbol(index) / symbol(dim.name), self.sizes)

    def linked(self, dim: Dim, index: str, note: str) -> Diagnostic:
        """E0303: two dims that one op splits alike, as heads of queries and of keys."""
        rule = self.rule_of(dim)
        help_ = "pad both: `{ pad = 1 }`"
        if self.sizes[index] % self.sizes[dim.name] == 0:
            help_ = f"let both differ alike: `{{ uneven = {self.uneven(dim)} }}`, or {help_}"
        return Diagnostic(
            "E0303",
            f"`{dim.name}` cannot be split unevenly in this plan",
            span_of(rule.location) if rule is not None else None,
            notes=[f"{note}, and parts of both would not agree"],
            help=help_,
        )

    def uneven(self, dim: Dim) -> str | None:
        """How the parts of a dim differ, if its rule lets them: that over the axes that split it."""
        found = (r for r in self.rules if dim.name in r.dims.data and r.axes.data == dim.split)
        return next((r.uneven.data for r in found if r.uneven is not None), None)

    def rule_of(self, dim: Dim) -> dist.RuleOp | None:
        """The rule that splits a dim, or what an op takes to be the same index."""
        splitting = [r for r in self.rules if set(dim.split) & set(r.axes.data)]
        own = [r for r in splitting if dim.name in r.dims.data]
        return next(iter([*own, *splitting]), None)

    def report(self) -> None:
        self.findings.raise_errors({})


def splits(dim: Dim, uneven: str | None, sizes: Mapping[str, int]) -> bool:
    """Whether the axes that split a dim divide it; of `uneven` parts, whether each rank has one."""
    if uneven is None:
        return conditions.whole(dim.size, sizes, f"`{dim}` is not a whole number")
    if uneven == INTERLEAVED or conditions.whole(dim.size, sizes):
        return True
    ways = symbolic.product(map(symbol, dim.split))
    last = last_part(uneven, symbol(dim.name), ways)
    return conditions.compare(last, ">", 0, sizes, f"a rank has nothing of `{dim}`")


def split_beside(
    axis: str, rules: Sequence[tuple[Sequence[str], Sequence[str]]], sizes: Mapping[str, int]
) -> int:
    """What the size of an axis has to divide, so that it fits all dims with `sizes` that rules, dims and their axes, split over it; 0: there are none.

    Not dims of which there are fewer than ranks: those share them, or the axis is another one.
    """
    found = 0
    for dims, axes in rules:
        if axis in axes:
            others = prod(sizes.get(each, 1) for each in axes if each != axis)
            known = [sizes[name] for name in dims if name in sizes]
            each = [size // others for size in known if size % others == 0]
            found = gcd(found, *(size for size in each if size >= sizes.get(axis, 1)))
    return found


def cannot_split(
    dim: Dim,
    uneven: str | None,
    differs: bool,
    sizes: Mapping[str, int],
    experts: str = "",
    *,
    is_batch: bool = False,
    shares: bool = False,
    beside: int = 0,
    formula: str = "",
    chunks: int = 0,
    served: bool = False,
) -> tuple[str, list[str], str]:
    """E0301 in words, with notes, and what to write instead.

    `differs`: the dim has uneven parts elsewhere, over other axes; it is of slots of these `experts` and their copies; it `is_batch`, of which no
    part differs; its rule says already that ranks are to have `shares` of a part. The size of its last axis has to divide what is `beside`
    it, too, unless that is 0. Its size has a `formula`. Contexts exchange parts of it, of so many `chunks`, unless that is 0. A size that is `served`
    is not padded.
    """
    name = f"{experts} + redundant" if experts else dim.name
    size, ways = sizes[dim.name], prod(sizes[axis] for axis in dim.split)
    split = as_written(dim.split, sizes)
    axes = quoted(f"{axis} = {number}" for axis, number in split.items())
    if uneven is None:
        verb = "does" if len(split) == 1 else "together do"
        may_differ = not (differs or is_batch)
        number = sizes[experts] if experts else 0
        help_ = divisor_help(
            *(dim, size, ways, split, may_differ, number),
            may_share=not shares,
            beside=beside,
            formula=formula,
            served=served,
        )
        if chunks:
            rounded = -(-size // (chunks * ways)) * chunks * ways
            help_ = f"serve so many that `{dim.name} = {rounded}`"
            if not served:
                help_ = f"choose `{formula or dim.name} = {rounded}`, or pad it: `{{ pad = {chunks} }}` after the rule"
        note = "parts are uneven only over all axes of their rule at once"
        message = f"{axes} {verb} not divide `{name} = {size}`"
        return message, [note] if differs else [], help_
    each = -(-size // ways)
    message = f"parts of {each} of `{name} = {size}` are too few for {axes}"
    help_ = f"choose at most {-(-size // each)} ranks"
    if uneven == CHUNK and size > ways:
        help_ += ", or `uneven = balanced`, with parts of one less on some"
    return message, [], help_


def chunks_along(axes: Sequence[str], contexts: Iterable[tuple[Sequence[str], str, str]]) -> int:
    """Of how many chunks the parts along these axes are that contexts exchange, all alike; 0 if none does. Of each context: its axes, method and balance."""
    along = [
        balance for own, method, balance in contexts if set(own) & set(axes) and method != "partial"
    ]
    return 0 if not along else 1 if set(along) == {"none"} else 2


def as_written(axes: Sequence[str], sizes: Mapping[str, int]) -> dict[str, int]:
    """The axes as a plan has them, and their sizes: one whose ranks share parts of a dim is two in the IR, `tp.K` and `tp.copies`."""
    found: dict[str, int] = {}
    for axis in axes:
        name = axis.partition(".")[0]
        found[name] = found.get(name, 1) * sizes[axis]
    return found


def largest_divisor(number: int, most: int) -> int:
    """The largest divisor up to `most`; of huge numbers, one of those below a million or their cofactors."""
    small = [n for n in range(1, min(isqrt(number), 1_000_000) + 1) if number % n == 0]
    return max((n for low in small for n in (low, number // low) if n <= most), default=1)


def divisor_help(
    dim: Dim,
    size: int,
    ways: int,
    split: Mapping[str, int],
    may_differ: bool,
    experts: int = 0,
    *,
    may_share: bool = True,
    beside: int = 0,
    formula: str = "",
    served: bool = False,
) -> str:
    """What to write instead: the nearest sizes that work, of the last of the axes that split the dim, and of the dim; of slots, of which so
    many are `experts` themselves, the number of copies."""
    last, number = list(split.items())[-1]
    others = ways // number
    fitting = largest_divisor(gcd(size // others, beside), number) if size % others == 0 else 1
    rounded = -(-size // ways) * ways
    more = f"choose `{formula or dim.name} = {rounded}`"
    if experts:
        more = f"choose `redundant = {rounded - experts}`"
    elif served:
        more = f"serve so many that `{dim.name} = {rounded}`"
    text = more
    if fitting > 1:
        text = f"choose `{last} = {fitting}` or {more.removeprefix('choose ')}"
    if size > ways:
        text += "" if served else ", or pad it: `{ pad = 1 }` after the rule"
        text += ", or let parts differ: `{ uneven = balanced }`" if may_differ else ""
    if may_share and size < ways and ways % size == 0 and len(split) == 1 and not experts:
        return f"{text}, or let ranks share them: `shard {dim.name} over {last} {{ replicate = true }}`"
    if size < ways and len(dim.split) == 1:
        text += f", or split `{dim.split[0]}` into two axes and use one of them here"
    return text
