"""`python -m tests.fidelity.configs_pack DIR`: shorten oracles of configurations to what the judge reads, for the tests.

One line of JSON for each: its name, its configuration without what no importer reads, and what transformers makes of it. Of
configurations that differ in nothing that counts (quantised ones of the same model), the first stays. Those of published models that
are imported ship: `stagec/importing/configurations.json`.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stagec import importing
from stagec.diagnostics import CompileError
from stagec.importing import import_configuration
from tests.fidelity.configs import read

PACKED = Path(__file__).parent / "configs.jsonl.gz"
SHIPPED = Path(importing.__file__).parent / "configurations.json"
COPIES = ("-FP8", "-NVFP4", "-FP8-Static-PerTensor", "-preset", "-form")
KEPT = ("status", "parameters", "published", "tied", "inputs", "flops_total_sparse")
DROPPED = (
    "quantization",
    "token_id",
    "transformers_version",
    "task_specific",
    "auto_map",
    "dropout",
    "pdrop",
    "_name_or_path",
)
DROPPED_EXACTLY = (
    "long_factor",
    "short_factor",
    "image_grid_pinpoints",
    "label2id",
    "torch_dtype",
    "dtype",
    "initializer_range",
)


def shorter(config: Any) -> Any:
    """Without what says nothing of the mathematics."""
    if not isinstance(config, dict):
        return config
    return {
        key: shorter(value)
        for key, value in config.items()
        if not any(word in key for word in DROPPED) and key not in DROPPED_EXACTLY
    }


def facts(oracle: Mapping[str, Any]) -> dict[str, Any]:
    """What the judge reads of an oracle."""
    found = {key: oracle[key] for key in KEPT if oracle.get(key)}
    for kind in ("tensors", "buffers"):
        found[kind] = [
            {key: entry[key] for key in ("name", "shape", "i", "j", "k") if key in entry}
            for entry in oracle.get(kind, ())
            if not entry["name"].endswith("inv_freq")
        ]
    if "flops" in oracle:
        mixers = {
            t["name"].rpartition(".conv1d")[0] for t in found["tensors"] if ".conv1d" in t["name"]
        }
        found["flops"] = {"total": oracle["flops"]["total"]}
        found["flops_own"] = [own for own in oracle["flops_own"] if own["name"] in mixers]
    kept = (oracle.get("kv_cache") or {}).get("self", {})
    if "bytes_per_token_all_layers" in kept:
        layers = [
            {"count": each["count"], "shapes": keys}
            for each in kept["layers"]
            if (keys := {n: s for n, s in each["shapes"].items() if n.endswith("_keys")})
        ]
        total = kept["bytes_per_token_all_layers"]
        found["kv_cache"] = {"self": {"bytes_per_token_all_layers": total, "layers": layers}}
    return found


def unpacked() -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Name, configuration and oracle of each."""
    return [json.loads(line) for line in gzip.decompress(PACKED.read_bytes()).splitlines()]


def packed(folder: Path) -> list[str]:
    lines: dict[str, str] = {}
    for path in sorted((folder / "configs").glob("*.json")):
        config, oracle = read(folder, path.stem)
        what = facts(oracle)
        if what.get("status") == "config only":
            what = {"status": "config only"}
        text = json.dumps([shorter(config), what], separators=(",", ":"))
        same = json.dumps(
            [shorter(config).get("model_type"), what.get("tensors"), what.get("flops")]
        )
        if what["status"] == "config only":
            same = path.stem
        lines.setdefault(same, f'["{path.stem}",{text[1:]}')
    return list(lines.values())


def shipped_names(folder: Path) -> Iterator[str]:
    """Published models that are imported: no class defaults, no quantised copies."""
    for path in sorted((folder / "configs").glob("*.json")):
        name = path.stem
        is_copy = name.startswith(("default--", "mlc--")) or name.endswith(COPIES)
        config, oracle = read(folder, name)
        if is_copy or oracle.get("status") == "config only":
            continue
        try:
            import_configuration(config, name)
        except CompileError:
            continue
        yield name


def main(arguments: Sequence[str]) -> int:
    folder = Path(arguments[0])
    lines = [
        f" {json.dumps(name.replace('--', '/'))}: {json.dumps(shorter(read(folder, name)[0]))}"
        for name in shipped_names(folder)
    ]
    SHIPPED.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    text = "\n".join(packed(folder)) + "\n"
    PACKED.write_bytes(gzip.compress(text.encode(), mtime=0))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
