"""State of requests: what a model remembers of earlier tokens, from one iteration of serving to the next.

    %k = stg.cache "Attention.k" : !stg.tensor<[B, T.stored, K, E], bf16>
    %all = stg.append %k, %new over "S" into "T"     // [B, S, K, E] joins what is there: [B, T, K, E]

`T` counts the positions that are attended to, `T.stored` those that memory is set aside for: whole blocks of a paged cache. Of
sequences of different lengths both are sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr
from xdsl.irdl import operand_def, opt_prop_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from stagec.dialects.attributes import SizeAttr
from stagec.dialects.interfaces import NO_FLOPS, Bytes, elements, num_bytes
from stagec.dialects.marks import MarkedOp
from stagec.dialects.memory import Effects, Overwrite
from stagec.dialects.op import DefaultBuilder, op_definition
from stagec.dialects.stg.base import (
    PLACEMENT,
    Indices,
    InferredOp,
    LikeOp,
    expect_dims,
    tensor_type,
)
from stagec.dialects.stg.interface import Signature
from stagec.dialects.types import TIME_AXIS, TensorType, ValueType, unscaled_bytes
from stagec.dialects.uneven_parts import PART
from stagec.dialects.work import Work
from stagec.symbolic import ONE

STORED = ".stored"
"""After the name of a dim of positions: those that memory is set aside for."""


def stored(position_dim: str) -> str:
    """The dim of a cache whose positions are called so."""
    return f"{position_dim}{STORED}"


def is_stored(dim: str) -> bool:
    """Whether a dim is one of positions in a cache."""
    return dim.endswith(STORED)


def position_dim(stored_dim: str) -> str:
    """`stored` backwards."""
    return stored_dim.removesuffix(STORED)


def is_with_positions(cache: TensorType, read: TensorType) -> bool:
    """Whether one is a cache [B, T.stored, ...] and the other what attention reads of it, [B, T, ...].

    Those are other numbers of positions: what sequences share is stored once and read by each, and blocks are set aside whole.
    """
    names = tuple(name.removesuffix(PART) for name in read.names)
    return cache.names != read.names and names == tuple(map(position_dim, cache.names))


SOURCES, BEGUN = ".sources", ".begun"
"""After the name of a dim of what is computed once for a sequence: that of all sequences of a row; and after the dim of sequences: those that begin."""


def of_sources(dim: str) -> str:
    """The dim of a cache that keeps what is computed once, of all sequences of a row."""
    return f"{dim}{SOURCES}"


def begun(batch: str) -> str:
    """The dim of the sequences that begin, where a batch has one row for all."""
    return f"{batch}{BEGUN}"


PAIRS = ".pairs"
"""After the names of a dim of queries and one of keys: the pairs of both in every sequence of a row, one sequence after the other."""


def paired(queries: str, keys: str) -> str:
    """The dim of what there is of each query and key of one sequence, where a row has several: `T.W.pairs`."""
    return f"{queries}.{keys}{PAIRS}"


SAMPLED = "sequences.sampled"
"""The dim of what is one of each position that a token is sampled from: of sequences whose drafted tokens are verified all new ones, of others the last."""


@op_definition
class CacheOp(DefaultBuilder, MarkedOp):
    """State that stays from iteration to iteration. One used in a repeat is a stack, one tensor per iteration, and sliced by it.

    [B, T, K, E], for instance; its bytes stay on the device.
    """

    name = "stg.cache"

    path = prop_def(StringAttr)
    cache = result_def()

    assembly_format = "$path attr-dict `:` type($cache)"

    def verify_(self) -> None:
        if not isinstance(self.cache.type, ValueType):
            raise VerifyException(f"a cache is a tensor or a stack, not {self.cache.type}")


@op_definition
class AppendOp(InferredOp):
    """Write new positions into a cache, in place; the result is the cache with them.

    Reads what is new and writes it, in the cache's dtype: nothing of the cache itself moves (as `reshape_and_cache` of vLLM's kernels does).

    Where positions are spread over ranks, `own` is how many of the new ones of a row this rank has: it reads and writes those alone.

    `cache` [B, T, ...], `new` [B, S, ...] -> [B, T, ...]. No FLOPs.
    """

    name = "stg.append"
    WORK: ClassVar[Work] = Work.APPEND
    FLOPS: ClassVar[tuple[int, str]] = NO_FLOPS
    SIGNATURES: ClassVar[tuple[Signature, ...]] = (
        Signature.of(
            "append(cache, new, window? = size)",
            "a cache with new positions; without `serve` what is new, as all positions",
        ),
    )
    # Its first operand is no tensor of the text, so the frontend checks and builds a call of it by itself.

    cache = operand_def(TensorType)
    new = operand_def(TensorType)
    over = prop_def(StringAttr)
    into = prop_def(StringAttr)
    own = opt_prop_def(SizeAttr)
    result = result_def(TensorType)

    def made(self) -> Sequence[TensorType]:
        grown = tensor_type(self.new).with_names({self.over.data: self.into.data})
        return [grown.with_dtype(tensor_type(self.cache).dtype)]

    def moved_bytes(self) -> Bytes:
        new = tensor_type(self.new)
        kept = ONE if self.own is None else self.own.data / new.dim(self.over.data).size
        written = unscaled_bytes(elements(self.new) * kept, tensor_type(self.cache).dtype)
        return Bytes(num_bytes(self.new) * kept, written)

    def effects(self) -> Effects:
        return Effects((Overwrite(0, 0),))

    def indices(self) -> Indices:
        cache, new = tensor_type(self.cache).names, tensor_type(self.new).names
        result, blocked = tensor_type(self.result).names, {self.over.data}
        if self.own is None:
            blocked |= {stored(self.into.data), self.into.data}
        else:
            # What memory is set aside for is split as what it is for.
            cache = result
        return Indices((cache, new), (result,), blocked=frozenset(blocked))

    def verify_(self) -> None:
        super().verify_()
        over, into = self.over.data, self.into.data
        new = tensor_type(self.new).names
        cache, made = tensor_type(self.cache).names, tensor_type(self.result).names
        for names, dim in ((cache, stored(into.removesuffix(PART))), (made, into)):
            if names != tuple(dim if name == over else name for name in new):
                raise self.mistake(
                    f"[{', '.join(new)}] over `{over}` is not appended to [{', '.join(names)}]"
                )


@op_definition
class FillOp(LikeOp):
    """Write what is computed once for a sequence into a cache, in place: keys and values that a decoder attends to of an encoder.

    Later iterations read the cache, and compute nothing of it.

    `cache` and `x` [B, T, ...] -> the same. No FLOPs. Where all sequences are a row, those that begin are rows of `x`: [B.begun, T, ...] goes into
    [B, T.sources, ...].
    """

    name = "stg.fill"
    FLOPS: ClassVar[tuple[int, str]] = NO_FLOPS
    SIGNATURES: ClassVar[tuple[Signature, ...]] = (
        Signature.of(
            "once(cache, x)",
            "what is computed when a sequence begins, and read from a cache after that; without `serve` it is `x`",
        ),
    )
    # Its first operand is no tensor of the text, so the frontend checks and builds a call of it by itself.

    cache = operand_def(TensorType)
    x = operand_def(TensorType)
    result = result_def(TensorType)

    def moved_bytes(self) -> Bytes:
        written = unscaled_bytes(elements(self.x), tensor_type(self.cache).dtype)
        return Bytes(num_bytes(self.x), written)

    def effects(self) -> Effects:
        return Effects((Overwrite(0, 0),))

    def verify_(self) -> None:
        super().verify_()
        cache, x = tensor_type(self.cache), tensor_type(self.x)
        if cache.names[:2] == (x.names[0].removesuffix(BEGUN), of_sources(x.names[1])):
            cache = cache.with_names(dict(zip(cache.names[:2], x.names[:2], strict=True)))
        expect_dims(self, x, cache, x.names)

    def indices(self) -> Indices:
        cache, x = tensor_type(self.cache).names, tensor_type(self.x).names
        # Sequences that begin are on the devices whose row they are in.
        blocked = frozenset(cache[1:2]) if cache != x else frozenset[str]()
        return Indices((cache, cache), (cache,), blocked=blocked)

    def splits_of_operands(self) -> dict[str, tuple[str, ...]]:
        # Rows are split in time, too, but all go through at once; sequences that begin are counted by themselves.
        cache, x = tensor_type(self.cache), tensor_type(self.x)
        own = [dim.split for dim in cache.dims]
        in_time = x.split_in_time(x.names[0], TIME_AXIS)
        if cache.names != x.names and own == [dim.split for dim in in_time.dims]:
            return dict(zip(cache.names, own, strict=True))
        return super().splits_of_operands()


def verify_rows(op: InRowsOp | OutOfRowsOp, apart: TensorType, rows: TensorType) -> None:
    """[B.begun, M, D] and [B, M.begun, D] are the same positions."""
    batch, positions, *rest = apart.names
    wanted = (batch.removesuffix(BEGUN), begun(positions), *rest)
    if rows.names != wanted:
        raise op.mistake(f"<{apart.body}> in rows is [{', '.join(wanted)}], not <{rows.body}>")
    op.verify_operands()
    local = apart.with_names(dict(zip(apart.names, wanted, strict=True)))
    # Rows are split in time, too, but all go through at once; sequences that begin are counted by themselves.
    own = (local, local.split_in_time(wanted[0], TIME_AXIS))
    if PLACEMENT not in op.properties and rows not in own:
        raise op.mistake(f"<{apart.body}> in rows is <{local.body}>, not <{rows.body}>")


@op_definition
class InRowsOp(InferredOp):
    """What stands in front of the text of sequences that begin, as positions of the rows that these are in. A view.

    [B.begun, M, D] -> [B, M.begun, D]: rows are one sequence after the other.
    """

    name = "stg.in_rows"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)
    IS_VIEW: ClassVar[bool] = True

    x = operand_def(TensorType)
    result = result_def(TensorType)

    def made(self) -> Sequence[TensorType]:
        source = tensor_type(self.x)
        batch, positions, *_ = source.names
        return [source.with_names({positions: begun(positions), batch: batch.removesuffix(BEGUN)})]

    def verify_(self) -> None:
        verify_rows(self, tensor_type(self.x), tensor_type(self.result))

    def indices(self) -> Indices:
        rows = tensor_type(self.result).names
        # Sequences that begin are on the devices whose row they are in.
        return Indices((rows,), (rows,), blocked=frozenset(rows[1:2]))


@op_definition
class OutOfRowsOp(InferredOp):
    """What stands in front of the text of sequences that begin, each by itself: `stg.in_rows` backwards. A view.

    [B, M.begun, D] -> [B.begun, M, D].
    """

    name = "stg.out_of_rows"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)
    IS_VIEW: ClassVar[bool] = True

    x = operand_def(TensorType)
    result = result_def(TensorType)

    def made(self) -> Sequence[TensorType]:
        rows = tensor_type(self.x)
        return [rows.with_names({rows.names[1]: rows.names[1].removesuffix(BEGUN)})]

    def verify_(self) -> None:
        verify_rows(self, tensor_type(self.result), tensor_type(self.x))

    def indices(self) -> Indices:
        rows = tensor_type(self.x).names
        return Indices((rows,), (rows,), blocked=frozenset(rows[1:2]))


@op_definition
class LastPositionsOp(InferredOp):
    """The last new position of each sequence: `[B, S, D]` -> `[B, sequences, D]`; or, `to "sequences.sampled"`, all new ones of those that are verified.

    No FLOPs.
    """

    name = "stg.last_positions"
    FLOPS: ClassVar[tuple[int, str]] = NO_FLOPS
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)

    x = operand_def(TensorType)
    over = prop_def(StringAttr)
    to = prop_def(StringAttr)
    result = result_def(TensorType)

    def made(self) -> Sequence[TensorType]:
        return [tensor_type(self.x).with_names({self.over.data: self.to.data})]

    def moved_bytes(self) -> Bytes:
        return Bytes(num_bytes(self.result), num_bytes(self.result))

    def indices(self) -> Indices:
        names, made = tensor_type(self.x).names, tensor_type(self.result).names
        return Indices((names,), (made,), blocked=frozenset((self.over.data, self.to.data)))
