"""Ops of `dist` between parameters as they are stored and as ops need them.

A parameter's storage may be split further than its computation (ZeRO, Rajbhandari et al. 2020). That difference is a
gather before use and a reduce-scatter of its gradient. The parameters of a unit travel as one flat buffer.

Shapes below are those of one parameter on one rank. `[D, F]` is what the rank computes with (`[D, F/tp]` under tensor parallelism); its shard over n ranks is
`[ceildiv(D, n), F]`, padded on the last ranks, or `ceildiv(D*F, n)` elements where all dims are rows (`dist.shard`). What travels is bytes: elements, padding
included, times the width of `dtype`.

    %wq, %wk = dist.unshard (%sq, %sk) over [dp]
      : (!dist.shard<!stg.tensor<[D, F], fp32> over [dp]>, ...) -> (!stg.tensor<[D, F], bf16>, ...)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from xdsl.dialects.builtin import IntegerAttr, StringAttr
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import Pure

from stagec import symbolic
from stagec.dialects import sched
from stagec.dialects.attributes import NamesAttr
from stagec.dialects.interfaces import TaskInterface, all_bytes, elements, num_bytes, spread, views
from stagec.dialects.marks import ISSUED_WITH, count_mark, flag_mark, marks, word_mark
from stagec.dialects.memory import ALWAYS, WHOLE, Effects, Kind, Overwrite
from stagec.dialects.op import DefaultBuilder, op_definition
from stagec.dialects.types import (
    DTYPE_BITS,
    ShardType,
    StackType,
    TensorType,
    bytes_of,
    leaf_of,
    tensor_of,
    verify_dtypes,
    with_dtype,
)
from stagec.symbolic import ZERO, Size

BUFFER = "gradients"
"""The buffer in which gradients of a unit travel."""

MIXED = "u8"
"""The dtype of a buffer that has several."""

KEPT = ("bucket_end", "checked", "of_whole")
"""What the collective of such an op has of its marks."""

Stored = ShardType | StackType


def shard_of(
    value_type: object,
    axes: Sequence[str],
    dtype: str | None = None,
    rows: int | None = None,
    within: Sequence[str] = (),
) -> Stored:
    """The type in which a tensor, or each of a stack, is stored split over `axes`, over which it is summed. `rows`, `within`: see `ShardType`."""
    assert isinstance(value_type, TensorType | StackType)
    whole = tensor_of(value_type)
    tensor = whole.with_partial(a for a in whole.partial if a not in axes)
    shard = ShardType.of(tensor.with_dtype(dtype or tensor.dtype), axes, rows, within)
    return value_type.with_tensor(shard) if isinstance(value_type, StackType) else shard


def shards_of(
    values: Sequence[SSAValue],
    axes: Sequence[str],
    rows: Sequence[int | None] | None,
    dtype: str | None = None,
) -> list[Stored]:
    """The types of the shards of several values; `rows` of each and another dtype, where that is said."""
    given = rows if rows is not None else [None] * len(values)
    return [shard_of(v.type, axes, dtype, n) for v, n in zip(values, given, strict=True)]


def rows_of(stored: Attribute) -> int | None:
    """How many dims of what is stored so are rows."""
    leaf = leaf_of(stored)
    return leaf.rows if isinstance(leaf, ShardType) else None


def stored_over(value: SSAValue) -> tuple[str, ...]:
    """The axes over which a value is stored, or each of a stack, besides those that split its tensor."""
    leaf = leaf_of(value.type)
    return leaf.axes if isinstance(leaf, ShardType) else ()


def whole_of(value_type: object, dtype: str) -> TensorType | StackType:
    """The type of what a shard is part of, in the dtype that it is gathered in."""
    assert isinstance(value_type, ShardType | StackType)
    tensor = tensor_of(value_type).with_dtype(dtype)
    return value_type.with_tensor(tensor) if isinstance(value_type, StackType) else tensor


def whole_elements(value_type: Attribute) -> Size:
    """Elements of what is stored, of all tensors of a stack: not of the rank's part alone."""
    assert isinstance(value_type, TensorType | ShardType | StackType)
    tensor = tensor_of(value_type)
    whole = value_type.with_tensor(tensor) if isinstance(value_type, StackType) else tensor
    return whole.num_elements


