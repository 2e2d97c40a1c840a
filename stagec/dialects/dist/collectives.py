"""Ops of `dist` that change how a value is spread: a reshard, and the collectives that it becomes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from xdsl.dialects.builtin import IntegerAttr, StringAttr, UnitAttr, i64
from xdsl.ir import Block, Operation, SSAValue
from xdsl.irdl import (
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from stagec import symbolic
from stagec.dialects import sched
from stagec.dialects.attributes import Dim, NamesAttr, PlacementAttr
from stagec.dialects.dist.expert_load import MAX, SENT, SUFFIX
from stagec.dialects.interfaces import (
    NO_FLOPS,
    Bytes,
    CostInterface,
    TaskInterface,
    kind_of,
    num_bytes,
    spread,
    views,
)
from stagec.dialects.marks import PURPOSES, MarkedOp, flag_mark, word_mark
from stagec.dialects.memory import ALONE, Effects, Overwrite
from stagec.dialects.op import op_definition
from stagec.dialects.stg.structure import ProgramOp
from stagec.dialects.types import ALL_POOLS, TensorType
from stagec.dialects.uneven_parts import PART
from stagec.dialects.work import Work
from stagec.symbolic import Size


class Movement(MarkedOp):
    """Shared by ops that bring one tensor from one placement to another."""

    operand = operand_def(TensorType)
    result = result_def(TensorType)

    def verify_(self) -> None:
        source, target = self.source, self.target
        is_same = self.even(source).names == self.even(target).names
        if not is_same or source.dtype != target.dtype:
            raise self.mistake(f"<{source.body}> does not become <{target.body}>")

    @property
    def source(self) -> TensorType:
        assert isinstance(self.operand.type, TensorType)
        return self.operand.type

    @property
    def target(self) -> TensorType:
        assert isinstance(self.result.type, TensorType)
        return self.result.type

    def even(self, tensor: TensorType) -> TensorType:
        """As it would be if all devices had as much."""
        return tensor

    def expect(self, target: TensorType) -> None:
        """The target must be this type, but for the order of partial axes."""
        made = self.even(self.target)
        if set(made.partial) != set(target.partial) or made.dims != target.dims:
            raise self.mistake(
                f"<{self.source.body}> becomes <{target.body}>, not <{self.target.body}>"
            )


@op_definition
class ReshardOp(Movement):
    """A change of placement that is not yet a collective. `insert-collectives` leaves none.

    The gradient of `reshard x: A -> B` is `reshard dy: B' -> A`: what was gathered is reduce-scattered.

    [B/dp, S] -> [B, S/dp], for instance.
    """

    name = "dist.reshard"

    at_once = flag_mark("at_once")
    """What it gathers of several dims, or scatters to them, is one collective over all their axes."""

    traits = traits_def(Pure())
    assembly_format = "$operand attr-dict `:` type($operand) `->` type($result)"

    def __init__(self, operand: SSAValue, target: TensorType, at_once: bool = False) -> None:
        super().__init__([operand], [target])
        if at_once:
            self.properties["at_once"] = UnitAttr()

    def verify_(self) -> None:
        super().verify_()
        source, target = self.source, self.target
        if not set(target.partial) <= set(source.partial):
            raise self.mistake(f"nothing becomes partial: <{source.body}> to <{target.body}>")


class CollectiveBase(Movement, TaskInterface):
    """Shared by the collectives: they run over the group of ranks that differ along `axes` only."""

    axes = prop_def(NamesAttr)
    purpose = word_mark("purpose", PURPOSES)
    """What it is for, in the words of a plan's `overlap`; `tp` where nothing is said."""
    serial = flag_mark("serial")
    """Computation waits for it, and it for computation, whatever else of its purpose overlaps."""
    leaves_units = flag_mark("leaves_units")
    """Products beside it leave it the multiprocessors that it takes, or it takes none."""

    @property
    def buffer_bytes(self) -> tuple[Size, Size]:
        """Bytes of a device's buffers before and after."""
        return self.source.num_bytes, self.target.num_bytes

    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        axes, kind = spread(self.axes.data, mesh), kind_of(self)
        if not axes:
            return views(self)
        types, dtype = [self.target], self.source.dtype
        sizes, effects = self.buffer_bytes, self.effects()
        made = sched.CollectiveOp(kind, [self.operand], axes, types, dtype, *sizes, effects=effects)
        return [made]


