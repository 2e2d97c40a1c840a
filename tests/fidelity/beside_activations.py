"""What PyTorch has of activations and their gradients beside a plan."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stagec.memory import ClassPlan, Kind
from tests.fidelity.oracle import DTYPE_BYTES, Case
from tests.fidelity.plan_nodes import (
    OF_ACTIVATIONS,
    collectives_of_activations,
    heads_of,
    last_of_blocks,
    last_read,
    nodes_by,
    nodes_of_feed,
    sums_in_place,
    sums_of_blocks,
)
from tests.fidelity.plan_text import kept_products
from tests.fidelity.sublayers import steps_of

PRODUCTS_OF_FEED = 3
"""Of SwiGLU, in a forward pass, and gradients of their inputs in a backward pass."""


TABLE_BYTES = 4
"""Per element of the rotary tables: cosines and sines are fp32."""


def add_copies_of_collectives(case: Case, plan: ClassPlan, beside: np.ndarray) -> None:
    """What DTensor's collectives have beside operand and result (`torch/distributed/_functional_collectives.py`): a gather is by rank, and copied where
    another dim than the first is gathered (`_maybe_view_chunk_cat`), as a reduce-scatter's operand is; and waiting makes another tensor of a fake one."""
    m, tp = case.model, case.degree("tp")
    if tp == 1:
        return
    logits = case.samples * m["seq"] * m["vocab"] * DTYPE_BYTES[case.compute_dtype]
    for phase in ("fwd", "bwd", "recompute"):
        for node, size in nodes_by(plan, phase, ("all_gather",), OF_ACTIVATIONS).items():
            is_view = case.samples == 1 and size != logits
            beside[node] += size if is_view else 2 * size
        for node, size in nodes_by(plan, phase, ("reduce_scatter",), OF_ACTIVATIONS).items():
            beside[node] += (tp + 1) * size
        for node, size in nodes_by(plan, phase, ("all_reduce",), OF_ACTIVATIONS).items():
            beside[node] += size
    for node, size in sums_in_place(plan):
        beside[node] += 2 * size


def add_early_weight_gradients(plan: ClassPlan, beside: np.ndarray) -> None:
    """Autograd makes the gradient of a weight before that of the input and frees what both read; only then DTensor sums the latter over `tp`. The plan sums it
    beside the product of the weight's gradient."""
    lives = plan.lives
    collectives = {node for node, _, _ in collectives_of_activations(plan)}
    for row in np.flatnonzero(lives.kind == Kind.GRADIENTS).tolist():
        made, born = plan.about(row), int(lives.birth[row])
        if made.op == "contract" and born - 1 in collectives:
            gone = int(lives.num_bytes[(lives.death == born) & (lives.birth < born - 2)].sum())
            beside[born - 1] += int(lives.num_bytes[row]) - gone


def add_variables(plan: ClassPlan, beside: np.ndarray) -> None:
    """What the variables and arguments of Python hold, and checkpoints."""
    add_inputs_of_blocks(plan, beside)
    add_inputs_of_head(plan, beside)
    add_inputs_of_modules(plan, beside)
    add_inputs_of_checkpoints(plan, beside)


def add_inputs_of_blocks(plan: ClassPlan, beside: np.ndarray) -> None:
    """The model has the input of a block until that has returned, also when attention was added to it and nothing reads it any more."""
    lives, sums = plan.lives, sums_of_blocks(plan)
    triples = zip(sums[1::2], sums[2::2], sums[3::2], strict=False)
    for (_, entering), (of_attention, _), (last, _) in triples:
        if lives.death[entering] == of_attention:
            beside[of_attention + 1 : last + 1] += int(lives.num_bytes[entering])


def add_inputs_of_head(plan: ClassPlan, beside: np.ndarray) -> None:
    """The model has what leaves the last block until the head has returned, and passes what is normed of it."""
    lives, ends = plan.lives, ends_of_heads(plan)
    gathers = nodes_by(plan, "fwd", ("all_gather",), OF_ACTIVATIONS).keys() - ends.keys()
    for end, head in ends.items():
        before = [row for node, row in sums_of_blocks(plan) if node < head]
        for leaving in before[-1:]:
            freed = int(lives.death[leaving])
            if freed < head:
                beside[freed + 1 : end + 1] += int(lives.num_bytes[leaving])
        if head - 1 in gathers:
            beside[head : end + 1] += last_read(plan, head - 1)


def ends_of_heads(plan: ClassPlan) -> dict[int, int]:
    """Where heads have returned, behind a gather of logits if there is one, and where these are made."""
    collectives = {node for node, _, _ in collectives_of_activations(plan)}
    return {head + (head + 1 in collectives): head for head in heads_of(plan)}


