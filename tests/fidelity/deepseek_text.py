"""DeepSeek-V2 and V3 as they are measured in a few layers: the example's modules, with other sizes and without multi-token prediction."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

from tests.fidelity.serving_models import EXAMPLES
from tests.fidelity.time_models import copied

SIZES: Mapping[str, Mapping[str, int]] = {
    "deepseekv2": {"V": 102400, "D": 5120, "F": 12288, "FX": 1536, "FS": 3072, "X": 160, "A": 6},
    "deepseekv3": {"V": 129280, "D": 7168, "F": 18432, "FX": 2048, "FS": 2048, "X": 256, "A": 8},
}
"""arXiv:2405.04434, section 3.1.2, and arXiv:2412.19437, section 4.2: what differs. `FS` is the width of the experts that all tokens go to."""

MODEL = """model DeepSeek(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[V, D], norm[D], head[D, V]
  x = embedding(tokens, embed)
  repeat L1 { x = Dense(x) }
  repeat L2 { x = Block(x) }
  loss = cross_entropy(rms_norm(x, norm) @ head, targets)
}
"""


def deepseek_text(name: str, batch: int, sequence: int, dense: int, sparse: int) -> str:
    """A model of so many layers, without a plan, in microbatches of one sequence: experts have places for their even share of each, rounded up."""
    whole = Path(EXAMPLES, "deepseek_v3.stg").read_text()
    kept = whole[: whole.index("# Multi-token prediction")]
    sizes = {**SIZES[name], "B": batch, "S": sequence, "L1": dense, "L2": sparse}
    sizes["T"] = batch * math.ceil(sequence * sizes["A"] / sizes["X"])
    for dim, size in sizes.items():
        kept = re.sub(rf"^dim {dim} = .*$", f"dim {dim} = {size}", kept, flags=re.MULTILINE)
    kept = re.sub(r"^dim D2 = .*$", f"dim FS = {sizes['FS']}", kept, flags=re.MULTILINE)
    shared = re.compile(r"^module Shared\(.*?^}$", re.MULTILINE | re.DOTALL)
    found = shared.search(kept)
    assert found is not None
    kept = kept.replace(found[0], found[0].replace("FX", "FS"))
    # Experts have a capacity (`--moe-expert-capacity-factor 1`), to which their input is padded; places of all ranks are put in the order of experts by a copy
    # behind one exchange and in front of the next (`.transpose(0, 1).contiguous()` in `MoEAlltoAllTokenDispatcher`).
    kept = kept.replace("tokens = T)", "tokens = T, dropless = false)")
    kept = kept.replace("  r = dispatch(", "  came = dispatch(").replace(
        "combine(y,", "combine(sorted(y),"
    )
    kept = kept.replace("  g[X, T, FX]", "  r[X, T, D] = sorted(came)\n  g[X, T, FX]")
    return copied("sorted", "X, T, D", one_by_one=True) + kept + MODEL