class AlongDim(Movement, ABC):
    """Shared by movements that change how one dim is split over some axes."""

    dim = prop_def(StringAttr)
    axes = prop_def(NamesAttr)
    uneven = opt_prop_def(NamesAttr)

    traits = traits_def(Pure())
    assembly_format = (
        "$operand `dim` $dim `over` $axes (`uneven` $uneven^)? attr-dict "
        "`:` type($operand) `->` type($result)"
    )

    def __init__(
        self, operand: SSAValue, dim: str, axes: Sequence[str], others: PlacementAttr | None = None
    ) -> None:
        assert isinstance(operand.type, TensorType)
        target, group = operand.type, list(axes)
        for each in (Dim(dim, tuple(axes)), *(others.data if others is not None else ())):
            target = self.moved(target, each.name, each.split)
            group += [axis for axis in each.split if axis not in group]
        super().__init__([operand], [target], dim=dim, axes=group, others=others)

    @staticmethod
    @abstractmethod
    def moved(source: TensorType, dim: str, axes: Sequence[str]) -> TensorType:
        """What becomes of a tensor."""

    def even(self, tensor: TensorType) -> TensorType:
        return evened(tensor, self.uneven)

    @property
    def steps(self) -> list[Dim]:
        """The dims that it moves, each with its axes."""
        return [Dim(self.dim.data, self.axes.data)]

    def verify_(self) -> None:
        super().verify_()
        target = self.even(self.source)
        for each in self.steps:
            target = self.moved(target, each.name, each.split)
        self.expect(target)


class AlongDims(AlongDim, CollectiveBase):
    """Shared by collectives that may move several dims in one: `axes` are those of all, of which `others` has the further dims' own.

    Megatron-LM gathers so the tokens of data- and tensor-parallel ranks for experts: `dist.all_gather %x dim "B" over [ep, tp] with <[S/tp]>`.
    """

    others = opt_prop_def(PlacementAttr)

    @property
    def buffer_bytes(self) -> tuple[Size, Size]:
        """Uneven parts travel padded, as DTensor's do (`Shard._pad_tensor`)."""
        source, target = (of_largest(t, self.uneven) for t in (self.source, self.target))
        return source.num_bytes, target.num_bytes

    assembly_format = (
        "$operand `dim` $dim `over` $axes (`with` $others^)? (`uneven` $uneven^)? attr-dict "
        "`:` type($operand) `->` type($result)"
    )

    @property
    def steps(self) -> list[Dim]:
        others = self.others.data if self.others is not None else ()
        theirs = {axis for each in others for axis in each.split}
        return [Dim(self.dim.data, tuple(a for a in self.axes.data if a not in theirs)), *others]

    def verify_(self) -> None:
        super().verify_()
        unknown = [a for each in self.steps[1:] for a in each.split if a not in self.axes.data]
        if unknown:
            raise self.mistake(f"it does not run over [{', '.join(unknown)}]")


def evened(tensor: TensorType, uneven: NamesAttr | None) -> TensorType:
    """As it would be if all devices had parts of one size."""
    names = uneven.data if uneven is not None else ()
    return tensor.with_names({f"{name}{PART}": name for name in names})


def of_largest(tensor: TensorType, uneven: NamesAttr | None) -> TensorType:
    """As it would be if all devices had parts as large as the largest."""
    names = uneven.data if uneven is not None else ()
    largest = {name: f"{name}{PART}{MAX}" for name in names}
    return evened(tensor, uneven).with_names(largest)


def gathered(source: TensorType, dim: str, axes: Sequence[str]) -> TensorType:
    """`source` after gathering `dim` over its most minor `axes`."""
    split = known_dim(source, dim).split
    count = len(axes)
    if not count or split[-count:] != tuple(axes):
        raise VerifyException(f"`{source.dim(dim)}` is not split over [{', '.join(axes)}] last")
    return source.with_splits({**source.splits, dim: split[:-count]})


def scattered(source: TensorType, dim: str, axes: Sequence[str]) -> TensorType:
    """`source` with `dim` split further over `axes`."""
    return source.with_splits({**source.splits, dim: (*known_dim(source, dim).split, *axes)})


