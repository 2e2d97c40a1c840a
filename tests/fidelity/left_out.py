"""What PyTorch does on its own account: what of it applies to a case, and what is checked instead.

`docs/fidelity.md` has the table for readers; `ENTRIES` are its rows, in its order. A test compares them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tests.fidelity.attention_text import repeats_heads
from tests.fidelity.beside_activations import (
    caches_unread_products,
    has_shadows,
    random_state_bytes,
    table_bytes,
    table_copy_bytes,
)
from tests.fidelity.beside_units import has_whole_table_gradients, makes_whole_table_gradients
from tests.fidelity.loads import has_learned_loads, with_equal_loads
from tests.fidelity.model_text import row_split_tables
from tests.fidelity.oracle import DTYPE_BYTES, Case
from tests.fidelity.parameters import (
    layers_of,
    missing_of,
    parameters_of,
    stays_gathered,
    trained_of,
    words_of,
)
from tests.fidelity.partial_gradients import (
    is_read,
    norms_of_layer,
    partial_tensors,
    reduction_of_gradient,
    with_single_reductions,
)
from tests.fidelity.plan_text import is_sequence_parallel, zero_axes
from tests.fidelity.record import Communication, Memory, RankRecord
from tests.fidelity.sublayers import reads_source
from tests.fidelity.unsummed import (
    leaves_out_experts,
    leaves_out_rings,
    with_sums_of_experts,
    with_sums_over_rings,
)

TABLE = Path(__file__).parents[2] / "docs" / "fidelity.md"
STEP_COUNTER_BYTES = 4
TARGET_BYTES = 8
FORWARD_FIRST = ("GPipe", "LoopedBFS")
"""Schedules with all forward passes before the first backward one."""
WEIGHT_SUM_BYTES = 4


@dataclass(frozen=True)
class Entry:
    """A row of the table."""

    name: str
    applies: Callable[[Case], bool]


def reduces_when_read(case: Case) -> bool:
    """Whether a partial gradient is reduced by whoever reads it, after the backward pass."""
    return any(
        is_read(c) and not is_vector_of_norms(case, rank, c)
        for rank, record in case.ranks.items()
        for c in record.communications
    )


def is_vector_of_norms(case: Case, rank: int, communication: Communication) -> bool:
    of_all = DTYPE_BYTES[communication.dtype] * len(trained_of(case, rank))
    return communication.phase == "clip" and communication.bytes_in == of_all


def reduces_each_microbatch(case: Case) -> bool:
    """DDP over sequence parallelism: a DTensor's partial gradient is made whole where it becomes that of a local tensor."""
    return (
        has_other_weights(case)
        and is_sequence_parallel(case)
        and microbatches_of(case) > 1
        and not case.parallel.get("sync_every_mb")
    )


def microbatches_of(case: Case) -> int:
    """Of a step, in a pipeline or one behind the other."""
    return int(case.parallel.get("microbatches", case.accumulated))


def with_last_reductions(case: Case, rank: int, measured: RankRecord) -> RankRecord:
    """Without the reductions of norms' gradients of all microbatches but the last, if they are as many for each. A rank has one stage: DDP takes no others."""
    reduction = reduction_of_gradient(case, rank)
    places = [n for n, c in enumerate(measured.communications) if c == reduction]
    (stage,) = case.stages.get(rank, (0,))
    norms = norms_of_layer(case) * layers_of(case, stage)
    norms += (stage == case.degree("pp") - 1) + (stage == 0 and reads_source(case))
    tensors = partial_tensors(case) * norms
    if len(places) != microbatches_of(case) * tensors:
        return measured
    dropped = set(places[:-tensors])
    kept = [c for n, c in enumerate(measured.communications) if n not in dropped]
    return replace(measured, communications=tuple(kept))


def shows_whole_table_gradients(case: Case) -> bool:
    """Under FSDP peaks alone show them."""
    return has_whole_table_gradients(case) or (case.is_fake and makes_whole_table_gradients(case))


def has_short_shards(case: Case) -> bool:
    return len({missing_of(case, rank) for rank in case.ranks}) > 1


def has_kept_units(case: Case) -> bool:
    """FSDP2 without a backward pass, which some units wait for."""
    if case.parallel.get("dp_mode", "ddp") == "ddp":
        return False
    return any(
        stays_gathered(case, each) for rank in case.ranks for each in parameters_of(case, rank)
    )


def has_other_weights(case: Case) -> bool:
    """DDP over tensor parallelism, whose weights are not told from activations."""
    is_ddp = case.degree("dp") > 1 and case.parallel.get("dp_mode", "ddp") == "ddp"
    return is_ddp and case.degree("tp") > 1 and case.is_training


