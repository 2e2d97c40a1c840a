"""`python -m tests.fidelity.configs_pack DIR [MORE]`: shorten oracles of configurations to what the judge reads, for the tests.

One line of JSON for each: its name, its configuration without what no importer reads, and what transformers makes of it. Of
configurations that differ in nothing that counts (quantised ones of the same model), the first stays. Those of published models that
are imported ship: `stagec/importing/configurations.json`, beside those of `MORE`, a folder of configurations alone (`model_configs` of PyPI's
aiconfigurator-core 0.12.0, Apache-2.0).
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stagec import importing
from stagec.diagnostics import CompileError
from stagec.importing import import_configuration
from tests.fidelity.configs import read

PACKED = Path(__file__).parent / "configs.jsonl.gz"
SHIPPED = Path(importing.__file__).parent / "configurations.json"
COPIES = ("-FP8", "-NVFP4", "-FP8-Static-PerTensor")
NOT_MODELS = ("-preset", "-form")
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
            t["name"].rsplit(".", 2)[0]
            for t in found["tensors"]
            if len(t["shape"]) == 3 and t["shape"][1] == 1
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


def published(folder: Path, names: str) -> dict[str, Path]:
    """Configurations by the names of their models, without class defaults."""
    found = {path.name.removesuffix(names): path for path in sorted(folder.glob(f"*{names}"))}
    return {
        name: path
        for name, path in found.items()
        if not name.startswith(("default--", "mlc--")) and not name.endswith(NOT_MODELS)
    }


def original(name: str) -> str:
    """What a quantised copy is a copy of, whoever made it."""
    model = name.partition("--")[2]
    for ending in (*COPIES, "-BF16"):
        model = model.removesuffix(ending)
    return model.casefold()


def shipped(folder: Path, more: Sequence[Path]) -> dict[str, Any]:
    """Configurations of published models that are imported and, where there is an oracle, have a class; quantised ones where there is no other."""
    candidates = published(folder / "configs", ".json")
    for each in more:
        candidates = {**published(each, "_config.json"), **candidates}
    found: dict[str, Any] = {}
    have: set[str] = set()
    for name, path in sorted(candidates.items(), key=lambda it: (it[0].endswith(COPIES), it[0])):
        if name.endswith(COPIES) and original(name) in have:
            continue
        config = json.loads(path.read_text("utf-8"))
        oracle = folder / "oracles" / path.name
        if oracle.exists() and json.loads(oracle.read_text("utf-8"))["status"] == "config only":
            continue
        try:
            import_configuration(config, name)
        except CompileError:
            continue
        have.add(original(name))
        found[name.replace("--", "/")] = shorter(config)
    return dict(sorted(found.items()))


def main(arguments: Sequence[str]) -> int:
    folder, *more = map(Path, arguments)
    lines = [
        f" {json.dumps(name)}: {json.dumps(config)}"
        for name, config in shipped(folder, more).items()
    ]
    SHIPPED.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    text = "\n".join(packed(folder)) + "\n"
    PACKED.write_bytes(gzip.compress(text.encode(), mtime=0))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