def known_dim(source: TensorType, dim: str) -> Dim:
    if dim not in source.names:
        raise VerifyException(f"there is no dim `{dim}` in <{source.body}>")
    return source.dim(dim)


@op_definition
class AllGatherOp(AlongDims):
    """Every device of the group gets the whole of `dim`, in the order of the axes, and of `others`.

    Inverse of `dist.slice`; transpose of `dist.reduce_scatter`.

    [B/tp, D] -> [B, D], for instance. On a ring of n devices each sends (n-1) * operand_bytes (Patarasuk and Yuan 2009).
    """

    name = "dist.all_gather"

    @staticmethod
    def moved(source: TensorType, dim: str, axes: Sequence[str]) -> TensorType:
        return gathered(source, dim, axes)


@op_definition
class AllReduceOp(CollectiveBase):
    """Every device gets the sum (or maximum) of the group's terms.

    Equals `dist.reduce_scatter` then `dist.all_gather`. Its own transpose is the identity: each term has the
    gradient of the sum.

    [B, D] -> [B, D]. On a ring of n devices each sends 2 (n-1)/n * operand_bytes (Patarasuk and Yuan 2009).
    """

    name = "dist.all_reduce"

    kind = prop_def(StringAttr)

    traits = traits_def(Pure())
    assembly_format = "$kind $operand `over` $axes attr-dict `:` type($operand) `->` type($result)"

    def __init__(self, operand: SSAValue, axes: Sequence[str], kind: str = "sum") -> None:
        assert isinstance(operand.type, TensorType)
        partial = [a for a in operand.type.partial if a not in axes]
        super().__init__([operand], [operand.type.with_partial(partial)], kind=kind, axes=axes)

    def effects(self) -> Effects:
        return Effects(overwrites=(Overwrite(0, 0, ALONE),))

    def verify_(self) -> None:
        super().verify_()
        if self.kind.data not in ("sum", "max"):
            raise self.mistake(f"there is no reduction `{self.kind.data}`")
        if self.kind.data == "sum" and not set(self.axes.data) <= set(self.source.partial):
            raise self.mistake(
                f"<{self.source.body}> is not partial over [{', '.join(self.axes.data)}]"
            )
        partial = [a for a in self.source.partial if a not in self.axes.data]
        self.expect(self.source.with_partial(partial))


@op_definition
class AllReducePoolsOp(CollectiveBase):
    """Every rank of a job gets what all pools have: one all-reduce of `count` numbers over all `ranks`, whichever pool they are in.

    With a number for each pool a rank puts that of its own in its place and nothing in the others', and the maximum of each is what there is of
    it; of one number it is the largest. A number that a rank has is the same on all ranks of its pool: [] -> [].
    """

    name = "dist.all_reduce_pools"

    count = prop_def(IntegerAttr.constr(i64))
    ranks = prop_def(IntegerAttr.constr(i64))

    traits = traits_def(Pure())
    assembly_format = "$count $operand `among` $ranks `over` $axes attr-dict `:` type($operand) `->` type($result)"

    def __init__(self, operand: SSAValue, count: int, ranks: int) -> None:
        super().__init__([operand], [operand.type], axes=(ALL_POOLS,), count=count, ranks=ranks)

    def verify_(self) -> None:
        super().verify_()
        if self.source.dims or self.source.partial:
            raise self.mistake(f"<{self.source.body}> is no number of a pool")
        if self.axes.data != (ALL_POOLS,):
            raise self.mistake(f"it is over [{ALL_POOLS}]")
        self.expect(self.source)
        if self.count.value.data < 1 or self.ranks.value.data < 2:
            raise self.mistake("some numbers, among several ranks")

    @property
    def buffer_bytes(self) -> tuple[Size, Size]:
        size = self.source.num_bytes * self.count.value.data
        return size, size

    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        sizes, types = self.buffer_bytes, [self.target]
        axes, dtype = self.axes.data, self.source.dtype
        made = sched.CollectiveOp("all_reduce", [self.operand], axes, types, dtype, *sizes)
        made.properties["ranks"] = self.ranks
        return [made]


