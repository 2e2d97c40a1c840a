"""The plans that transformers has for its classes, as plans for an imported model.

`transformers_plans.json` has them as transformers 5.23 does, by `model_type`: `tp`, how the weights of a module are split; `pp`, what the stages
of a pipeline consist of; `ep`, the experts that are spread over ranks, each whole. A weight that is split by columns is split along the first
dim that it makes, one that is split by rows along the first dim that it reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from stagec.importing.text import Module, Weight, Writer

COLUMNS = frozenset({"colwise", "packed_colwise", "colwise_gather_output", "embedding_rowwise"})
ROWS = frozenset({"rowwise", "rowwise_split_input"})
SWAPPED = {"packed_rowwise": "packed_colwise", "colwise": "rowwise"}
"""Of experts whose matrices a class keeps the other way round."""


@cache
def plans() -> dict[str, dict[str, Any]]:
    text = resources.files("stagec.importing").joinpath("transformers_plans.json").read_text()
    return json.loads(text)


def plans_of(model_types: Sequence[str], kind: str) -> Any:
    """The plan of a kind of the first class that has one that speaks of layers; nothing if none has."""
    for model_type in model_types:
        plan = plans().get(model_type, {}).get(kind)
        if plan and (kind != "tp" or any("layers" in name for name in plan)):
            return plan
    return None


def style(plan: Mapping[str, str], tensor: str) -> str:
    """How a tensor of a checkpoint is split."""
    if "vision" in tensor or "visual" in tensor:
        return ""
    for pattern, found in plan.items():
        name = re.escape(pattern).replace(r"\*", r"(\d+|\{i\})")
        if re.search(rf"(^|\.){name}(_bias|\.weight|\.bias)?$", tensor):
            return found
    return ""


def all_weights(w: Writer, model: Module) -> Iterator[tuple[Module, Weight]]:
    for module in (*w.modules.values(), model):
        for weight in module.all_weights:
            yield module, weight


def split_dim(w: Writer, weight: Weight, how: str) -> str:
    """The dim that a weight is split along; nothing if it is whole."""
    experts = {x for x, _ in w.experts}
    dims = [d for d in weight.dims if d not in experts]
    if len(dims) == 1:
        return dims[0] if how in COLUMNS or how == "local_params" else ""
    if not dims or how not in COLUMNS | ROWS:
        return ""
    if "V" in dims:
        return "V"
    return dims[0] if how in ROWS else dims[1]


def tensor_dims(w: Writer, model: Module, plan: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The dims that a tensor-parallel plan splits, and the modules of the checkpoint for which that is not all that it says."""
    swapped = "packed_rowwise" in plan.values()
    split: dict[str, None] = {}
    whole: set[str] = set()
    other: dict[str, None] = {}
    for _, weight in all_weights(w, model):
        how = style(plan, weight.tensors[0]) if weight.tensors else ""
        if swapped and ".experts." in weight.tensors[0]:
            how = SWAPPED.get(how, how)
        name = weight.tensors[0].removesuffix(".weight").rpartition(".")[2]
        dim = split_dim(w, weight, how)
        if dim in ("", "D"):
            if how and how in COLUMNS | ROWS and len(weight.dims) > 1:
                other[name] = None
            if len(weight.dims) > 1:
                whole.update(weight.dims)
            continue
        split[dim] = None
        if how in ("colwise_gather_output", "rowwise_split_input") and dim != "V":
            other[name] = None
        whole.update(d for d in weight.dims if d != dim and d in w.heads)
    return [d for d in split if d not in whole or d == "V"], list(other)


def ways(w: Writer, dims: Sequence[str]) -> int:
    return max(n for n in (1, 2, 4, 8) if all(w.dims[d].value % n == 0 for d in dims))


def tensor_clauses(
    w: Writer, model: Module, plan: Mapping[str, str]
) -> tuple[int, list[str], list[str]]:
    """Ranks, clauses, and what the clauses do not say."""
    dims, other = tensor_dims(w, model, plan)
    odd = {d for d in dims if w.dims[d].value % 2}
    if odd & {*w.heads}:  # heads of queries and of keys are split together or not at all
        odd |= {*w.heads}
    dims = [d for d in dims if d not in odd]
    if not dims:
        return 1, [], []
    many = ways(w, dims)
    rules = [f"shard {', '.join(dims)} over tp"]
    if "V" in dims and any("logits" in line for line in model.lines):
        rules.append(f"shard {model.name}.logits over none")
    remarks = []
    if other:
        names = ", ".join(f"`{name}`" for name in other)
        remarks = [f"It gathers what {names} make or read; here that follows from the rules."]
    return many, [f"mesh tp = {many}", *rules], remarks
