"""Numbers that papers and vendors print, from the texts in `examples/` and from models written here.

The figures are those of `tests/fidelity/cases/published.json` (see its sources); a test holds the copies here against it.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import stagec
from stagec.analysis.sizes import size_values
from stagec.dialects import stg
from stagec.dialects.types import StackType, TensorType
from stagec.driver import Compiled, Stops, compile_model, compile_text
from stagec.explaining.job import NamedJob
from stagec.explaining.questions import ask
from stagec.step_count import matrix_flops
from tests.fidelity.totals import (
    forward_flops_of_layers,
    layer_collectives,
    model_flops,
    model_share,
    nodes_of,
    ranks_of,
    ring_elements,
)
from tests.unit.examples import CASES, FOLDER, compile_example, ids, is_first, plans_of
from tests.unit.seldom import mostly, some

PUBLISHED = Path(__file__).parents[1] / "fidelity" / "cases" / "published.json"

PARAMETERS = {
    "llama3-8B": ("llama3_8b", 8_030_261_248),
    "llama3-70B": ("llama3_70b", 70_553_706_496),
    "llama3.1-405B": ("llama3_405b", 405_853_388_800),
}

# As their authors released them: the number of elements of all tensors of a checkpoint.
RELEASED = {
    "t5-base": ("t5_base", {}, 222_903_552),
    "t5-11b": (
        "t5_base",
        {"D": "1024", "H": "128", "E": "128", "F": "65536", "L": "24", "M": "24"},
        11_307_321_344,
    ),
    # Published as 46.7B, 140.6B, 30.5B and 235B.
    "mixtral-8x7b": ("mixtral_8x7b", {}, 46_702_792_704),
    "mixtral-8x22b": ("mixtral_8x22b", {}, 140_620_634_112),
    "qwen3-30b": ("qwen3_30b_a3b", {}, 30_532_122_624),
    "qwen3-235b": ("qwen3_235b_a22b", {}, 235_093_634_560),
    "ViT-B/16": ("vit_b16", {}, 86_567_656),
    "ViT-L/16": ("vit_b16", {"D": "1024", "H": "16", "L": "24"}, 304_326_632),
    "ViT-H/14": (
        "vit_b16",
        {"D": "1280", "H": "16", "L": "32", "I": "14", "J": "14"},
        632_045_800,
    ),
    # 27.2B, 116.83B, 72.7B, 400B, 3.8B, 8B, 1550M and 428M.
    "gemma-2-27b": ("gemma2_27b", {}, 27_227_128_320),
    "gpt-oss-120b": ("gpt_oss_120b", {}, 116_829_156_672),
    "Qwen2.5-72B": ("qwen2_5_72b", {}, 72_706_203_648),
    "Llama-4-Maverick": ("llama4_maverick", {}, 400_711_848_960),
    # The model's page says 1026.5B, with one scale for each 128 x 128 weights in fp8: 62 million.
    "Kimi-K2": ("kimi_k2", {}, 1_026_408_232_448),
    "Phi-3-mini": ("phi3_mini", {}, 3_821_079_552),
    "Nemotron-H-8B": ("nemotron_h_8b", {}, 8_100_852_736),
    "whisper-large-v3": ("whisper_large_v3", {}, 1_543_490_560),
    "clip-vit-large-patch14": ("clip_vit_l14", {}, 427_616_513),
    # Llama 2 13B, the vision tower of CLIP ViT-L/14 at 336 x 336 but for its last layer and norm, and the projector.
    "LLaVA-1.5-13B": (
        "llava1_5_13b",
        {},
        13_015_864_320 + (303_507_456 - 12_596_224 - 2_048) + 31_467_520,
    ),
    # The table of positions is fixed, and an input here.
    "DiT-XL/2": ("dit_xl2", {}, 675_129_632 - 256 * 1152),
    "mamba2-2.7b": ("mamba2_2b7", {}, 2_702_599_680),
    "mamba2attn-2.7b": ("mamba2_attention_2b7", {}, 2_697_590_880),
    "LeNet-300-100": ("mlp", {}, 266_610),
    # 8 tables of 1,000,000 vectors of 64, layers 512-512-64 and 100-1024-1024-1024-1.
    "DLRM": ("dlrm", {}, 512_000_000 + 295_488 + 2_203_649),
    # 204,184,588 vectors of 128, layers 13-512-256-128 and 3456-1024-1024-512-256-1, three crosses of rank 512.
    "DLRM-DCNv2": ("dlrm_dcnv2", {}, 26_135_627_264 + 171_392 + 5_245_953 + 10_627_200),
}

# Of the main model's matrices: norms, biases of routers and the module of multi-token prediction are not counted.
DEEPSEEK_MATRICES = 671_025_397_760

FLOPS_PER_TOKEN = {
    "llama3-70B@8192": ("llama3_70b", 449_222_541_312),
    "llama3.1-405B@8192": ("llama3_405b", 2_523_955_986_432),
    "qwen3-235B@4096": ("qwen3_235b_a22b", 148_034_813_952),
    "qwen3-30B@4096": ("qwen3_30b_a3b", 23_006_281_728),
    "dsv3@4096_mtp1": ("deepseek_v3", 259_992_950_784),
}

NOT_COUNTED = ("Router",)
"""The routers of our examples: Megatron-LM's count of FLOPs (`num_floating_point_operations`) has none."""

