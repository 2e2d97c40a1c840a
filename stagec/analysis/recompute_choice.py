"""Which values of a forward pass a plan wants computed again: the words of `recompute` applied to ops.

An op belongs to a *region*: it is named itself (`EXPLICIT`), or part of a call of a module, or of the core of attention. What
leaves a region other than the first is kept: the ops that read it there would save it. So is what it is a view of, whose storage it is.
A call of one of `modules` is a checkpoint: what it returns is kept for others, and made again for its own backward pass, as PyTorch's checkpoint does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache

from xdsl.ir import Operation, SSAValue

from stagec.analysis.attention_core import attention_core
from stagec.analysis.units import is_call
from stagec.dialects import dist, stg
from stagec.dialects.op import ancestor_in, block_of

FULL, WHOLE, ATTENTION = "full", "whole", "attention"

EXPLICIT = "explicit"
"""The region of an op that is asked for by its kind or name: its results are dropped, whoever reads them."""

NEVER_REPEATED = (
    stg.WeightOp,
    stg.YieldOp,
    stg.OutputOp,
    stg.AccumulateOp,
    stg.OptimizerStepOp,
    dist.StageSendOp,
    dist.StageRecvOp,
    dist.TowerSendOp,
    dist.TowerRecvOp,
)


@dataclass(frozen=True)
class Dropped:
    """Values that are made again for the backward pass."""

    values: Set[SSAValue]
    returned: Set[SSAValue]
    """Those of them that a checkpoint returns to others, for whom they are kept."""

    def is_made_for(self, value: SSAValue, reader: str, own: str) -> bool:
        """Whether a value of the checkpoint `own` is made again for what is of the checkpoint `reader`."""
        return value in self.values and (reader == own or value not in self.returned)


@dataclass
class Choice:
    """The words of a plan, and which of them have been met."""

    what: Sequence[str]
    modules: Sequence[str] = ()
    met: set[str] = field(default_factory=set)

    @property
    def unmet(self) -> list[str]:
        """Words that mean nothing in what has been looked at."""
        return [word for word in dict.fromkeys((*self.modules, *self.what)) if word not in self.met]

    def dropped(self, forward: Iterable[Operation], is_repeated: bool) -> Dropped:
        """The values of a block's forward pass that are not to be saved. `is_repeated`: in a layer."""
        ops = [op for op in forward if can_be_repeated(op)]
        core = attention_core(ops) if ATTENTION in self.what else set[Operation]()
        regions = {op: self.region(op, is_repeated, op in core) for op in ops}
        by_name: set[SSAValue] = set()
        in_regions: set[SSAValue] = set()
        returned: set[SSAValue] = set()
        for op in ops:
            region = regions[op]
            is_free = is_repeated and isinstance(op, stg.ConstantOp)
            if is_free or region == EXPLICIT or goes_with(op, by_name):
                by_name |= set(op.results)
            elif region:
                out = {r for r in op.results if leaves(r, region, regions)}
                in_regions |= {*op.results} - out
                if region == call_of(op, self.modules):
                    returned |= out
        return Dropped(by_name | in_regions | returned, returned)

    @property
    def is_whole(self) -> bool:
        """Whether checkpoints run again to their end."""
        return WHOLE in self.what

    def at_once(self, forward: Iterable[Operation], is_repeated: bool) -> list[Operation]:
        """What runs again together: all ops that are chosen of layers, or of calls of modules, which are checkpoints. None of those chosen by themselves."""
        if not self.modules and not {FULL, WHOLE}.intersection(self.what):
            return []
        ops = [op for op in forward if can_be_repeated(op) and not isinstance(op, stg.ConstantOp)]
        return [op for op in ops if self.region(op, is_repeated, in_core=False)]

    def region(self, op: Operation, is_repeated: bool, in_core: bool) -> str:
        """What an op is chosen as: the empty region if it is not."""
        self.met |= {word for word in self.modules if call_of(op, (word,))}
        module = call_of(op, self.modules)
        if self.modules and not module:
            return ""
        is_layer = bool(module) or is_repeated
        everything = {FULL, WHOLE}.intersection(self.what)
        if everything:
            self.met |= everything if is_layer else set()
            return module or (EXPLICIT if is_layer else "")
        names = {*stg.names_of(op), *(kinds_of(op) if is_layer else ())}
        asked = names.intersection(self.what)
        # A step that makes a value which is asked for may be of a call, or of attention, too.
        self.met |= asked | {word for word in self.what if call_of(op, (word,))}
        self.met |= {ATTENTION} if in_core and is_layer else set()
        if asked:
            return EXPLICIT
        if call := call_of(op, self.what):
            return call
        return ATTENTION if in_core and is_layer else ""


