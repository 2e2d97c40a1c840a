"""What a process keeps, against measured peaks: Megatron-LM and Transformer Engine on B200, as SimuMax publishes them (`docs/fidelity.md`)."""

from __future__ import annotations

import pytest

from stagec.driver import compile_text
from stagec.memory import Kind
from tests.unit.examples import FOLDER

GIB = 1 << 30

# Model, layers, heads of keys, mesh, and GiB that PyTorch had allocated at most.
MEASURED = [
    ("llama3_70b", 12, 8, "dp = 1, tp = 8", 28.29),
    ("llama3_405b", 4, 16, "dp = 4, tp = 2", 81.59),
]

PLAN = """
import "{file}"

plan measured {{
  mesh {mesh}
  set B = 4 * dp, S = 4096, L = {layers}, K = {keys}
  shard B over dp
  shard H, K, F, V over tp
  shard S over tp
  microbatch 1
  zero 1 over dp {{ like = megatron }}
  precision {{ weights = bf16, activations = bf16, gradients = fp32, optimizer = fp32 }}
  collectives {{ keep = shard }}
  recompute silu
  process {{ dummy_gradients = true, workspace = 32MiB }}
  optimizer adamw {{ clip = 1 }}
}}
"""


@pytest.mark.parametrize(
    ("model", "layers", "keys", "mesh", "gib"),
    MEASURED,
    ids=[f"{row[0]}, {row[3]}" for row in MEASURED],
)
def test_measured_peaks(model: str, layers: int, keys: int, mesh: str, gib: float) -> None:
    text = PLAN.format(file=FOLDER / f"{model}.stg", layers=layers, keys=keys, mesh=mesh)
    (plan,) = compile_text(text, name=str(FOLDER / "measured.stg"), plan="measured").memory
    assert plan.peak_bytes / GIB == pytest.approx(gib, rel=0.01)
    kept = plan.static.num_bytes[Kind.PROCESS]
    sizes = {row.path: row.num_bytes for row in plan.stored if row.kind == Kind.PROCESS}
    assert sum(sizes.values()) == kept
    width, inner = {"llama3_70b": (8192, 28672), "llama3_405b": (16384, 53248)}[model]
    tp = int(mesh.rpartition(" ")[2])
    shapes = [(width + 2 * keys * 128, width), (width, width), (2 * inner, width), (inner, width)]
    assert kept == 32 * 2**20 + sum(2 * rows * columns // tp for rows, columns in shapes)
