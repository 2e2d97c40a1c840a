"""Types and attributes that the dialects share.

A tensor's type is its shape on one device and how it is spread:

    !stg.tensor<[B/dp, S/(cp*tp), D], bf16>               sharded: S over cp (major), then tp
    !stg.tensor<[B/dp, S, D], bf16, partial [tp]>         each tp rank holds a term of a sum
    !stg.tensor<[B, S, H, E], fp8_1x128 along [H, E]>     blocks of 128 of H * E columns, each with a scale
    !stg.tensor<[X, D, F], fp8_128x128 along [D] by [F]>  X matrices of tiles of 128 by 128
    !stg.stack<L x !stg.tensor<[D, F], bf16>>             one per iteration of a repeat

A dim is a name and the axes that split it; its size is the name's size divided by theirs. Before
sharding propagation nothing is split and the type is the global shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from stagec import symbolic
from stagec.dialects.attributes import Dim, parse_dim, parse_name, parse_names, parse_size
from stagec.dialects.text_forms import OwnData
from stagec.symbolic import Size

DTYPE_BITS = {
    "fp64": 64,
    "fp32": 32,
    "bf16": 16,
    "fp16": 16,
    "fp8": 8,
    "fp8_1x128": 8,
    "fp8_1x256": 8,
    "fp8_128x128": 8,
    "mxfp8": 8,
    "nvfp4": 4,
    "nf4": 4,
    "i64": 64,
    "i32": 32,
    "i16": 16,
    "i8": 8,
    "u8": 8,
    "bool": 8,
}
"""Bits of one element. `bool` is a byte, as a mask is kept by PyTorch."""


def verify_dtypes(op: str, *names: StringAttr | None) -> None:
    """`VerifyException` for what an op takes for a dtype, and is none."""
    for name in names:
        if name is not None and name.data not in DTYPE_BITS:
            raise VerifyException(f"{op}: there is no dtype `{name.data}`")


SCALES: dict[str, tuple[int, int]] = {
    "fp8_1x128": (128, 4),
    "fp8_1x256": (256, 4),
    "fp8_128x128": (128 * 128, 4),
    "mxfp8": (32, 1),
    "nvfp4": (16, 1),
    "nf4": (64, 1),
}
"""How many elements share a scale, and its bytes: fp32 for parts of rows and for tiles (DeepSeek-V3, arXiv:2412.19437, section 3.3.2) and of 8-bit
states (Dettmers et al., arXiv:2110.02861; blocks of 256 as in bitsandbytes 0.44 and torchao), E8M0 for the OCP's microscaling formats (MX v1.0,
section 5.1), E4M3 for NVIDIA's four bits (arXiv:2509.25149, section 2; the one scale of the whole tensor beside them counts for nothing, as that of `fp8`), 8
bits for NF4 under double quantization (QLoRA: Dettmers et al., arXiv:2305.14314, section 3; the fp32 of 256 of these is left out)."""

BLOCKS: dict[str, tuple[int, ...]] = {
    "fp8_1x128": (128,),
    "fp8_128x128": (128, 128),
    "mxfp8": (32,),
    "nvfp4": (16,),
}
"""Formats whose scales are of parts of a matrix: how many columns, and rows if more than one, have one in common. A last part may be short:
`Float8BlockQuantizer` of Transformer Engine has ceildiv(columns, 128) scales for each row, or for each 128 rows (`get_scale_shape`; what it pads
for its products is not counted)."""

QUANTIZED = ("nf4", "nvfp4", "fp8", "fp8_1x128", "fp8_1x256", "fp8_128x128", "mxfp8")
"""Formats that no sum is in."""

FLOATS = (*QUANTIZED, "bf16", "fp16", "fp32", "fp64")
"""Floating-point dtypes, narrow to wide: an op on two of them computes in the wider."""


TIME_AXIS = "mb"
"""The axis that splits the batch in time: its size is the number of microbatches. No value is partial
over it: what microbatches sum, `stg.accumulate` adds up on the device."""

CHUNK_AXIS = "loss.chunk"
"""The axis that splits what a device has of a sequence, where its loss is computed in chunks."""

PIECE_AXIS = "tp.piece"
"""The axis that splits what a device has of a dim, where it is gathered, or scattered, in pieces."""

TIME_AXES = (TIME_AXIS, CHUNK_AXIS, PIECE_AXIS)

ALL_POOLS = "all_pools"
"""In place of the axes of a collective: it is over all ranks of a job, whichever pool they are in."""


def unscaled_bytes(num_elements: Size, dtype: str) -> Size:
    """Bytes of so many elements, without scales."""
    bits = DTYPE_BITS[dtype]
    return num_elements * (bits // 8) if bits >= 8 else symbolic.ceildiv(num_elements, 8 // bits)


def bytes_per_element(dtype: str) -> float:
    """The bytes of one element of many, with its share of a scale."""
    sharing, scale_bytes = SCALES.get(dtype, (1, 0))
    return DTYPE_BITS[dtype] / 8 + scale_bytes / sharing


@lru_cache(maxsize=1 << 14)
def bytes_of(num_elements: Size, dtype: str) -> Size:
    """Bytes of so many elements, with their scales."""
    found = unscaled_bytes(num_elements, dtype)
    if dtype not in SCALES:
        return found
    sharing, scale_bytes = SCALES[dtype]
    return found + symbolic.ceildiv(num_elements, sharing) * scale_bytes


@dataclass(frozen=True, slots=True)
class Tensor:
    """What a `TensorType` says."""

    dims: tuple[Dim, ...]
    dtype: str
    partial: tuple[str, ...] = ()
    blocks: tuple[tuple[str, ...], ...] = ()
    """Of a format with `BLOCKS`: the dims that are columns together, and those that are rows. Others count matrices. Empty: the last dim is
    columns, the others are rows."""


@irdl_attr_definition
class TensorType(OwnData[Tensor], TypeAttribute):
    """A tensor of named dims; see the module."""

    name = "stg.tensor"

    @staticmethod
    def of(dims: Iterable[Dim | str], dtype: str, partial: Iterable[str] = ()) -> TensorType:
        named = tuple(Dim(d) if isinstance(d, str) else d for d in dims)
        return TensorType(Tensor(named, dtype, tuple(a for a in partial if a not in TIME_AXES)))

    def quantized(self, dtype: str, over: Iterable[str], apart: Iterable[str] = ()) -> TensorType:
        """In a format, for a product that sums over `over`: along these elements share scales, or in tiles of these dims and the others. What has another
        number in `apart` shares none."""
        names = [d.name for d in self.data.dims if d.name not in {*apart}]
        columns = tuple(n for n in names if n in {*over})
        groups = (columns, tuple(n for n in names if n not in columns))
        blocks = groups[: len(BLOCKS.get(dtype, ()))]
        return TensorType(
            replace(self.data, dtype=dtype, blocks=blocks_written(self.names, blocks))
        )

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Tensor:
        with parser.in_angle_brackets():
            dims = parser.parse_comma_separated_list(
                parser.Delimiter.SQUARE, lambda: parse_dim(parser)
            )
            parser.parse_punctuation(",")
            dtype = parse_name(parser)
            partial: tuple[str, ...] = ()
            blocks: tuple[tuple[str, ...], ...] = ()
            if parser.parse_optional_keyword("along") is not None:
                blocks = (parse_names(parser),)
                if parser.parse_optional_keyword("by") is not None:
                    blocks = (*blocks, parse_names(parser))
            if parser.parse_optional_punctuation(",") is not None:
                parser.parse_keyword("partial")
                partial = parse_names(parser)
            return Tensor(tuple(dims), dtype, partial, blocks)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{self.body}>")

    @property
    def body(self) -> str:
        text = f"[{', '.join(map(str, self.data.dims))}], {self.data.dtype}"
        for word, group in zip(("along", "by"), self.data.blocks, strict=False):
            text += f" {word} [{', '.join(group)}]"
        if self.data.partial:
            text += f", partial [{', '.join(self.data.partial)}]"
        return text

    def verify(self) -> None:
        if self.data.dtype not in DTYPE_BITS:
            raise VerifyException(f"`{self.data.dtype}` is not a dtype")
        names = self.names
        if len(set(names)) != len(names):
            raise VerifyException(f"a dim appears twice in [{', '.join(names)}]")
        grouped = [name for group in self.data.blocks for name in group]
        if len(self.data.blocks) not in (0, len(BLOCKS.get(self.data.dtype, ()))):
            raise VerifyException(f"blocks of {self.data.dtype} in <{self.body}>")
        if len(set(grouped)) != len(grouped) or not set(grouped) <= set(names):
            raise VerifyException(f"blocks of other dims, or of one twice, in <{self.body}>")
        axes = [a for d in self.data.dims for a in d.split] + list(self.data.partial)
        if len(set(axes)) != len(axes):
            raise VerifyException(f"an axis is used twice in <{self.body}>")

    @property
    def dims(self) -> tuple[Dim, ...]:
        return self.data.dims

    @property
    def dtype(self) -> str:
        return self.data.dtype

    @property
    def partial(self) -> tuple[str, ...]:
        return self.data.partial

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple([d.name for d in self.data.dims])

    @property
    def splits(self) -> dict[str, tuple[str, ...]]:
        """The axes that split each dim that is split."""
        return {d.name: d.split for d in self.data.dims if d.split}

    @property
    def split_axes(self) -> tuple[str, ...]:
        return tuple(a for d in self.data.dims for a in d.split)

    @property
    def num_elements(self) -> Size:
        return elements_of(self.data.dims)

    @property
    def num_bytes(self) -> Size:
        """Bytes on one device."""
        if self.data.dtype not in BLOCKS:
            return bytes_of(self.num_elements, self.data.dtype)
        scales = scales_of(self.data) * SCALES[self.data.dtype][1]
        return unscaled_bytes(self.num_elements, self.data.dtype) + scales

    @property
    def unsplit(self) -> TensorType:
        """The global type."""
        dims = tuple(Dim(name) for name in self.names)
        return TensorType(replace(self.data, dims=dims, partial=()))

    def dim(self, name: str) -> Dim:
        return self.data.dims[self.names.index(name)]

    def with_dtype(self, dtype: str) -> TensorType:
        blocks = self.data.blocks if dtype == self.data.dtype else ()
        return TensorType(replace(self.data, dtype=dtype, blocks=blocks))

    def with_form_of(self, other: TensorType) -> TensorType:
        """In the dtype of another tensor, with blocks of the same dims."""
        return TensorType(replace(self.data, dtype=other.dtype, blocks=other.data.blocks))

    def with_partial(self, partial: Iterable[str]) -> TensorType:
        return TensorType(
            replace(self.data, partial=tuple(a for a in partial if a not in TIME_AXES))
        )

    def transposed(self, names: Iterable[str]) -> TensorType:
        """The same dims in another order; blocks stay where they are."""
        dims = tuple(map(self.dim, names))
        order = tuple(d.name for d in dims)
        blocks = self.data.blocks or default_blocks(self.names)[: len(BLOCKS.get(self.dtype, ()))]
        return TensorType(replace(self.data, dims=dims, blocks=blocks_written(order, blocks)))

    def with_names(self, names: Mapping[str, str]) -> TensorType:
        """Dims under other names, split as they are."""
        dims = tuple(Dim(names.get(d.name, d.name), d.split) for d in self.data.dims)
        blocks = tuple(tuple(names.get(n, n) for n in group) for group in self.data.blocks)
        return TensorType(replace(self.data, dims=dims, blocks=blocks))

    def with_splits(self, splits: Mapping[str, Sequence[str]]) -> TensorType:
        """The same dims, split exactly as `splits` says."""
        dims = tuple(Dim(d.name, tuple(splits.get(d.name, ()))) for d in self.data.dims)
        return TensorType(replace(self.data, dims=dims))

    def split_in_time(self, name: str, axis: str) -> TensorType:
        """`name` is split by one more axis, the most major; nothing changes without that dim."""
        dims = tuple(Dim(d.name, (axis, *d.split)) if d.name == name else d for d in self.data.dims)
        return TensorType(replace(self.data, dims=dims))


def blocks_written(
    names: Sequence[str], blocks: tuple[tuple[str, ...], ...]
) -> tuple[tuple[str, ...], ...]:
    """Nothing where they are those of a type that says none. Tiles are as high as they are wide: which dims are columns makes no difference."""
    return () if {*blocks} == {*default_blocks(names)[: len(blocks)]} else blocks


def default_blocks(names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Columns and rows of what says none."""
    return tuple(names[-1:]), tuple(names[:-1])