class StorageOp(DefaultBuilder, TaskInterface, ABC):
    """Shared by ops that move the parameters of a unit as one buffer, in `dtype`: one result for each operand, in its order."""

    COLLECTIVE: ClassVar[str] = ""
    """What moves it; empty if nothing moves."""

    values = var_operand_def()
    axes = prop_def(NamesAttr)
    dtype = prop_def(StringAttr)
    bucket_bytes = count_mark("bucket_bytes")
    first_bucket_bytes = count_mark("first_bucket_bytes")
    """How much is to travel together, and the first time: see `sched.collective`."""
    aligned = count_mark("aligned")
    """In the buffer that travels what comes next begins at a multiple of so many elements."""
    bucket_end = count_mark("bucket_end")
    """A bucket ends at a multiple of so many elements, and of the ranks."""
    checked = flag_mark("checked")
    """The host reads the norm of what it sums before it launches that: see `sched.collective`."""
    of_whole = flag_mark("of_whole")
    """What travels is the buffer of the whole tensors, of which a rank has its shards."""
    outputs = var_result_def()

    traits = traits_def(Pure())
    assembly_format = (
        "`(` $values `)` `over` $axes `in` $dtype attr-dict `:` functional-type($values, $outputs)"
    )

    def made(self) -> Sequence[Attribute]:
        return [self.made_of(value.type, value.type) for value in self.values]

    def verify_(self) -> None:
        verify_dtypes(self.name, self.dtype)
        if len(self.values) != len(self.outputs):
            raise self.mistake("one result per operand")
        for value, output in zip(self.values, self.outputs, strict=True):
            self.verify_operand(value.type)
            if output.type != (made := self.made_of(value.type, output.type)):
                raise self.mistake(f"{value.type} becomes {made}, not {output.type}")

    @abstractmethod
    def verify_operand(self, value_type: Attribute) -> None:
        """Whether the op takes a value of this type."""

    @abstractmethod
    def made_of(self, value_type: Attribute, wanted: Attribute) -> Attribute:
        """The type of what the op makes of a value; how many dims are rows is as wanted."""

    def expect_shard(self, value_type: Attribute, axes: Sequence[str] = ()) -> None:
        """A value is a shard, split over these axes if any are given."""
        leaf = leaf_of(value_type)
        if not isinstance(leaf, ShardType) or (axes and leaf.axes != tuple(axes)):
            over = f" over [{', '.join(axes)}]" if axes else ""
            raise self.mistake(f"{value_type} is not a shard{over}")

    def expect_partial(self, value_type: Attribute) -> None:
        """A value is a term of a sum over the op's axes."""
        leaf = leaf_of(value_type)
        if not isinstance(leaf, TensorType) or not set(self.axes.data) <= set(leaf.partial):
            over = ", ".join(self.axes.data)
            raise self.mistake(f"{value_type} is not partial over [{over}]")

    def effects(self) -> Effects:
        """Gradients are reduced in place."""
        return self.in_place(ALWAYS)

    def in_place(self, when: str) -> Effects:
        numbers = range(len(self.values))
        overwrites = tuple(Overwrite(number, number, when) for number in numbers)
        return Effects(overwrites, makes=Kind.GRADIENTS)

    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        """One collective of the bytes that travel: padded shards, in `dtype`."""
        axes, kind = spread(self.axes.data, mesh), self.COLLECTIVE
        if not kind or not axes:
            pairs = zip(self.values, self.outputs, strict=True)
            return [sched.ViewOp(value, output.type) for value, output in pairs]
        part, whole = self.travelling(axes)
        sizes = {"all_gather": (part, whole), "reduce_scatter": (whole, part)}
        sent, received = sizes.get(kind, (part, part))
        copies = [self.copy_in(sent)] if "copied" in marks(self) else []
        made = sched.CollectiveOp(
            kind,
            copies[0].outputs if copies else self.values,
            axes,
            self.result_types,
            self.dtype.data,
            sent,
            received,
            bucket=bucket_of(self),
            effects=self.effects(),
        )
        kept = {key: marks(self)[key] for key in KEPT if key in marks(self)}
        marks(made).take(kept)
        return [*copies, made]

    def travelling(self, axes: Sequence[str]) -> tuple[Size, Size]:
        """Bytes of a rank's part and of all: padded shards. Of what is `aligned` a part is rounded down: a bucket has the rest at its end."""
        kind, dtype = self.COLLECTIVE, self.dtype.data
        ways = symbolic.product(map(symbolic.symbol, axes))
        if "of_whole" in marks(self):
            whole = symbolic.total(whole_elements(v.type) for v in self.values)
            return bytes_of(whole, dtype), bytes_of(whole, dtype)
        if "aligned" in marks(self):
            unit = aligned_to(self)
            all_of = self.outputs if kind == "all_gather" else self.values
            whole = unit * symbolic.ceildiv(symbolic.total(map(elements, all_of)), unit)
            part = symbolic.ceildiv(whole - ways + 1, ways)
            return bytes_of(part, dtype), bytes_of(whole, dtype)
        smaller = self.values if kind == "all_gather" else self.outputs
        part = bytes_of(symbolic.total(map(elements, smaller)), dtype)
        return part, part * ways

    def copy_in(self, written: Size) -> sched.ComputeOp:
        """The kernel that fills the buffer that is sent, in its dtype, and what pads shards (`foreach_reduce_scatter_copy_in` in FSDP2)."""
        types = [with_dtype(value.type, self.dtype.data) for value in self.values]
        read = symbolic.total(num_bytes(value) for value in self.values)
        effects = Effects(one_buffer=True, makes=Kind.COMMUNICATION, replaces=BUFFER)
        return sched.ComputeOp(
            sched.COPY_IN, self.values, types, ZERO, read, written, effects=effects
        )