def weight_bytes_read(case: Case, rank: int, parameter_bytes: int) -> int:
    """Of the parameters of a rank, DTensors that the forward pass keeps for the backward pass: all but the tables of embeddings and biases of linears; where
    blocks are computed again, those behind them alone."""
    m, tp = case.model, case.degree("tp")
    if "ac" in case.parallel:
        head = 0 if "tp_head" in case.parallel else -(-m["vocab"] // tp) * m["dim"]
        norm = m["dim"] * (2 if m["arch"] == "gpt" else 1) * is_sequence_parallel(case)
        return (head + norm) * case.element_bytes
    unread = words_of(case, rank, "tp_embed") * m["dim"]
    if "tp_head" not in case.parallel:
        # A part that is short is a view of one that is not (`Shard._split_tensor` pads).
        unread -= (-(-m["vocab"] // tp) - words_of(case, rank, "tp_head")) * m["dim"]
    if "tp_head" in case.parallel and not case.is_tied:
        unread += m["vocab"] * m["dim"]
    if m["arch"] == "gpt":
        rows = m["seq"] // (tp if is_sequence_parallel(case) else 1)
        biases = (3 * m["dim"] + m["ffn"]) // tp + 2 * m["dim"]
        unread += rows * m["dim"] + m["layers"] * biases
    elif m.get("qkv_bias"):
        width = m["dim"] // m["heads"]
        unread += m["layers"] * (m["heads"] + 2 * m["kv_heads"]) * width // tp
    if not is_sequence_parallel(case):
        # Weights of norms are split over nothing: parameters as they are.
        norms = norms_of_layer(case) * m["layers"] + 1 + reads_source(case)
        unread += norms * m["dim"] * (2 if m["arch"] == "gpt" else 1)
    return parameter_bytes - unread * case.element_bytes


def cache_bytes_read(case: Case, measured: Memory) -> int | None:
    """Keys and values as attention reads them, each head once: those of the cache, which the new ones have joined."""
    if case.is_training:
        return None
    copies = case.model["heads"] // case.model["kv_heads"] if repeats_heads(case) else 1
    elements, rest = divmod(measured.attended, copies)
    assert not rest, measured.attended
    return elements * DTYPE_BYTES[case.compute_dtype]


def has_alternating_experts(case: Case) -> bool:
    """Selective recomputation that keeps every second product of what are three for each expert."""
    return case.is_training and case.model["arch"] == "moe" and case.parallel.get("ac") == "sac_mm2"


def with_all_experts_again(case: Case, measured: RankRecord) -> RankRecord:
    """As if the products of all experts were computed again, if half of the forward pass's are."""
    dim, width = case.model["dim"], case.model["moe_ffn"]
    shapes = ((dim, width), (width, dim))
    made = [c for c in measured.computes if c.phase == "fwd" and c.weight in shapes]
    again = [c for c in measured.computes if c.phase == "recompute" and c.weight in shapes]
    # Five products come before those of experts in a block: queries, keys, values, output, router.
    own = 3 * case.model["experts"] // case.degree("ep")
    odd, rest = divmod(len(made) * sum(place % 2 == 0 for place in range(own)), own)
    too_many = Counter(c.flops for c in again) - Counter(c.flops for c in made)
    if rest or too_many or len(again) != odd:
        return measured
    others = [c for c in measured.computes if c.phase != "recompute" or c.weight not in shapes]
    return replace(measured, computes=(*others, *(replace(c, phase="recompute") for c in made)))


def has_own_targets(case: Case) -> bool:
    """Pipelines whose stages free a microbatch before they begin the last."""
    return "microbatches" in case.parallel and case.parallel.get("schedule") not in FORWARD_FIRST


def absent_rows_bytes(case: Case, rank: int) -> int:
    """Of the gradients of tables that are split by rows, as `torch.chunk` cuts, the rows of other ranks."""
    tp, place = case.degree("tp"), case.coordinates[rank].get("tp", 0)
    absent = 0
    for rows, width in row_split_tables(case):
        most = -(-rows // tp)
        absent += (rows - min(most, max(0, rows - place * most))) * width
    return absent * case.element_bytes


def has_narrow_statistics(case: Case) -> bool:
    return case.model["arch"] == "gpt" and case.compute_dtype != "fp32"


def narrow_statistics_bytes(case: Case) -> int:
    """What means and deviations of layer norms would take more in fp32, of all microbatches."""
    if not has_narrow_statistics(case) or not case.is_training:
        return 0
    m = case.model
    tokens = m["batch"] * m["seq"] // (case.degree("tp") if is_sequence_parallel(case) else 1)
    norms = 1 + (0 if "ac" in case.parallel else 2 * m["layers"])
    return 2 * norms * tokens * (4 - DTYPE_BYTES[case.compute_dtype])


def keeps_tables(case: Case) -> bool:
    return table_copy_bytes(case) > 0 or (case.is_fake and table_bytes(case) > 0)


ENTRIES = (
    Entry("repeated-reductions", reduces_when_read),
    Entry("reductions-of-microbatches", reduces_each_microbatch),
    Entry("vocabulary-gradient", shows_whole_table_gradients),
    Entry("optimizer-steps", lambda case: case.is_training),
    Entry("loss-statistics", lambda case: case.is_training),
    Entry("targets-of-the-batch", has_own_targets),
    Entry("short-shards", has_short_shards),
    Entry("kept-units", has_kept_units),
    Entry("narrow-statistics", has_narrow_statistics),
    Entry("vector-of-norms", lambda case: bool(case.opts.get("clip"))),
    Entry("weights-as-saved", has_other_weights),
    Entry("rotary-tables", keeps_tables),
    Entry("random-states", lambda case: random_state_bytes(case) > 0),
    Entry("shapes-of-whole-tensors", has_shadows),
    Entry("flat-buffers", lambda case: case.is_fake and bool(zero_axes(case))),
    Entry("last-gradients", lambda case: case.is_fake and bool(zero_axes(case))),
    Entry("copies-of-collectives", lambda case: case.is_fake and case.degree("tp") > 1),
    Entry("unread-products", caches_unread_products),
    Entry("early-weight-gradients", lambda case: case.is_fake and case.degree("tp") > 1),
    Entry("variables", lambda case: case.is_fake),
    Entry("squares", lambda case: case.is_fake and case.model["arch"] != "gpt"),
    Entry("grouped-experts", lambda case: case.model["arch"] == "moe"),
    Entry("alternating-experts", has_alternating_experts),
    Entry("learned-loads", has_learned_loads),
    Entry("sums-over-rings", leaves_out_rings),
    Entry("sums-of-experts", leaves_out_experts),
    Entry("steady-state", lambda case: False),
)


def table_rows() -> dict[str, str]:
    """Entry and text of each row of the table in the documentation."""
    rows: dict[str, str] = {}
    after = TABLE.read_text().split("## What is left out on purpose", 1)[1]
    for line in after.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            rows[cells[0].strip("`")] = f"PyTorch {cells[1]}; stagec {cells[2]}"
    return rows


def applying(case: Case) -> list[str]:
    return [entry.name for entry in ENTRIES if entry.applies(case)]


def corrected(case: Case, rank: int) -> RankRecord:
    """The measured record, with what the entries on computations and communications say."""
    records = dict(case.ranks)
    measured = records[rank]
    if has_alternating_experts(case):
        records = {each: with_all_experts_again(case, record) for each, record in records.items()}
        measured = records[rank]
    if has_learned_loads(case):
        measured = with_equal_loads(case, rank, records)
    if leaves_out_rings(case):
        measured = with_sums_over_rings(case, rank, measured)
    if leaves_out_experts(case):
        measured = with_sums_of_experts(case, rank, measured)
    if case.opts.get("clip"):
        measured = without_vectors_of_norms(case, rank, measured)
    if reduces_each_microbatch(case):
        measured = with_last_reductions(case, rank, measured)
    if reduces_when_read(case):
        measured = with_single_reductions(case, rank, measured)
    return measured


def without_vectors_of_norms(case: Case, rank: int, measured: RankRecord) -> RankRecord:
    """Over an axis the last of its size: a gradient that clipping reads before may be as large."""
    found = list(measured.communications)
    last = {c.axis: n for n, c in enumerate(found) if is_vector_of_norms(case, rank, c)}
    kept = (c for n, c in enumerate(found) if n not in last.values())
    return replace(measured, communications=tuple(kept))


def comparable_memory(case: Case, rank: int, measured: Memory, traced: Memory) -> Memory:
    """The measured bytes, less what the entries on memory cover, to the byte."""
    holds_loss = traced.holds_loss
    parameters, gradients, optimizer = measured.parameters, measured.gradients, measured.optimizer
    saved, peak = measured.saved, measured.live_peak
    whole_tables = gradients > parameters
    if peak is not None:
        # A cache was there before anything was followed.
        peak += (cache_bytes_read(case, measured) or 0) - table_bytes(case)
        peak -= traced.beside_peak
    missing = missing_of(case, rank)
    parameters += missing
    if case.is_training:
        optimizer -= STEP_COUNTER_BYTES * len(trained_of(case, rank))
        missing = missing_of(case, rank, trained=True)
        gradients, optimizer = gradients + missing, optimizer + 2 * missing
    if whole_tables:
        gradients -= absent_rows_bytes(case, rank)
    if case.is_training and saved is not None and holds_loss:
        saved -= WEIGHT_SUM_BYTES * microbatches_of(case)
    if saved is not None and case.is_training:
        saved -= case.accumulated * table_copy_bytes(case) + random_state_bytes(case)
        saved += narrow_statistics_bytes(case)
    if has_other_weights(case) and saved is not None:
        # Once for each microbatch, as all of them are let go in between.
        saved -= case.accumulated * weight_bytes_read(case, rank, measured.parameters)
    if has_own_targets(case) and saved is not None and holds_loss:
        tokens = case.model["batch"] * case.model["seq"]
        microbatches = int(case.parallel["microbatches"])
        saved -= (microbatches - 1) * tokens * TARGET_BYTES
    return replace(
        measured,
        cache=cache_bytes_read(case, measured),
        parameters=parameters,
        gradients=gradients,
        optimizer=optimizer,
        saved=saved,
        live_peak=peak,
    )