# Heads, hidden size, layers, tensor parallelism, batch, FLOPs per iteration (Narayanan et al., SC'21, table 1).
NARAYANAN = [
    (24, 2304, 24, 1, 512, 1.5467e16),
    (32, 3072, 30, 2, 512, 3.2655e16),
    (32, 4096, 36, 4, 512, 6.7185e16),
    (48, 6144, 40, 8, 1024, 3.2484e17),
    (64, 8192, 48, 8, 1536, 1.0212e18),
    (80, 10240, 60, 8, 1792, 2.302e18),
    (96, 12288, 80, 8, 2304, 5.6417e18),
    (128, 16384, 96, 8, 2160, 1.1194e19),
    (128, 20480, 105, 8, 2520, 2.2216e19),
    (160, 25600, 128, 8, 3072, 5.1391e19),
]


@cache
def published() -> dict[str, Any]:
    return json.loads(PUBLISHED.read_text())


def header(example: Path, what: str) -> int:
    found = re.search(rf"^# {what}: ([\d,]+)", example.read_text(), re.MULTILINE)
    assert found, f"{example.name} does not state its {what}"
    return int(found[1].replace(",", ""))


def training_flops(example: Path) -> tuple[str, int]:
    """What the header counts FLOPs of, `token` or another item of the batch, and how many they are."""
    found = re.search(
        r"^# Training FLOPs per ([\w ]+): ([\d,]+)", example.read_text(), re.MULTILINE
    )
    assert found, f"{example.name} does not state its training FLOPs"
    return found[1], int(found[2].replace(",", ""))


def examples() -> list[Path]:
    """Those of models that somebody published: their headers state figures."""
    return sorted(p for p in FOLDER.glob("*.stg") if "# Parameters:" in p.read_text())


def parameters(compiled: Compiled) -> dict[str, tuple[int, int]]:
    """Elements and dims of each weight of a model that was only lowered: sizes are global."""
    values = size_values(compiled.module)
    found: dict[str, tuple[int, int]] = {}
    for op in compiled.module.walk():
        if isinstance(op, stg.WeightOp):
            weight = op.weight.type
            assert isinstance(weight, TensorType | StackType)
            tensor = weight.tensor if isinstance(weight, StackType) else weight
            stacked = weight.total_count.evaluate(values) if isinstance(weight, StackType) else 1
            number = stacked * tensor.num_elements.evaluate(values)
            assert number.denominator == 1
            found[op.path.data] = int(number), len(tensor.dims)
    return found


def num_parameters(compiled: Compiled) -> int:
    return sum(count for count, _ in parameters(compiled).values())


def of_text(example: Path, plan: str | None = None) -> Compiled:
    """The model as it stands in the text, before any pass."""
    return compile_model(example, plan, stops=Stops(after="lower"))


def close(value: float, expected: float, share: float = 1e-3) -> bool:
    return abs(value - expected) <= share * expected


def test_the_copies_here_are_the_published_ones() -> None:
    data = published()
    for name, (_, count) in PARAMETERS.items():
        assert data["parameter_counts"][name] == count
    assert data["parameter_counts"]["dsv3"] == DEEPSEEK_MATRICES
    for name, (_, flops) in FLOPS_PER_TOKEN.items():
        assert data["training_flops_per_token"]["values"][name] == flops
    rows = [
        (h, d, n, t, b, f)
        for _, h, d, n, t, _, _, b, _, f in data["narayanan_2021_table_1"]["rows"]
    ]
    assert rows == NARAYANAN