def aligned_to(op: Operation) -> int:
    """At multiples of how many elements what comes next begins."""
    unit = marks(op)["aligned"]
    assert isinstance(unit, IntegerAttr)
    return unit.value.data


def bucket_of(op: Operation) -> tuple[int, int] | None:
    """Bucket sizes that `bucket-gradients` asked for."""
    sizes = [marks(op).get(key) for key in ("bucket_bytes", "first_bucket_bytes")]
    numbers = [s.value.data for s in sizes if isinstance(s, IntegerAttr)]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else None


@op_definition
class UnshardOp(StorageOp):
    """Gather stored shards into whole parameters, as one all-gather in `dtype`: [ceildiv(D, n), F] to [D, F], in `dtype`. Those of several dtypes travel as
    bytes, `u8`, each as it is (`_get_all_gather_input_metadatas` of FSDP2). What fills the parameters themselves is in their own dtype again.

    Transpose of `dist.reduce_shard`. Each device sends (n-1) times the bytes of its shards on a ring of n devices.
    """

    name = "dist.unshard"
    COLLECTIVE: ClassVar[str] = "all_gather"

    lag = count_mark("lag")
    prefetch = count_mark("prefetch")
    """How many units ahead it may begin, and is issued: see `sched.collective`."""
    unit = count_mark("unit")
    hook = count_mark("hook")
    evicted = flag_mark("evicted")
    issued = word_mark("issued", ISSUED_WITH)
    """Which unit that a stage frees and gathers again it is of, and when one that stays is gathered: see `sched.collective`."""

    def __init__(
        self, shards: Sequence[SSAValue], axes: Sequence[str], dtypes: str | Sequence[str]
    ) -> None:
        """`dtypes`: of all, or of each."""
        each = [dtypes] * len(shards) if isinstance(dtypes, str) else list(dtypes)
        types = [whole_of(s.type, dtype) for s, dtype in zip(shards, each, strict=True)]
        dtype = each[0] if len(set(each)) == 1 else MIXED
        super().__init__(shards, axes, dtype, like=types)

    def effects(self) -> Effects:
        return Effects(one_buffer=True, makes=Kind.GATHERED)

    def verify_operand(self, value_type: Attribute) -> None:
        self.expect_shard(value_type, self.axes.data)

    def made_of(self, value_type: Attribute, wanted: Attribute) -> Attribute:
        wide = tensor_of(wanted).dtype
        is_free = self.dtype.data == MIXED or wide == tensor_of(value_type).dtype
        return whole_of(value_type, wide if is_free else self.dtype.data)

    def travelling(self, axes: Sequence[str]) -> tuple[Size, Size]:
        if self.dtype.data != MIXED:
            return super().travelling(axes)
        pairs = zip(self.values, self.outputs, strict=True)
        part = symbolic.total(bytes_of(elements(v), tensor_of(o.type).dtype) for v, o in pairs)
        return part, part * symbolic.product(map(symbolic.symbol, axes))


