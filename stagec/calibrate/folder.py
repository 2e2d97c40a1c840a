"""A folder of measured operators as CSV files, one for each kind, with the columns of `COLUMNS`.

Further columns are left alone. Without `role` all rows are `primary`; without `dtype` attention multiplies in bf16, and without `cache`, the dtype of keys and
values as they are read, in that of products. `pass` is `forward` or `backward`, `kernel` is `flash2` or empty. Files that are not there are kinds that were not
measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from stagec.calibrate.measured import LeftOut, Measured, Row, gathered
from stagec.devices.model import DTYPE_UNITS, UNITS, Key
from stagec.devices.rules import cache_part
from stagec.diagnostics import CompileError, Span, quoted, refused, suggestion
from stagec.dialects.types import FLOATS, bytes_per_element
from stagec.reading import parse_csv, read_whole_text
from stagec.text_places import csv_place

MOST_BYTES = 1 << 30
MAY_BE_ZERO = ("window", "ms")
ROLES = ("primary", "second")
LEAST, MOST = 2**-32, 2**64
"""The bounds of sizes and times that are measured."""
MOST_SHOWN = 40
Cells = Mapping[str, str]
Reader = Callable[[Cells], "Row | LeftOut | None"]
"""Nothing for a row that another reader of the same file reads."""


def read_folder(folder: Path, left_out: Counter[LeftOut]) -> dict[Key, Measured]:
    """All tables of a folder. E0418 for a row that says too little."""
    if not any((folder / name).is_file() for name in FILES):
        traces = sorted(folder.glob("*.et"))
        help_ = "`stagec calibrate --help` lists the tables that a folder may have"
        raise unreadable(
            f"`{folder}` has no table",
            folder,
            f"name a trace: `{traces[0]}`" if traces else help_,
        )
    rows = (row for name in FILES for row in read_file(folder / name, *FILES[name]))
    return gathered(rows, left_out)


def unreadable(message: str, path: Path | str, help: str) -> CompileError:
    return refused("E0418", message, origin=str(path), help=help)


class WrongCell(ValueError):
    """What a row has in a column is not what can be measured there."""

    def __init__(self, column: str, message: str, help: str) -> None:
        super().__init__(message)
        self.column, self.help = column, help


def read_file(path: Path, *readers: Reader) -> Iterator[Row | LeftOut]:
    if not path.is_file():
        return
    try:
        text = read_whole_text(path, MOST_BYTES).removeprefix("\ufeff")
        rows = [row for row in parse_csv(text) if row[1]]
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        help_ = "write a line of names, and one for each that was measured, with commas between"
        raise unreadable(f"cannot read `{path.name}`: {reason}", path, help_) from None
    if not rows:
        return
    first, head = rows[0][0], [name.strip() for name in rows[0][1]]

    def wrong(line: int, message: str, column: str = "", help: str = "") -> CompileError:
        """A mistake in a line, and in its cell of a column if one is named."""
        span = Span.whole_line(str(path), line)
        if column in head:
            span = csv_place(text, str(path), line, head.index(column))
        return refused("E0418", message, span, help=help, sources={str(path): text})

    twice = next((name for name in head if name and head.count(name) > 1), None)
    if twice is not None:
        raise wrong(first, f"two columns are `{twice}`", help="leave out one")
    for line, words in rows[1:]:
        if len(words) != len(head):
            message = f"this row has {counted(len(words), 'cell')}, and the head {len(head)}"
            raise wrong(line, message, help="write one for each column, with commas between them")
        cells = {name: word.strip() for name, word in zip(head, words, strict=True)}
        try:
            found = [row for reader in readers if (row := reader(cells)) is not None]
        except WrongCell as error:
            raise wrong(line, str(error), error.column, error.help) from None
        except KeyError as error:
            name = str(error.args[0])
            help_ = (
                f"it needs {quoted(COLUMNS[path.name][0].split())}" if path.name in COLUMNS else ""
            )
            raise wrong(first, f"`{path.name}` has no column `{name}`", help=help_) from None
        if any(not isinstance(row, LeftOut) and not row[2] for row in found):
            yield f"rows of `{path.name}` whose `ms` is 0, as if a clock had missed them"
        else:
            yield from found


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def numbers(cells: Cells, *names: str) -> tuple[float, ...]:
    return tuple(number(cells, name) for name in names)


def number(cells: Cells, name: str) -> float:
    """A `WrongCell` unless it is a size, or a time, that something can have."""
    written = cells[name]
    try:
        found = float(written)
    except ValueError:
        found = math.nan
    least = 0 if name in MAY_BE_ZERO else LEAST
    if not least <= found <= MOST or (name != "ms" and found != int(found)):
        what = "time" if name == "ms" else "whole number of that size"
        message = f"`{name}` is `{written[:MOST_SHOWN]}`, and no {what}"
        help_ = (
            "write milliseconds"
            if name == "ms"
            else f"write a whole number from {int(least > 0)} on"
        )
        raise WrongCell(name, message, help_)
    return found


def us(cells: Cells) -> float:
    return 1e3 * number(cells, "ms")


def role(cells: Cells) -> str:
    found = cells.get("role") or "primary"
    if found not in ROLES:
        message = f"`role` is `{found[:MOST_SHOWN]}`, not {quoted(ROLES, 'or')}"
        raise WrongCell("role", message, "write one of these, or nothing for `primary`")
    return found


def dtype_of(cells: Cells) -> str:
    """What is multiplied in; a `WrongCell` for what no product is."""
    found = cells["dtype"]
    if found not in (*UNITS, *DTYPE_UNITS):
        message = f"`dtype` is `{found[:MOST_SHOWN]}`, which no product is computed in"
        raise WrongCell("dtype", message, suggestion(found, (*UNITS, *DTYPE_UNITS)))
    return found


def gemm(cells: Cells) -> Row:
    return ("product", dtype_of(cells)), numbers(cells, "m", "n", "k"), us(cells), role(cells)


def attention_key(kind: str, cells: Cells) -> Key:
    """A table for each width of heads and dtype of a cache; those with a window are apart."""
    windowed = ("window",) if number(cells, "window") else ()
    dtype = dtype_of(cells) if cells.get("dtype") else "bf16"
    width = str(int(number(cells, "head_dim")))
    return (kind, dtype, width, *windowed, *cache_part(dtype, cache_dtype(cells)))


def cache_dtype(cells: Cells) -> str:
    """What a cache holds; a `WrongCell` for what is no dtype of numbers."""
    found = cells.get("cache") or cells.get("dtype") or "bf16"
    if found not in FLOATS:
        column = "cache" if cells.get("cache") else "dtype"
        message = f"`{column}` is `{found[:MOST_SHOWN]}`, which no cache holds"
        raise WrongCell(column, message, suggestion(found, FLOATS))
    return found


def attention_context(cells: Cells) -> Row:
    sizes = numbers(cells, "batch", "seq", "heads", "kv_heads", "head_dim", "window")
    wide = bytes_per_element(cache_dtype(cells))
    return attention_key("attention", cells), (*sizes, wide), us(cells), role(cells)


def attention_training(cells: Cells) -> Row:
    """A causal kernel of training: as long as it would take with values as wide as keys.

    A forward pass multiplies once along queries' width and once along values', a backward pass three times and twice (FlashAttention-2, algorithm 2).
    """
    known = {
        **cells,
        "window": cells.get("window") or "0",
        "value_dim": cells.get("value_dim") or cells["head_dim"],
    }
    sizes = numbers(known, "batch", "seq", "heads", "kv_heads", "head_dim", "window")
    along = {"forward": (1, 1), "backward": (3, 2)}.get(cells["pass"])
    if along is None:
        message = f"`pass` is `{cells['pass'][:MOST_SHOWN]}`, not `forward` or `backward`"
        raise WrongCell("pass", message, "write one of the two")
    width, of_values = numbers(known, "head_dim", "value_dim")
    share = sum(along) * width / (along[0] * width + along[1] * of_values)
    whose = (cells["kernel"],) if cells.get("kernel") else ()
    key = (*attention_key("attention", known), f"{cells['pass']} pass", *whose)
    wide = bytes_per_element(cache_dtype(known))
    return key, (*sizes, wide), us(cells) * share, role(cells)


def attention_generation(cells: Cells) -> Row:
    sizes = numbers(cells, "batch", "context", "heads", "kv_heads", "head_dim", "window")
    wide = bytes_per_element(cache_dtype(cells))
    return attention_key("decode_attention", cells), (*sizes, wide), us(cells), role(cells)


def mla_context(cells: Cells) -> Row:
    sizes = numbers(cells, "batch", "context", "heads")
    key = ("latent_attention", "bf16", *cache_part("bf16", cache_dtype(cells)))
    return key, sizes, us(cells), role(cells)


def mla_generation(cells: Cells) -> Row:
    sizes = numbers(cells, "batch", "context", "heads")
    cache = cache_dtype(cells)
    key = ("decode_latent_attention", "bf16", *cache_part("bf16", cache))
    return key, (*sizes, bytes_per_element(cache)), us(cells), role(cells)


def moe(cells: Cells) -> Row:
    """The row of a measurement of experts, by dtype, by how tokens are dealt out, and by kernel."""
    sizes = numbers(cells, "tokens", "hidden", "inner", "topk", "experts", "tp", "ep")
    parts = (dtype_of(cells), cells.get("distribution") or "balanced")
    return (
        ("experts", *parts, *experts_kernel(cells.get("kernel_source", ""))),
        sizes,
        us(cells),
        role(cells),
    )


def experts_kernel(name: str) -> tuple[str, ...]:
    """What tables of experts are apart by: those that are not gated do one product less; TensorRT-LLM has CUTLASS's products and, in nvfp4 on Blackwell, its
    own, which aiconfigurator's collector measures (`moe_backend = TRTLLM`) under the name `min_latency`.
    """
    if "nongated" in name:
        return ("plain",)
    return ("trtllm",) if "min_latency" in name else ()


def collective(cells: Cells) -> Row:
    """An engine's own all-reduce is another table than the library's."""
    own = () if cells.get("library", "nccl") == "nccl" else (cells["library"],)
    kind = {"alltoall": "all_to_all"}.get(cells["collective"], cells["collective"])
    sizes = numbers(cells, "gpus", "bytes")
    found = "primary" if own else role(cells)
    return ("collective", kind, *own), sizes, us(cells), found


def quantize(cells: Cells) -> Row:
    """The scale of a bf16 matrix alone reads it twice; with the conversion it is read and written besides."""
    m, k = numbers(cells, "m", "k")
    return ("quantize", cells.get("op") or "scale_matrix"), (m, k), us(cells), role(cells)


def converted(cells: Cells) -> Row | None:
    """bf16 in and fp8 out, elementwise, with a scale that is known: what a memory-bound kernel does."""
    if cells.get("op") != "scale_matrix":
        return None
    m, k = numbers(cells, "m", "k")
    return ("memory",), (3 * m * k,), us(cells), role(cells)


def added(device: str) -> Reader:
    """Vidur's `layer_ops.csv` (a column `gpu`): adding two bf16 tensors, where 1 µs of resolution is a tenth at most."""

    def read(cells: Cells) -> Row | LeftOut:
        if cells["gpu"] != device:
            return f"rows whose `gpu` is not `{device}`"
        if cells["op"] != "add":
            return "rows whose `op` is not `add`"
        if us(cells) < 10:
            return "rows shorter than 10 µs"
        tokens, hidden = numbers(cells, "tokens", "hidden")
        return ("memory",), (3 * 2 * tokens * hidden,), us(cells), "primary"

    return read


