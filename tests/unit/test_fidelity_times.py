"""The tools that hold step times against measured ones."""

from __future__ import annotations

import csv
import random
import re
from pathlib import Path

import numpy as np
import pytest

from stagec.devices import load, named
from stagec.driver import compile_text
from stagec.estimate.step import step_summary
from tests.fidelity import submitted
from tests.fidelity.bridge_models import RECIPES
from tests.fidelity.halves import SPEEDS, calibrated, device_text, seconds
from tests.fidelity.time_rows import Timed, rows_of
from tests.fidelity.times import Found, rank_correlation, ranks
from tests.unit.seldom import some

RUNS = Path(__file__).parents[1] / "fidelity" / "simumax_b200.csv"
PUBLISHED = Path(__file__).parents[1] / "fidelity" / "cases" / "published.json"


@pytest.mark.parametrize("number", some(range(5), 8))
def test_a_model_whose_heads_have_keys_of_their_own_is_planned(number: int) -> None:
    """Narayanan's ten, with scores written out: all are within 10 %."""
    row = list(rows_of(PUBLISHED))[number]
    assert step_summary(compile_text(row.text)).step_s == pytest.approx(row.measured_s, rel=0.1)


def test_a_calibrated_device_is_a_file_and_its_speeds_are_what_was_found(tmp_path: Path) -> None:
    rows = [row for row in rows_of(RUNS) if row.source == "SimuMax"]
    assert len(rows) == 43
    assert not [row.why_not for row in rows if row.why_not]
    row = random.Random(0).choice([row for row in rows if "deepseek" not in row.name])
    compiled = compile_text(row.text)
    model = named("b200")
    rng = np.random.default_rng(0)
    logs = rng.uniform(-0.4, 0.0, len(SPEEDS))
    slower = calibrated(model, logs.tolist())
    files = [tmp_path / "same.toml", tmp_path / "slower.toml"]
    for path, each in zip(files, [calibrated(model, [0.0] * len(SPEEDS)), slower], strict=True):
        path.write_text(device_text("b200", each, 1))
    shipped, same, found = seconds(compiled, ["b200", *map(str, files)])
    assert shipped == step_summary(compiled).step_s
    # What products keep up starts from the most of square ones.
    assert shipped <= same <= shipped * 1.03
    assert same < found < same * np.exp(0.45)
    again = load(str(files[1]))
    assert vars(again.reached) == pytest.approx(vars(slower.reached), rel=1e-3)
    for key, table in slower.tables.items():
        assert np.abs(again.tables[key].values - table.values).max() <= 0.0051


SUBMISSION = {
    "round": "v5.1",
    "org": "Dell",
    "system": "1xXE9680Lx8B200-SXM-180GB",
    "benchmark": "llama31_8b",
    "gpu": "B200",
    "gpus_per_node": 8,
    "gpus": 8,
    "layers": 32,
    "sequence": 8192,
    "global_batch": 16,
    "micro_batch": 2,
    **dict.fromkeys(("nodes", "accumulation", "tp", "pp", "vp", "cp", "ep"), 1),
    "dp": 8,
    "precision": "fp4",
    "precision_parts": "linear layers of blocks fp4 nvfp4; attention products fp8; parameters gathered in bf16",
    "recompute": "none",
    **dict.fromkeys(("overlap_grad_reduce", "overlap_param_gather", "distributed_optimizer"), 1),
    **dict.fromkeys(("sequence_parallel", "tp_comm_overlap", "fsdp", "embedding_in_split"), 0),
    **dict.fromkeys(("loss_in_split", "defer_embedding_wgrad"), 0),
    "loss_fusion": 1,
    "tp_pp_dp_order": 1,
    "cuda_graph": "layers",
    "bucket": 768000000,
    "step_s": 0.45059,
}
"""A row of MLPerf Training 5.1, as `times/mlperf_training.csv` has it."""