@op_definition
class GatherUpdatesOp(StorageOp):
    """Gather what ranks that store the same computed of it, each an equal share: [D, F] to the same, one all-gather in `dtype`.

    `HybridShardDistributor` of `distributed_shampoo` sends so what is subtracted of weights.
    """

    name = "dist.gather_updates"
    COLLECTIVE: ClassVar[str] = "all_gather"

    def __init__(self, values: Sequence[SSAValue], axes: Sequence[str]) -> None:
        super().__init__(values, axes, tensor_of(values[0].type).dtype)

    def verify_operand(self, value_type: Attribute) -> None:
        """Any value will do."""

    def made_of(self, value_type: Attribute, wanted: Attribute) -> Attribute:
        return value_type

    def travelling(self, axes: Sequence[str]) -> tuple[Size, Size]:
        ways = symbolic.product(map(symbolic.symbol, axes))
        part = symbolic.ceildiv(symbolic.total(map(elements, self.values)), ways)
        return bytes_of(part, self.dtype.data), bytes_of(part * ways, self.dtype.data)


@op_definition
class ReduceShardOp(StorageOp):
    """Sum gradients over the group; each rank keeps its shards: [D, F], partial over `axes`, to [ceildiv(D, n), F].

    One reduce-scatter in `dtype`; transpose of `dist.unshard`. Each device sends (n-1)/n of the padded bytes on a ring of n devices.
    Shards have the gradients' dtype, or the wider one of the sum that they go into. Gradients that are `copied` into one buffer first need a kernel for that.
    """

    name = "dist.reduce_shard"
    COLLECTIVE: ClassVar[str] = "reduce_scatter"

    copied = flag_mark("copied")
    """Its gradients are copied into one buffer first."""

    def __init__(
        self,
        gradients: Sequence[SSAValue],
        axes: Sequence[str],
        dtype: str,
        rows: Sequence[int | None] | None = None,
        stored: str | None = None,
    ) -> None:
        shards = shards_of(gradients, axes, rows, stored)
        types = [kept_shard(g.type, axes, t) for g, t in zip(gradients, shards, strict=True)]
        super().__init__(gradients, axes, dtype, like=types)

    def effects(self) -> Effects:
        return self.in_place(WHOLE)

    def verify_operand(self, value_type: Attribute) -> None:
        self.expect_partial(value_type)

    def made_of(self, value_type: Attribute, wanted: Attribute) -> Attribute:
        return kept_shard(value_type, self.axes.data, wanted)


def kept_shard(gradient: Attribute, axes: Sequence[str], wanted: Attribute) -> Stored:
    """The shard of a gradient, in its dtype or the wider one that is wanted."""
    given, dtype = tensor_of(gradient).dtype, tensor_of(wanted).dtype
    kept = rows_of(wanted) is None or DTYPE_BITS[dtype] < DTYPE_BITS[given]
    return shard_of(gradient, axes, given if kept else dtype, rows_of(wanted))


class BetweenShardsOp(StorageOp):
    """Shared by ops that make shards of shards."""

    def verify_operand(self, value_type: Attribute) -> None:
        self.expect_shard(value_type)

    def made_of(self, value_type: Attribute, wanted: Attribute) -> Attribute:
        return summed_shard(value_type, self.axes.data)


@op_definition
class AllReduceShardOp(BetweenShardsOp):
    """Sum shards over further axes: the second half of HSDP's reduction. One all-reduce in `dtype`; shapes stay: [ceildiv(D, n), F].

    `of_whole` is the sum of shards in whole buffers, of which other parts are of no use (`_allreduce_non_tensor_model_parallel_grads` in Megatron-LM).
    """

    name = "dist.all_reduce_shard"
    COLLECTIVE: ClassVar[str] = "all_reduce"


