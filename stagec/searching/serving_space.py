"""The choices of a search among plans that serve, and how a choice is written as a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import gcd

from stagec.diagnostics import CompileError
from stagec.frontend import CheckedModel
from stagec.plans.clauses import Sequences
from stagec.searching.model import ModelDims
from stagec.searching.space import (
    SERVING_NAMES,
    Point,
    Space,
    Value,
    default_space,
    parts_of_ranks,
)
from stagec.searching.texts import mesh_text, tensor_lines, with_clauses

MOST_BATCH = 4096
"""The most sequences of a device in a microbatch that are tried."""
STEPS = 8
"""How many numbers of sequences are tried between a power of two and the next one."""


@dataclass
class ServedIteration:
    """The iteration that plans serve, with any number of sequences."""

    clause: str
    """The `serve { ... }` clause of each plan."""
    batch: str
    """The dim that says how many sequences there are; empty if the clause gives a number."""
    checked_at: Callable[[int], CheckedModel]
    """The model under a plan with this clause alone, if that dim has a given size."""
    one: int
    """A size of that dim with which the model can be served."""
    _known: dict[int, tuple[int, int]] = field(default_factory=dict)

    @cached_property
    def is_alike(self) -> bool:
        """Whether all sequences are of one kind, so that a microbatch is described by their number."""
        return len(self.kinds(self.one)) == 1

    def numbers(self, batch: int) -> tuple[int, int]:
        """How many sequences and new tokens the iteration has, if the dim has the size `batch`."""
        if batch not in self._known:
            kinds = [(int(each.count.value), int(each.new.value)) for each in self.kinds(batch)]
            self._known[batch] = sum(n for n, _ in kinds), sum(n * new for n, new in kinds)
        return self._known[batch]

    def kinds(self, batch: int) -> Sequence[Sequences]:
        """The kinds of sequences of the iteration, if the dim has the size `batch`."""
        found = self.checked_at(batch).batch
        assert found is not None
        return found.serve.sequences


def serving_space(
    dims: ModelDims, devices: int, node: int | None, iteration: ServedIteration
) -> Space:
    """The choices that the model's sizes and the nodes permit. `node` is the number of devices in a node."""
    of_training = default_space(dims, devices, node)
    values = {n: of_training.values[n] for n in SERVING_NAMES if n in of_training.values}
    space = Space(values, names=SERVING_NAMES, limits=of_training.limits)
    space.untried = {n: why for n, why in of_training.untried.items() if n in SERVING_NAMES}
    space.values |= {"dcp": (1,), "combine": ("reduce_scatter",)}
    if not iteration.batch:
        space.values["batch"] = (iteration.numbers(iteration.one)[0],)
    return space


