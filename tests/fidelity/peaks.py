"""What PyTorch has beside the plan when most is alive, of a run on fake tensors.

The measured peak, less that, is held against what is planned for the same moment: the plan is left as it is.

Fake tensors have sizes and lifetimes and no data: no kernel's scratch memory, no allocator's rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stagec.dialects import sched, stg
from stagec.dialects.memory import OPERAND
from stagec.memory import ClassPlan, Kind
from tests.fidelity.model_text import row_split_tables
from tests.fidelity.oracle import DTYPE_BYTES, Case
from tests.fidelity.plan_text import kept_products, zero_axes
from tests.fidelity.sublayers import steps_of

TOLERANCE = 0.02
PRODUCTS_OF_FEED = 3
"""Of SwiGLU, in a forward pass, and gradients of their inputs in a backward pass."""
TABLE_BYTES = 4
"""Per element of the rotary tables: cosines and sines are fp32."""


@dataclass(frozen=True)
class Moment:
    """Bytes at one moment of a step."""

    planned: int
    beside: int
    """What PyTorch has then, and no plan: by the entries on live peaks."""


def fullest_moment(case: Case, plan: ClassPlan) -> Moment:
    """When most is alive of what is planned and of what PyTorch has beside it: the measured peak is of that moment."""
    lives, timeline = plan.lives, plan.timeline()
    beside = np.zeros_like(timeline)
    add_whole_tables(case, plan, beside)
    add_flat_buffers(plan, beside)
    add_last_gradients(case, plan, beside)
    add_copies_of_collectives(case, plan, beside)
    add_unread_products(case, plan, beside)
    fullest = int((timeline + beside).argmax())
    found = [Moment(int(timeline[fullest]), int(beside[fullest]))]
    if makes_whole_table_gradients(case):
        place = where_rows_are_cut(plan, last_made(plan))
        held = gathered_until(plan, place) + own_rows_bytes(case)
        found.append(Moment(int(timeline[place]), int(beside[place]) + held))
    if has_shadows(case):
        for node, held in zip(
            loss_nodes(plan, case.accumulated), (held_bytes(case), 0), strict=True
        ):
            # Shapes are worked out before the results are made.
            made = int(lives.num_bytes[lives.birth == node].sum())
            more = int(beside[node]) + held + shadow_bytes(case)
            found.append(Moment(int(timeline[node]) - made, more))
    return max(found, key=lambda each: each.planned + each.beside)


def add_whole_tables(case: Case, plan: ClassPlan, beside: np.ndarray) -> None:
    """The other ranks' rows of the gradients that PyTorch makes of tables, from when they are made."""
    lives = plan.lives
    if not makes_whole_table_gradients(case):
        return
    tp = case.degree("tp")
    # Those of several microbatches are added up in fp32.
    elements = {DTYPE_BYTES[case.compute_dtype], DTYPE_BYTES["fp32"]}
    split = {rows // tp * w * each for rows, w in row_split_tables(case) for each in elements}
    for row in np.flatnonzero(lives.kind == Kind.GRADIENTS).tolist():
        size = int(lives.num_bytes[row])
        if plan.about(row).op == "embedding_grad" and size in split:
            born, dies = int(lives.birth[row]), int(lives.death[row])
            # That of a further microbatch is added to the first one's at once.
            end = where_rows_are_cut(plan, born) + 1 or len(beside)
            beside[born : born + 1 if dies == born else end] += (tp - 1) * size


def add_flat_buffers(plan: ClassPlan, beside: np.ndarray) -> None:
    """FSDP2 gathers a unit into one buffer and copies it from there. In forward passes it frees the buffer once it has copied the next unit, or as the
    root's pass ends (`FSDPParamGroup.wait_for_unshard`, `FSDPState._post_forward`)."""
    nodes = nodes_by(plan, "fwd", ("all_gather",), "shard-parameters")
    others = nodes_by(plan, "fwd", ("contract", "all_gather"), "")
    backward = np.array(sorted(nodes_by(plan, "bwd", (), "")))
    gathers = sorted(nodes)
    for gather, following in pairwise([*gathers, len(beside)]):
        after = backward[backward > gather]
        first_backward = int(after[0]) if len(after) else len(beside)
        last = max((node for node in others if node < first_backward), default=gather)
        beside[gather : min(following, last) + 1] += nodes[gather]


def add_last_gradients(case: Case, plan: ClassPlan, beside: np.ndarray) -> None:
    """When FSDP2 has copied the gradients of a unit and begins to reduce them, that of its last parameter is still there: a loop in `foreach_reduce`
    (`_fsdp_collectives.py`) leaves it in a variable. The last of the root is the head's, that of a block its second product's."""
    if not zero_axes(case):
        return
    lives = plan.lives
    copies = [row for row in range(len(lives)) if plan.about(row).op == "copy_in"]
    reductions = sorted(nodes_by(plan, "grad_reduce", ("reduce_scatter",), ""))
    for copied in lives.birth[copies].tolist():
        reduced = next((node for node in reductions if node > copied), copied)
        gone = (lives.kind == Kind.GRADIENTS) & (lives.death == copied)
        sizes: dict[str, int] = {}
        for row in np.flatnonzero(gone).tolist():
            made = plan.about(row)
            if made.op == "contract":
                scope = made.scope.rpartition(".")[2]
                sizes[scope] = max(sizes.get(scope, 0), int(lives.num_bytes[row]))
        # The last parameter of other blocks, and of a root whose head is the table, is a vector.
        last = "Experts" if "Experts" in sizes else "SwiGLU"
        held = sizes.get("", 0) * (not case.model["tie"])
        beside[copied + 1 : reduced + 1] += held or sizes.get(last, 0) * ("" not in sizes)


def add_copies_of_collectives(case: Case, plan: ClassPlan, beside: np.ndarray) -> None:
    """What DTensor's collectives have beside operand and result (`torch/distributed/_functional_collectives.py`): a gather is by rank, and copied where
    another dim than the first is gathered (`_maybe_view_chunk_cat`), as a reduce-scatter's operand is; and waiting makes another tensor of a fake one."""
    m, tp = case.model, case.degree("tp")
    if tp == 1:
        return
    logits = case.samples * m["seq"] * m["vocab"] * DTYPE_BYTES[case.compute_dtype]
    for phase in ("fwd", "bwd", "recompute"):
        for node, size in nodes_by(plan, phase, ("all_gather",), "insert-collectives").items():
            is_view = case.samples == 1 and size != logits
            beside[node] += size if is_view else 2 * size
        for node, size in nodes_by(plan, phase, ("reduce_scatter",), "insert-collectives").items():
            beside[node] += (tp + 1) * size
        for node, size in nodes_by(plan, phase, ("all_reduce",), "insert-collectives").items():
            beside[node] += size
    for node, size in sums_in_place(plan):
        beside[node] += 2 * size


def sums_in_place(plan: ClassPlan) -> Iterator[tuple[int, int]]:
    """Nodes where all-reduces of tensor parallelism overwrite their operands, and the bytes of these: DTensor's have results of their own."""
    arranged = plan.arrangement
    for node in range(int(arranged.first[-1])):
        row, number = arranged.node_at(node)
        run = arranged.bodies[int(arranged.body[row])]
        op = run.body.nodes[number]
        if not (isinstance(op, sched.CollectiveOp) and op.kind.data == "all_reduce"):
            continue
        planned = op.planned
        is_in_place = planned is not None and planned.buffers[0].where == OPERAND
        if stg.made_by(op) == "insert-collectives" and is_in_place:
            numbers = plan.stages[run.stage].at(max(run.microbatch, 0)).values
            yield node, int(op.moved.evaluate(numbers))


def caches_unread_products(case: Case) -> bool:
    """Whether selective recomputation keeps the last product of a block, which no gradient reads."""
    return case.is_fake and case.parallel.get("ac") == "sac_mm2" and "fed" in kept_products(case)


def add_unread_products(case: Case, plan: ClassPlan, beside: np.ndarray) -> None:
    """What a checkpoint's cache holds of its last product until the backward pass of the next layer begins: what is made again ends before it
    (`_CachingTorchDispatchMode` in `torch/utils/checkpoint.py`)."""
    if not caches_unread_products(case):
        return
    made, begins = (nodes_of_feed(plan, phase) for phase in ("fwd", "bwd"))
    sizes = nodes_by(plan, "fwd", ("contract",), "")
    last = made[PRODUCTS_OF_FEED - 1 :: PRODUCTS_OF_FEED]
    firsts = begins[::PRODUCTS_OF_FEED]
    events = sorted([*last, *firsts, len(beside)])
    waiting: list[int] = []
    for node, following in pairwise(events):
        if node in last:
            waiting.append(node)
        else:
            born = waiting.pop()
            beside[born:following] += sizes[born]


def nodes_of_feed(plan: ClassPlan, phase: str) -> list[int]:
    """Where a phase has the products of feed-forward networks."""
    lives = plan.lives
    found = {
        int(lives.birth[row])
        for row in range(len(lives))
        if (said := plan.about(row)).phase == phase
        and said.op == "contract"
        and said.scope.endswith(".SwiGLU")
    }
    return sorted(found)


def nodes_by(plan: ClassPlan, phase: str, ops: tuple[str, ...], made_by: str) -> dict[int, int]:
    """Nodes of a phase, of these ops and this pass if they are given, and the bytes that each makes."""
    lives = plan.lives
    found: dict[int, int] = {}
    for row in range(len(lives)):
        said = plan.about(row)
        right = said.phase == phase and (not ops or said.op in ops)
        if right and made_by in ("", said.made_by):
            node = int(lives.birth[row])
            found[node] = found.get(node, 0) + int(lives.num_bytes[row])
    return found


def makes_whole_table_gradients(case: Case) -> bool:
    """Under FSDP they are gone when the step is over."""
    is_sharded = "dp_mode" in case.parallel and bool(row_split_tables(case)) and case.is_training
    return is_sharded or has_whole_table_gradients(case)


def last_made(plan: ClassPlan) -> int:
    """Where the last gradient of a table is made."""
    return max(nodes_by(plan, "wgrad", ("embedding_grad",), ""), default=0)


def where_rows_are_cut(plan: ClassPlan, made: int) -> int:
    """Where the rank's own rows of a table's gradient, made there, are copied: before its unit's reduction is prepared (`FSDPParam.unsharded_grad_data`), else
    as the update begins (`_fused_adam`)."""
    lives = plan.lives
    rows = [(row, plan.about(row)) for row in np.flatnonzero(lives.birth >= made).tolist()]
    own = {said.scope for row, said in rows if lives.birth[row] == made}
    copies = [(int(lives.birth[row]), said) for row, said in rows if said.op == "copy_in"]
    of_unit = [node for node, said in copies if said.scope in own]
    return min(of_unit or [node for node, _ in copies], default=0) - 1


def gathered_until(plan: ClassPlan, place: int) -> int:
    """Units that were gathered until a table's gradient was made, which are freed behind the cut (`FSDPParamGroup.post_backward`)."""
    lives = plan.lives
    made = last_made(plan)
    here = (lives.kind == Kind.GATHERED) & (lives.birth <= made)
    here &= (lives.death >= made) & (lives.death < place)
    return int(lives.num_bytes[here].sum()) if place >= 0 else 0


def own_rows_bytes(case: Case) -> int:
    """Of the gradients of tables that are split by rows, those of the rank."""
    tp = case.degree("tp")
    elements = sum(rows // tp * width for rows, width in row_split_tables(case))
    return elements * DTYPE_BYTES[case.compute_dtype]


def has_whole_table_gradients(case: Case) -> bool:
    memories = [rank.memory for rank in case.ranks.values()]
    return bool(row_split_tables(case)) and any(m and m.gradients > m.parameters for m in memories)


def has_shadows(case: Case) -> bool:
    """Whether the loss is computed on DTensors, which under fake tensors work out shapes of whole tensors each time."""
    return case.is_fake and case.degree("tp") > 1 and bool(case.parallel.get("loss_parallel"))


def shadow_bytes(case: Case) -> int:
    """Operand and result of the loss' kernels, whole, in fp32: `ShardingPropagator._propagate_tensor_meta` makes them."""
    tokens = case.samples * case.model["seq"]
    return 2 * 4 * tokens * case.model["vocab"]


def held_bytes(case: Case) -> int:
    """The logits that are cast to fp32 for the loss: whoever called the model has them until the backward pass."""
    tokens = case.samples * case.model["seq"]
    narrow = DTYPE_BYTES[case.compute_dtype] * (case.compute_dtype != "fp32")
    return narrow * tokens * case.model["vocab"] // case.degree("tp")


def loss_nodes(plan: ClassPlan, microbatches: int) -> list[int]:
    """Where the loss of the last microbatch begins, beside gradients of those before, and where its gradient does."""
    lives = plan.lives
    ops = np.array([plan.about(row).op for row in range(len(lives))])
    found = [np.sort(lives.birth[ops == name]) for name in ("max_logit", "target_grad")]
    return [int(births[-len(births) // microbatches]) for births in found if len(births)]


def table_bytes(case: Case) -> int:
    """The rotary tables, and the copies of them that the backward pass reads."""
    if case.model["arch"] == "gpt":
        return 0
    return 2 * TABLE_BYTES * table_elements(case) + table_copy_bytes(case)


def table_elements(case: Case) -> int:
    """A row per position, a column per element of a head."""
    split = case.degree("cp") if case.has_rings else 1
    return case.new_positions // split * case.model["dim"] // case.model["heads"]


def table_copy_bytes(case: Case) -> int:
    """Copies of the rotary tables in the dtype of the computation, of all layers, for one microbatch."""
    copies = 0
    is_one_unit = case.parallel.get("fsdp_group") == "root"
    if steps_of(case):
        # Other blocks read no tables. A checkpoint keeps what a block is given all the same, as FSDP2 casts it.
        is_given = "ac" in case.parallel and case.compute_dtype != case.dtype
        copies = 2 if is_given and not is_one_unit else 0
    elif case.model["arch"] == "gpt":
        return 0
    elif case.compute_dtype != case.dtype:
        # FSDP2 casts what goes into a unit: both tables, unless all is one. Then queries and keys cast them, each for itself, in what a checkpoint makes again.
        copies = 2 if not is_one_unit else 0 if "ac" in case.parallel else 4
    elif case.compute_dtype != "fp32" and "ac" not in case.parallel:
        # Queries and keys cast them, each for itself.
        copies = 4
    return case.model["layers"] * copies * table_elements(case) * DTYPE_BYTES[case.compute_dtype]


def random_state_bytes(case: Case) -> int:
    """Seed and offset that fused attention keeps for a dropout that it does not do: three numbers of 8 bytes per layer."""
    is_flash = case.model["attn"].startswith("flash") and "ac" not in case.parallel
    return 3 * 8 * case.model["layers"] * is_flash
