"""What every op on tensors has: an iteration space, and result types that follow from it.

An op's *indices* name the loops that compute it. Most are dims (`D` in two operands is the same
index); an op whose operands use one name for two things says so (the sequence of queries and of
keys). How an op is spread is a choice of mesh axes per index, its placement; the types of its
operands and results on one device follow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import OpDef, OptOperandDef, VarOperandDef, VarResultDef, opt_prop_def
from xdsl.utils.exceptions import VerifyException

from stagec.diagnostics import refused, span_of
from stagec.dialects.attributes import PlacementAttr, RequestsAttr
from stagec.dialects.interfaces import CostInterface, views
from stagec.dialects.marks import (
    MADE_BY as MADE_BY,
    PHASES as PHASES,
    flag_mark,
    list_mark,
    marks as marks,
    placement_mark,
    text as text,
)
from stagec.dialects.memory import PLAIN, Effects, Overwrite
from stagec.dialects.op import DefaultBuilder, plain_properties
from stagec.dialects.stg.interface import (
    BackwardPass,
    Call,
    Cotangents,
    Decomposition,
    Requests,
    Signature,
)
from stagec.dialects.types import FLOATS, StackType as StackType, TensorType as TensorType

PLACEMENT = "placement"
"""Mark of an op between sharding propagation and localisation: how it is spread."""

STEPS = "steps"
"""Mark of a repeat whose iterations are steps of one op, not layers of a model."""

PART_OF = "part_of"
"""Attribute of an op that, with others, took the place of one of this kind: `softmax`."""

FOLLOWS_UNIT = "follows_unit"
"""Marks the first op after the backward pass of an FSDP unit that is in another."""

LEAVES = "leaves"
"""Marks what a gradient does on its way to the host while the backward pass goes on."""

OF_STAGE = "of_stage"
"""Marks a reduction of gradients that is issued where the schedule of a pipeline reduces those of its stage."""

UNIT = "unit"
"""The number of a unit that a pipeline's stage frees and gathers again, not in each of its passes: a mark of its gathers."""

EVICTED = "evicted"
"""Marks a gather of a stage whose parameters are freed where others of its rank need the room, and gathered again before it goes on."""

ISSUED = "issued"
"""Attribute of a gather that is issued, once per step, in the first forward pass of its stage: as that begins, or as its unit does."""
WITH_PASS, WITH_UNIT = "with_pass", "with_unit"

BEGINS_UNIT = "begins_unit"
"""Marks where the backward pass of an FSDP unit begins, if its forward pass was made again before with more than the unit: a number."""

HOOK = "hook"
"""Of the gather of such a unit: that number."""

GRADIENT_OF = "gradient_of"
"""Attribute of ops that make the gradients of one op of the forward pass, where they are several: its number."""

NAMES = "names"
"""Mark of ops that make a value: what the plan calls it, where it names values to recompute."""


SHARED = "shared."
"""Marks the index of heads of keys and values where several ranks have the same, apart from the queries'."""


@dataclass(frozen=True)
class Indices:
    """The index of each dim of each operand and result.

    `blocked` ones cannot be split: each device needs them whole. Over a `statistic` the op takes a
    maximum or a sum of its own (softmax, norms): splitting it makes no partial result but
    needs collectives inside the op (`decompose-statistics`).
    """

    operands: tuple[tuple[str, ...], ...]
    results: tuple[tuple[str, ...], ...]
    blocked: frozenset[str] = frozenset()
    statistics: frozenset[str] = frozenset()