@op_definition
class AllReduceGradientOp(StorageOp):
    """Sum whole gradients over the group, as one all-reduce in `dtype`: [D, F], partial over `axes`, to [D, F].

    A ring of n devices sends 2(n-1)/n of the bytes.
    """

    name = "dist.all_reduce_gradient"
    COLLECTIVE: ClassVar[str] = "all_reduce"

    def verify_operand(self, value_type: Attribute) -> None:
        self.expect_partial(value_type)

    def made_of(self, value_type: Attribute, wanted: Attribute) -> Attribute:
        return reduced(value_type, self.axes.data)


@op_definition
class AllReduceTiedOp(StorageOp):
    """Sum the gradients of a weight that several stages have over their ranks, as one all-reduce in `dtype`: [V, D] to [V, D], for instance.

    `axes` is that of the stages, and the group has only the ranks of those which have `weight`. A program is
    that of one kind of stage, so its types do not say that a value is a term of such a sum.
    """

    name = "dist.all_reduce_tied"
    COLLECTIVE: ClassVar[str] = "all_reduce"

    weight = prop_def(StringAttr)

    assembly_format = (
        "$weight `(` $values `)` `over` $axes `in` $dtype attr-dict `:` "
        "functional-type($values, $outputs)"
    )

    def verify_operand(self, value_type: Attribute) -> None:
        """Any gradient will do."""

    def made_of(self, value_type: Attribute, wanted: Attribute) -> Attribute:
        return value_type

    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        made = super().lowered(mesh)
        for op in made:
            if isinstance(op, sched.CollectiveOp):
                marks(op)["tied"] = self.weight
        return made


def summed_shard(value_type: Attribute, axes: Sequence[str]) -> Attribute:
    """The type of a shard, or of each of a stack, that is summed over `axes`."""
    leaf = leaf_of(value_type)
    assert isinstance(leaf, ShardType)
    tensor = leaf.tensor.with_partial(a for a in leaf.tensor.partial if a not in axes)
    shard = ShardType.of(tensor, leaf.axes, leaf.rows, leaf.within)
    return value_type.with_tensor(shard) if isinstance(value_type, StackType) else shard


def reduced(value_type: object, axes: Sequence[str]) -> TensorType | StackType:
    assert isinstance(value_type, TensorType | StackType)
    tensor = tensor_of(value_type)
    tensor = tensor.with_partial(a for a in tensor.partial if a not in axes)
    return value_type.with_tensor(tensor) if isinstance(value_type, StackType) else tensor


class OfWholeOp(StorageOp):
    """Shared by ops that make a shard of a whole parameter."""

    def verify_operand(self, value_type: Attribute) -> None:
        if not isinstance(leaf_of(value_type), TensorType):
            raise self.mistake(f"{value_type} is not a whole parameter")


@op_definition
class TakeShardOp(OfWholeOp):
    """The rank's own shard of whole parameters, [D, F] to [ceildiv(D, n), F]: a slice, which moves no bytes."""

    name = "dist.take_shard"

    def __init__(
        self,
        values: Sequence[SSAValue],
        axes: Sequence[str],
        dtype: str,
        rows: Sequence[int | None] | None = None,
    ) -> None:
        super().__init__(values, axes, dtype, like=shards_of(values, axes, rows))

    def made_of(self, value_type: Attribute, wanted: Attribute) -> Attribute:
        return shard_of(value_type, self.axes.data, rows=rows_of(wanted))


