"""What is chosen of plans that serve, and their texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

from stagec.diagnostics import CompileError
from stagec.frontend import CheckedModel
from stagec.plans.clauses import Sequences
from stagec.searching.model import ModelDims
from stagec.searching.space import SERVING_NAMES, Point, Space, Value, default_space, parts_of_ranks
from stagec.searching.texts import mesh_text, tensor_lines, with_clauses

MOST_BATCH = 4096
"""Sequences of a device in a microbatch."""
STEPS = 8
"""So many numbers of sequences between one and twice as many."""


@dataclass
class ServedIteration:
    """What plans serve, with any number of sequences."""

    clause: str
    """`serve { ... }`, as it stands in each plan."""
    batch: str
    """The dim that says how many sequences there are; nothing if they are a number."""
    checked_at: Callable[[int], CheckedModel]
    """The model under the clause alone, with so many in that dim."""
    one: int
    """A number with which the model can be served."""
    _known: dict[int, tuple[int, int]] = field(default_factory=dict)

    @cached_property
    def is_alike(self) -> bool:
        """Whether all sequences are of one kind: then a microbatch is a number of them."""
        return len(self.kinds(self.one)) == 1

    def numbers(self, batch: int) -> tuple[int, int]:
        """Sequences and new tokens, with so many in the dim."""
        if batch not in self._known:
            kinds = [(int(each.count.value), int(each.new.value)) for each in self.kinds(batch)]
            self._known[batch] = sum(n for n, _ in kinds), sum(n * new for n, new in kinds)
        return self._known[batch]

    def kinds(self, batch: int) -> Sequence[Sequences]:
        found = self.checked_at(batch).batch
        assert found is not None
        return found.serve.sequences


def serving_space(
    dims: ModelDims, devices: int, node: int | None, iteration: ServedIteration
) -> Space:
    """What the model's sizes and the nodes permit."""
    of_training = default_space(dims, devices, node)
    values = {n: of_training.values[n] for n in SERVING_NAMES if n in of_training.values}
    left_out = {why: n for why, n in of_training.left_out.items() if why[:2] in ("tp", "pp")}
    space = Space(values, names=SERVING_NAMES)
    space.left_out.update(left_out)
    if not iteration.batch:
        space.values["batch"] = (iteration.numbers(iteration.one)[0],)
    return space


def serving_points(
    space: Space, dims: ModelDims, devices: int, iteration: ServedIteration
) -> Iterator[dict[str, Value]]:
    """Every plan of a space. What the sizes forbid is counted in `left_out`."""
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
            own: dict[str, Value] = {**sizes, **cut, "precision": precision}
            for point in of_batches(space, own, iteration):
                if space.permits(point):
                    yield point
                else:
                    space.left_out["forbidden"] += 1


def of_batches(
    space: Space, own: Mapping[str, Value], iteration: ServedIteration
) -> Iterator[dict[str, Value]]:
    """How many sequences, and in how many microbatches."""
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
    """1 to so many, the next at most a part of it larger."""
    found = [1]
    while found[-1] < most:
        found.append(found[-1] + max(1, 2 ** (found[-1].bit_length() - 1) // STEPS))
    return found


# Texts


def text_key(point: Point) -> tuple[object, ...]:
    """Points with the same key have the same text but for sizes."""
    cut = (point[name] for name in ("devices", "pad", "replicate", "precision", "microbatches"))
    axes = (point[name] != 1 for name in ("tp", "pp", "dp"))
    experts = int(point["ep"]) > 1, int(point["ep"]) > int(point["tp"])
    return (*cut, *axes, *experts)


def sizes_of(point: Point, iteration: ServedIteration) -> dict[str, int]:
    """The axes, the batch and the microbatch, as a sweep varies them."""
    tp, pp, dp = (int(point[name]) for name in ("tp", "pp", "dp"))
    found = {name: size for name, size in (("pp", pp), ("tp", tp)) if size > 1}
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
    """Whether its text says how many microbatches there are."""
    return point["pp"] != 1 or point["microbatches"] != 1


def serving_text(
    name: str, point: Point, dims: ModelDims, iteration: ServedIteration, clauses: Sequence[str]
) -> str:
    """A whole plan, with the `clauses` of all."""
    sizes, number = sizes_of(point, iteration), int(point["microbatches"])
    lines = [f"set {iteration.batch} = {sizes[iteration.batch]}"] if iteration.batch else []
    mesh = mesh_text(sizes)
    if mesh:
        lines.append(f"mesh {mesh}")
    if "dp" in sizes or "ep" in sizes:
        lines.append(f"shard {dims.batch} over dp")
    if int(point["ep"]) > 1:
        along = [axis for axis in ("tp", "ep") if axis in sizes]
        lines.append(f"shard {', '.join(dims.experts)} over {', '.join(along)}")
    if dims.expert_tokens and ("dp" in sizes or "ep" in sizes):
        lines.append(f"shard {', '.join(dims.expert_tokens)} over dp")
    if "tp" in sizes:
        lines += tensor_lines(point, dims)
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
        served = re.sub(r"\s*\}\s*$", f", microbatches = {number} }}", iteration.clause)
        clauses = [served if each == iteration.clause else each for each in clauses]
    return with_clauses(name, lines, clauses)