class TensorOp(CostInterface, ABC):
    """An op that computes on tensors: everything that anyone asks of it, in one place.

    | method | says | unless overridden |
    |---|---|---|
    | `SIGNATURES`, `check_call`, `from_call` | how the language calls it | no function; of operands alone |
    | the constructor | the types of its results, from those of its operands | |
    | `indices`, `linear_operands` | how it may be spread | each dim is an index of its own |
    | `verify_` | what holds of its types and properties | what follows from the indices |
    | `FLOPS` or `flops`, `moved_bytes` | what it costs | see `CostInterface` |
    | `state_of`, `with_state` of a `StatefulOp` | what it keeps of requests, and how it goes on from there | |
    | `gradient` | its way back, and so what is kept for it | E0218 |
    | `decomposed` | its steps where its statistics are split | E0713 where they are |
    | `effects` | what it overwrites, and what its results are for | results have memory of their own |
    | `IS_VIEW` | whose memory its results are | its own |
    | `lowered` | the tasks that it becomes | one of its costs, none of a view |
    | `assembly_format` | how it is written | operands, then what is optional and properties, behind their names |
    """

    placement = placement_mark("placement")
    """How it is spread, between sharding propagation and localisation."""
    called = list_mark("names")
    """What the plan calls the value that it makes, where it names values to recompute."""
    in_place = flag_mark("in_place")
    """The result takes the place of the first operand."""

    SIGNATURES: ClassVar[tuple[Signature, ...]] = ()
    """The functions of the language that make the op."""

    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = ()
    """Operands in which the results are linear: one of them may be partial, and then they are."""

    IS_VIEW: ClassVar[bool] = False
    """Whether the result is the operand's memory under another name: no work, nothing saved."""

    LIKE: ClassVar[int | None] = None
    """The operand whose dims the first result has, in the same order."""

    NUM_STATISTICS: ClassVar[int] = 0
    """How many of the last results are kept for the backward pass only; no rule places them."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        is_open = cls.assembly_format is None or isinstance(cls.assembly_format, DerivedFormat)
        if "name" in vars(cls) and is_open and cls.print is Operation.print:
            cls.assembly_format = None
            cls.assembly_format = derived_format(OpDef.from_pyrdl(cls))

    @classmethod
    def check_call(cls, call: Call) -> None:
        """What operands, options and sizes have to meet besides the signature. Raises `CallError`."""

    @classmethod
    def from_call(cls, call: Call, operands: Sequence[SSAValue]) -> TensorOp:
        """The op that does what a call says. Its results but the statistics are the function's. Options are arguments of the constructor, unless overridden."""
        return cls(*operands, **call.options)  # pyright: ignore[reportCallIssue, reportArgumentType]

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        """Contribute to the cotangents of the operands, from those of the results.

        Raises:
            CompileError: E0218, the op has no gradient.
        """
        message = f"`{self.name}` has no gradient rule"
        help = "define `gradient` in its class"
        raise refused("E0218", message, span_of(self.location), help=help)

    def decomposed(self, steps: Decomposition) -> Sequence[SSAValue] | None:
        """Values to take the place of the results, where the op's statistics are split; None if it copes with that.

        Raises:
            CompileError: E0713, the op has statistics and does not say.
        """
        over = ", ".join(steps.axes)
        message = f"the op `{self.name}` takes statistics over dims that are split over [{over}], and does not say what becomes of it"
        help = "define `decomposed` in its class: its steps, or None if each device's own statistics are meant"
        raise refused("E0713", message, span_of(self.location), help=help)

    def effects(self) -> Effects:
        return Effects((Overwrite(0, 0),)) if self.in_place is not None else PLAIN

    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        return views(self) if self.IS_VIEW else super().lowered(mesh)

    def indices(self) -> Indices:
        """By default each dim is an index of its own name."""
        return Indices(
            tuple(tensor_type(v).names for v in self.operands),
            tuple(tensor_type(v).names for v in self.results),
        )

    @property
    def linear_operands(self) -> tuple[int, ...]:
        """`LINEAR_OPERANDS`, unless they depend on what the op computes."""
        return self.LINEAR_OPERANDS

    def verify_(self) -> None:
        self.verify_operands()
        self.verify_dims()
        if PLACEMENT in self.properties:
            return
        made = local_results(self, self.splits_of_types())
        for result, local in zip(self.results, made, strict=True):
            if result.type != local:
                raise self.mistake(
                    f"the result is <{tensor_type(result).body}>, "
                    f"but its operands make it <{local.body}>"
                )

    def verify_dims(self) -> None:
        """The results have the dims that they should have, in order."""
        if self.LIKE is not None:
            source, result = tensor_type(self.operands[self.LIKE]), tensor_type(self.results[0])
            expect_dims(self, source, result, source.names)

    def splits_of_operands(self) -> dict[str, tuple[str, ...]]:
        """How the indices are split, as the operands' types say. Operands that disagree do not verify."""
        return operand_splits(self)

    def splits_of_types(self) -> dict[str, tuple[str, ...]]:
        """The same, and of what no operand has as the results say: which part of it a device makes is its own choice."""
        splits, indices = self.splits_of_operands(), self.indices()
        for result, names in zip(self.results, indices.results, strict=True):
            for dim, index in zip(tensor_type(result).dims, names, strict=True):
                if index not in indices.blocked:
                    splits.setdefault(index, dim.split)
        return splits

    def verify_operands(self) -> None:
        """They are tensors, and partial only where the op is linear."""
        for value in (*self.operands, *self.results):
            if not isinstance(value.type, TensorType):
                raise VerifyException(f"{self.name} takes and makes tensors, not {value.type}")
        for position, operand in enumerate(self.operands):
            if tensor_type(operand).partial and position not in self.linear_operands:
                raise self.mistake(
                    f"it is not linear in operand {position}, "
                    f"which is partial: <{tensor_type(operand).body}>"
                )


