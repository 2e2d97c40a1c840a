"""`python -m tests.fidelity.serving FILE... [--every N]`: estimated times of serving beside measured ones.

Each row of the form of `oracles/times/serving.csv` is one engine under a steady load: `concurrency` requests, each of so many tokens in and out.
Model and plan are written in the language, and priced on the device file that ships, without a parameter of their own.

In a steady state, while one request makes its O tokens, each of the C requests beside it is prefilled once. So the time per output token is that
of an iteration which decodes C sequences half-way through their outputs, and C / O of the time that prefilling one prompt adds. The time to the
first token is judged where a prompt comes alone (C = 1): with others it is mostly waiting, about which the rows say nothing.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from stagec.driver import compile_text
from stagec.estimate.step import step_summary
from tests.fidelity.serving_models import has_experts, text_of_model
from tests.fidelity.times import ranks

TPOT, TTFT = "time per output token", "time to first token"
BARS = {
    (TPOT, "dense"): 0.12,
    (TPOT, "experts"): 0.20,
    (TTFT, "dense"): 0.15,
    (TTFT, "experts"): 0.15,
}
"""Median absolute errors at most: issue 17."""
FAR = 0.25


@dataclass(frozen=True)
class Row:
    """A measurement, and the plan to compare with it. Times in ms."""

    name: str
    source: str
    group: str
    kind: str
    model: str
    engine: str
    device: str
    products: str
    cache: str
    tp: int
    attention_dp: int
    ep: int
    inputs: int
    outputs: int
    concurrency: int
    tpot: float | None
    ttft: float | None
    why_not: str = ""


@dataclass(frozen=True)
class Found:
    row: Row
    tpot: float = 0.0
    ttft: float = 0.0
    why_not: str = ""

    def errors(self) -> Iterator[tuple[str, float, float]]:
        """What is judged, measured and estimated."""
        if self.row.tpot:
            yield TPOT, self.row.tpot, self.tpot
        if self.row.ttft and self.row.concurrency == 1:
            yield TTFT, self.row.ttft, self.ttft


DEVICES = {"h100_sxm": "h100", "h200_sxm": "h200", "b200_sxm": "b200", "a100_sxm": "a100"}
PRODUCTS = {"fp8": "fp8", "fp8_block": "fp8_1x128", "nvfp4": "fp4", "": "bf16"}
WIDE_CACHES = (("sglang", "deepseek-ai", "h200"), ("vllm", "MiniMaxAI", "h100"))
"""Whose scripts leave the cache in the dtype of the model."""
SHORTEST = 0.8
"""InferenceX draws the lengths of prompts and outputs evenly from here to 1 of what a row says (`RANDOM_RANGE_RATIO`, `sample_uniform`)."""
IN_BLOCKS = ("deepseek-ai/", "MiniMaxAI/")
"""Whose fp8 checkpoints have a scale for each block of 128 x 128 (`quantization_config.weight_block_size`), whatever the table calls them."""


def rows_of(path: Path) -> Iterator[Row]:
    with path.open() as file:
        for number, cells in enumerate(csv.DictReader(file), start=2):
            yield row_of(f"{path.name}:{number}", cells)


def number(text: str) -> float | None:
    return float(text) if text else None


def whole(text: str) -> int:
    return int(text or 1)


def row_of(name: str, cells: Mapping[str, str]) -> Row:
    why_not = ""
    if cells["gpu"] not in DEVICES:
        why_not = f"no device file for {cells['gpu']}"
    elif whole(cells["pp"]) > 1:
        why_not = "pipelines of engines"
    tp, attention_dp, ep = layout(cells)
    return Row(
        name=name,
        source=" ".join((cells["source"], cells["engine"])),
        group="|".join(
            (
                cells["group"],
                cells["gpu"],
                cells["gemm_quant"],
                str(tp),
                cells["input_tokens"],
                cells["output_tokens"],
            )
        ),
        kind="experts" if cells["moe_quant"] or has_experts(cells["model"]) else "dense",
        model=cells["model"],
        engine=cells["engine"] if cells["engine"] in ("vllm", "sglang", "trtllm") else "nccl",
        device=DEVICES.get(cells["gpu"], ""),
        products=products_of(cells["model"], cells["gemm_quant"]),
        cache=cache_of(cells),
        tp=tp,
        attention_dp=attention_dp,
        ep=ep,
        inputs=length(cells, "input_tokens"),
        outputs=length(cells, "output_tokens"),
        concurrency=whole(cells["concurrency"])
        if cells["concurrency"]
        else whole(cells["batch"]) * whole(cells["attention_dp"]),
        tpot=number(cells["tpot_ms"]),
        ttft=number(cells["ttft_ms"]),
        why_not=why_not,
    )


def layout(cells: Mapping[str, str]) -> tuple[int, int, int]:
    """Over how many ranks attention is split, how many replicas of it there are, and over how many ranks experts are dealt out.

    InferenceX starts engines with `TP` and `EP_SIZE` on the GPUs of a node, and `DP_ATTENTION` (`benchmarks/single_node/fixed_seq_len`): `TP` ranks have both
    attention and experts. Where `EP_SIZE` is more than 1 the table multiplies the two, as if experts were split in two ways, or attention was there again for
    each: rows of `tp` 16, `moe_tp` 4, `ep` 4 are to four digits those of `tp` 4, `ep` 4. So the ranks are what it says of one of the two. Attention is
    there for each rank where TensorRT-LLM's rows say several; of vLLM's scripts that of MiniMax in nvfp4 alone knows `DP_ATTENTION`, from 256 requests of
    1,024 tokens on (`configs/deprecated/nvidia-minimaxm2.5-m2.7-master.yaml`).
    """
    tp, replicas, cut, ep = (
        whole(cells[name] or "1") for name in ("tp", "attention_dp", "moe_tp", "ep")
    )
    if ep == 1 or max(cut, replicas) == 1:
        return tp, replicas, ep
    ranks = cut if cut > 1 else tp
    is_replicated = replicas > 1
    if cells["engine"] == "vllm":
        lengths = cells["input_tokens"], cells["output_tokens"]
        asked = cells["gemm_quant"] == "nvfp4" and lengths == ("1024", "1024")
        is_replicated = asked and int(cells["concurrency"]) >= 256
    return (1, ranks, ranks) if is_replicated else (ranks, 1, ranks)


def without_copies(rows: Iterable[Row]) -> list[Row]:
    """Each measurement once: the table has some under two layouts, and some again with fewer digits."""
    found: dict[object, Row] = {}
    for row in rows:
        same = replace(row, name="", source="", group="", tpot=None, ttft=None)
        found.setdefault((same, round(row.tpot or 0, 1), round(row.ttft or 0)), row)
    return list(found.values())


def length(cells: Mapping[str, str], which: str) -> int:
    """On average."""
    longest = int(cells[which])
    return round(longest * (1 + SHORTEST) / 2) if cells["moe_quant"] else longest


def products_of(model: str, quantization: str) -> str:
    in_blocks = quantization == "fp8" and model.startswith(IN_BLOCKS)
    return PRODUCTS["fp8_block" if in_blocks else quantization]


def cache_of(cells: Mapping[str, str]) -> str:
    """What the cache holds in InferenceX's scripts, which measured the models with experts (`benchmarks/single_node/fixed_seq_len` in
    SemiAnalysisAI/InferenceX@843c6254: `--kv-cache-dtype fp8`, `kv_cache_config: dtype: fp8`)."""
    script = cells["engine"], cells["model"].partition("/")[0], DEVICES.get(cells["gpu"], "")
    return "fp8" if cells["moe_quant"] and script not in WIDE_CACHES else "bf16"


def estimated(row: Row) -> Found:
    if row.why_not:
        return Found(row, why_not=row.why_not)
    try:
        decode = step_ms(row, f"decode {row.concurrency} at {row.inputs + row.outputs // 2}")
        prefill = step_ms(row, f"prefill {row.attention_dp} x {row.inputs}")
    except Exception as error:  # One row is no reason to leave out the others.
        first = str(error).strip().split("\n")[0]
        return Found(row, why_not=f"{type(error).__name__}: {first}")
    beside = (row.concurrency - row.attention_dp) / row.attention_dp / row.outputs
    return Found(row, decode + beside * prefill, prefill)


def step_ms(row: Row, sequences: str) -> float:
    return 1e3 * step_summary(compile_text(text_of_model(row, sequences))).step_s


def judged(found: Iterable[Found]) -> bool:
    """Print each source's figures; whether all bars are met."""
    kinds: dict[tuple[str, str, str], list[tuple[Found, float, float]]] = defaultdict(list)
    for each in found:
        for what, measured, ours in each.errors():
            kinds[
                what, each.row.kind, f"{each.row.source}, {each.row.model}, {each.row.device}"
            ].append((each, measured, ours))
    all_met = True
    for (what, kind), bar in BARS.items():
        rows = [row for (w, k, _), rows in kinds.items() if (w, k) == (what, kind) for row in rows]
        if not rows:
            continue
        for (w, k, source), some in sorted(kinds.items()):
            if (w, k) == (what, kind):
                print(f"  {figures(some)}  {source}")
        errors = [abs(ours / measured - 1) for _, measured, ours in rows]
        met = float(np.median(errors)) <= bar
        all_met = all_met and met
        print(f"{what}, {kind}: {figures(rows)}, bar {bar:.0%}: {'met' if met else 'MISSED'}")
    return all_met


