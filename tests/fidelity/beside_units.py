"""What FSDP2 has of its units beside a plan: of what it gathers, and of gradients that it reduces."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from stagec.memory import ClassPlan, Kind
from tests.fidelity.model_text import row_split_tables
from tests.fidelity.oracle import DTYPE_BYTES, Case
from tests.fidelity.plan_nodes import is_of_activations, nodes_by, op_at
from tests.fidelity.plan_text import zero_axes


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
    nodes = nodes_by(plan, "fwd", ("all_gather",), ("shard-parameters",))
    others = nodes_by(plan, "fwd", ("contract", "all_gather"))
    backward = np.array(sorted(nodes_by(plan, "bwd")))
    gathers = sorted(nodes)
    for gather, following in pairwise([*gathers, len(beside)]):
        after = backward[backward > gather]
        first_backward = int(after[0]) if len(after) else len(beside)
        last = max((node for node in others if node < first_backward), default=gather)
        beside[gather : min(following, last) + 1] += nodes[gather]


def copies_out(plan: ClassPlan) -> Iterator[tuple[int, int]]:
    """Nodes of a backward pass before which FSDP2 copies a unit from the buffer of its gather, and that buffer's bytes: as the unit's pass begins, behind
    the reduction of the unit before and before the next gather (`FSDPParamGroup.pre_backward`), and there it is freed."""
    gathers = nodes_by(plan, "bwd", ("all_gather",), ("shard-parameters",))
    reductions = nodes_by(plan, "grad_reduce", ("reduce_scatter",))
    events = sorted([*gathers, *(node + 1 for node in reductions)])
    forward = np.array(sorted(nodes_by(plan, "fwd")))
    for before, gather in pairwise([-1, *sorted(gathers)]):
        found = [node for node in events if node > gather][:1]
        if ((forward > before) & (forward < gather)).any():
            # The root, which is before the first unit, is not reduced yet.
            found += first_reader(plan, gather)
        if found:
            yield min(found), gathers[gather]


def first_reader(plan: ClassPlan, gather: int) -> list[int]:
    """Where what a node gathers is read first, if it is: where what its reader reads besides is gathered over `tp`, there."""
    readers = {use.operation for result in op_at(plan, gather)[1].results for use in result.uses}
    for node in range(gather + 1, len(plan.timeline())):
        if op_at(plan, node)[1] in readers:
            return [node - is_of_activations(op_at(plan, node - 1)[1])]
    return []


def add_last_gradients(case: Case, plan: ClassPlan, beside: np.ndarray) -> None:
    """When FSDP2 has copied the gradients of a unit and begins to reduce them, that of its last parameter is still there: a loop in `foreach_reduce`
    (`_fsdp_collectives.py`) leaves it in a variable. The last of the root is the head's, that of a block its second product's."""
    if not zero_axes(case):
        return
    lives = plan.lives
    copies = [row for row in range(len(lives)) if plan.about(row).op == "copy_in"]
    reductions = sorted(nodes_by(plan, "grad_reduce", ("reduce_scatter",)))
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


def makes_whole_table_gradients(case: Case) -> bool:
    """Under FSDP they are gone when the step is over."""
    is_sharded = "dp_mode" in case.parallel and bool(row_split_tables(case)) and case.is_training
    return is_sharded or has_whole_table_gradients(case)


def last_made(plan: ClassPlan) -> int:
    """Where the last gradient of a table is made."""
    return max(nodes_by(plan, "wgrad", ("embedding_grad",)), default=0)


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