def test_a_submission_is_the_same_plan_as_a_timed_row_and_in_a_search(tmp_path: Path) -> None:
    with (tmp_path / "mlperf_training.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*SUBMISSION, "offload_layers", "overlap_p2p", "config"])
        writer.writeheader()
        writer.writerow(SUBMISSION)
    (timed,) = rows_of(tmp_path / "mlperf_training.csv")
    (sought,) = submitted.rows_of(tmp_path / "mlperf_training.csv")
    assert not timed.why_not
    assert "param_gather = true" in timed.text
    assert "q[B, S, H, E] = queries_taken(q)" in timed.text
    for clause in sought.clauses:
        assert clause in timed.text
    assert step_summary(compile_text(timed.text)).step_s == pytest.approx(
        SUBMISSION["step_s"], rel=0.15
    )


BRIDGE = {
    "source": "Megatron-Bridge",
    "kind": "pretrain",
    "note": "",
    **dict.fromkeys(("tp", "pp", "vp", "cp", "ep"), 1),
    "recompute": "",
    "sequence": 4096,
    "step_s": 1.0,
}
READ = (
    # "Numbers in parentheses": MXFP8 on Blackwell.
    (
        dict(
            release="25.09",
            model="LLAMA3_8B",
            gpu="GB200",
            precision="fp8 (not in the table)",
            note="variant in parentheses: other quantization granularity",
        ),
        ("products = mxfp8",),
    ),
    # 20 of 80 layers keep what they save on the host.
    (
        dict(release="26.04", model="LLAMA3_70B", gpu="GB300", precision="fp8", fsdp=8),
        (
            "repeat L0 {\n    x = HostBlock(x)",
            "dim L0 = 20\n",
            "activations = HostBlock",
            "average = before",
        ),
    ),
    # No rings in nvfp4.
    (
        dict(release="26.04", model="LLAMA3_70B", gpu="GB300", precision="nvfp4", tp=2, dp=4),
        (
            "overlap { tp = true, param_gather = true, pieces = 1 }",
            'gb300_cudnn_9_19.toml" {',
        ),
    ),
    # Iterations of 8B are graphs on Blackwell, those of 70B and 405B are none, but in nvfp4 in one release; of fine-tuning feed-forward layers are.
    (dict(release="25.11", model="LLAMA3_8B", gpu="B200", precision="fp8"), ("graphs = true",)),
    (dict(release="25.09", model="LLAMA3_8B", gpu="GB200", precision="fp8"), ("graphs = false",)),
    (dict(release="25.11", model="LLAMA3_8B", gpu="H100", precision="fp8"), ("graphs = false",)),
    (
        dict(release="26.02", model="LLAMA3_70B", gpu="GB300", precision="mxfp8"),
        ("graphs = false",),
    ),
    (
        dict(release="25.11", model="LLAMA3.1_405B", gpu="GB200", precision="nvfp4"),
        ("graphs = true",),
    ),
    (
        dict(release="26.06", model="LLAMA3_70B", gpu="GB300", precision="fp8", kind="SFT"),
        ("graphs = false, captured = [FeedForward]",),
    ),
    # Attention of the container's release, where its tables are not what ships.
    (
        dict(release="25.11", model="LLAMA3_8B", gpu="GB200", precision="fp8"),
        ('gb200_cudnn_9_13.toml" {',),
    ),
    (
        dict(release="26.02", model="LLAMA3_8B", gpu="GB200", precision="fp8"),
        ("device gb200 {",),
    ),
    (
        dict(source="torchtitan", release="", note="eager", recompute="full", precision="bf16")
        | dict(model="LLAMA3.1_8B", gpu="H100 96GB HBM2e 500W", fsdp=8),
        ('h100_hbm2e_500w.toml" { kernels = eager',),
    ),
    # Checkpoints by op: every second product in bf16, all in fp8; `wo` not where the result of its reduce-scatter is kept.
    (
        dict(source="torchtitan", release="", recompute="selective", precision="bf16", fsdp=8)
        | dict(model="LLAMA3.1_8B", gpu="H100 96GB HBM2e 500W", note="eager"),
        (
            "values_repeated, Attention.k, FeedForward.u, Block.h, norm_apart",
            "norm_apart(rms_norm(h, norm2))",
        ),
    ),
    (
        dict(source="torchtitan", release="", recompute="selective per op", precision="fp8")
        | dict(model="LLAMA3.1_8B", gpu="H200", note="torch.compile", fsdp=8, tp=8, dp=1),
        ("values_repeated, Attention.q, Attention.k, Attention.v, FeedForward.g, FeedForward.u\n",),
    ),
    # HybridEP sends a token once to each device; from 26.06 on one kernel is for all experts, and exchanges are hidden.
    (
        dict(release="26.04", model="Qwen3_30B_a3B", gpu="GB200", precision="mxfp8", ep=8),
        ("shard X over en, ep", "exchange = hierarchical", "unquantized = [router]"),
    ),
    (
        dict(release="26.06", model="Qwen3_30B_a3B", gpu="GB200", precision="mxfp8", ep=8),
        ("shard X over ep", "ep = true", "experts = grouped"),
    ),
)


@pytest.mark.parametrize(("said", "expected"), READ)
def test_rows_have_what_recipes_say(
    tmp_path: Path, said: dict[str, object], expected: tuple[str, ...]
) -> None:
    row = BRIDGE | {"fsdp": 0, "dp": 8} | said | {"gpus": 8, "global_batch": 128, "micro_batch": 2}
    path = tmp_path / "nvidia_training.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*row, "tokens_s_gpu"])
        writer.writeheader()
        writer.writerow(row)
    (timed,) = rows_of(path)
    assert not timed.why_not
    assert [each for each in expected if each not in timed.text] == []


def layers_of(text: str) -> list[str]:
    """The blocks that a text's model passes through, repeat by repeat."""
    sizes = dict(re.findall(r"^dim (\w+) = (\d+)", text, re.MULTILINE))
    stack: list[tuple[int, list[str]]] = [(1, [])]
    for line in text[text.index("\nmodel ") :].splitlines():
        if found := re.match(r" +repeat (\w+) \{", line):
            stack.append((int(sizes.get(found[1], found[1])), []))
        elif line.strip() == "}":
            times, own = stack.pop()
            stack[-1][1].extend(times * own)
        elif found := re.match(r" +x = (\w+Block)\(x\)", line):
            stack[-1][1].append(found[1])
        elif "logits" in line:
            break
    return stack[-1][1]


def test_the_last_layers_of_super_are_wide_in_nvfp4_alone() -> None:
    super_ = RECIPES["Nemotron_3_Super"]
    layers = layers_of(super_.sized(8, 64, "mxfp8", 1))
    wide = [each if each == "AttentionBlock" else f"Last{each}" for each in layers[-14:]]
    assert len(layers) == 88
    assert layers_of(super_.sized(8, 64, "fp4", 1)) == [*layers[:-14], *wide]


def test_runs_of_one_plan_are_one_plan_to_rank() -> None:
    """Seven runs of five plans: medians of runs in the order of estimates are ranked alike; four plans are no group, whatever cuDNN they ran."""
    runs = [(1.0, 1), (9.0, 1), (2.0, 1), (3.0, 2), (4.0, 3), (5.0, 4), (6.0, 5)]
    found = [
        Found(Timed("s", "", "g", measured, text=f"plan {plan}"), float(plan))
        for measured, plan in runs
    ]
    assert rank_correlation(found) == (pytest.approx(1.0), 1)
    assert rank_correlation(found[:-1])[1] == 0
    of_releases = [
        Timed("s", "", "g", 5.0, text=f"plan 4\n device {device} {{ graphs = false }}")
        for device in ("gb300", '"/a/gb300_cudnn_9_13.toml"')
    ]
    three = [each for each in found if each.estimated_s <= 3]
    assert rank_correlation([*three, *(Found(each, 4.0) for each in of_releases)])[1] == 0
    assert ranks([3.0, 1.0, 3.0, 7.0]).tolist() == [1.5, 0.0, 1.5, 3.0]


def test_a_scan_s_operands_are_put_in_order_where_a_microbatch_has_several_sequences() -> None:
    """And queries and values out of what one product makes, always."""
    nano = RECIPES["Nemotron_3_Nano"]
    alone, several = (nano.sized(8, 64, "mxfp8", size) for size in (1, 2))
    assert "sequences_first" not in alone
    assert several.count("positions_first(y * silu(sequences_first(x @ z_proj)))") == 1
    for text in (alone, several):
        assert text.count("queries_apart(x @ q_proj)") == 1
        assert text.count("values_apart(x @ v_proj)") == 1
