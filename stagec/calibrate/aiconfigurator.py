"""The tables of NVIDIA's aiconfigurator (PyPI `aiconfigurator-core`, Apache-2.0), read as data.

`systems/data/SYSTEM/GROUP/FRAMEWORK/VERSION/NAME_perf.parquet`. Of several frameworks TensorRT-LLM's rows are primary, then SGLang's; of
several versions the last that has rows of a table. Experts' kernels of SGLang and vLLM are tables of their own
besides: engines choose very different ones. Nothing of the package is imported.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stagec.calibrate.folder import experts_kernel, unreadable
from stagec.calibrate.measured import LeftOut, Measured, Row, gathered
from stagec.devices.model import Key
from stagec.devices.rules import KINDS, cache_part
from stagec.diagnostics import suggestion
from stagec.dialects.types import bytes_per_element

Record = Mapping[str, Any]
FRAMEWORKS = ("trtllm", "sglang", "vllm")
DTYPES = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
ATTENTION_DTYPES = {"bfloat16": "bf16", "fp8": "fp8"}
"""The dtypes of products, and of the cache."""
ELEMENT_BYTES = {"half": 2, "int8": 1}


def is_package(path: Path) -> bool:
    return data_folder(path).is_dir()


def data_folder(path: Path) -> Path:
    return path / "systems" / "data"


def read_package(path: Path, system: str, left_out: Counter[LeftOut]) -> dict[Key, Measured]:
    folder = data_folder(path) / system
    if not folder.is_dir():
        known = sorted(each.name for each in data_folder(path).iterdir() if each.is_dir())
        help_ = suggestion(system, known)
        raise unreadable(f"`{path}` has no system `{system}`", path, help_)
    return gathered((row for name in READERS for row in rows_of(folder, name)), left_out)


def rows_of(folder: Path, name: str) -> Iterator[Row | LeftOut]:
    """The rows of one kind: those of the first framework that measured it, and those of others to compare with."""
    group, file, read = READERS[name]
    found: list[list[Path]] = []
    for framework in ("", *FRAMEWORKS):  # NCCL has no framework
        versions = [*(folder / group / framework).glob(f"*/{file}_perf.parquet")]
        if versions:
            found.append(sorted(versions, key=lambda p: version_key(p.parent.name), reverse=True))
    for number, versions in enumerate(found):
        role = "second" if number else "primary"
        last: dict[Key, Path] = {}
        for path in versions:
            for record in records(path):
                row = read(record, float(record["latency"]) * 1e3, role)
                if not isinstance(row, LeftOut) and last.setdefault(row[0], path) is not path:
                    row = "rows of releases before the last"
                yield row
                if isinstance(row, LeftOut):
                    continue
                if name == "experts" and number:
                    key, sizes, us, _ = row
                    yield (*key, path.parents[1].name), sizes, us, "primary"


def version_key(text: str) -> list[tuple[int, str]]:
    """`1.3.0rc20` after `1.3.0rc3`."""
    parts = text.replace("rc", ".rc.").replace("post", ".post.").split(".")
    return [(int(part) if part.isdigit() else -1, part) for part in parts]


def records(path: Path) -> list[Record]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        message = "aiconfigurator's files want the package pyarrow"
        raise unreadable(message, path, "`pip install pyarrow`") from None
    return parquet.read_table(path).to_pylist()


def other_dtype(name: str) -> LeftOut:
    return f"rows in `{name}`"


def gemm(r: Record, us: float, role: str) -> Row | LeftOut:
    dtype = DTYPES.get(r["gemm_dtype"])
    if dtype is None:
        return other_dtype(r["gemm_dtype"])
    return ("product", dtype), (float(r["m"]), float(r["n"]), float(r["k"])), us, role


def attention(kind: str) -> Callable[[Record, float, str], Row | LeftOut]:
    def read(r: Record, us: float, role: str) -> Row | LeftOut:
        dtype = ATTENTION_DTYPES.get(r["attn_dtype"])
        cache = ATTENTION_DTYPES.get(r["kv_cache_dtype"])
        if dtype is None or cache is None:
            return other_dtype(r["attn_dtype"] if dtype is None else r["kv_cache_dtype"])
        length = r["isl"] + r["step"] if kind == "decode_attention" else r["isl"]
        # Without a number the measurement says that all heads have keys of their own.
        kv_heads = r["num_key_value_heads"] or r["num_heads"]
        window = max(r.get("window_size") or 0, 0)
        shape = (r["batch_size"], length, r["num_heads"], kv_heads, r["head_dim"], window)
        sizes = tuple(map(float, (*shape, bytes_per_element(cache))))
        parts = (str(r["head_dim"]), *(("window",) if window else ()))
        return (kind, dtype, *parts, *cache_part(dtype, cache)), sizes, us, role

    return read


def latent(kind: str) -> Callable[[Record, float, str], Row | LeftOut]:
    def read(r: Record, us: float, role: str) -> Row | LeftOut:
        cache = ATTENTION_DTYPES.get(r["kv_cache_dtype"])
        if r["mla_dtype"] != "bfloat16" or cache is None:
            return other_dtype(r["kv_cache_dtype"] if cache is None else r["mla_dtype"])
        shape = (r["batch_size"], r["isl"] + r["step"], r["num_heads"], bytes_per_element(cache))
        sizes = tuple(map(float, shape[: len(KINDS[kind].sizes)]))
        return (kind, "bf16", *cache_part("bf16", cache)), sizes, us, role

    return read


def experts(r: Record, us: float, role: str) -> Row | LeftOut:
    dtype = DTYPES.get(r["moe_dtype"])
    if dtype is None:
        return other_dtype(r["moe_dtype"])
    names = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts")
    sizes = tuple(float(r[n]) for n in (*names, "moe_tp_size", "moe_ep_size"))
    return (
        ("experts", dtype, r["distribution"], *experts_kernel(r["kernel_source"])),
        sizes,
        us,
        role,
    )


def collective(r: Record, us: float, role: str) -> Row | LeftOut:
    kind = str({"alltoall": "all_to_all"}.get(r["op_name"], r["op_name"]))
    size = float(r["message_size"] * ELEMENT_BYTES[r["nccl_dtype"]])
    return ("collective", kind), (float(r["num_gpus"]), size), us, role


def quantize(what: str) -> Callable[[Record, float, str], Row | LeftOut]:
    def read(r: Record, us: float, role: str) -> Row | LeftOut:
        return ("quantize", what), (float(r["m"]), float(r["k"])), us, role

    return read


def delta_rule(r: Record, us: float, role: str) -> Row | LeftOut:
    """Kernels of flash-linear-attention as engines call them; what they keep is in fp32 (`--mamba-ssm-dtype` of SGLang)."""
    widths = float(r["head_k_dim"]), float(r["head_v_dim"])
    batch, heads = float(r["batch_size"]), float(r["num_v_heads"])
    if r["kernel_source"] == "chunk_gated_delta_rule":
        sizes = (batch, float(r["seq_len"]), float(r["num_k_heads"]), heads, *widths)
        return ("delta_rule", "bf16"), sizes, us, role
    if r["kernel_source"].startswith("fused_recurrent_gated_delta_rule"):
        return ("delta_step", "bf16"), (batch, heads, *widths, 4.0), us, role
    return f"rows of the kernel `{r['kernel_source']}`"


READERS: Mapping[str, tuple[str, str, Callable[[Record, float, str], Row | LeftOut]]] = {
    "gemm": ("gemm", "gemm", gemm),
    "attention": ("attention", "context_attention", attention("attention")),
    "decode": ("attention", "generation_attention", attention("decode_attention")),
    "latent": ("mla", "context_mla", latent("latent_attention")),
    "latent decode": ("mla", "generation_mla", latent("decode_latent_attention")),
    "delta rule": ("linear_attention", "gdn", delta_rule),
    "experts": ("moe", "moe", experts),
    "nccl": ("comm/nccl", "nccl", collective),
    "computescale": ("quantize", "computescale", quantize("computescale")),
    "scale_matrix": ("quantize", "scale_matrix", quantize("scale_matrix")),
}
