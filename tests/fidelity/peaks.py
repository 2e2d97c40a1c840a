"""What PyTorch has beside the plan when most is alive, of a run on fake tensors.

The measured peak, less that, is held against what is planned for the same moment: the plan is left as it is.

Fake tensors have sizes and lifetimes and no data: no kernel's scratch memory, no allocator's rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stagec.memory import ClassPlan, Kind
from tests.fidelity.beside_activations import (
    add_copies_of_collectives,
    add_early_weight_gradients,
    add_gradients_of_squares,
    add_unread_products,
    add_variables,
    has_shadows,
    held_bytes,
    shadow_bytes,
)
from tests.fidelity.beside_units import (
    add_flat_buffers,
    add_last_gradients,
    add_whole_tables,
    copies_out,
    gathered_until,
    last_made,
    makes_whole_table_gradients,
    own_rows_bytes,
    where_rows_are_cut,
)
from tests.fidelity.oracle import Case
from tests.fidelity.plan_nodes import loss_nodes

TOLERANCE = 0.01


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
    add_early_weight_gradients(plan, beside)
    add_variables(plan, beside)
    add_gradients_of_squares(plan, beside)
    fullest = int((timeline + beside).argmax())
    found = [Moment(int(timeline[fullest]), int(beside[fullest]))]
    for node, copied in copies_out(plan):
        made = int(lives.num_bytes[lives.birth == node].sum())
        kept = int(beside[node - 1 : node + 1].min())
        found.append(Moment(int(timeline[node]) - made, kept + copied))
    if makes_whole_table_gradients(case):
        place = where_rows_are_cut(plan, last_made(plan))
        held = gathered_until(plan, place) + own_rows_bytes(case)
        read = (lives.death == place) & (lives.birth < place)
        read &= ~np.isin(lives.kind, (Kind.GATHERED, Kind.COMMUNICATION))
        left = int(timeline[place]) - int(lives.num_bytes[read].sum())
        found.append(Moment(left, int(beside[place]) + held))
    if has_shadows(case):
        for node, held in zip(
            loss_nodes(plan, case.accumulated), (held_bytes(case), 0), strict=True
        ):
            # Shapes are worked out before the results are made.
            made = int(lives.num_bytes[lives.birth == node].sum())
            more = int(beside[node]) + held + shadow_bytes(case)
            found.append(Moment(int(timeline[node]) - made, more))
    return max(found, key=lambda each: each.planned + each.beside)