def serving_points(
    space: Space, dims: ModelDims, devices: int, iteration: ServedIteration
) -> Iterator[dict[str, Value]]:
    """Every point of a space. Combinations that the sizes do not permit are counted in `left_out`."""
    values = space.values
    layers = sum(dims.values[name] for name in dims.layers)
    for tp, pp in product(values["tp"], values["pp"]):
        assert isinstance(tp, int) and isinstance(pp, int)
        if devices % (tp * pp):
            space.left_out[f"tp x pp does not divide the {devices:,} devices"] += 1
            continue
        if pp > 1 and layers % pp:
            space.left_out[f"the {layers} layers do not divide into stages"] += 1
            continue
        dp = devices // (tp * pp)
        for cut, ep, precision in product(
            parts_of_ranks(space, dims, tp), values["ep"], values["precision"]
        ):
            assert isinstance(ep, int)
            if ep > 1 and (ep % tp or dp % (ep // tp)):
                space.left_out["ep is neither 1 nor tp nor so many times tp as divide dp"] += 1
                continue
            sizes: dict[str, Value] = {"devices": devices, "tp": tp, "pp": pp, "dp": dp, "ep": ep}
            for shared in shared_positions(space, dims, tp, cut):
                own: dict[str, Value] = {**sizes, **shared, "precision": precision}
                for point in of_batches(space, own, iteration):
                    if space.permits(point):
                        yield point
                    else:
                        space.left_out["forbidden"] += 1


def alike_ranks(dims: ModelDims, tp: int) -> int:
    """How many ranks along tp would hold the same part of every cache, because heads are not split over them."""
    cut = {*dims.tensor_parallel}
    parts = (
        max((gcd(dims.values[n], tp) for n in cut & {*each}), default=1) for each in dims.caches
    )
    return gcd(*(tp // part for part in parts)) or 1


def shared_positions(
    space: Space, dims: ModelDims, tp: int, cut: Mapping[str, Value]
) -> Iterator[dict[str, Value]]:
    """The choices of decode context parallelism: how many ranks along tp share the positions of caches, and how results are combined. `cut` says what becomes
    of dims that tp does not divide.
    """
    alike = alike_ranks(dims, tp)
    for dcp in space.values["dcp"]:
        assert isinstance(dcp, int)
        if alike % dcp:
            why = "does not divide the ranks of tp that would have the same keys or latent vectors"
            why = why if dims.positions else "wants a cache of which attention sees all positions"
            space.left_out[f"dcp {why}"] += 1
            continue
        if dcp > 1 and any(dims.values[name] % (tp // dcp) for name in dims.key_heads):
            why = "dcp would leave ranks that have the same keys and do not share their positions"
            space.left_out[why] += 1
            continue
        own = {**cut, "dcp": dcp, **({"replicate": "off"} if dcp > 1 else {})}
        for combine in space.values["combine"] if dcp > 1 else ("none",):
            yield {**own, "combine": combine}


def of_batches(
    space: Space, own: Mapping[str, Value], iteration: ServedIteration
) -> Iterator[dict[str, Value]]:
    """The choices of the number of sequences, and of the number of microbatches."""
    tp, pp, dp, ep = (int(own[name]) for name in ("tp", "pp", "dp", "ep"))
    # Beside a pipeline, microbatches are for tokens that travel to experts.
    for number in space.values.get(
        "microbatches", [1, *([pp] if pp > 1 else [2] if ep > tp else [])]
    ):
        assert isinstance(number, int)
        if number > 1 and pp == 1 and ep <= tp:
            space.left_out["microbatches without a pipeline, and no tokens that travel"] += 1
            continue
        usual = [each * dp * number for each in grid(MOST_BATCH)]
        for batch in space.values.get("batch", usual):
            assert isinstance(batch, int)
            try:
                sequences, tokens = iteration.numbers(batch)
            except CompileError as error:
                space.left_out[error.diagnostics[0].message] += 1
                continue
            if sequences < dp or (number > 1 and iteration.is_alike and sequences % (dp * number)):
                space.left_out["fewer sequences than devices, or than microbatches divide"] += 1
                continue
            yield {**own, "batch": batch, "microbatches": number, "tokens": tokens}


def grid(most: int) -> list[int]:
    """Numbers from 1 to `most`, each larger than the one before by at most a share of 1 in `STEPS`, or by 1."""
    found = [1]
    while found[-1] < most:
        found.append(found[-1] + max(1, 2 ** (found[-1].bit_length() - 1) // STEPS))
    return found


# Texts


def text_key(point: Point) -> tuple[object, ...]:
    """The key of a point's text: plans of points with the same key differ in sizes alone."""
    named = ("devices", "pad", "replicate", "combine", "precision", "microbatches")
    cut = (point[name] for name in named)
    axes = *(point[name] != 1 for name in ("tp", "pp", "dp", "dcp")), point["dcp"] == point["tp"]
    experts = int(point["ep"]) > 1, int(point["ep"]) > int(point["tp"])
    return (*cut, *axes, *experts)


def sizes_of(point: Point, iteration: ServedIteration) -> dict[str, int]:
    """The sizes of a point's mesh axes, its batch and its microbatch, under the names by which a sweep varies them."""
    tp, pp, dp = (int(point[name]) for name in ("tp", "pp", "dp"))
    found = {"pp": pp} if pp > 1 else {}
    dcp = int(point["dcp"])
    if 1 < dcp < tp:
        found |= {"kv": tp // dcp, "dcp": dcp}
    elif tp > 1:
        found["tp"] = tp
    if int(point["ep"]) > tp:
        ep = int(point["ep"]) // tp
        found |= {"edp": dp // ep, "ep": ep}
    elif dp > 1:
        found["dp"] = dp
    if iteration.batch:
        found[iteration.batch] = int(point["batch"])
    if is_cut(point) and iteration.is_alike:
        sequences, _ = iteration.numbers(int(point["batch"]))
        found["microbatch"] = sequences // dp // int(point["microbatches"])
    return found


def is_cut(point: Point) -> bool:
    """Whether a point's plan cuts the iteration into microbatches."""
    return point["pp"] != 1 or point["microbatches"] != 1


def serving_text(
    name: str, point: Point, dims: ModelDims, iteration: ServedIteration, clauses: Sequence[str]
) -> str:
    """The text of a point's plan; `clauses` are those that all plans have."""
    sizes, number = sizes_of(point, iteration), int(point["microbatches"])
    tensor = ["tp"] if point["tp"] != 1 else []
    lines = [f"set {iteration.batch} = {sizes[iteration.batch]}"] if iteration.batch else []
    mesh = mesh_text(sizes)
    if mesh:
        lines.append(f"mesh {mesh}")
    if "dp" in sizes or "ep" in sizes:
        lines.append(f"shard {dims.batch} over dp")
    if int(point["ep"]) > 1:
        along = [*tensor, *(["ep"] if "ep" in sizes else [])]
        lines.append(f"shard {', '.join(dims.experts)} over {', '.join(along)}")
    if dims.expert_tokens and ("dp" in sizes or "ep" in sizes):
        lines.append(f"shard {', '.join(dims.expert_tokens)} over dp")
    if tensor:
        lines += tensor_lines(point, dims)
    if point["dcp"] != 1:
        # All ranks of tp share: the axis needs no other name.
        axis = "dcp" if "dcp" in sizes else "tp"
        said = "" if point["combine"] == "reduce_scatter" else f", combine = {point['combine']}"
        lines.append(f"shard {', '.join(dims.positions)} over {axis}")
        lines.append(f"context {axis} {{ method = partial{said} }}")
    settings = [f"microbatch = {sizes['microbatch']}"] if "microbatch" in sizes else []
    if "pp" in sizes:
        said = ", ".join(["schedule = forward_only", *settings])
        lines.append(f"pipeline {', '.join(dims.layers)} over pp {{ {said} }}")
    elif settings:
        lines.append(f"microbatch {sizes['microbatch']}")
    if "ep" in sizes and number > 1:
        lines.append("overlap { ep = true }")
    width = point["precision"]
    lines.append(f"precision {{ weights = {width}, activations = {width} }}")
    if is_cut(point) and not settings:
        served = iteration.clause.replace("{", f"{{ microbatches = {number},", 1)
        clauses = [served if each == iteration.clause else each for each in clauses]
    return with_clauses(name, lines, clauses, sizes)