@op_definition
class ReduceScatterOp(AlongDims):
    """Sum a partial tensor over the group; each device keeps one shard of `dim`, and of `others`.

    Equals `dist.all_reduce` then `dist.slice`; transpose of `dist.all_gather`.

    [B, D] -> [B/tp, D], for instance. On a ring of n devices each sends (n-1)/n * operand_bytes (Patarasuk and Yuan 2009).
    """

    name = "dist.reduce_scatter"

    @staticmethod
    def moved(source: TensorType, dim: str, axes: Sequence[str]) -> TensorType:
        partial = [a for a in source.partial if a not in axes]
        return scattered(source.with_partial(partial), dim, axes)

    def verify_(self) -> None:
        super().verify_()
        if not set(self.axes.data) <= set(self.source.partial):
            raise self.mistake(
                f"<{self.source.body}> is not partial over [{', '.join(self.axes.data)}]"
            )


@op_definition
class AllToAllOp(CollectiveBase):
    """The split moves from dim `gather` to dim `scatter`; each device keeps as many bytes as before.

    Equals `dist.all_gather` of one dim then `dist.slice` of the other, without the detour. Its transpose is the
    all-to-all back. With a `load` the tokens that arrive are another dim: not as many on each; so are dims whose parts are `uneven`.

    [B/ep, S] -> [B, S/ep], for instance. Each of n devices sends (n-1)/n * operand_bytes: it keeps its own part.
    """

    name = "dist.all_to_all"

    gather = prop_def(StringAttr)
    scatter = prop_def(StringAttr)
    load = opt_prop_def(StringAttr)
    uneven = opt_prop_def(NamesAttr)

    traits = traits_def(Pure())
    assembly_format = (
        "$operand `gather` $gather `scatter` $scatter `over` $axes (`load` $load^)? (`uneven` $uneven^)? attr-dict "
        "`:` type($operand) `->` type($result)"
    )

    def __init__(self, operand: SSAValue, gather: str, scatter: str, axes: Sequence[str]) -> None:
        assert isinstance(operand.type, TensorType)
        super().__init__(
            [operand],
            [scattered(gathered(operand.type, gather, axes), scatter, axes)],
            gather=gather,
            scatter=scatter,
            axes=axes,
        )

    def verify_(self) -> None:
        super().verify_()
        whole = gathered(self.even(self.source), self.gather.data, self.axes.data)
        self.expect(scattered(whole, self.scatter.data, self.axes.data))

    def even(self, tensor: TensorType) -> TensorType:
        tensor = evened(tensor, self.uneven)
        if self.load is None:
            return tensor
        name = self.load.data.removesuffix(SUFFIX)
        return tensor.with_names(dict.fromkeys((self.load.data, f"{name}{SENT}"), name))

    @property
    def buffer_bytes(self) -> tuple[Size, Size]:
        """Where devices do not get as much: the size that all members name, what the one that gets most gets. A load's `.max` is of even parts."""
        if self.load is not None:
            load = self.load.data
            own = next(t for t in (self.source, self.target) if load in t.names)
            most = evened(own, self.uneven).with_names({load: f"{load}{MAX}"}).num_bytes
        elif self.uneven is not None:
            sides = (of_largest(t, self.uneven).num_bytes for t in (self.source, self.target))
            most = symbolic.call("max", *sides)
        else:
            return super().buffer_bytes
        return most, most


@op_definition
class SliceOp(AlongDim, CostInterface):
    """Each device keeps its own shard of `dim`; nothing moves. Transpose of gathering zeros: `dist.all_gather`.

    [B, D] -> [B/tp, D], for instance. No FLOPs.
    """

    name = "dist.slice"
    WORK: ClassVar[Work] = Work.SLICE
    FLOPS: ClassVar[tuple[int, str]] = NO_FLOPS

    @staticmethod
    def moved(source: TensorType, dim: str, axes: Sequence[str]) -> TensorType:
        return scattered(source, dim, axes)

    def moved_bytes(self) -> Bytes:
        return Bytes(num_bytes(self.result), num_bytes(self.result))

    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        """A view of an input, or of a part of it, costs nothing: a data loader brings what each reader needs."""
        owner = self.operand.owner
        while isinstance(owner, SliceOp | sched.ViewOp):
            owner = owner.operand.owner
        is_input = isinstance(owner, Block) and isinstance(owner.parent_op(), ProgramOp)
        is_whole = not spread(self.axes.data, mesh)
        return views(self) if is_input or is_whole else super().lowered(mesh)


COLLECTIVES = (AllGatherOp, AllReduceOp, ReduceScatterOp, AllToAllOp)