def test_the_published_models_are_among_the_examples() -> None:
    names = {path.stem for path in examples()}
    assert names >= {"gpt2", "gpt3_175b", "llama3_8b", "llama3_70b", "llama3_405b"}
    assert "deepseek_v3" in names
    every = {path.stem for path in FOLDER.glob("*.stg")}
    assert every >= {example for example, _, _ in RELEASED.values()}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts(name: str) -> None:
    example, count = PARAMETERS[name]
    assert num_parameters(of_text(FOLDER / f"{example}.stg")) == count


@pytest.mark.parametrize(
    ("model", "words", "is_masked", "tflops"),
    [("llama3_8b", 128_000, True, 421.59), ("llama3_405b", 128_256, False, 21_508)],
)
def test_flops_of_a_sample_in_mlperf(
    model: str, words: int, is_masked: bool, tflops: float
) -> None:
    """`MODEL_TFLOP_PER_SAMPLE` of the submissions' scripts: that of 405B counts pairs that the mask hides, too, which are half of all."""
    text = f'import "{model}.stg"\nplan sample {{ set B = 1, S = 8192, V = {words} }}\n'
    compiled = compile_text(text, str(FOLDER / "sample.stg"), "sample")
    found = matrix_flops(compiled.module, compiled.counts).model
    values = size_values(compiled.module)
    hidden = 0 if is_masked else 6 * values["L"] * values["D"] * 8192**2
    assert (found + hidden) / 1e12 == pytest.approx(tflops, rel=5e-5)


def test_flops_of_a_token_in_lora() -> None:
    """Megatron-Bridge counts 2/3 of what training the frozen matrices would take, and the scores of attention (`num_floating_point_operations` in
    `training/utils/flop_utils.py` at 067f987d). Beside that, a plan counts adapters, and that the first layer needs no gradient of its input.

    Its tables say 0.2781 to 0.2791 TFLOP a token of Llama 3 70B: TFLOP/s over tokens/s, of sequences packed of short ones, whose scores are few.
    """
    frozen = "freeze embed, norm, head, norm1, norm2, SwiGLU, wq, wk, wv, wo"
    text = f'import "llama3_70b_lora.stg"\nplan sample {{ set B = 1, S = 4096 {frozen} }}\n'
    compiled = compile_text(text, str(FOLDER / "sample.stg"), "sample")
    found = matrix_flops(compiled.module, compiled.counts).model / 4096
    values = size_values(compiled.module)
    layers, d, f, words, rank = (values[name] for name in "LDFVR")
    keys = values["K"] * values["E"]
    counted = layers * d**2 * (12 + 12 * keys / d + 18 * f / d + 6 * words / (layers * d)) * 2 / 3
    for tflops_per_s, tokens_per_s in ((1731, 6206), (1663, 5958), (735, 2643)):
        assert counted == pytest.approx(tflops_per_s * 1e12 / tokens_per_s, rel=5e-3)
    adapters = 6 * layers * rank * (4 * d + 2 * keys)
    first_inputs = 2 * (d * (d + 2 * keys) + d * rank)
    scores = 6 * layers * d * 4096
    assert found == counted + adapters - first_inputs + scores


@pytest.mark.parametrize("name", some(RELEASED, 3))
def test_parameters_of_released_models(name: str) -> None:
    example, sizes, count = RELEASED[name]
    path = FOLDER / f"{example}.stg"
    assert num_parameters(compile_model(path, None, sizes, stops=Stops(after="lower"))) == count


def test_parameters_of_deepseek_v3() -> None:
    """671B, of which 37.55B work on a token: 8 of 256 routed experts."""
    compiled = of_text(FOLDER / "deepseek_v3.stg")
    matrices = {
        path: count
        for path, (count, dims) in parameters(compiled).items()
        if dims > 1 and not path.startswith("Mtp")
    }
    assert sum(matrices.values()) == DEEPSEEK_MATRICES
    routed = sum(
        c for p, c in matrices.items() if p.startswith("Block.Experts.") and p.count(".") == 2
    )
    active = DEEPSEEK_MATRICES - routed + routed * 8 // 256
    stated = re.search(r"([\d,]+) of them for a token", (FOLDER / "deepseek_v3.stg").read_text())
    assert stated and int(stated[1].replace(",", "")) == active
    assert round(active / 1e9, 2) == 37.55


@pytest.mark.parametrize("example", examples(), ids=lambda path: path.stem)
def test_headers_state_the_parameters(example: Path) -> None:
    assert num_parameters(of_text(example)) == header(example, "Parameters")


