"""Where a model can be cut into pipeline stages, and what each stage then has.

The forward pass of one microbatch is a row of *elements*: section 0, repeat 1, section 1, ..., repeat k, section k. Sections are what
stands between the repeats that are cut. The backward pass is the same row in reverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from xdsl.ir import Block, Operation, SSAValue

from stagec.diagnostics import CompileError, Diagnostic, quoted, refused, span_of
from stagec.dialects import dist, stg
from stagec.dialects.op import first_op
from stagec.symbolic import Size


@dataclass(frozen=True)
class StageContents:
    """What a kind of stage has: sections by number, and whether it has layers of each repeat.

    `scattered` says whether what comes from the stage before, and what goes to the stage after, travels in parts; `between`
    whether the cut on either side is between two repeats.
    """

    sections: frozenset[int]
    layers: tuple[bool, ...]
    scattered: tuple[bool, bool] = (False, False)
    between: tuple[bool, bool] = (False, False)


@dataclass(frozen=True)
class Range:
    """One stage: its layers of each repeat, the first of them, and the part that it is."""

    counts: tuple[int, ...]
    starts: tuple[int, ...]
    part: StageContents


@dataclass(frozen=True)
class Cuts:
    """The cut repeats of a program, forward and backward, and the section of every other op."""

    loop: stg.AccumulateOp
    forward: tuple[stg.RepeatOp, ...]
    backward: tuple[stg.RepeatOp | None, ...]
    """`backward[i]` is the gradient of `forward[i]`: nothing for a frozen repeat before all that is trained; empty for a forward pass alone."""
    sections: dict[Operation, int]
    forward_ops: frozenset[Operation]

    def element(self, op: Operation) -> int:
        """The element that a top-level op of the loop is or belongs to: sections are even, repeats odd."""
        if op in self.sections:
            return 2 * self.sections[op]
        repeats = self.forward if op in self.forward else self.backward
        return 2 * repeats.index(op) + 1  # pyright: ignore[reportArgumentType]

    def is_forward(self, op: Operation) -> bool:
        return op in self.forward_ops


def find_cuts(program: stg.ProgramOp, counts: Sequence[Size]) -> Cuts | None:
    """The repeats with these counts in the microbatch loop; nothing if there are none.

    Those that are frozen come first.
    E0705 where there are others than those of the forward pass and their gradients: a later pass made them.
    """
    loop = first_op(program, stg.AccumulateOp)
    if loop is None:
        return None
    put_frozen_first(loop.body.block, counts)
    forward: list[stg.RepeatOp] = []
    backward: list[stg.RepeatOp] = []
    for op in loop.body.block.ops:
        if isinstance(op, stg.RepeatOp) and op.total_layers in counts:
            (forward if stg.phase_of(op) == "fwd" else backward).append(op)
    if not forward:
        return None
    backward.reverse()
    frozen = len(forward) - len(backward)
    if backward and [op.count for op in backward] != [op.count for op in forward][max(frozen, 0) :]:
        raise CompileError([others_than_layers(program, (*forward, *backward))])
    sections: dict[Operation, int] = {}
    forward_ops: set[Operation] = set()
    passed, passed_back = 0, 0
    in_backward = False
    for op in loop.body.block.ops:
        in_backward = in_backward or stg.phase_of(op) != "fwd"
        if not in_backward:
            forward_ops.add(op)
        if op in forward:
            passed += 1
        elif op in backward:
            passed_back += 1
        elif not isinstance(op, stg.YieldOp):
            sections[op] = len(forward) - passed_back if in_backward else passed
    gradients = (*[None] * frozen, *backward) if backward else ()
    if gradients:
        check_frozen(
            forward[:frozen],
            {op for op, at in sections.items() if op in forward_ops and at < frozen},
        )
    return Cuts(loop, tuple(forward), gradients, sections, frozenset(forward_ops))


def put_frozen_first(block: Block, counts: Sequence[Size]) -> None:
    """Move layers that have no backward pass in front of those that have one, with what they read: a reference model behind the policy that is trained.

    No frozen layers read what trained ones make: their backward pass would lead to those.
    """
    learnt: set[SSAValue] = set()
    needed: set[Operation] = set()
    has_learnt = False
    for op in block.ops:
        if stg.phase_of(op) != "fwd":
            break
        if any(operand in learnt or is_trained(operand) for operand in op.operands):
            learnt |= set(op.results)
        if isinstance(op, stg.RepeatOp) and op.total_layers in counts:
            is_learnt = any(result in learnt for result in op.results)
            has_learnt |= is_learnt
            if has_learnt and not is_learnt:
                needed.add(op)
    for op in reversed(list(block.ops)):
        if op in needed:
            owners = [operand.owner for operand in op.operands]
            needed |= {o for o in owners if isinstance(o, Operation) and o.parent is block}
    if not needed:
        return
    first = next(op for op in block.ops if op not in needed)
    for op in [op for op in block.ops if op in needed]:
        if first.is_before_in_block(op):
            op.detach()
            block.insert_op_before(op, first)


def is_trained(value: SSAValue) -> bool:
    owner = value.owner
    return isinstance(owner, stg.WeightOp) and owner.frozen is None


def check_frozen(repeats: Sequence[stg.RepeatOp], beside: set[Operation]) -> None:
    """E0705 where a weight before frozen layers is trained, beside them: its gradient comes past them, and nothing says from where on it is theirs."""
    for op in beside if repeats else ():
        for operand in op.operands:
            weight = operand.owner
            if isinstance(weight, stg.WeightOp) and weight.frozen is None:
                message = f"`{weight.path.data}` is trained, and stands before layers that are frozen and have no backward pass"
                help_ = "compute what it is used for after those layers, or freeze it, too"
                place = span_of(weight.location)
                raise refused("E0705", message, place, help=help_)


def others_than_layers(program: stg.ProgramOp, repeats: Sequence[stg.RepeatOp]) -> Diagnostic:
    makers = sorted({stg.made_by(op) for op in repeats} - {"lower", "build-backward"})
    after = f": {quoted(makers)} made others" if makers else ""
    return Diagnostic(
        "E0705",
        "`split-stages` cuts the layers of the forward pass and their gradients, one of each",
        span_of(program.location),
        notes=[f"`{program.model.data}` has {len(repeats)} repeats of this count{after}"],
        help="run it before the passes that make repeats of their own",
    )


def stage_ranges(totals: Sequence[int], per_stage: Sequence[int]) -> list[Range]:
    """Deal the layers of all repeats, one after the other, to the stages."""
    ranges: list[Range] = []
    last_section = len(totals)
    ends = set(accumulate(totals))
    start = 0
    for stage, count in enumerate(per_stage):
        end = start + count
        counts, starts = [], []
        sections: set[int] = set()
        if stage == 0:
            sections.add(0)
        if stage == len(per_stage) - 1:
            sections.add(last_section)
        base = 0
        for index, total in enumerate(totals):
            first, stop = max(start, base), min(end, base + total)
            counts.append(max(0, stop - first))
            starts.append(max(0, first - base))
            if index and counts[-1] and first == base:
                # The code between two repeats goes with the first layer of the second.
                sections.add(index)
            base += total
        # All layers before such a cut are done: what only they read does not cross.
        between = (start > 0 and start in ends, end in ends and stage < len(per_stage) - 1)
        part = StageContents(frozenset(sections), tuple(c > 0 for c in counts), between=between)
        ranges.append(Range(tuple(counts), tuple(starts), part))
        start = end
    return ranges


def boundary(totals: Sequence[int], layers_before: int) -> int:
    """The repeat (from 0) whose carried values cross after that many layers."""
    base = 0
    for index, total in enumerate(totals):
        base += total
        if layers_before <= base and total:
            return index
    return len(totals) - 1


def kind_names(parts: Sequence[StageContents], last_section: int) -> dict[StageContents, str]:
    """A name for each kind of stage, for people: `first`, `middle`, `last`, or `only`."""
    names: dict[StageContents, str] = {}
    for part in parts:
        if part in names:
            continue
        is_first, is_last = 0 in part.sections, last_section in part.sections
        base = (
            "only"
            if is_first and is_last
            else "first"
            if is_first
            else "last"
            if is_last
            else "middle"
        )
        same = sum(1 for name in names.values() if name.startswith(base))
        names[part] = base if not same else f"{base}_{same + 1}"
    return names


def is_portable(value: SSAValue) -> bool:
    """Whether every stage has a value of its own, rather than be sent it: inputs, weights, constants, zeros, views of them, and casts."""
    owner = value.owner
    if isinstance(owner, Block):
        return isinstance(owner.parent_op(), stg.ProgramOp)
    if isinstance(owner, stg.WeightOp | stg.CacheOp | stg.ConstantOp | stg.ZerosOp):
        return True
    is_view = isinstance(owner, dist.ReshardOp | dist.SliceOp | stg.PlaceOp | stg.CastOp) or (
        isinstance(owner, stg.TensorOp) and owner.IS_VIEW
    )
    return is_view and all(is_portable(operand) for operand in owner.operands)