def memory(cells: Cells) -> Row:
    return ("memory",), numbers(cells, "bytes"), us(cells), role(cells)


def deepep(cells: Cells) -> Row:
    sizes = numbers(cells, "nodes", "hidden", "tokens", "topk", "experts")
    return ("exchange", cells["phase"], cells["mode"]), sizes, us(cells), role(cells)


COLUMNS: Mapping[str, tuple[str, str]] = {
    "gemm.csv": ("dtype m n k ms", "role"),
    "attention_context.csv": (
        "batch seq heads kv_heads head_dim window ms",
        "role dtype cache",
    ),
    "attention_training.csv": (
        "batch seq heads kv_heads head_dim pass ms",
        "role dtype cache value_dim window kernel",
    ),
    "attention_generation.csv": (
        "batch context heads kv_heads head_dim window ms",
        "role dtype cache",
    ),
    "mla_context.csv": ("batch context heads ms", "role cache"),
    "mla_generation.csv": ("batch context heads ms", "role cache"),
    "moe.csv": (
        "dtype tokens hidden inner topk experts tp ep ms",
        "role distribution kernel_source",
    ),
    "collectives_one_node.csv": ("collective gpus bytes ms", "role library"),
    "quantize.csv": ("m k ms", "role op"),
    "memory.csv": ("bytes ms", "role"),
    "deepep.csv": ("mode phase nodes hidden tokens topk experts ms", "role"),
}
"""For each file the columns that it needs, and those that it may have."""
FILES: Mapping[str, tuple[Reader, ...]] = {
    "gemm.csv": (gemm,),
    "attention_context.csv": (attention_context,),
    "attention_training.csv": (attention_training,),
    "attention_generation.csv": (attention_generation,),
    "mla_context.csv": (mla_context,),
    "mla_generation.csv": (mla_generation,),
    "moe.csv": (moe,),
    "collectives_one_node.csv": (collective,),
    "quantize.csv": (quantize, converted),
    "memory.csv": (memory,),
    "deepep.csv": (deepep,),
}
