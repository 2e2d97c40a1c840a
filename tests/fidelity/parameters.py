"""The parameters of a case's ranks, as PyTorch's modules store them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.fidelity.oracle import DTYPE_BYTES, Case, coordinates
from tests.fidelity.sublayers import LAST, parts_of, reads_source, shapes_of, steps_of


@dataclass(frozen=True)
class Parameter:
    """`rows` of dim 0 on a rank before FSDP splits them, and the elements of each."""

    rows: int
    row: int = 1
    is_expert: bool = False
    place: str = "block"
    """`block`, `embedding` (the table of tokens), `positions` or `head` (with the last norm)."""
    words: tuple[str, ...] = ()
    """Of its name in PyTorch's model."""


def parameters_of(case: Case, rank: int) -> list[Parameter]:
    """Of the stages that a rank has, split by tensor and expert parallelism."""
    num_stages = case.degree("pp") * case.degree("vstages")
    stages = case.stages.get(rank, tuple(range(num_stages)))
    found: list[Parameter] = []
    for stage in stages:
        if stage == 0:
            found += tables(case, rank)
        found += list(block(case)) * layers_of(case, stage)
        if stage == num_stages - 1:
            found += head(case, rank)
    return found


def layers_of(case: Case, stage: int) -> int:
    """The first stages have one more where layers do not divide."""
    each, rest = divmod(case.model["layers"], case.degree("pp") * case.degree("vstages"))
    return each + (stage < rest)