def test_gpt3_has_174_600_million_parameters() -> None:
    """Brown et al., table D.1."""
    assert round(header(FOLDER / "gpt3_175b.stg", "Parameters") / 1e6, -1) == 174_600


def test_the_largest_gpt2() -> None:
    """1,558 million in the released code; the paper says 1542."""
    sizes = {"D": "1600", "H": "25", "L": "48"}
    compiled = compile_model(FOLDER / "gpt2.stg", None, sizes, stops=Stops(after="lower"))
    assert num_parameters(compiled) == 1_557_611_200


STATED = [(path, plan) for path, plan in reversed(CASES) if path in examples()]


@pytest.mark.parametrize(("path", "plan"), mostly(is_first, STATED, 7), ids=ids(STATED))
def test_headers_state_the_training_flops(path: Path, plan: str) -> None:
    """Under each plan that changes no size but the batch."""
    if not resizes(path, plan) and (path.stem, plan) not in TRAINS_ALL:
        item, stated = training_flops(path)
        found = flops_per_item(path, plan, item)
        again = AGAIN.get((path.stem, plan), 0)
        assert stated <= found <= stated * (1 + again), found


TRAINS_ALL = {("llama3_70b_lora", "full")}
"""Plans that train what the header counts as frozen."""

AGAIN = {
    # Heads of one group share b and c, so that each rank multiplies those of all tokens.
    ("mamba2_2b7", "dp8_tp8"): 0.006,
    ("mamba2_attention_2b7", "dp32_tp2"): 0.001,
    # 86 tokens of a sequence for each expert, where 85 1/3 go to it.
    ("kimi_k2", "h800_4096"): 0.005,
}
"""Under these plans several ranks compute the same: by which share of all FLOPs at most."""


def resizes(example: Path, plan: str) -> bool:
    """Whether a plan changes a dim other than the batch."""
    text, other = (model_dims(of_text(example, p)) for p in (plans_of(example)[0], plan))
    return text != other


def model_dims(compiled: Compiled) -> dict[str, int]:
    """All but those that follow from the batch, experts' tokens, and what passes made."""
    sends = (stg.DispatchOp, stg.FanOutOp)
    routed = {op.tokens.data for op in compiled.module.walk() if isinstance(op, sends)}
    values = size_values(compiled.module)
    made = {name for name in values if "." in name}
    left_out = {*compiled.plan.mesh, *routed, *made, "B", "mb"}
    return {name: size for name, size in values.items() if name not in left_out}


def flops_per_item(example: Path, plan: str, item: str = "token") -> float:
    job = compile_example(example, plan)
    values = size_values(job.module)
    items = values["B"] * (values["S"] if item == "token" else 1)
    return model_flops(job.trace_set, NOT_COUNTED) / items


OF_TOKENS = [
    (flops, path, plans_of(path)[0])
    for path, flops in ((FOLDER / f"{e}.stg", flops) for e, flops in FLOPS_PER_TOKEN.values())
]


@pytest.mark.seldom
@pytest.mark.parametrize(
    ("flops", "path", "plan"),
    OF_TOKENS,
    ids=FLOPS_PER_TOKEN,
)
def test_training_flops_per_token(flops: int, path: Path, plan: str) -> None:
    assert close(flops_per_item(path, plan), flops)


# Multiply-adds of a forward pass of one image, in billions.
MULTIPLY_ADDS = {
    "vit_b16": 17.564,  # torchvision, ViT_B_16_Weights.IMAGENET1K_V1
    "dit_xl2": 118.64,  # Peebles and Xie 2022, table 4
}


FIRST = [(path, plans_of(path)[0]) for path in (FOLDER / f"{e}.stg" for e in MULTIPLY_ADDS)]


@pytest.mark.parametrize(("path", "plan"), FIRST, ids=ids(FIRST))
def test_forward_multiply_adds(path: Path, plan: str) -> None:
    compiled = compile_example(path, plan)
    found = sum(
        ranks_of(compiled.trace_set, each) * count * model_share(node)
        for each in compiled.trace_set.classes
        for node, count in nodes_of(each)
        if node.phase == "fwd"
    )
    images = size_values(compiled.module)["B"]
    assert close(found / images / 2e9, MULTIPLY_ADDS[path.stem], 5e-4)