def add_inputs_of_modules(plan: ClassPlan, beside: np.ndarray) -> None:
    """Who calls a module has what it passes until that returns, and the module what it made of that (`Held`). In what is computed again, that is saved, but
    for what is passed to be gathered."""
    lives = plan.lives
    for held in modules_of_blocks(plan):
        for row in held.rows(plan):
            beside[int(lives.death[row]) + 1 : held.end] += int(lives.num_bytes[row])
    collectives = {node for node, _, _ in collectives_of_activations(plan)}
    before = {node - 1 for node in nodes_by(plan, "bwd")}
    for gather in nodes_by(plan, "recompute", ("all_gather",), OF_ACTIVATIONS):
        end = min(node for node in collectives | before if node > gather)
        beside[gather + 1 : end + 1] += last_read(plan, gather)


def add_inputs_of_checkpoints(plan: ClassPlan, beside: np.ndarray) -> None:
    """A checkpoint has what its module was given until its backward pass is over (`_CheckpointFrame`)."""
    lives, again = plan.lives, list(nodes_by(plan, "recompute"))
    given = np.flatnonzero((lives.kind == Kind.SAVED) & np.isin(lives.death, again)).tolist()
    given.sort(key=lambda row: int(lives.death[row]))
    read = [int(lives.death[row]) for row in given]
    for row, (last, end) in zip(given, pairwise([*read, last_of_blocks(plan)]), strict=True):
        beside[last + 1 : end] += int(lives.num_bytes[row])


@dataclass(frozen=True)
class Held:
    """The forward pass of a module, attention or a feed-forward network, with its norm: the nodes from `begin` to before `end`. The module begins with `first`.
    It keeps what it was given, gathered or not (what is made from `begin` to before `given`), and queries, keys and values, which `attention` reads; and who
    calls its last product, `projected`, what it passes."""

    begin: int
    first: int
    given: int
    attention: int
    projected: int
    end: int

    def rows(self, plan: ClassPlan) -> list[int]:
        lives = plan.lives
        freed = (lives.death >= self.first) & (lives.death < self.end)
        freed &= ~np.isin(lives.kind, (Kind.GATHERED, Kind.COMMUNICATION))
        given = (lives.birth >= self.begin) & (lives.birth < self.given)
        read = np.isin(lives.death, (self.attention, self.projected)) & (lives.birth < lives.death)
        return np.flatnonzero(freed & (given | read)).tolist()


def modules_of_blocks(plan: ClassPlan) -> list[Held]:
    lives = plan.lives
    own: dict[int, str] = {}
    for row in range(len(lives)):
        said = plan.about(row)
        scope = said.scope.rpartition(".")[2]
        if said.phase == "fwd" and "." in said.scope and not scope.startswith("RmsNorm"):
            own[int(lives.birth[row])] = said.op
    found = []
    embedded = max(nodes_by(plan, "fwd", ("embedding",)), default=-1)
    nodes = [node for node, _ in sums_of_blocks(plan)]
    for before, end in pairwise([embedded, *nodes]):
        inside = {node: op for node, op in own.items() if before < node < end}
        products = [node for node, op in inside.items() if op == "contract"]
        if products:
            first = min(inside)
            given = first + (inside[first] == "all_gather")
            attention = max((n for n, op in inside.items() if op == "attention"), default=-1)
            found.append(Held(before + 1, first, given, attention, max(products), end))
    return found


def add_gradients_of_squares(plan: ClassPlan, beside: np.ndarray) -> None:
    """What the gradient of `x.pow(2).mean()`, of an RMS norm, makes on its way: beside that of the mean: `x.pow(1)`, and twice that (`pow_backward`)."""
    for row in range(len(plan.lives)):
        said = plan.about(row)
        if said.op == "unary_grad" and said.scope.rpartition(".")[2].startswith("RmsNorm"):
            beside[int(plan.lives.birth[row])] += 2 * int(plan.lives.num_bytes[row])


def caches_unread_products(case: Case) -> bool:
    """Whether selective recomputation keeps the last product of a block, which no gradient reads."""
    return case.is_fake and case.parallel.get("ac") == "sac_mm2" and "fed" in kept_products(case)


def add_unread_products(case: Case, plan: ClassPlan, beside: np.ndarray) -> None:
    """What a checkpoint's cache holds of its last product until the backward pass of the next layer begins: what is made again ends before it
    (`_CachingTorchDispatchMode` in `torch/utils/checkpoint.py`)."""
    if not caches_unread_products(case):
        return
    made, begins = (nodes_of_feed(plan, phase) for phase in ("fwd", "bwd"))
    sizes = nodes_by(plan, "fwd", ("contract",))
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
