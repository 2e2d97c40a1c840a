"""Write a point of a search as the text of a plan, as a person would write it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from stagec.schedules.catalogue import CATALOGUE, FORWARD_ONLY
from stagec.searching.coarse_times import Turns
from stagec.searching.model import ModelDims
from stagec.searching.space import (
    NAMES,
    NO_EXPERTS,
    SAID_BY,
    Point,
    ends,
    experts_of_context,
    experts_of_data,
    is_file,
    whole_experts,
    word_of,
)

AXES = (
    *("pp", "replicas", "shards", "dp", "edp", "ep", "ep_nodes", "ep_local", "cp"),
    *("tp", "ept", "etp", "kv", "dcp"),
)
"""All axes that a searched plan may have, in the order of its mesh: the last one is the fastest in rank order."""
PRODUCTS = {
    "dp": ("replicas", "shards", "edp", "ep", "ep_nodes", "ep_local"),
    "ep": ("ep_nodes", "ep_local"),
    "tp": ("ept", "etp", "kv", "dcp"),
}
"""Axes that a mesh defines as products: for each, the axes that are its factors, as far as the mesh has them."""
RECOMPUTE = {"none": "none", "selective": "attention", "full": "full"}


SIZES = ("tp", "cp", "pp", "dp", "ep", "etp", "replicas", "microbatch")
"""The names in which points may differ that share a text."""
CHOICES = tuple(name for name in NAMES if name not in SIZES)
FLAGS = ("tp", "cp", "pp", "ep", "replicas", "dp")
"""The names that a text has if their size is not 1."""


def text_key(point: Point) -> tuple[object, ...]:
    """Points with the same key have the same text but for sizes."""
    return (
        point["devices"],
        *(point[name] for name in CHOICES),
        *(point[name] != 1 for name in FLAGS),
        experts_of_data(point) != 1,
        experts_of_context(point) != 1,
        whole_experts(point) != 1,
        point["etp"] != 1,
    )


PLAIN, PLAIN_OF_SEVERAL = "gpipe", "looped_bfs"
"""Schedules that place one stage on each rank, and several, and run any number of microbatches."""


def in_turn(point: Point, dims: ModelDims) -> Point:
    """A point with the same ops, but the plainest schedule: schedules that place stages in the same way do not differ in their ops.

    The stages of a rank count as one where all stages have the same layers. Where a pipeline cuts several repeats, they do not.
    """
    entry = CATALOGUE.get(str(point["schedule"]))
    if entry is None or entry.placement != "loop" or point["schedule"] == FORWARD_ONLY:
        return point
    if dims.cuts_several and point["virtual_stages"] != 1:
        return {**point, "schedule": PLAIN_OF_SEVERAL}
    return {**point, "schedule": PLAIN, "virtual_stages": 1}


def at_least(point: Point, dims: ModelDims) -> Point:
    """The point that does what this one does and no more: nothing is computed again, and storage is not split."""
    return in_turn({**point, "zero": 0, "replicas": 1, "recompute": "none"}, dims)


def turns_of(point: Point, file: str) -> Turns:
    """How a point runs its pipeline. A schedule of the user's own is in the folder of the model's `file`."""
    schedule = str(point["schedule"])
    if is_file(schedule):
        schedule = str(Path(file).parent / schedule)
    return Turns(schedule, int(point["virtual_stages"]))


def sizes_of(point: Point) -> dict[str, int]:
    """The sizes of a point's mesh axes and of its microbatch, under the names by which a sweep varies them."""
    found: dict[str, int] = {}
    tp, whole = int(point["tp"]), whole_experts(point)
    for name in ("pp", "cp"):
        if point[name] != 1:
            found[name] = int(point[name])
    if 1 < whole < tp:
        found |= {"ept": whole, "etp": tp // whole}
    elif tp > 1:
        found["tp"] = tp
    dp, replicas, ep = int(point["dp"]), int(point["replicas"]), experts_of_data(point)
    if ep > 1:
        local = int(point.get("local", 1)) if whole == 1 else 1
        parts = {"ep_nodes": ep // local, "ep_local": local} if local > 1 else {"ep": ep}
        found |= {"edp": dp // ep, **parts}
    elif replicas > 1:
        found |= {"replicas": replicas, "shards": dp // replicas}
    elif dp > 1:
        found["dp"] = dp
    return {**found, "microbatch": int(point["microbatch"])}


def mesh_text(sizes: dict[str, int]) -> str:
    """The axes of a `mesh` clause, with those that are products of others."""
    listed = [f"{axis} = {sizes[axis]}" for axis in AXES if axis in sizes]
    for name, parts in PRODUCTS.items():
        own = [axis for axis in parts if axis in sizes]
        if own and name not in sizes:
            listed.append(f"{name} = {' * '.join(own)}")
    return ", ".join(listed)


OPTIONS = {*SAID_BY, "optimizer"}
"""Clauses that a plan has at most once, so that the user's own replace those of a search."""


def plan_text(
    name: str, point: Point, dims: ModelDims, batch: int, clauses: Sequence[str] = ()
) -> str:
    """The text of a point's plan; `clauses` are those that all plans have."""
    sizes = sizes_of(point)
    mesh, tp, is_whole = mesh_text(sizes), point["tp"] != 1, whole_experts(point) != 1
    split_data = point["dp"] != 1
    lines = [f"set {dims.batch} = {batch}"]
    if mesh:
        lines.append(f"mesh {mesh}")
    whole = ["ept" if "ept" in sizes else "tp"] if is_whole else []
    data = ["dp"] if split_data else []
    context = ["cp"] if "cp" in sizes else []
    sharing = ["ep"] if experts_of_data(point) != 1 else []
    sharing += ["cp"] if experts_of_context(point) != 1 else []
    experts = rule(dims.experts, [*sharing, *whole])
    tokens = rule(dims.expert_tokens, [*data, *context, *(["tp"] if is_whole else [])])
    lines += rule((dims.batch,), data)
    if tp:
        lines += tensor_lines(point, dims)
    along = [*context, *(["tp"] if tp and point["sequence"] == "on" else [])]
    lines += rule(dims.sequence, along)
    # Behind what splits a batch and its sequences, so that every rank has a router for its own tokens.
    lines += [*experts, *tokens]
    if "cp" in sizes:
        lines.append(f"context cp {{ method = {point['context']} }}")
    lines += pipeline_lines(point, dims)
    lines += storage_lines(point, sizes, dims, split_data)
    lines += option_lines(point, dims)
    return with_clauses(name, lines, clauses, sizes)


def rule(names: Sequence[str], axes: Sequence[str]) -> list[str]:
    """A `shard` clause; none if there are no dims or no axes."""
    return [f"shard {', '.join(names)} over {', '.join(axes)}"] if names and axes else []


def with_clauses(
    name: str, lines: Sequence[str], clauses: Sequence[str], sizes: Mapping[str, int]
) -> str:
    """A plan of these lines. `clauses` are added at its end, in place of those of its own that say the same, but no links along axes that its mesh has not.

    `sizes` are those of the axes of its mesh.
    """
    axes = {*sizes, *(name for name, parts in PRODUCTS.items() if sizes.keys() & set(parts))}
    clauses = [each for each in clauses if axis_of_link(each) in ("", *axes)]
    given = OPTIONS.intersection(map(word_of, clauses))
    lines = [line for line in lines if word_of(line) not in given]
    body = "\n".join(f"  {line}" for line in (*lines, *clauses))
    return f"plan {name} {{\n{body}\n}}\n"


LINKED = ("tp", "cp", "pp", "dp", "ep")
"""Axes to which links belong that are said of all plans: what else a mesh has are parts of these."""


def axis_of_link(clause: str) -> str:
    """The axis whose link a clause says; nothing of another clause."""
    found = re.match(r"\s*link\s+(\w+)", clause)
    return found[1] if found else ""


def tensor_lines(point: Point, dims: ModelDims) -> list[str]:
    """The `shard` clauses for tensor parallelism. They also say what becomes of dims that the ranks do not divide."""
    tp = int(point["tp"])
    ways = {name: ("tp", tp) for name in dims.tensor_parallel}
    if point.get("dcp", 1) != 1:
        # Ranks that share positions have the same heads of keys.
        ways |= {name: ("kv", tp // int(point["dcp"])) for name in dims.key_heads}
    if point.get("etp", tp) not in (tp, NO_EXPERTS):
        ways |= {name: ("etp", int(point["etp"])) for name in dims.expert_inner}
    cut = {name: how for name, how in ways.items() if how[1] > 1}
    rest = [name for name, (_, size) in cut.items() if dims.values[name] % size]
    padded = [name for name in rest if name in dims.vocabulary and point["pad"]]
    shared = [name for name in rest if name in dims.key_heads and point["replicate"] == "on"]
    found: dict[str, list[str]] = {}
    for name, (axis, _) in cut.items():
        how = f" {{ pad = {point['pad']} }}" if name in padded else ""
        how = " { replicate = true }" if name in shared else how
        found.setdefault(f"{axis}{how}", []).append(name)
    return [f"shard {', '.join(names)} over {how}" for how, names in found.items()]


def pipeline_lines(point: Point, dims: ModelDims) -> list[str]:
    """The `pipeline` clause, or that of the microbatch alone."""
    if point["pp"] == 1:
        return [f"microbatch {point['microbatch']}"]
    schedule = str(point["schedule"])
    settings = [f'schedule = "{schedule}"' if is_file(schedule) else f"schedule = {schedule}"]
    if point["virtual_stages"] != 1:
        settings.append(f"virtual_stages = {point['virtual_stages']}")
    settings.append(f"microbatch = {point['microbatch']}")
    if point["uneven"]:
        first, last = ends(int(point["uneven"]))
        settings += [f"first = -{first}"] if first else []
        settings.append(f"last = -{last}")
    return [f"pipeline {', '.join(dims.layers)} over pp {{ {', '.join(settings)} }}"]


def storage_lines(
    point: Point, sizes: dict[str, int], dims: ModelDims, split_data: bool
) -> list[str]:
    """The clauses that say how ZeRO splits storage."""
    if not point["zero"]:
        return []
    axes = [] if not split_data else ["shards" if "replicas" in sizes else "dp"]
    axes += ["cp"] if "cp" in sizes else []
    kept = " { reshard = false }" if point["zero"] == 3 and point["pp"] != 1 else ""
    lines = [f"zero {point['zero']} over {', '.join(axes)}{kept}"]
    if point["zero"] == 3 and dims.units:
        lines.append(f"unit {', '.join(dims.units)}")
    return lines


def is_bucketed(point: Point) -> bool:
    """Whether a point's plan joins gradients to buckets before it reduces them."""
    return bool(point["bucket"]) and point["zero"] != 3 and int(point["dp"]) * int(point["cp"]) != 1


def option_lines(point: Point, dims: ModelDims) -> list[str]:
    """All other clauses: recomputation, offloading, gradients, overlap, collectives, precision and the optimizer."""
    lines: list[str] = []
    if dims.is_training:
        what = str(point["recompute"])
        lines.append(f"recompute {RECOMPUTE.get(what, what)}")
        if point["offload"] != "none":
            kept = [w for w in ("optimizer", "activations") if point["offload"] in (w, "both")]
            said = {"optimizer": "optimizer = true", "activations": "activations = inputs"}
            lines.append(f"offload {{ {', '.join(said[w] for w in kept)} }}")
        settings = ["overlap = false"] if point["reduce"] == "after" else []
        if is_bucketed(point):
            settings.append(f"bucket_bytes = {point['bucket']}MiB")
        if settings:
            lines.append(f"gradients {{ {', '.join(settings)} }}")
    beside = [f"{point['overlap']} = true"] if point["overlap"] != "none" else []
    if dims.is_training and point["zero"] in (1, 2) and point["gather"] == "overlapped":
        beside.append("param_gather = true")
    if beside:
        lines.append(f"overlap {{ {', '.join(beside)} }}")
    gathers = point["sequence"] == "on" or (point["cp"] != 1 and point["context"] == "all_gather")
    settings = ["keep = shard"] if point["keep"] == "shard" and point["tp"] != 1 and gathers else []
    if point["exchange"] != "all_to_all":
        settings.append(f"exchange = {point['exchange']}")
    if settings:
        lines.append(f"collectives {{ {', '.join(settings)} }}")
    width = point["precision"]
    wide = "" if width == "fp32" else ", gradients = fp32, optimizer = fp32"
    lines.append(f"precision {{ weights = {width}, activations = {width}{wide} }}")
    if dims.is_training:
        lines.append("optimizer adamw")
    return lines