@lru_cache(maxsize=1 << 14)
def scales_of(tensor: Tensor) -> Size:
    """Scales on one device of a format with blocks. What is split there has blocks of its own."""
    sides = BLOCKS[tensor.dtype]
    sizes = {d.name: d.size for d in tensor.dims}
    groups = (tensor.blocks or default_blocks(tuple(sizes)))[: len(sides)]
    grouped = {name for group in groups for name in group}
    alone = symbolic.product(size for name, size in sizes.items() if name not in grouped)
    parts = (
        symbolic.ceildiv(symbolic.product(sizes[name] for name in group), side)
        for group, side in zip(groups, sides, strict=True)
    )
    return alone * symbolic.product(parts)


def rows_of_matrix(tensor: TensorType) -> int:
    """How many dims are rows where nothing says so: all but the last."""
    return max(1, len(tensor.dims) - 1)


@dataclass(frozen=True, slots=True)
class ShardData:
    """What a `ShardType` says."""

    tensor: TensorType
    axes: tuple[str, ...]
    rows: int
    within: tuple[str, ...] = ()


@irdl_attr_definition
class ShardType(OwnData[ShardData], TypeAttribute):
    """One rank's part of a tensor that is stored split over `axes`, besides how ops need it.

        !dist.shard<!stg.tensor<[H/tp, E, D], fp32> over [dp]>

    The first `rows` dims, flattened, are divided evenly and padded: ceildiv(H*E/tp, dp) * D elements, as FSDP2 pads dim 0 of
    the tensor that a module stores. Not printed: all dims but the last. All of them, `rows 3` here: ceildiv(H*E/tp * D, dp), as
    DeepSpeed pads a flattened parameter. What `[dp] within [node]` is a part of was gathered over `node` too, and has the padding of both:
    ceildiv(rows, dp * node) * node.
    """

    name = "dist.shard"

    def verify(self) -> None:
        axes = [*self.tensor.split_axes, *self.axes, *self.within]
        if len(set(axes)) != len(axes):
            raise VerifyException(
                f"an axis is used twice in <{self.tensor.body}> over [{', '.join(self.axes)}]"
            )
        if not 0 < self.rows <= max(1, len(self.tensor.dims)):
            raise VerifyException(f"{self.rows} of the dims of <{self.tensor.body}> are rows")

    @staticmethod
    def of(
        tensor: TensorType, axes: Iterable[str], rows: int | None = None, within: Iterable[str] = ()
    ) -> ShardType:
        rows = rows_of_matrix(tensor) if rows is None else rows
        return ShardType(ShardData(tensor, tuple(axes), rows, tuple(within)))

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> ShardData:
        with parser.in_angle_brackets():
            tensor = parser.parse_type()
            if not isinstance(tensor, TensorType):
                parser.raise_error("expected a tensor")
            parser.parse_keyword("over")
            axes, rows = parse_names(parser), rows_of_matrix(tensor)
            if parser.parse_optional_keyword("rows") is not None:
                rows = parser.parse_integer()
            is_within = parser.parse_optional_keyword("within") is not None
            return ShardData(tensor, axes, rows, parse_names(parser) if is_within else ())

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string("<")
        printer.print_attribute(self.data.tensor)
        rows = f" rows {self.rows}" if self.rows != rows_of_matrix(self.tensor) else ""
        within = f" within [{', '.join(self.within)}]" if self.within else ""
        printer.print_string(f" over [{', '.join(self.data.axes)}]{rows}{within}>")

    @property
    def tensor(self) -> TensorType:
        return self.data.tensor

    @property
    def axes(self) -> tuple[str, ...]:
        return self.data.axes

    @property
    def rows(self) -> int:
        return self.data.rows

    @property
    def within(self) -> tuple[str, ...]:
        """The axes over which it was gathered, beside its own."""
        return self.data.within

    @property
    def num_elements(self) -> Size:
        """Elements that one rank stores, padding included."""
        dims = self.tensor.dims
        rows, row = elements_of(dims[: self.rows]), elements_of(dims[self.rows :])
        gathered = symbolic.product(map(symbolic.symbol, self.within))
        parts = gathered * symbolic.product(map(symbolic.symbol, self.axes))
        return symbolic.ceildiv(rows, parts) * gathered * row

    @property
    def num_bytes(self) -> Size:
        return bytes_of(self.num_elements, self.tensor.dtype)

    def with_form_of(self, other: TensorType) -> ShardType:
        """Of a tensor in the dtype of another one."""
        return ShardType.of(self.tensor.with_form_of(other), self.axes, self.rows, self.within)

    def with_dtype(self, dtype: str) -> ShardType:
        return ShardType.of(self.tensor.with_dtype(dtype), self.axes, self.rows, self.within)


