"""Plans of the examples at small sizes, and what to vary of them: LoRA, DPO, T5, tables, images, state spaces, experts, serving."""

from __future__ import annotations

from random import Random

from stagec.frontend import check
from tests.differential.random_plans import Drawn
from tests.unit.examples import CASES, LARGE, LONG, parsed, smaller

SMALL = [case for case in CASES if case[0].stem not in (*LARGE, *LONG, "deepseek_v3")]
COUNTS = ("L", "M")
OTHERS = ("B", "S", "H", "K", "V", "X", "D", "F")
"""What most of the examples call their dims."""


def draw_example(rng: Random) -> Drawn:
    """A plan of an example, and one to three names: axes, dims, the microbatch."""
    path, plan = rng.choice(SMALL)
    sizes = smaller(path, plan)
    checked = check(parsed(path), plan, sizes)
    values = {axis: {1, 2, 3, size, 2 * size} for axis, size in checked.plan.mesh.items()}
    for name in OTHERS:
        if name in checked.sizes.dims and name in checked.sizes.known:
            size = checked.sizes.known[name]
            values[name] = {max(1, size // 2), 3 * size // 2 or 1, size + 1, 2 * size}
    for name in COUNTS:
        if name in checked.sizes.dims and name in checked.sizes.known:
            values[name] = {1, 2, 3, 4, checked.sizes.known[name] + 2}
    if checked.plan.microbatch_size:
        values["microbatch"] = {1, 2, 4}
    varied: list[str] = []
    for name in rng.sample(sorted(values), min(len(values), rng.choice((1, 2, 2, 3)))):
        chosen = rng.sample(sorted(values[name]), min(3, len(values[name])))
        varied.append(f"{name}={','.join(map(str, chosen))}")
    return Drawn(path.read_text("utf-8"), tuple(varied), plan, str(path), sizes)