def can_be_repeated(op: Operation) -> bool:
    """Layers are not run again as a whole: what a repeat carries out is kept. Steps of one op are."""
    if isinstance(op, stg.RepeatOp):
        return stg.STEPS in op.properties and stg.MAKES_GRADIENTS not in op.properties
    return not isinstance(op, NEVER_REPEATED)


def op_words() -> set[str]:
    """Every word for an op that ships: what `recompute` may name besides what a program defines."""
    tensor_ops = [op for op in stg.OPS if issubclass(op, stg.TensorOp)]
    kinds = {op.name.partition(".")[2] for op in (*tensor_ops, *dist.COLLECTIVES)}
    return {kind for kind in kinds if not kind.endswith("_grad")} | {*stg.FUNCTIONS}


def kinds_of(op: Operation) -> set[str]:
    """The words for an op: `rms_norm`, `silu`, an op that the model declares, what it is a step of."""
    kinds = {op.name.partition(".")[2], stg.part_of(op)}
    match op:
        case stg.UnaryOp():
            kinds.add(op.function.data)
        case stg.ReduceOp():
            kinds.add(op.kind.data)
        case stg.UserOp():
            kinds.add(op.op.data)
        case _:
            pass
    # The core of attention is chosen as a whole.
    return kinds - {ATTENTION, ""}


def call_of(op: Operation, modules: Iterable[str]) -> str:
    """The outermost call of one of the modules that an op is in, as the path of the call.

    `Attention` is also the module of the calls `Attention_2`, `Attention_3`; `Block.Attention` is one
    in a `Block`.
    """
    return call_in(stg.scope_of(op), tuple(modules))


@lru_cache(2**12)
def call_in(scope: str, modules: tuple[str, ...]) -> str:
    """The same for a scope, which many ops share."""
    calls = scope.split(".")
    for end in range(1, len(calls) + 1):
        for module in modules:
            words = module.split(".")
            tail = calls[max(0, end - len(words)) : end]
            if len(tail) == len(words) and all(map(is_call, tail, words)):
                return ".".join(calls[:end])
    return ""


def goes_with(op: Operation, dropped: set[SSAValue]) -> bool:
    """Whether an op only views or moves a value that is dropped, whoever reads it."""
    return (is_view(op) or isinstance(op, dist.Movement)) and op.operands[0] in dropped


def is_view(op: Operation) -> bool:
    return isinstance(op, stg.TensorOp) and op.IS_VIEW


def leaves(value: SSAValue, region: str, regions: Mapping[Operation, str]) -> bool:
    """Whether an op of the forward pass reads a value, or a view of it, outside of its region."""
    owner = value.owner
    block = block_of(owner) if isinstance(owner, Operation) else owner
    for use in value.uses:
        reader = ancestor_in(block, use.operation)
        if isinstance(reader, stg.YieldOp) or stg.phase_of(reader) != "fwd":
            continue
        if regions.get(reader) != region:
            return True
        if is_view(reader) and any(leaves(view, region, regions) for view in reader.results):
            return True
    return False