def words_of(case: Case, rank: int, split_unless: str) -> int:
    """Rows of a table on a rank, as `torch.chunk` cuts them; all where the case says not to split it."""
    words, tp = case.model["vocab"], case.degree("tp")
    if split_unless in case.parallel:
        return words
    most, place = -(-words // tp), coordinates(rank, case.mesh).get("tp", 0)
    return min(most, max(0, words - place * most))


def tables(case: Case, rank: int) -> list[Parameter]:
    m = case.model
    rows = words_of(case, rank, "tp_embed")
    found = [Parameter(rows, m["dim"], place="embedding", words=("embed",))]
    if m["arch"] == "gpt":
        is_split = case.parallel.get("tp_mode") == "sp"
        rows = m["seq"] // (case.degree("tp") if is_split else 1)
        found.append(Parameter(rows, m["dim"], place="positions", words=("places",)))
    if reads_source(case):
        found.append(Parameter(m["dim"], place="positions", words=("source",)))
    return found


def head(case: Case, rank: int) -> list[Parameter]:
    m = case.model
    norm = [Parameter(m["dim"], place="head", words=("norm",))] * (2 if m["arch"] == "gpt" else 1)
    rows = words_of(case, rank, "tp_head")
    own = Parameter(rows, m["dim"], place="head", words=("head",))
    return norm if case.is_tied else [*norm, own]


def block(case: Case) -> Iterator[Parameter]:
    m, tp = case.model, case.degree("tp")
    dim, width = m["dim"], m["dim"] // m["heads"]
    is_gpt = m["arch"] == "gpt"
    if steps_of(case):
        yield from [Parameter(dim)] * len(steps_of(case))
        for name, _, part in parts_of(case):
            for (weight, dims), (rows, *row) in zip(
                part.weights.items(), shapes_of(case, part), strict=True
            ):
                ways = tp if " | " in dims and weight not in LAST else 1
                width = math.prod(row) // (tp if weight in LAST else 1)
                yield Parameter(rows // ways, width, words=(name,))
            if not part.weights:
                yield from experts(case, name)
        return
    for norm in ("norm1", "norm2"):
        yield from [Parameter(dim, words=(norm,))] * (2 if is_gpt else 1)
    outputs = [m["heads"] * width, m["kv_heads"] * width, m["kv_heads"] * width]
    names = ("wq", "wk", "wv")
    made = [("wqkv", sum(outputs))] if m["fused_qkv"] else zip(names, outputs, strict=True)
    for name, rows in made:
        yield Parameter(rows // tp, dim, words=("attn", name))
        yield from adapters(case, name, rows, dim)
        if is_gpt or m.get("qkv_bias"):
            yield Parameter(rows // tp, words=("attn", name))
    yield Parameter(dim, m["heads"] * width // tp, words=("attn", "wo"))
    yield from adapters(case, "wo", dim, m["heads"] * width)
    ways = {"w1": Parameter(m["ffn"] // tp, dim), "w2": Parameter(dim, m["ffn"] // tp)}
    if is_gpt:
        yield Parameter(dim, words=("attn", "wo"))
        for name, each in ways.items():
            yield replace(each, words=("ffn", name))
            yield Parameter(each.rows, words=("ffn", name))
    elif m["arch"] == "moe":
        yield from experts(case, "ffn")
    else:
        for name in ("w1", "w3", "w2"):
            yield replace(ways["w2" if name == "w2" else "w1"], words=("ffn", name))


def experts(case: Case, name: str) -> Iterator[Parameter]:
    """With their router."""
    m = case.model
    yield Parameter(m["experts"], m["dim"], words=(name, "router"))
    number, row = m["experts"] // case.degree("ep"), m["moe_ffn"] * m["dim"]
    yield from [Parameter(number, row, is_expert=True, words=(name, "experts"))] * 3


def adapters(case: Case, name: str, rows: int, row: int) -> Iterator[Parameter]:
    """Of a linear layer, without tensor parallelism."""
    if name in case.adapted:
        yield Parameter(case.model["lora"], row)
        yield Parameter(rows, case.model["lora"])


def is_frozen(case: Case, parameter: Parameter) -> bool:
    """Whether PyTorch's model does not train it."""
    return not set(parameter.words).isdisjoint(case.frozen)


def trained_of(case: Case, rank: int) -> list[Parameter]:
    return [each for each in parameters_of(case, rank) if not is_frozen(case, each)]


def waits_for_backward(case: Case, parameter: Parameter) -> bool:
    """Whether FSDP2 keeps what it gathers of it in the forward pass until the backward pass."""
    if not case.parallel.get("reshard", True):
        return True
    group = case.parallel.get("fsdp_group", "block")
    resharded = {"block": ("block",), "titan": ("block", "embedding")}
    return group != "root" and parameter.place not in resharded[group]


def stays_gathered(case: Case, parameter: Parameter) -> bool:
    """Whether it waits for a backward pass that there is not."""
    return case.is_served and waits_for_backward(case, parameter)


def missing_of(case: Case, rank: int, *, trained: bool = False) -> int:
    """Bytes that a rank's shards, or those that are `trained`, lack of those of a first rank, as FSDP2 leaves the padding of the last ones out, or of what
    stays gathered, in the dtype in which that is.
    """
    mode = case.parallel.get("dp_mode", "ddp")
    if mode == "ddp":
        return 0
    missing = 0
    for each in (trained_of if trained else parameters_of)(case, rank):
        axes = ["dp_shard"] if mode == "hsdp" else ["dp", "edp", "ep", "cp"]
        axes += ["outer", "inner"]
        if each.is_expert and case.degree("ep") > 1:
            axes = ["edp"]
        position, ways = place_along(case, rank, axes)
        rows = -(-each.rows // ways)
        own = min(max(each.rows - position * rows, 0), rows)
        planned = rows * case.element_bytes
        if stays_gathered(case, each):
            planned = each.rows * DTYPE_BYTES[case.compute_dtype]
        missing += (planned - own * case.element_bytes) * each.row
    return missing


def place_along(case: Case, rank: int, axes: list[str]) -> tuple[int, int]:
    """Where a rank is along the product of axes, and how many are there."""
    position, ways = 0, 1
    for axis, at in coordinates_in_order(case, rank):
        if axis in axes:
            size = case.mesh[axis]
            position, ways = position * size + at, ways * size
    return position, ways


def coordinates_in_order(case: Case, rank: int) -> list[tuple[str, int]]:
    at = coordinates(rank, case.mesh)
    return [(axis, at[axis]) for axis in case.mesh]
