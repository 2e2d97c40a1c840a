"""Cross-entropy in chunks: what is freed, what is computed, and where it works."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from stagec.backend.encode import encode_traces
from stagec.diagnostics import CompileError
from stagec.driver import Compiled, compile_model, compile_text
from stagec.memory import Kind
from stagec.summary import ClassSummary, summarize
from tests.replay.machine import replay
from tests.replay.models import traces_of
from tests.unit.memory.test_tracking import PIPELINE, SCHEDULES
from tests.unit.seldom import some

EXAMPLES = Path(__file__).parents[2] / "examples"

TEXT = """
dim B = 4
dim S = 1024
dim V = 32768
dim D = 64

model Net(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[V, D], norm[D], head[D, V]
  x = rms_norm(embedding(tokens, embed), norm)
  loss = cross_entropy(x @ head, targets OPTIONS)
}

plan p {
  mesh dp = 2, tp = 2
  shard B over dp
  shard V over tp
  microbatch 1
  precision { weights = bf16, gradients = fp32 }
  CLAUSES
}
"""
LOGITS = 2 * 1024 * 32768 // 2
"""Bytes of one sequence's, on one device."""


def compiled(*clauses: str, options: str = "") -> Compiled:
    text = TEXT.replace("CLAUSES", "\n".join(clauses)).replace("OPTIONS", options)
    return compile_text(text, "net.stg")


def logits_bytes(job: Compiled) -> int:
    """The most of what is as large as logits, at once."""
    (plan,) = job.memory
    wide = [
        row
        for row in range(len(plan.lives))
        if plan.about(row).op in ("contract", "cross_entropy_grad")
        and plan.lives.kind[row] in (Kind.SAVED, Kind.TEMPORARIES)
        and plan.lives.num_bytes[row] > 2 * 1024 * 64
    ]
    return int(plan.lives.live_bytes(wide).max())  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("chunks", [1, 2, 8])
def test_logits_of_one_chunk_are_there_at_a_time(chunks: int) -> None:
    """And their gradient beside them."""
    assert logits_bytes(compiled(f"loss_chunks {chunks}")) == 2 * LOGITS // chunks


def test_the_gradient_of_what_the_head_reads_is_saved_whole() -> None:
    text = PIPELINE.replace("SCHEDULE", "microbatch 2").replace("CLAUSES", "loss_chunks 4")
    job = compile_text(text + "\n", "pipeline.stg")
    (plan,) = job.memory
    kept = [
        int(plan.lives.num_bytes[row])
        for row in np.flatnonzero(plan.lives.kind == Kind.SAVED)
        if plan.about(row).made_by == "chunk-loss"
    ]
    # Two microbatches of two sequences, in four chunks each; and the table's gradient, which waits for the embedding's.
    assert sorted(kept) == [2 * 2 * 64 * 64 // 4] * 8 + [2 * 512 * 64 // 2] * 2


def test_the_peak_falls() -> None:
    whole, parts = (compiled(f"loss_chunks {n}").memory[0] for n in (1, 16))
    assert whole.peak_bytes - parts.peak_bytes > LOGITS


def totals(job: Compiled) -> list[object]:
    """Matrix operations, and bytes of each kind of communication."""

    def of_class(each: ClassSummary) -> object:
        traffic = [(t.axes, t.kind, t.operand_bytes) for t in each.traffic]
        return each.matrix_flops, traffic

    return [of_class(c) for c in summarize(job.module, job.counts).classes]


def test_matrix_operations_and_bytes_sent_stay() -> None:
    assert totals(compiled()) == totals(compiled("loss_chunks 8"))


def test_sums_of_the_weight_gradient_are_counted() -> None:
    """One addition of the head's gradient and of the loss per chunk and microbatch."""
    before, after = (
        summarize(job.module, job.counts).classes[0].other_flops
        for job in (compiled(), compiled("loss_chunks 8"))
    )
    head = 64 * 32768 // 2
    assert after - before == 2 * 8 * head


def test_a_chunk_is_a_template() -> None:
    few, many = (compiled(f"loss_chunks {n}").trace_set.classes[0].program for n in (2, 64))
    assert len(few.segments) == len(many.segments)
    assert many.first_node[-1] > 10 * few.first_node[-1]


ZERO = ("", "zero 1 over dp", "zero 3 over dp")


@pytest.mark.parametrize(("zero", "schedule"), some(product(ZERO, SCHEDULES), 12))
def test_pipelines_run(schedule: str, zero: str) -> None:
    """The last stage has the head, here tied to the embedding of the first."""
    text = PIPELINE.replace("SCHEDULE", SCHEDULES[schedule])
    text = text.replace("CLAUSES", f"{zero} loss_chunks 4 recompute full")
    job = compile_text(text, "pipeline.stg")
    traces, groups = traces_of(encode_traces(job.trace_set))
    assert not replay(traces, groups).missing


def test_what_is_recomputed_is_not_the_loss() -> None:
    text = (EXAMPLES / "gpt.stg").read_text().replace("microbatch 4", "microbatch 4\nloss_chunks 8")
    plain = compile_text(text, "gpt.stg", overrides={"L": "2"})
    again = text.replace("loss_chunks 8", "loss_chunks 8\nrecompute contract in Block")
    recomputed = compile_text(again, "gpt.stg", overrides={"L": "2"})
    head = [
        sum(
            int((program.segment == number).sum())
            for number, segment in enumerate(program.segments)
            for node in segment.nodes
            if node.op == "cross_entropy_grad"
        )
        for program in (job.trace_set.classes[0].program for job in (plain, recomputed))
    ]
    assert head[0] == head[1] == 8 * 4


def test_every_example_with_a_loss_may_be_chunked() -> None:
    path = EXAMPLES / "llama3_8b.stg"
    text = path.read_text().replace("plan tp8 {", "plan tp8 {\n  loss_chunks 8")
    chunked = compile_text(text, "llama.stg", "tp8", {"L": "2"}).memory[0]
    assert chunked.peak_bytes < compile_model(path, "tp8", {"L": "2"}).memory[0].peak_bytes


@pytest.mark.parametrize(
    ("clause", "options", "code"),
    [
        ("loss_chunks 3", "", "E0412"),
        ("loss_chunks 2048", "", "E0412"),
        ("loss_chunks 2", ", fused = false", "E0412"),
        ("loss_chunks 0", "", "E0208"),
        ("loss_chunks 1/2", "", "E0208"),
    ],
)
def test_mistakes(clause: str, options: str, code: str) -> None:
    with pytest.raises(CompileError) as caught:
        compiled(clause, options=options)
    assert [d.code for d in caught.value.diagnostics] == [code]