@lru_cache(maxsize=1 << 14)
def elements_of(dims: tuple[Dim, ...]) -> Size:
    """Elements of dims on one device."""
    return symbolic.product(d.size for d in dims)


@dataclass(frozen=True, slots=True)
class Layers:
    """How many there are, and the number of the first in the model."""

    count: Size
    first: int


@dataclass(frozen=True, slots=True)
class Stack:
    """What a `StackType` says."""

    count: Size
    element: TensorType | ShardType | StackType
    first: int = 0


@irdl_attr_definition
class StackType(OwnData[Stack], TypeAttribute):
    """One value per iteration of a repeat that runs `count` times.

    `!stg.stack<"L - 1" from 1 x T>`: where they are layers of a model, `first` is the number of the first of them there.
    """

    name = "stg.stack"

    @staticmethod
    def of(count: Size, element: TensorType | ShardType | StackType, first: int = 0) -> StackType:
        return StackType(Stack(count, element, first))

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Stack:
        with parser.in_angle_brackets():
            count = parse_size(parser)
            first = parse_first(parser)
            parser.parse_keyword("x")
            element = parser.parse_type()
            if not isinstance(element, TensorType | ShardType | StackType):
                parser.raise_error("expected a tensor, a shard or a stack")
            return Stack(count, element, first)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f'<"{self.data.count}"{first_as_text(self.data.first)} x ')
        printer.print_attribute(self.data.element)
        printer.print_string(">")

    @property
    def count(self) -> Size:
        return self.data.count

    @property
    def first(self) -> int:
        return self.data.first

    @property
    def layers(self) -> Layers:
        """Which layers: stacks of the same go into one repeat."""
        return Layers(self.count, self.first)

    @property
    def element(self) -> TensorType | ShardType | StackType:
        return self.data.element

    @property
    def leaf(self) -> TensorType | ShardType:
        """The innermost element."""
        element = self.element
        while isinstance(element, StackType):
            element = element.element
        return element

    @property
    def tensor(self) -> TensorType:
        """The innermost tensor, whole if its shards are stacked."""
        return tensor_of(self.leaf)

    @property
    def total_count(self) -> Size:
        """Tensors in all, through nested stacks."""
        inner = self.element.total_count if isinstance(self.element, StackType) else symbolic.ONE
        return self.count * inner

    @property
    def num_bytes(self) -> Size:
        return self.total_count * self.leaf.num_bytes

    @property
    def num_elements(self) -> Size:
        return self.total_count * self.leaf.num_elements

    def with_tensor(self, tensor: TensorType | ShardType) -> StackType:
        """The same stack of another tensor, or of shards."""
        if isinstance(self.element, StackType):
            return self.with_element(self.element.with_tensor(tensor))
        return self.with_element(tensor)

    def with_element(self, element: TensorType | ShardType | StackType) -> StackType:
        """As many of something else."""
        return StackType.of(self.count, element, self.first)


