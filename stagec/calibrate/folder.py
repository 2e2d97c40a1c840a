"""A folder of measured operators as CSV files, one for each kind.

    gemm.csv                    role dtype m n k ms
    attention_context.csv       role dtype cache batch seq heads kv_heads head_dim window ms
    attention_training.csv      role dtype batch seq heads kv_heads head_dim value_dim window pass kernel ms (`forward` or `backward`; `flash2` or empty)
    attention_generation.csv    role dtype cache batch context heads kv_heads head_dim window ms
    mla_context.csv             role cache batch context heads ms     (mla_generation.csv likewise)
    moe.csv                     role dtype tokens hidden inner topk experts tp ep distribution ms
    collectives_one_node.csv    role library collective gpus bytes ms
    quantize.csv                role m k op ms                        memory.csv: bytes ms
    deepep.csv                  mode phase nodes hidden tokens topk experts ms

Further columns are left alone. Without `role` all rows are `primary`; without `dtype` attention multiplies in bf16, and without `cache`, the dtype of keys and
values as they are read, in that of products. Files that are not there are kinds that were not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from stagec.calibrate.measured import Measured, Row, gathered
from stagec.devices.model import DTYPE_UNITS, UNITS, Key
from stagec.devices.rules import cache_part
from stagec.diagnostics import CompileError, refused
from stagec.dialects.types import FLOATS, bytes_per_element
from stagec.reading import parse_csv, read_whole_text

MOST_BYTES = 1 << 30
MAY_BE_ZERO = ("window", "ms")
LEAST, MOST = 2**-32, 2**64
"""The bounds of sizes and times that are measured."""
MOST_SHOWN = 40
Cells = Mapping[str, str]


def read_folder(folder: Path) -> dict[Key, Measured]:
    """All tables of a folder. E0418 for a row that says too little."""
    if not any((folder / name).is_file() for name in FILES):
        raise unreadable(f"`{folder}` has none of {', '.join(FILES)}")
    return gathered(row for name in FILES for row in read_file(folder / name, *FILES[name]))


def unreadable(message: str) -> CompileError:
    return refused("E0418", message)


def read_file(path: Path, *readers: Callable[[Cells], Row | None]) -> Iterator[Row]:
    if not path.is_file():
        return
    try:
        rows = [row for row in parse_csv(read_whole_text(path, MOST_BYTES)) if row[1]]
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise unreadable(f"cannot read `{path.name}`: {reason}") from None
    names = rows[0][1] if rows else []
    for number, words in rows[1:]:
        try:
            cells = dict(zip(names, words, strict=False))
            found = [reader(cells) for reader in readers]
        except (KeyError, ValueError, TypeError) as error:
            what = f"no `{error.args[0]}`" if isinstance(error, KeyError) else str(error)
            raise unreadable(f"`{path.name}`, line {number}: {what}") from None
        yield from (row for row in found if row is not None)


def numbers(cells: Cells, *names: str) -> tuple[float, ...]:
    return tuple(number(cells, name) for name in names)


def number(cells: Cells, name: str) -> float:
    """A ValueError unless it is a size, or a time, that something can have."""
    found = float(cells[name])
    least = 0 if name in MAY_BE_ZERO else LEAST
    if not least <= found <= MOST:
        raise ValueError(f"`{name}` is `{cells[name][:MOST_SHOWN]}`")
    return found


def us(cells: Cells) -> float:
    return 1e3 * number(cells, "ms")


def role(cells: Cells) -> str:
    return cells.get("role") or "primary"


def dtype_of(cells: Cells) -> str:
    """What is multiplied in; a ValueError for what no product is."""
    found = cells["dtype"]
    if found not in (*UNITS, *DTYPE_UNITS):
        raise ValueError(f"`dtype` is `{found[:MOST_SHOWN]}`, which no product is computed in")
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
    """What a cache holds; a ValueError for what is no dtype of numbers."""
    found = cells.get("cache") or cells.get("dtype") or "bf16"
    if found not in FLOATS:
        raise ValueError(f"`cache` is `{found[:MOST_SHOWN]}`")
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
        raise ValueError(f"`pass` is `{cells['pass'][:MOST_SHOWN]}`, not `forward` or `backward`")
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


def added(device: str) -> Callable[[Cells], Row | None]:
    """Vidur's `layer_ops.csv` (a column `gpu`): adding two bf16 tensors, where 1 µs of resolution is a tenth at most."""

    def read(cells: Cells) -> Row | None:
        if cells["gpu"] != device or cells["op"] != "add" or us(cells) < 10:
            return None
        tokens, hidden = numbers(cells, "tokens", "hidden")
        return ("memory",), (3 * 2 * tokens * hidden,), us(cells), "primary"

    return read


def memory(cells: Cells) -> Row:
    return ("memory",), numbers(cells, "bytes"), us(cells), role(cells)


def deepep(cells: Cells) -> Row:
    sizes = numbers(cells, "nodes", "hidden", "tokens", "topk", "experts")
    return ("exchange", cells["phase"], cells["mode"]), sizes, us(cells), role(cells)


FILES: Mapping[str, tuple[Callable[[Cells], Row | None], ...]] = {
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