def figures(rows: list[tuple[Found, float, float]]) -> str:
    errors = np.array([ours / measured - 1 for _, measured, ours in rows])
    groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for found, measured, ours in rows:
        groups[found.row.group].append((measured, ours))
    correlations = [
        float(np.corrcoef(ranks([m for m, _ in each]), ranks([o for _, o in each]))[0, 1])
        for each in groups.values()
        if len(each) >= 5
    ]
    rank = f"{np.median(correlations):.2f} of {len(correlations)}" if correlations else "-"
    median, bias = np.median(np.abs(errors)), np.median(errors)
    return f"{len(rows):4} rows, median error {median:6.1%}, bias {bias:+6.1%}, 90th {np.quantile(np.abs(errors), 0.9):6.1%}, rank {rank}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fidelity.serving", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--every", type=int, default=1, help="only each N-th row")
    parser.add_argument("--kind", choices=("dense", "experts"), help="only these models")
    parser.add_argument("--show", action="store_true", help="list each row")
    options = parser.parse_args(arguments)
    rows = without_copies([row for path in options.files for row in rows_of(path)])
    rows = [row for row in rows if options.kind in (None, row.kind)][:: options.every]
    with ProcessPoolExecutor(2) as pool:
        found = list(pool.map(estimated, rows, chunksize=4))
    unsaid = [each for each in found if each.why_not]
    reasons: dict[str, int] = defaultdict(int)
    for each in unsaid:
        reasons[f"{each.row.model}: {each.why_not}"] += 1
    for reason, count in sorted(reasons.items()):
        print(f"not judged: {count:4} rows, {reason}")
    if options.show:
        for each in found:
            for what, measured, ours in each.errors() if not each.why_not else ():
                r = each.row
                load = f"tp {r.tp} dp {r.attention_dp} C {r.concurrency} {r.inputs}/{r.outputs}"
                error = f"{measured:.2f} ms, ours {ours:.2f} ({ours / measured - 1:+.0%})"
                print(f"{r.name} {r.model} {r.device} {load} {what}: {error}")
    return 0 if judged(each for each in found if not each.why_not) else 1


if __name__ == "__main__":
    sys.exit(main())