ValueType = TensorType | ShardType | StackType


def parse_first(parser: AttrParser) -> int:
    """`from 1` behind a count: the number of the first layer."""
    is_said = parser.parse_optional_keyword("from") is not None
    return parser.parse_integer(allow_boolean=False, allow_negative=False) if is_said else 0


def first_as_text(first: int) -> str:
    return f" from {first}" if first else ""


def tensor_of(value_type: object) -> TensorType:
    """The tensor type, that of a stack's elements, or that which a shard is part of."""
    if type(value_type) is TensorType:
        return value_type
    assert isinstance(value_type, StackType | ShardType), value_type
    return value_type.tensor


def leaf_of(value_type: Attribute) -> Attribute:
    """The type itself, or that of a stack's innermost elements."""
    return value_type.leaf if isinstance(value_type, StackType) else value_type


def with_dtype(value_type: object, dtype: str) -> ValueType:
    """The same tensor, shard or stack of them in another dtype."""
    assert isinstance(value_type, ValueType)
    if isinstance(value_type, StackType):
        return value_type.with_tensor(value_type.leaf.with_dtype(dtype))
    return value_type.with_dtype(dtype)


def with_form_of(value_type: object, form: TensorType) -> ValueType:
    """The same tensor, shard or stack of them in the dtype of another tensor, with blocks of the same dims."""
    assert isinstance(value_type, ValueType)
    if isinstance(value_type, StackType):
        return value_type.with_tensor(value_type.leaf.with_form_of(form))
    return value_type.with_form_of(form)