class DerivedFormat(str):
    """The form of an op that says none: a class under it has its own again."""

    __slots__ = ()


def derived_format(op: OpDef) -> DerivedFormat | None:
    """How an op is written that does not say it: operands, then what is optional, and properties, behind their names. Nothing for one with regions."""
    optional = [name for name, each in op.operands if isinstance(each, OptOperandDef)]
    plain = [name for name, _ in op.operands if name not in optional]
    lists = {name for name, each in op.operands if isinstance(each, VarOperandDef)}
    several = [name for name, each in op.results if isinstance(each, VarResultDef)]
    is_clear = lists <= {*optional, *plain[-1:]} and len(several) <= 1
    if op.regions or op.successors or op.attributes or not is_clear:
        return None
    needed = dict.fromkeys(optional, False) | plain_properties(op)
    said = [f"`{n}` ${n}" if must else f"(`{n}` ${n}^)?" for n, must in needed.items()]
    operands = " `,` ".join(f"${name}" for name in plain)
    form = [operands, *said, "attr-dict `:` functional-type(operands, results)"]
    return DerivedFormat(" ".join(form))


class InferredOp(DefaultBuilder, TensorOp, ABC):
    """An op of which `made` says the dims and dtypes of results: how they are split, and over what they are partial, follows from operands and indices."""

    def __init__(
        self, *given: Any, like: TensorType | Sequence[TensorType] = (), **named: Any
    ) -> None:
        super().__init__(*given, like=like, **named)
        types = (tensor_type(value) for value in (*self.operands, *self.results))
        if any(each.partial or any(dim.split for dim in each.dims) for each in types):
            self.retype(self.local_types())

    def made(self) -> Sequence[TensorType]:
        return ()

    def local_types(self) -> Sequence[TensorType]:
        """The types of its results on one device, which are what was `made`."""
        return local_results(self, self.splits_of_types())

    def verify_dims(self) -> None:
        source = tensor_type(self.operands[self.LIKE or 0])
        for result, made in zip(self.results, self.made(), strict=False):
            expect_dims(self, source, tensor_type(result), made.names)


class LikeOp(InferredOp, ABC):
    """An op whose result is like an operand, partial where it is linear."""

    LIKE: ClassVar[int | None] = 0

    def made(self) -> Sequence[TensorType]:
        return [tensor_type(self.operands[self.LIKE or 0])]


class LocalStatisticsOp(TensorOp, ABC):
    """An op that means each device's own statistics: of tokens that it has, or of dims that are whole wherever they are chosen from."""

    def decomposed(self, steps: Decomposition) -> Sequence[SSAValue] | None:
        return None


class RequestsOp(TensorOp, ABC):
    """An op whose kernel takes as long as the sequences of a row have it, where these are of several kinds."""

    requests = opt_prop_def(RequestsAttr)
    """How many there are of each kind, their new positions, and those that these see."""

    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        tasks = super().lowered(mesh)
        if self.requests is not None:
            tasks[0].properties["requests"] = self.requests
        return tasks


class StatefulOp(TensorOp, ABC):
    """An op with the option `state`, which keeps something of each request."""

    STATE: ClassVar[str]
    """A cache of it, as an example: `h[B, H, E, N]`."""

    @property
    @abstractmethod
    def goes_along(self) -> str:
        """The dim of tokens, each of which sees the ones before."""

    @classmethod
    @abstractmethod
    def state_of(cls, call: Call) -> tuple[str, tuple[str, ...]]:
        """The dim of tokens that it goes along, and the shape of what it keeps of a request."""

    @classmethod
    @abstractmethod
    def with_state(
        cls, call: Call, operands: Sequence[SSAValue], state: SSAValue, requests: Requests
    ) -> TensorOp:
        """The op that does what a call says, from a state of each request."""


@dataclass(frozen=True)
class Function:
    """A function of the language: how it is called, and the class of the op that it makes."""

    signature: Signature
    op: type[TensorOp]

    @property
    def keeps_shape(self) -> bool:
        """Whether the result has the shape of the first operand."""
        return self.op.LIKE == 0