GPT = """
dim B = {batch}
dim S = 2048
dim V = 51200
dim P = 2048
dim D = {hidden}
dim F = 4 * D
dim H = {heads}
dim E = D / H
dim L = {layers}
dim T = S

module Attention(x[B, S, D]) -> [B, S, D] {{
  weight wq[D, H, E], bq[H, E], wk[D, H, E], bk[H, E], wv[D, H, E], bv[H, E], wo[H, E, D], bo[D]
  q = x @ wq + bq
  k = x @ wk + bk
  v = x @ wv + bv
  scores[B, H, S, T] = q @ k[S -> T]
  mixed[B, S, H, E] = softmax(causal_mask(scores, query = S, key = T), over = T) @ v[S -> T]
  return mixed @ wo + bo
}}

module Mlp(x[B, S, D]) -> [B, S, D] {{
  weight w1[D, F], b1[F], w2[F, D], b2[D]
  return gelu(x @ w1 + b1) @ w2 + b2
}}

module Block(x[B, S, D]) -> [B, S, D] {{
  weight norm1[D], shift1[D], norm2[D], shift2[D]
  h = x + Attention(layer_norm(x, norm1, shift1))
  return h + Mlp(layer_norm(h, norm2, shift2))
}}

model Gpt(tokens[B, S]: i32, positions[S]: i32, targets[B, S]: i32) {{
  weight embed[V, D], places[P, D], norm[D], shift[D]
  x = embedding(tokens, embed) + embedding(positions, places)
  repeat L {{ x = Block(x) }}
  loss = cross_entropy(layer_norm(x, norm, shift) @ embed, targets)
}}

plan table {{
  mesh dp = {dp}, tp = {tp}
  shard B over dp
  shard H, F, V over tp
  {clauses}
  microbatch {microbatch}
  precision {{ weights = fp16, activations = fp16, gradients = fp32, optimizer = fp32 }}
  optimizer adam
}}
"""


def gpt(
    heads: int,
    hidden: int,
    layers: int,
    tp: int,
    batch: int,
    clauses: str = "",
    microbatch: int = 1,
    stops: Stops | None = None,
) -> Compiled:
    """A model of Narayanan's table on a (dp, tp) mesh; `microbatch` is in sequences of a data-parallel rank."""
    text = GPT.format(
        heads=heads,
        hidden=hidden,
        layers=layers,
        tp=tp,
        dp=8,
        batch=batch,
        clauses=clauses,
        microbatch=microbatch,
    )
    return compile_text(text, "gpt.stg", "table", stops=stops)


