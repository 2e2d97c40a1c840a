"""What a process keeps, against measured peaks: Megatron-LM and Transformer Engine on B200, as SimuMax publishes them, and on H100 and H200, as
logged by submissions to MLPerf (`docs/fidelity.md`)."""

from __future__ import annotations

import random

import pytest

from stagec.diagnostics import CompileError
from stagec.driver import compile_text
from stagec.memory import Kind
from tests.unit.examples import FOLDER
from tests.unit.seldom import some

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


MLPERF = """
import "{file}"

plan measured {{
  mesh pp = 8, dp = {dp}, cp = 2, tp = {tp}
  set B = 16 * dp, V = 32768
  shard B over dp
  shard H, K, F, V over tp
  shard S over cp, tp
  context cp {{ method = ring }}
  pipeline L over pp {{ schedule = interleaved_1f1b, virtual_stages = 8, first = -1, last = -1 }}
  zero 1 over dp, cp
  recompute silu
  precision {{ weights = bf16, gradients = bf16, optimizer = fp32, gather = fp8, products = fp8, product_weights = fp8 }}
  gradients {{ overlap = true, bucket_bytes = 200000000 }}
  collectives {{ keep = shard }}
  process {{ transposed_weights = true }}
}}
"""


@pytest.mark.seldom
def test_training_in_fp8() -> None:
    """The smallest of MLPerf's runs of 405B, in v5.0: 58.817 GiB at most. 16 microbatches fill the pipeline as the run's 288 do."""
    text = MLPERF.format(file=FOLDER / "llama3_405b.stg", dp=4, tp=8)
    first = compile_text(text, name=str(FOLDER / "measured.stg"), plan="measured").memory[0]
    assert first.peak_bytes / GIB == pytest.approx(58.817, rel=0.002)


LOGITS = """
import "{file}"

plan measured {{
  mesh dp = 64, tp = {tp}
  set B = dp, S = 8192
  shard B over dp
  shard H, K, F, V, S over tp
  microbatch 1
  zero 1 over dp {{ like = megatron }}
  gradients {{ overlap = true }}
  recompute silu
  collectives {{ keep = shard }}
  precision {{ weights = bf16, activations = bf16, gradients = bf16, optimizer = fp32, products = fp8, product_weights = fp8, loss = fp32 }}
  process {{ dummy_gradients = true, transposed_weights = true }}
  optimizer adamw {{ clip = 1 }}
}}
"""


@pytest.mark.seldom
@pytest.mark.parametrize(("tp", "gib"), [(1, 71.229), (2, 35.707)])
def test_a_loss_in_fp32(tp: int, gib: float) -> None:
    """MLPerf's runs of 8B on H100, in v5.1. Megatron-LM's loss holds the logits' gradient in bf16 beside what it made it of (`docs/fidelity.md`)."""
    text = LOGITS.format(file=FOLDER / "llama3_8b.stg", tp=tp)
    (plan,) = compile_text(text, name=str(FOLDER / "measured.stg"), plan="measured").memory
    gradient = 2 * 8192 * 128256 // tp
    assert (plan.peak_bytes + gradient) / GIB == pytest.approx(gib, rel=0.004)


def test_transposed_weights_are_those_that_are_quantized() -> None:
    """Of random stacks of layers: each weight but the table, the head, those left wide, and those of which no input has a gradient."""
    draw = random.Random(7)
    for _ in range(4):
        widths = [draw.choice([16, 32, 48]) for _ in range(draw.randint(1, 4))]
        wide = draw.sample(range(len(widths)), draw.randint(0, 1))
        layers, microbatches = draw.randint(1, 3), draw.randint(1, 2)
        block = "\n".join(f"  weight u{i}[D, F{i}], d{i}[F{i}, D]" for i in range(len(widths)))
        steps = "\n".join(
            f"  x{i + 1} = x{i} + gelu(x{i} @ u{i}) @ d{i}" for i in range(len(widths))
        )
        left = f", unquantized = [{', '.join(f'u{i}' for i in wide)}]" if wide else ""
        text = f"""
dim B = {2 * microbatches}
dim D = 32
dim V = 64
{"".join(f"dim F{i} = {width}{chr(10)}" for i, width in enumerate(widths))}
dim L = {layers}
module Block(x0[B, D]) -> [B, D] {{
{block}
{steps}
  return x{len(widths)}
}}
model M(x[B, D], y[B]: i32) {{
  weight first[D], head[D, V]
  x = x * first
  repeat L {{ x = Block(x) }}
  loss = cross_entropy(x @ head, y)
}}
plan p {{
  microbatch 2
  precision {{ weights = bf16, products = fp8, product_weights = fp8{left} }}
  process {{ transposed_weights = true }}
}}
"""
        (plan,) = compile_text(text, plan="p").memory
        sizes = [layers * 32 * width for width in widths]
        expected = 2 * sum(sizes) - sum(sizes[i] for i in wide)
        assert plan.static.num_bytes[Kind.TRANSPOSED] == expected, text