def functions_of(ops: Iterable[type[Operation]]) -> dict[str, Function]:
    """The functions that ops are called by, by name."""
    return {
        signature.name: Function(signature, op)
        for op in ops
        if issubclass(op, TensorOp)
        for signature in op.SIGNATURES
    }


def tensor_type(value: SSAValue) -> TensorType:
    assert isinstance(value.type, TensorType), value
    return value.type


def expect_dims(op: TensorOp, source: TensorType, result: TensorType, names: Sequence[str]) -> None:
    """The dims that an op makes of `source` must be these."""
    if result.names != tuple(names):
        raise op.mistake(f"<{source.body}> does not become <{result.body}>")


def operand_splits(op: TensorOp) -> dict[str, tuple[str, ...]]:
    """How the operands' types split the op's indices. Operands that disagree do not verify."""
    splits: dict[str, tuple[str, ...]] = {}
    for operand, indices in zip(op.operands, op.indices().operands, strict=True):
        for dim, index in zip(tensor_type(operand).dims, indices, strict=True):
            if splits.setdefault(index, dim.split) != dim.split:
                raise op.mistake(
                    f"operands disagree about `{index}`: split over "
                    f"[{', '.join(splits[index])}] and over [{', '.join(dim.split)}]"
                )
    return splits


def placed(global_type: TensorType, indices: Sequence[str], splits: Mapping) -> TensorType:
    """A tensor of these indices under a placement."""
    by_dim = {d.name: splits.get(i, ()) for d, i in zip(global_type.dims, indices, strict=True)}
    return global_type.with_splits(by_dim)


def local_results(
    op: TensorOp, splits: Mapping[str, tuple[str, ...]], operand_types: Sequence | None = None
) -> list[TensorType]:
    """The results' types on one device when the indices are split so.

    A result is partial over the axes of indices that it lacks (they were summed over), and over
    those of a partial operand in which the op is linear. An axis that splits the result too leaves nothing
    partial: the op goes round that axis itself, as ring attention does.
    """
    types = operand_types or [tensor_type(v) for v in op.operands]
    indices = op.indices()
    carried: list[str] = []
    for position in op.linear_operands:
        if position < len(types):
            carried += [a for a in types[position].partial if a not in carried]
    made = []
    for result, names in zip(op.results, indices.results, strict=True):
        own = {axis for index in names for axis in splits.get(index, ())}
        summed = [
            axis
            for index, axes in splits.items()
            if index not in names and index not in indices.statistics
            for axis in axes
            if axis not in own
        ]
        partial = [*carried, *(a for a in summed if a not in carried)]
        made.append(placed(tensor_type(result), names, splits).with_partial(sorted(partial)))
    return made


def placement_of(op: Operation) -> dict[str, tuple[str, ...]]:
    attribute = marks(op)[PLACEMENT]
    assert isinstance(attribute, PlacementAttr)
    return attribute.splits


def phase_of(op: Operation) -> str:
    """`fwd`, unless the op says otherwise. One of `PHASES`."""
    return text(op, "phase", "fwd")


def scope_of(op: Operation) -> str:
    """The module call that the op came from: `Block.Attention`."""
    return text(op, "scope")


def made_by(op: Operation) -> str:
    """The pass that made the op; `lower` for one that the frontend made of the model's text."""
    return text(op, MADE_BY, "lower")


def part_of(op: Operation) -> str:
    """The kind of op that this is a step of, if it was taken apart."""
    return text(op, PART_OF)


def names_of(op: Operation) -> tuple[str, ...]:
    """What a plan calls the value that the op makes, or helps to make."""
    attribute = marks(op).get(NAMES)
    if not isinstance(attribute, ArrayAttr):
        return ()
    return tuple(name.data for name in attribute if isinstance(name, StringAttr))


def add_names(op: Operation, names: Iterable[str]) -> None:
    """Let an op know further names of the value that it makes. A change of placement has none: it is made again with what it moves."""
    known = tuple(dict.fromkeys((*names_of(op), *names)))
    if known and marks(op).may_have(NAMES):
        marks(op)[NAMES] = ArrayAttr([StringAttr(name) for name in known])


def wider(left: str, right: str) -> str:
    """The dtype that an op on both computes in."""
    from_order = {d: i for i, d in enumerate(("bool", "i8", "u8", "i16", "i32", "i64"))}
    from_order |= {d: 10 + i for i, d in enumerate(FLOATS)}
    return left if from_order[left] >= from_order[right] else right


def union_names(*types: TensorType) -> list[str]:
    """Dims of all types, in order of first appearance."""
    names: list[str] = []
    for tensor in types:
        names += [n for n in tensor.names if n not in names]
    return names