@pytest.mark.parametrize(
    ("heads", "hidden", "num_layers", "tp", "batch", "published_flops"), some(NARAYANAN, 3)
)
def test_flops_per_iteration(
    heads: int, hidden: int, num_layers: int, tp: int, batch: int, published_flops: float
) -> None:
    """Equation 3 counts a second forward pass of the layers for full recomputation."""
    # One microbatch: FLOPs are in proportion to sequences, however many run at once.
    compiled = gpt(heads, hidden, num_layers, tp, batch, microbatch=batch // 8)
    again = forward_flops_of_layers(compiled.trace_set, num_layers)
    assert close(model_flops(compiled.trace_set) + again, published_flops)


@pytest.mark.parametrize("row", NARAYANAN, ids=lambda row: f"h{row[1]}")
def test_parameters_of_the_same_rows(row: tuple[int, int, int, int, int, float]) -> None:
    """12 l h^2 (1 + 13/(12h) + (V+s)/(12 l h)), which leaves out the last norm's 2 h."""
    _, hidden, layers, *_ = row
    formula = 12 * layers * hidden**2 + 13 * layers * hidden + (51200 + 2048) * hidden
    compiled = gpt(row[0], hidden, layers, 1, batch=8, stops=Stops(after="lower"))
    assert num_parameters(compiled) == formula + 2 * hidden


# By phase, collectives over tp of a layer and microbatch, each of s b h elements (Shoeybi et al. 2019; Korthikanti
# et al. 2022). Full recomputation is published as six all-reduces, the whole forward pass again; nothing reads the last
# of them in a backward pass, so the third phase has one instead of two.
LAYER_COLLECTIVES = {
    "": {"fwd": {"all_reduce": 2}, "bwd": {"all_reduce": 2}},
    "recompute full": {
        "fwd": {"all_reduce": 2},
        "recompute": {"all_reduce": 1},
        "bwd": {"all_reduce": 2},
    },
    "shard S, P over tp": {
        "fwd": {"all_gather": 2, "reduce_scatter": 2},
        "bwd": {"all_gather": 2, "reduce_scatter": 2},
    },
    "shard S, P over tp collectives { keep = shard }": {
        "fwd": {"all_gather": 2, "reduce_scatter": 2},
        "bwd": {"all_gather": 2, "reduce_scatter": 2},
        "wgrad": {"all_gather": 2},
    },
}


@pytest.mark.parametrize("clauses", some(LAYER_COLLECTIVES, 2))
def test_collectives_of_a_layer(clauses: str) -> None:
    heads, hidden, layers, tp, *_ = NARAYANAN[3]
    compiled = gpt(heads, hidden, layers, tp, batch=8, clauses=clauses)
    activation_bytes = 2048 * 1 * hidden * 2
    found: dict[str, dict[str, int]] = {}
    for (phase, kind, size), count in layer_collectives(compiled.trace_set, "tp", 1).items():
        if phase != "grad_reduce":
            assert size == activation_bytes
            found.setdefault(phase, {})[kind] = count
    assert found == LAYER_COLLECTIVES[clauses]


# Elements that each rank sends per step on a ring, in parameters P (Rajbhandari et al., ZeRO, section 7).
ZERO_VOLUMES = {
    "": 2,
    "zero 1 over dp": 2,
    "zero 2 over dp": 2,
    "zero 3 over dp { reshard = true } unit none": 3,
}


@pytest.mark.parametrize("clauses", some(ZERO_VOLUMES, 2))
def test_data_parallel_volume(clauses: str) -> None:
    heads, hidden, *_ = NARAYANAN[0]
    compiled = gpt(heads, hidden, 4, 1, batch=8, clauses=clauses)
    text = gpt(heads, hidden, 4, 1, batch=8, stops=Stops(after="lower"))
    elements = ring_elements(compiled.trace_set, "dp")
    assert elements == ZERO_VOLUMES[clauses] * num_parameters(text)


# Bytes of cache for a token in bf16, as published or as follows from published shapes: 2 x layers x heads x width x 2 bytes; of
# DeepSeek-V3 (512 + 64) x 61 layers x 2 bytes (arXiv:2412.19437, section 2.1.1; without the module of multi-token prediction).
CACHED = {
    "llama3_8b": (131_072, ""),
    "llama3_70b": (327_680, ""),
    "llama3_405b": (516_096, ""),
    "mixtral_8x7b": (131_072, ""),
    "mixtral_8x22b": (229_376, ""),
    "qwen3_30b_a3b": (98_304, ""),
    "qwen3_235b_a22b": (192_512, ""),
    "deepseek_v3": (70_272, ""),
}
PLANS_OF_CACHES = {
    "deepseek_v3": "decode_ep128",
    "mixtral_8x7b": "serve_tp8",
    "mixtral_8x22b": "serve_tp8",
    "qwen3_30b_a3b": "serve_tp4",
    "qwen3_235b_a22b": "serve_tp4",
}
"""Where the first plan is a large one. What a token keeps does not depend on the plan."""


@pytest.mark.parametrize("name", some(CACHED, 6))
def test_bytes_of_cache(name: str):
    expected, apart = CACHED[name]
    job = NamedJob(compile_model(FOLDER / f"{name}.stg", PLANS_OF_CACHES.get(name)))
    whole = ask(job, "kv").whole
    assert whole is not None
    without = ask(job, f"kv.{apart}").whole if apart else None
    assert whole.number - (without.number if without else 0) == expected


# Of 10^12 tokens 180,000 hours of 2,048 H800 (arXiv:2412.19437, table 1), in steps of 15,360 sequences; of prefill and decode see docs/fidelity.md.
STEPS_OF_DEEPSEEK = {
    ("h800_2048", 15360): 180e3 * 3600 / 2048 * (15360 * 4096) / 1e12,
    ("prefill_ep32_overlapped", None): 16384 / (50302 / (1 - 0.056) / 8),
    ("decode_ep144", None): 1 / 21,
}


@pytest.mark.seldom
@pytest.mark.parametrize(("plan", "batch"), STEPS_OF_DEEPSEEK)
def test_steps_of_deepseek_v3(plan: str, batch: int | None) -> None:
    sizes = None if batch is None else {"B": batch}
    job = stagec.compile(FOLDER / "deepseek_v3.stg", plan=plan, set=sizes)
    assert job.step_time == pytest.approx(STEPS_OF_DEEPSEEK[plan, batch], rel=0.1)
