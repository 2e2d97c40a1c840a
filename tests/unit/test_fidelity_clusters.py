"""`tests.fidelity.clusters`: runs of one structure are planned as by compilations of their own."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from stagec.driver import compile_text
from stagec.estimate.prices import Prices, kernel_sizes
from tests.fidelity import cluster_plans
from tests.fidelity.cluster_plans import (
    compiled,
    counts_norms,
    first_static_bytes,
    planned,
    planned_alike,
    structure_of,
)
from tests.fidelity.cluster_runs import Run, layers_of_stages, run_text
from tests.fidelity.clusters import main

ONE_B = Run(
    sequence=4096,
    microbatch=2,
    microbatches=3,
    dp=4,
    pp=2,
    tp=2,
    width=2048,
    feed_forward=8192,
    layers=16,
    heads=32,
    key_heads=32,
    vocabulary=131072,
    is_tied=True,
    zero=1,
    is_replicated=True,
)


@pytest.mark.seldom
@pytest.mark.parametrize(
    ("first", "changes"),
    [
        (
            ONE_B,
            [{"microbatch": 4}, {"tp": 16, "microbatches": 2}, {"dp": 8, "sequence": 2048}],
        ),
        (
            replace(ONE_B, dp=1, zero=0, pp=8, microbatches=4, width=3072, layers=28),
            [{"key_heads": 2, "tp": 2}, {"microbatches": 7, "sequence": 1024}],
        ),
        (
            replace(ONE_B, pp=1, tp=1, is_tied=False),
            [{"layers": 2, "width": 4096}, {"microbatches": 1}],
        ),
    ],
)
def test_structures_are_compilations(
    first: Run, changes: list[dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One compilation for all of them."""
    runs = [first, *(replace(first, **change) for change in changes)]
    assert len({structure_of(run) for run in runs}) == 1
    alone = [planned(run) for run in runs]
    made: list[Run] = []
    monkeypatch.setattr(cluster_plans, "compiled", lambda run: made.append(run) or compiled(run))
    assert planned_alike(runs) == alone
    assert made == [first]


@pytest.mark.seldom
def test_a_run_that_does_not_compile_is_told() -> None:
    runs = [replace(ONE_B, tp=64), ONE_B, replace(ONE_B, key_heads=1)]
    wrong, right, other = planned_alike(runs)
    assert right == planned(ONE_B)
    assert isinstance(wrong, str)
    assert "E0301" in wrong
    assert isinstance(other, str)


def test_stages_end_with_more_than_their_share() -> None:
    """16 layers and a head that costs as much as 4: half of the work is 10 layers."""
    assert layers_of_stages(ONE_B) == [10, 6]


def test_how_a_run_was_cut_is_told_by_what_its_first_stage_keeps() -> None:
    """10 layers, or 11 where half of the work is not more than a share; of one stage alone nothing is told."""
    run = replace(ONE_B, dp=4, tp=1, microbatch=1)
    kept = [first_static_bytes(run, layers) for layers in (10, 11)]
    assert layers_of_stages(run, counts_norms=False) == [11, 5]
    assert [counts_norms(run, each) for each in kept] == [True, False]
    assert counts_norms(replace(run, pp=1), kept[0]) is None


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two rows of one run on a node, one of which is said to be out of memory, and one that lacks a number."""
    row = {
        "nodes": "1.0",
        "seq_len": "4096",
        "mbs": "1",
        "batch_accum": "64.0",
        "Mem Alloc (GB)": "17.57",
        "Mem Res (GB)": "80.00",
        "dp": "4",
        "pp": "2",
        "tp": "1",
        "hidden_size": "2048",
        "num_layers": "16",
        "num_heads": "32",
        "num_kv_heads": "32.0",
        "vocab_size": "131072",
        "tie_word_embeddings": "True",
        "zero_stage": "0",
        "interm_dim": "8192",
        "status": "Success",
    }
    path = tmp_path / "runs.csv"
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(row))
        table.writeheader()
        table.writerows([row, row | {"status": "OOM"}, row | {"tp": ""}])
    assert main([str(path)]) == 1
    said = capsys.readouterr().out
    assert "3 rows, 1 that do not compile" in said
    assert "row 2: not understood" in said
    assert "static bytes within 1 %: 1 of 1" in said
    assert "planned peak not above what was reserved: 1 of 1" in said
    assert "told apart, with 24 GiB for context and fragmentation: 1 of 2" in said


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nowhere.csv"])
    assert "`nowhere.csv` is not read" in capsys.readouterr().err


@pytest.mark.parametrize("sequences", [1, 2])
def test_a_layer_has_as_many_kernels_as_nanotron_runs(sequences: int) -> None:
    """Counted by running its own lines under PyTorch 2.13, of a rank between others of tp 4, and what of it a CUDA kernel computes one by one.

    31 kernels forward, and with several sequences one more; 41 backward, two more, and six that add gradients up.
    """
    run = replace(ONE_B, microbatch=sequences, pp=1, tp=4)
    text = run_text(run, as_run=True).replace(
        "{ clip = 1 }\n}", "{ clip = 1 }\n  device h100 { kernels = eager, graphs = false }\n}"
    )
    done = compile_text(text)
    prices = Prices.of(done.trace_set, done.plan)
    program = done.trace_set.classes[0].program
    heads, inner = (sequences * run.sequence * n // run.tp for n in (run.width, run.feed_forward))
    several = sequences > 1
    expected = {
        "F": (31 + several, (3 + 2 + several) * heads + 2 * inner),
        "B": (47 + 2 * several, (3 + 2 + 2 * several) * heads + 2 * inner),
    }
    found = {}
    for number, segment in enumerate(program.segments):
        if any(node.op == "rope" for node in segment.nodes):
            launched = prices.launches(segment.nodes, prices.escaping(program)[number]).sum()
            sizes = [kernel_sizes(node) for node in segment.nodes]
            apart = sum(own.get("scalars", 0) + own.get("apart", 0) for own in sizes)
            found[segment.task] = (launched, apart)
    assert found == expected