@pytest.mark.seldom
def test_products_add_to_the_sums_themselves() -> None:
    """Of random stacks under Megatron-LM's buffers: beside a dummy a microbatch has no gradient of a layer's weight, of norms and the head it has, and sums
    are what they are without dummies."""
    draw = random.Random(11)
    for _ in range(3):
        widths = [draw.choice([16, 32, 48]) for _ in range(draw.randint(1, 3))]
        layers, microbatches = draw.randint(1, 3), draw.randint(1, 3)
        gradients = draw.choice(["fp32", "bf16"])
        block = ", ".join(f"u{i}[D, F{i}], d{i}[F{i}, D]" for i in range(len(widths)))
        steps = "\n".join(
            f"  x{i + 1} = x{i} + gelu(x{i} @ u{i}) @ d{i}" for i in range(len(widths))
        )
        text = f"""
dim B = {2 * microbatches}
dim D = 32
dim V = 64
{"".join(f"dim F{i} = {width}{chr(10)}" for i, width in enumerate(widths))}
dim L = {layers}
module Block(x[B, D]) -> [B, D] {{
  weight norm[D], {block}
  x0 = rms_norm(x, norm)
{steps}
  return x{len(widths)}
}}
model M(x[B, D], y[B]: i32) {{
  weight head[D, V]
  repeat L {{ x = Block(x) }}
  loss = cross_entropy(x @ head, y)
}}
plan p {{
  mesh dp = 2
  shard B over dp
  microbatch 1
  zero 1 over dp {{ like = megatron }}
  precision {{ weights = bf16, activations = bf16, gradients = {gradients} }}
  process {{ dummy_gradients = DUMMY }}
}}
"""
        terms, sums = [], []
        for dummy in ("false", "true"):
            (plan,) = compile_text(text.replace("DUMMY", dummy), plan="p").memory
            lives = plan.lives
            made = lives.kind == Kind.GRADIENTS
            terms.append(lives.num_bytes[made & (lives.microbatch >= 0)].sum())
            sums.append(sorted(lives.num_bytes[made & (lives.microbatch < 0)].tolist()))
        assert sums[0] == sums[1], text
        products = layers * sum(2 * 32 * width for width in widths)
        assert terms[0] - terms[1] == 2 * products * microbatches, text
        assert terms[1] == 2 * (layers * 32 + 32 * 64) * microbatches, text


CACHED = """
dim B = 4
dim D = 128
dim F = 256
dim L = 3
module Block(x[B, D]) -> [B, D] {
  weight norm[D], up[D, F], down[F, D]
  return x + gelu(rms_norm(x, norm) @ up) @ down
}
model M(x[B, D]) {
  weight head[D, D -> F]
  repeat L { x = Block(x) }
  loss = mean(x @ head, over = [B, F])
}
plan p {
  microbatch 2
  PRECISION
  process { SETTINGS }
}
""".replace("head[D, D -> F]", "head[D, F]")


@pytest.mark.parametrize(
    ("form", "scales"), some([("fp8", 0), ("fp8_1x128", 1 / 4096), ("mxfp8", 1 / 32)], 2)
)
def test_copies_of_weights_that_are_stored_wide(form: str, scales: float) -> None:
    """Transformer Engine keeps a quantized copy of each, and a transposed one beside it: a byte an element and scales, of DeepSeek's tiles of weights one in
    fp32 for 128 by 128, or of 32 elements a byte. Not of norms and the head."""
    copies = round(3 * 2 * 128 * 256 * (1 + scales))
    wide = f"precision {{ weights = bf16, products = {form} }}"
    found = []
    for settings in (
        "reserve = 0B",
        "cached_weights = true",
        "cached_weights = true, transposed_weights = true",
    ):
        text = CACHED.replace("PRECISION", wide).replace("SETTINGS", settings)
        (plan,) = compile_text(text).memory
        found.append([plan.static.num_bytes[k] for k in (Kind.PROCESS, Kind.TRANSPOSED)])
    assert found == [[0, 0], [copies, 0], [copies, copies]]


def test_copies_that_nobody_makes_are_refused() -> None:
    refusals = {
        "precision { weights = bf16 }": "no product is of quantized weights",
        "precision { products = fp8, product_weights = fp8 }": "weights are stored as products read them",
        "mesh dp = 2 shard B over dp zero 3 over dp microbatch 1 precision { products = fp8 }": "weights that come and go leave no quantized copy",
    }
    for clauses, message in refusals.items():
        text = CACHED.replace("SETTINGS", "cached_weights = true").replace("  microbatch 2\n", "")
        with pytest.raises(CompileError, match=message):
            compile_text(text.replace("PRECISION", clauses))
