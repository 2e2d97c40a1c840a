"""Result types of convolutions, scans and bags of rows; see `inference`."""

from __future__ import annotations

from stagec.dialects.stg.base import InferError
from stagec.dialects.stg.inference import Options, Sizes, Types, need_dim, need_float, need_ids
from stagec.dialects.stg.lookup import bag_names, row_dim
from stagec.dialects.types import TensorType


def listed(tensor: TensorType) -> str:
    return f"[{', '.join(tensor.names)}]"


def infer_patch_embedding(types: Types, options: Options) -> tuple[TensorType, ...]:
    image, kernel = types
    need_float(types, 0, 1)
    if len(image.names) < 3:
        raise InferError(
            f"an image ends in channels, rows, columns, but is {listed(image)}", operand=0
        )
    if len(kernel.names) != 4:
        raise InferError(
            f"a kernel is channels, rows, columns, width, but is {listed(kernel)}", operand=1
        )
    channels = image.names[-3]
    if kernel.names[0] != channels:
        raise InferError(
            f"images have channels `{channels}`, the kernel `{kernel.names[0]}`", operand=1
        )
    rows, width, patches = image.names[:-3], kernel.names[-1], str(options["patches"])
    for name in kernel.names[1:]:
        if name in image.names:
            raise InferError(f"`{name}` is a dim of the image and of the kernel", operand=1)
    if patches in (*image.names, *kernel.names):
        raise InferError("the dim of patches is a new one", option="patches")
    return (TensorType.of([*rows, patches, width], image.dtype),)


def patch_sizes(types: Types, options: Options, sizes: Sizes) -> None:
    """Patches tile the image, and there are as many as fit."""
    image, kernel = types
    total = 1
    for whole, part in zip(image.names[-2:], kernel.names[1:3], strict=True):
        length, step = sizes[whole], sizes[part]
        if length is None or step is None:
            return
        if length % step:
            raise InferError(
                f"patches of `{part} = {step}` do not tile `{whole} = {length}`", operand=1
            )
        total *= length // step
    patches = str(options["patches"])
    if sizes[patches] not in (None, total):
        ratios = [f"({a} / {b})" for a, b in zip(image.names[-2:], kernel.names[1:3], strict=True)]
        raise InferError(
            f"there are {total} patches, not `{patches} = {sizes[patches]}`",
            option="patches",
            help=f"write `dim {patches} = {' * '.join(ratios)}`",
        )


def infer_causal_conv(types: Types, options: Options) -> tuple[TensorType, ...]:
    x, kernel = types
    need_float(types, 0, 1)
    over = str(options["over"])
    need_dim(x, over, "over")
    if not kernel.names:
        raise InferError("a filter has a width", operand=1, help="declare it as `[W, ...]`")
    width, *channels = kernel.names
    if width in x.names:
        raise InferError(
            f"`{width}` is a dim of what is filtered: the first dim of a filter is its width",
            operand=1,
        )
    for name in channels:
        if name not in x.names or name == over:
            raise InferError(
                f"`{name}` is no channel of {listed(x)}",
                operand=1,
                notes=["a filter is its width, then channels of what is filtered"],
            )
    return (x,)


def infer_ssd_scan(types: Types, options: Options) -> tuple[TensorType, ...]:
    x, dt, a, b, c = types
    need_float(types, 0, 1, 2, 3, 4)
    if len(x.names) < 3:
        raise InferError(f"`x` ends in sequence, heads, width, but is {listed(x)}", operand=0)
    *rows, heads, _ = x.names
    for position, operand, names in ((1, dt, [*rows, heads]), (2, a, [heads])):
        if list(operand.names) != names:
            raise InferError(
                f"this is [{', '.join(names)}] for `x` of {listed(x)}", operand=position
            )
    added = b.names[len(rows) :]
    if list(b.names[: len(rows)]) != rows or len(added) not in (1, 2):
        raise InferError(
            f"this is [{', '.join(rows)}], groups of heads if there are several, and the state's width",
            operand=3,
        )
    if added[-1] in x.names or (len(added) == 2 and added[0] in (*rows, x.names[-1])):
        raise InferError("groups and the state's width are dims of their own", operand=3)
    if c.names != b.names:
        raise InferError(f"`b` is {listed(b)}, `c` is {listed(c)}", operand=4)
    return (x,)


def scan_sizes(types: Types, options: Options, sizes: Sizes) -> None:
    """Each group is of as many heads."""
    x, b = types[0], types[3]
    if len(b.names) < len(x.names):
        return
    heads, groups = x.names[-2], b.names[-2]
    total, number = sizes[heads], sizes[groups]
    if total is not None and number is not None and total % number:
        raise InferError(f"`{groups} = {number}` does not divide `{heads} = {total}`", operand=3)


def infer_embedding_bag(types: Types, options: Options) -> tuple[TensorType, ...]:
    ids, table = types
    need_ids(types, 0)
    need_float(types, 1)
    over, to = str(options["over"]), options.get("to")
    need_dim(ids, over, "over")
    if over in table.names:
        raise InferError(f"`{over}` is a dim of the table, too", option="over")
    rows = row_dim(ids.names, table.names)
    if rows is None or table.names[-1] in (rows, *ids.names):
        raise InferError(
            "a table has rows, and a dim along each row that the numbers have not",
            operand=1,
            help="declare it as `[R, D]`, or `[T, R, D]` for several tables",
        )
    if to is not None and str(to) in (*ids.names, *table.names):
        raise InferError("the dim of the bags is a new one", option="to")
    names = bag_names(ids.names, table.names, over, str(to) if to is not None else None)
    return (TensorType.of(names, table.dtype),)