@op_definition
class KeepShardOp(OfWholeOp):
    """The rank's part of parameters that were gathered, over fewer axes than they are stored over, in memory of its own: the rest is freed after a forward
    pass, and a backward pass gathers these (`FSDPParam.to_sharded_post_forward`).

    [D, F] to [ceildiv(D, n * m) * m, F], gathered over n * m ranks of which groups of n keep it.
    """

    name = "dist.keep_shard"

    def __init__(
        self, values: Sequence[SSAValue], shards: Sequence[SSAValue], axes: Sequence[str]
    ) -> None:
        """`shards`: what the values were gathered from."""
        types: list[Attribute] = []
        for value, shard in zip(values, shards, strict=True):
            within = [axis for axis in stored_over(shard) if axis not in axes]
            types.append(shard_of(value.type, axes, rows=rows_of(shard.type), within=within))
        super().__init__(values, axes, tensor_of(values[0].type).dtype, like=types)

    def made_of(self, value_type: Attribute, wanted: Attribute) -> Attribute:
        leaf = leaf_of(wanted)
        within = leaf.within if isinstance(leaf, ShardType) else ()
        return shard_of(value_type, self.axes.data, rows=rows_of(wanted), within=within)

    def effects(self) -> Effects:
        return Effects(makes=Kind.GATHERED)

    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        """A copy of each part."""
        if not spread(self.axes.data, mesh):
            return super().lowered(mesh)
        moved, effects = all_bytes(self.outputs), self.effects()
        types = self.result_types
        return [
            sched.ComputeOp("keep_shard", self.values, types, ZERO, moved, moved, effects=effects)
        ]


@op_definition
class DealShardsOp(BetweenShardsOp):
    """Exchange shards so that each rank has some of the tensors whole; the same op brings them back. One all-to-all in `dtype`.

    As many bytes as a rank has shards of: the types stay those of shards, [ceildiv(D, n), F], of which a rank then has those of its own tensors.
    `axes` may have those that split the tensors, besides those over which they are stored.
    """

    name = "dist.deal_shards"
    COLLECTIVE: ClassVar[str] = "all_to_all"

    def effects(self) -> Effects:
        return Effects(one_buffer=True)


class PartsOp(TaskInterface, ABC):
    """Shared by ops between a tensor, or its shard, and the stack of its parts along the first dim. A view: nothing moves."""

    value = operand_def()
    result = result_def()

    traits = traits_def(Pure())
    assembly_format = "$value attr-dict `:` type($value) `->` type($result)"

    def verify_(self) -> None:
        whole, parts = self.whole_and_parts()
        first = first_tensor(whole)
        if first is None or parts != parts_of(whole):
            raise self.mistake(f"the parts of {whole} are not {parts}")

    @abstractmethod
    def whole_and_parts(self) -> tuple[Attribute, Attribute]:
        """The types of both sides."""

    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        return views(self)


@op_definition
class TakeApartOp(PartsOp):
    """A tensor as a stack of its parts along the first dim, of what a rank has of it: the experts of a rank, each a parameter by itself.

    [X/ep, D, F] -> X/ep times [D, F]. Inverse of `dist.put_together`.
    """

    name = "dist.take_apart"

    def __init__(self, whole: SSAValue) -> None:
        super().__init__([whole], [parts_of(whole.type)])

    def whole_and_parts(self) -> tuple[Attribute, Attribute]:
        return self.value.type, self.result.type


@op_definition
class PutTogetherOp(PartsOp):
    """A tensor of its parts along the first dim. Inverse of `dist.take_apart`.

    X/ep times [D, F] -> [X/ep, D, F].
    """

    name = "dist.put_together"

    def __init__(self, parts: SSAValue, whole: Attribute) -> None:
        super().__init__([parts], [whole])

    def whole_and_parts(self) -> tuple[Attribute, Attribute]:
        return self.result.type, self.value.type


def first_tensor(whole: Attribute) -> TensorType | None:
    """The tensor that has parts along its first dim: a tensor of two dims or more, or that of a shard."""
    if not isinstance(whole, TensorType | ShardType):
        return None
    tensor = tensor_of(whole)
    return tensor if len(tensor.dims) > 1 else None


def parts_of(whole: Attribute) -> StackType:
    """The parts of a tensor, or of a shard of one, along the first dim."""
    tensor = first_tensor(whole)
    assert tensor is not None, whole
    part = TensorType.of(tensor.dims[1:], tensor.dtype, tensor.partial)
    count = TensorType.of(tensor.dims[:1], tensor.dtype).num_elements
    if isinstance(whole, ShardType):
        return StackType.of(count, ShardType.of(part, whole.axes, max(1, whole.rows - 1)))
    return StackType.of(count, part)
