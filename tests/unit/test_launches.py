"""Flags and settings of launchers become plans: GPUs, batch and stages are those of the run."""

from __future__ import annotations

import random
import subprocess
import tomllib
from math import prod
from pathlib import Path

import pytest

import stagec
from stagec.cli import main
from stagec.cli.import_command import dims_of
from stagec.compiled import Compiled
from stagec.diagnostics import CompileError, Span
from stagec.dialects.sched.actions import Collective
from stagec.driver import compile_model
from stagec.frontend import check, parse_file, parse_text
from stagec.importing.launch import Launch, import_plan, plan_text
from stagec.importing.launch.flags import RECIPES
from stagec.importing.launch.read import KINDS, kind_of
from stagec.importing.launch.roles import letters_in
from stagec.importing.launch.shell import words
from tests.unit.doc_examples import DOCS
from tests.unit.launch_tables import tables
from tests.unit.model_texts import FEED_FORWARD
from tests.unit.seldom import mostly, some

EXAMPLES = Path(__file__).parents[2] / "examples"

MLPERF = (
    # nodes, GPUs of a node, layers, sequence, global and micro batch, tp, pp, virtual stages, cp, ep, sequence parallel
    (1, 4, 80, 8192, 8, 1, 1, 1, 1, 2, 1, 0),
    (1, 8, 32, 8192, 16, 2, 1, 1, 1, 1, 1, 0),
    (1, 8, 80, 8192, 8, 1, 1, 1, 1, 2, 1, 0),
    (1, 8, 80, 8192, 8, 1, 2, 1, 1, 1, 1, 1),
    (2, 4, 32, 8192, 16, 2, 1, 1, 1, 1, 1, 0),
    (2, 4, 80, 8192, 8, 1, 1, 1, 1, 1, 1, 0),
    (2, 4, 80, 8192, 8, 1, 1, 1, 1, 2, 1, 0),
    (2, 8, 80, 8192, 8, 1, 2, 1, 1, 1, 1, 1),
    (4, 8, 32, 8192, 16, 1, 1, 1, 1, 2, 1, 0),
    (4, 8, 80, 8192, 8, 1, 4, 1, 1, 1, 1, 1),
    (8, 8, 32, 8192, 32, 1, 1, 1, 1, 2, 1, 0),
    (8, 8, 32, 8192, 64, 1, 1, 1, 1, 1, 1, 0),
    (8, 8, 80, 8192, 8, 1, 1, 1, 1, 8, 1, 0),
    (8, 8, 96, 2048, 2048, 2, 4, 8, 6, 1, 1, 1),
    (16, 8, 32, 8192, 64, 1, 2, 1, 1, 1, 1, 1),
    (16, 8, 80, 8192, 16, 1, 4, 1, 1, 2, 1, 1),
    (18, 4, 32, 8192, 36, 1, 1, 1, 1, 2, 1, 0),
    (32, 8, 96, 2048, 2048, 2, 4, 8, 6, 1, 1, 1),
    (32, 8, 126, 8192, 576, 1, 4, 8, 8, 2, 1, 1),
    (64, 8, 126, 8192, 1152, 1, 4, 8, 8, 2, 1, 1),
    (64, 8, 126, 8192, 1152, 1, 8, 8, 8, 2, 1, 1),
    (128, 4, 32, 8192, 64, 1, 2, 1, 1, 4, 1, 1),
    (128, 4, 80, 8192, 64, 1, 1, 1, 1, 8, 1, 0),
    (128, 4, 126, 8192, 1152, 1, 2, 8, 8, 2, 1, 1),
    (128, 8, 126, 8192, 1152, 1, 4, 8, 8, 2, 1, 1),
    (144, 4, 80, 8192, 72, 1, 1, 1, 1, 8, 1, 0),
    (192, 8, 96, 2048, 3072, 2, 4, 8, 4, 1, 1, 1),
    (256, 4, 126, 8192, 768, 1, 4, 8, 8, 2, 1, 1),
    (256, 8, 126, 8192, 1152, 1, 8, 8, 8, 2, 1, 1),
    (512, 4, 126, 8192, 1280, 1, 4, 8, 8, 2, 1, 1),
    (624, 4, 126, 8192, 1248, 1, 4, 8, 8, 2, 1, 1),
    (640, 4, 126, 8192, 960, 1, 4, 8, 8, 2, 1, 1),
    (1024, 8, 126, 8192, 1536, 1, 8, 8, 8, 2, 1, 1),
    (1280, 4, 126, 8192, 1280, 1, 4, 8, 8, 2, 1, 1),
)
"""Results of MLPerf Training with NeMo, rounds 4.1 to 5.1: what their configurations say."""

MODEL = """
dim B = 8
dim S = 8192
dim D = 64
dim H = 64
dim K = 64
dim F = 256
dim V = 512
dim L = 80
dim X = 64
dim M = 256
dim T = 64

model Net(x[B, S, D]) {
  weight w[D]
  repeat L { x = rms_norm(x, w) }
  loss = mean(x, over = [B, S, D])
}
"""


def checked(text: str, **sizes: int):
    overrides = {name: str(value) for name, value in sizes.items()}
    return check(parse_text(MODEL + text.partition("import")[0], "plan.stg"), None, overrides)


@pytest.mark.parametrize("row", MLPERF)
def test_mlperf_rows_are_plans(row: tuple[int, ...]):
    nodes, node, layers, sequence, batch, micro, tp, pp, vp, cp, ep, sp = row
    names = {
        "DGXNNODES": nodes,
        "DGXNGPU": node,
        "SEQ_LEN": sequence,
        "MINIBS": batch // (nodes * node // (tp * pp * cp)),
        "MICRO_BATCH_SIZE": micro,
        "TENSOR_MODEL_PARALLEL": tp,
        "PIPELINE_MODEL_PARALLEL": pp,
        "INTERLEAVED_PIPELINE": vp,
        "CONTEXT_PARALLEL": cp,
        "EXPERT_PARALLEL": ep,
        "SEQ_PARALLEL": bool(sp),
    }
    script = "".join(f"export {name}={value}\n" for name, value in names.items())
    imported = import_plan(script, "config_x.sh", "mlperf")
    assert (imported.run.ranks, imported.run.batch) == (nodes * node, batch)
    model = checked(imported.text, L=max(layers, pp * vp))
    devices = 1
    for axis in model.plan.axes:
        if axis.name not in model.plan.products:
            devices *= int(str(model.sizes.values.get(axis.name, 1)))
    assert devices == nodes * node
    assert model.sizes.values["B"] == batch
    assert f"virtual_stages = {vp}" in imported.text or vp == 1


OTHER_NAMES = """
dim B = 64
dim S = 256
dim V = 512
dim D = 64
dim HQ = 8
dim HK = 4
dim E = D / HQ
dim T = S  # positions of a cache, not tokens of experts
dim EX = 8
dim A = 1
dim N = B * S * A / EX
dim W = 128
dim L = 4
module Block(x[B, S, D]) -> [B, S, D] {
  weight q[D, HQ, E], k[D, HK, E], v[D, HK, E], o[HQ, E, D], router[D, EX], up[EX, D, W], down[EX, W, D]
  cache keys[B, T, HK, E], values[B, T, HK, E]
  h = x + attention(x @ q, append(keys, x @ k), append(values, x @ v), causal = true) @ o
  gates, chosen = topk(softmax(h @ router, over = EX), over = EX, to = A)
  r[EX, N, D] = dispatch(h, chosen, experts = EX, tokens = N)
  y[EX, N, W] = silu(r @ up)
  z[EX, N, D] = y @ down
  return h + combine(z, gates, chosen)
}
model Net(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[V, D], head[D, V]
  x = embedding(tokens, embed)
  repeat L { x = Block(x) }
  loss = cross_entropy(x @ head, targets)
}
"""


def test_rules_have_the_names_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Whatever it calls its experts, their tokens, heads and widths."""
    monkeypatch.chdir(tmp_path)
    Path("net.stg").write_text(OTHER_NAMES)
    flags = (
        "--tensor-model-parallel-size 2 --expert-model-parallel-size 4 --num-experts 8 --bf16"
        " --expert-tensor-parallel-size 2 --sequence-parallel --micro-batch-size 1"
    )
    assert main(["import", flags, "--gpus", "16", "--model", "net.stg", "-o", "run.stg"]) == 0
    rules = [line.strip() for line in Path("run.stg").read_text().splitlines() if "shard" in line]
    assert rules[:3] == [
        "shard B over dp",
        "shard HQ, HK, W over tp",
        "shard V over tp { pad = 128 }",
    ]
    assert rules[3:6] == ["shard S over tp", "shard EX over ep", "shard N over dp"]
    capsys.readouterr()
    assert main(["run.stg", "-q"]) == 0
    assert "W0303" not in capsys.readouterr().err


def test_a_model_that_cannot_be_read_gives_the_names_of_its_dims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As one with ops of a file that `--load-pass` names."""
    monkeypatch.chdir(tmp_path)
    Path("net.stg").write_text(OTHER_NAMES.replace("silu(", "own_function("))
    flags = "--tensor-model-parallel-size 2 --bf16 --micro-batch-size 1"
    assert main(["import", flags, "--gpus", "16", "--model", "net.stg", "-o", "run.stg"]) == 0
    assert "shard V over tp" in Path("run.stg").read_text()


LAUNCHES = Path(__file__).parent / "launches"
RUNS = tomllib.loads((LAUNCHES / "runs.toml").read_text("utf-8"))["run"]


def imported_run(run: dict, model: str = "", dims: dict[str, int | None] | None = None):
    file = LAUNCHES / run["file"]
    kind, gpus = file.parent.name, run.get("gpus")
    text = file.read_text("utf-8")
    assert kind_of(file, text) == kind
    return import_plan(text, file.name, kind, gpus, model, dims, file.parent)


@pytest.mark.parametrize("run", some(RUNS, 2), ids=[run["file"] for run in RUNS])
def test_public_configurations_are_plans(run: dict):
    """GPUs, sequences in a step, degrees and stages are those that their authors state."""
    imported = imported_run(run)
    found = imported.run
    said = {
        "ranks": found.ranks,
        "batch": found.batch or 0,
        "tp": found.tp,
        "pp": found.pp,
        "cp": found.cp,
        "ep": found.ep,
        "dp": found.data,
        "zero": found.level,
        "products": found.products,
        "virtual": found.virtual_stages,
    }
    if found.layers_per_virtual_stage and found.layers:
        layers = found.layers + found.embedding_in_split + found.loss_in_split
        said["virtual"] = layers // found.pp // found.layers_per_virtual_stage
    assert {key: said[key] for key in run if key in said} == {
        key: value for key, value in run.items() if key in said
    }
    for what in run.get("offload", "").split():
        assert f"{what} = true" in imported.text
    if run.get("virtual", 1) > 1:
        assert f"virtual_stages = {run['virtual']}" in imported.text
    stages = run.get("pp", 1) * run.get("virtual", 1)
    model = checked(imported.text, L=max(80, stages))
    devices = [a.name for a in model.plan.axes if a.name not in model.plan.products]
    assert prod(model.sizes.values[name] or 1 for name in devices) == run["ranks"]


@pytest.mark.parametrize(
    "run",
    mostly(lambda run: "405b" not in run["file"], [run for run in RUNS if "memory" in run], 3),
    ids=lambda run: run["file"],
)
def test_public_configurations_fit(run: dict, tmp_path: Path):
    """A model that ships needs no more under the plan than the devices had that it ran on."""
    name, gibibytes = run["memory"].split()
    model = EXAMPLES / f"{name}.stg"
    imported = imported_run(run, str(model), dims_of(parse_file(model)))
    text = tmp_path / "run.stg"
    text.write_text(imported.text, "utf-8")
    # As many microbatches as fill the pipeline stand for all.
    sequences = imported.run.data * (imported.run.micro_batch or 1)
    compiled = compile_model(text, overrides={"B": str(sequences * 4 * imported.run.pp)})
    peak = max(each.peak_bytes for each in compiled.memory) / 2**30
    assert 0.1 * float(gibibytes) < peak < float(gibibytes)


MEGATRON = """
torchrun --nproc_per_node $GPUS --nnodes=${NNODES:-16} pretrain_gpt.py \\
  --tensor-model-parallel-size 4 --pipeline-model-parallel-size 8 --num-layers 80 \\
  --num-layers-per-virtual-pipeline-stage 5 --sequence-parallel --micro-batch-size 1 --global-batch-size 128 \\
  --seq-length 4096 --bf16 --use-distributed-optimizer --recompute-granularity full --lr 1e-4 --fp8-format hybrid
"""


def test_layers_beside_an_embedding_count_in_virtual_stages() -> None:
    """`args.virtual_pipeline_model_parallel_size` of Megatron-LM: (30 + 2) layers / 4 / 4 is 2, where 30 / 4 / 4 would be 1."""
    flags = "--num-layers 30 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4 "
    both = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    text = import_plan(f"{flags} {both} --micro-batch-size 1", "flags", "megatron", gpus=4).text
    assert "virtual_stages = 2, microbatch = 1, first = -1, last = -1" in text


@pytest.mark.parametrize(
    "name", ["delay_wgrad_compute", "use_precision_aware_optimizer", "fp8_dot_product_attention"]
)
def test_what_changes_a_step_is_told_of_flags_and_fields(name: str) -> None:
    flag = f"--{name.replace('_', '-')}"
    assert f"`{flag}`" in import_plan(f"{flag} --bf16", "flags", "megatron", gpus=8).text
    recipe = f"tensor_model_parallel_size: 2\n{name}: true\n"
    assert f"`{name}`" in import_plan(recipe, "recipe.yaml", "nemo", gpus=8).text


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ('[activation_checkpoint]\nmode = "selective"', "`activation_checkpoint.mode`"),
        ("[parallelism]\npipeline_parallel_degree = 2", "the embedding and the head counting"),
        ("[parallelism]\npipeline_parallel_layers_per_stage = 4", "`layers = [...]`"),
        ("[parallelism]\ndisable_loss_parallel = true", "[V] over none"),
    ],
)
def test_what_torchtitan_does_otherwise_is_told(setting: str, told: str) -> None:
    """`pipeline_llm` in its `pipeline_parallel.py`, and `SelectiveAC`, which keeps attention: nothing that Megatron-LM means by the word."""
    imported = import_plan(setting, "run.toml", "torchtitan", gpus=8)
    assert told in imported.text
    assert "recompute" not in imported.text


def test_script_of_megatron():
    imported = import_plan("GPUS=8\n" + MEGATRON, "train.sh", "megatron")
    for line in (
        "optimizer = fp32, loss = fp32, products = fp8 }",
        "set B = 128, S = 4096",
        "mesh pp = 8, dp = 4, tp = 4",
        "shard S over tp",
        "pipeline L over pp { schedule = interleaved_1f1b, virtual_stages = 2, microbatch = 1 }",
        "zero 1 over dp",
        "recompute whole",
        "optimizer adamw { clip = 1, copies = true }",
    ):
        assert line in imported.text
    assert imported.idle == ("--lr",)
    checked(imported.text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--bf16", "--bf17"), "`--bf17` is not a flag that is known"),
        (("--nnodes=${NNODES:-16}", "--nnodes=3"), "24 GPUs do not divide over 32"),
        (("--nproc_per_node $GPUS", "--nproc_per_node $UNSET"), "`--nproc_per_node` has no value"),
        (("--global-batch-size 128", "--global-batch-size 130"), "a batch of 130 does not divide"),
        (("granularity full", "granularity half"), "`half` is none of full, selective"),
        (("--global-batch-size 128", "--global-batch-size -1"), "`-1` is not a number from 1 on"),
    ],
)
def test_what_is_no_plan_is_refused(change: tuple[str, str], message: str):
    with pytest.raises(CompileError) as refused:
        import_plan("GPUS=8\n" + MEGATRON.replace(*change), "train.sh", "megatron")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "script",
    [
        "A=2\nB=$(( A * 3 ))\nC=$((B*2))",
        "A=2\nB=$(($A*3))\nC=$(($B * 2))",
        "A=2;B=$((A * 3)) ; C=$((B*2))",
        'A="1 + 1"\nB=$((${A} * 6))\nC=$((${B:-7}))',
    ],
)
def test_assignments_and_arithmetic_are_those_of_the_shell(script: str):
    done = subprocess.run(["bash", "-c", f"{script}\necho $C"], capture_output=True, text=True)
    assert words(f"{script}\necho $C")[-1:] == done.stdout.split()


def test_scripts_are_read_and_not_run(tmp_path: Path):
    made = tmp_path / "made"
    script = f"X=$(touch {made})\n`touch {made}`\n" + MEGATRON.replace("$GPUS", "8")
    import_plan(script, "train.sh", "megatron")
    assert not made.exists()


@pytest.mark.parametrize("seed", range(6))
def test_vocabularies_and_heads_that_ranks_do_not_divide(seed: int):
    """Megatron-LM pads the vocabulary to a multiple of 128, or another number, times tensor parallel ranks; fewer heads of keys are on several ranks."""
    draw = random.Random(seed)
    tp, keys = draw.choice((2, 4, 8)), draw.choice((1, 2, 4, 8))
    vocabulary, multiple = draw.randint(10_000, 60_000), draw.choice((None, 1, 64, 128, 1000))
    flags = f"--tensor-model-parallel-size {tp} --num-query-groups {keys} --global-batch-size 8"
    if multiple is not None:
        flags += f" --make-vocab-size-divisible-by {multiple}"
    text = import_plan("torchrun pretrain_gpt.py " + flags, "run.sh", "megatron", gpus=tp).text
    found = checked(text, K=keys, V=vocabulary)
    parts = tp * (multiple or 128)
    assert found.sizes.known["V"] == -(-vocabulary // parts) * parts
    assert (found.sizes.shared.get("K") == "tp") == (keys < tp)


def test_torchtitan():
    text = """
    [training]
    local_batch_size = 2
    seq_len = 8192
    [parallelism]
    data_parallel_replicate_degree = 2
    data_parallel_shard_degree = 8
    tensor_parallel_degree = 4
    [activation_checkpoint]
    mode = "selective"
    """
    imported = import_plan(text, "llama.toml", "torchtitan")
    assert "mesh rep = 2, fsdp = 8, tp = 4, dp = rep * fsdp" in imported.text
    assert "zero 3 over fsdp" in imported.text
    assert imported.run.batch == 32
    checked(imported.text)
    # As many shards as the other degrees leave: -1, or nothing, is what torchtitan has without it.
    left = text.replace("shard_degree = 8", "shard_degree = -1")
    assert import_plan(left, "llama.toml", "torchtitan", gpus=64).text == imported.text
    whole = import_plan(left, "llama.toml", "torchtitan", gpus=8).text
    assert "rep = 2, fsdp = 1" in whole and "zero" not in whole
    for wrong, gpus, message in (
        (left, 12, "3 ranks of data parallelism do not divide into 2 replicas of shards"),
        (text, 128, "data parallelism over 16 ranks is said, and 128 GPUs have 32"),
        (left.replace("shard_degree = -1", 'shard_degree = "x"'), 64, "`x` is not a whole number"),
    ):
        with pytest.raises(CompileError, match=message):
            import_plan(wrong, "llama.toml", "torchtitan", gpus=gpus)
    unsaid = text.replace("seq_len", "global_batch_size = -1\n    seq_len")
    assert import_plan(unsaid, "llama.toml", "torchtitan").run.batch == 32
    with pytest.raises(CompileError, match="`0` is not a number from 1 on"):
        import_plan(
            text.replace("tensor_parallel_degree = 4", "tensor_parallel_degree = 0"),
            "llama.toml",
            "torchtitan",
        )


@pytest.mark.parametrize(
    ("kind", "text"),
    [("deepspeed", "{"), ("deepspeed", "[" * 9000), ("torchtitan", "a = " + "[" * 9000)],
)
def test_what_is_no_settings_at_all_is_said(kind: str, text: str):
    with pytest.raises(CompileError, match=r"E0801.*this is no (JSON|TOML): "):
        import_plan(text, "settings", kind, gpus=2)


@pytest.mark.parametrize(
    ("flags", "clause"),
    [
        ("--bf16 --clip-grad 0.3", "optimizer adamw { clip = 0.3, copies = true }"),
        ("--bf16 --clip-grad 0.0", "optimizer adamw { copies = true }"),
        ("--fp16 --clip-grad 0", "optimizer adamw { loss_scale = dynamic, copies = true }"),
        ("--fp16 --loss-scale 4096", "optimizer adamw { clip = 1, copies = true }"),
        ("--optimizer sgd", "optimizer sgd { momentum = 0.9, clip = 1 }"),
    ],
)
def test_what_is_done_to_gradients_before_the_update(flags: str, clause: str):
    """Megatron-LM clips to 1 unless it is told otherwise, and scales the loss of fp16 by what fits."""
    script = f"torchrun pretrain_gpt.py --global-batch-size 8 {flags}"
    text = import_plan(script, "run.sh", "megatron", gpus=2).text
    lines = [line.strip() for line in text.splitlines()]
    assert [line for line in lines if line.startswith("optimizer ")] == [clause]
    checked(text)


def test_deepspeed():
    text = '{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}'
    imported = import_plan(text, "ds.json", "deepspeed", gpus=16)
    assert imported.run.batch == 128
    assert "zero 2 over dp" in imported.text
    checked(imported.text)
    clipped = text.replace("{", '{"gradient_clipping": 0.5, ', 1)
    assert "{ clip = 0.5 }" in import_plan(clipped, "ds.json", "deepspeed", gpus=16).text
    for changed, message in (
        (text.replace("{", '{"train_batch_size": 96, ', 1), "a batch of 96 is not 2 microbatches"),
        (text.replace('gpu": 4', 'gpu": 0'), "`0` is not a number from 1 on"),
        (text.replace('stage": 2', 'stage": 4'), "`4` is not a number from 0 to 3"),
    ):
        with pytest.raises(CompileError, match=message):
            import_plan(changed, "ds.json", "deepspeed", gpus=16)


def test_secondary_partitions_of_zero_plus_plus():
    """Backward passes gather within the ranks of one (`zero_hpz_partition_size`); one of all ranks is what is stored anyway."""
    text = '{"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}'
    made = import_plan(text, "ds.json", "deepspeed", gpus=32).text
    assert "mesh node = 4, gpu = 8, dp = node * gpu\n" in made
    assert "zero 3 over dp { like = deepspeed, reshard_over = gpu }\n" in made
    checked(made)
    for unchanged in (text.replace('size": 8', 'size": 32'), text.replace("3,", "2,")):
        assert "mesh dp = 32\n" in import_plan(unchanged, "ds.json", "deepspeed", gpus=32).text
    with pytest.raises(CompileError, match="12 data-parallel ranks and partitions of 8"):
        import_plan(text, "ds.json", "deepspeed", gpus=12)


def test_parameters_that_deepspeed_keeps_whole():
    """`stage3_param_persistence_threshold` is about stage 3 alone, and 100,000 where nothing says it."""
    text = '{"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 1e4}}'
    made = import_plan(text, "ds.json", "deepspeed", gpus=8).text
    assert "zero 3 over dp { like = deepspeed, persist = 10000 }\n" in made
    checked(made)
    other = import_plan(text.replace("3,", "2,"), "ds.json", "deepspeed", gpus=8).text
    assert "zero 2 over dp { like = deepspeed }\n" in other


def test_random_runs_are_plans():
    """Whatever the sizes, a plan has as many devices as the run, and checks; or the run is refused."""
    draw = random.Random(19)
    for _ in range(40):
        run = Launch(
            tp=draw.choice([1, 2, 4]),
            pp=draw.choice([1, 2, 4]),
            cp=draw.choice([1, 2]),
            sequence=8192,
            micro_batch=draw.choice([1, 2]),
            sequence_parallel=draw.random() < 0.5,
            zero=draw.choice([0, 1, 3]),
            virtual_stages=draw.choice([1, 2]),
        )
        ways = draw.choice([1, 2, 8])
        run.dp, run.ep = ways, draw.choice([e for e in (1, 2, 4) if ways % e == 0])
        run.virtual_stages = run.virtual_stages if run.pp > 1 else 1
        run.global_batch = run.micro_batch * ways * run.pp * 2
        run.sequence_parallel &= run.tp > 1
        model = checked(plan_text(run, "p", []))
        assert model.sizes.values["B"] == run.global_batch


@pytest.mark.seldom
@pytest.mark.parametrize("seed", range(8))
def test_experts_do_their_work_once(seed: int, tmp_path: Path):
    """However ranks of data, context and tensor parallelism share experts and their tokens, all together compute as much as one device."""
    draw = random.Random(seed)
    model = str(EXAMPLES / "mixtral_8x7b.stg")
    sizes = {"L": "2", "S": "256", "D": "64", "F": "128", "H": "8", "V": "512", "B": "16"}
    alone = compile_with(tmp_path, Launch(dp=1, zero=0, micro_batch=1), model, sizes)
    for _ in range(2):
        run = Launch(tp=draw.choice([1, 2]), cp=draw.choice([1, 2, 4]), micro_batch=1, zero=1)
        run.dp = draw.choice([2, 4])
        folded = draw.random() < 0.5
        run.etp = 1 if folded else run.tp
        whole = run.tp if folded else 1
        most = run.dp * run.cp * whole
        ways = [n for n in (2, 4, 8) if most % n == 0 and n % (run.cp * whole) == 0]
        run.ep, run.experts, run.sequence_parallel = draw.choice(ways), 8, run.tp > 1
        each = compile_with(tmp_path, run, model, sizes)
        assert each * run.dp * run.cp * run.tp == alone, run


def compile_with(folder: Path, run: Launch, model: str, sizes: dict[str, str]) -> int:
    """FLOPs of the products of one rank."""
    text = folder / "run.stg"
    text.write_text(plan_text(run, "p", [], model, letters_in(dims_of(parse_file(model)))), "utf-8")
    job = stagec.compile(text, set=sizes)
    assert not job.warnings
    return int(job.summary["matrix_flops"][0])


def test_kinds_are_told_apart():
    found = {
        kind_of(Path("x.sh"), MEGATRON),
        kind_of(Path("x.toml"), ""),
        kind_of(Path("x.json"), '{"zero_optimization": {}}'),
        kind_of(Path("x.yaml"), "tensor_model_parallel_size: 2"),
        kind_of(Path("x.sh"), "export DGXNNODES=1"),
    }
    assert found == set(KINDS)


@pytest.mark.parametrize(
    ("flags", "is_wide"),
    [
        ("", True),
        ("--cross-entropy-loss-fusion", True),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl native", True),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te", False),
        ("--cross-entropy-fusion-impl te", True),
    ],
)
def test_loss_of_megatron(flags: str, is_wide: bool) -> None:
    """Megatron-LM's own loss computes in fp32; the logits that Transformer Engine's reads stay as they are."""
    imported = import_plan(f"GPUS=8\n{MEGATRON} {flags}", "train.sh", "megatron")
    assert ("loss = fp32" in imported.text) == is_wide


@pytest.mark.parametrize(
    ("settings", "is_wide"),
    [
        ("", True),
        ("[compile]\nenable = true\n", False),
        ("[compile]\nenable = false\n", True),
        ('[compile]\nenable = true\ncomponents = ["model"]\n', True),
    ],
)
def test_loss_of_torchtitan(settings: str, is_wide: bool) -> None:
    """A loss that is compiled keeps the logits as they are."""
    text = f"[parallelism]\ndata_parallel_shard_degree = 8\n[training]\nlocal_batch_size = 1\n{settings}"
    imported = import_plan(text, "run.toml", "torchtitan")
    assert ("loss = fp32" in imported.text) == is_wide


@pytest.mark.parametrize(
    ("variables", "maxima"),
    [
        ("", "maxima = [cp, tp]"),
        ("export FP8_REDUCE_AMAX=False\n", "maxima = none"),
        ("export TP_ONLY_AMAX_RED=False\n", ""),
        ("export FP8_RECIPE=tensorwise\n", ""),
    ],
)
def test_maxima_of_a_submission(variables: str, maxima: str) -> None:
    """Ranks agree along tensor and context parallelism, unless a script says that all do, or none."""
    text = f"""
export DGXNNODES=2
export DGXNGPU=8
export TENSOR_MODEL_PARALLEL=4
export CONTEXT_PARALLEL=2
export MICRO_BATCH_SIZE=1
export MINIBS=2
export FP8=True
{variables}"""
    imported = import_plan(text, "config.sh", "mlperf")
    assert maxima in imported.text and ("maxima" in imported.text) == bool(maxima)


@pytest.mark.parametrize(
    "setting",
    [
        "",
        "pipeline_parallel_first_stage_less_layers = 2",
        'module_fqns_per_model_part = [["norm"]]',
    ],
)
def test_how_torchtitan_cuts_stages(setting: str) -> None:
    """Once it is told that no clause says so, whether a setting does or torchtitan by itself."""
    text = f"[parallelism]\npipeline_parallel_degree = 2\n{setting}\n[training]\nlocal_batch_size = 2\n"
    imported = import_plan(text, "run.toml", "torchtitan", gpus=8)
    assert imported.text.count("how layers are cut into stages") == 1


@pytest.mark.parametrize("seed", range(8))
def test_torchtitan_cuts_what_a_rank_has_into_microbatches(seed: int) -> None:
    """`build_pipeline_schedule` of torchtitan: `local_batch_size // pipeline_parallel_microbatch_size` microbatches, of one sequence unless said."""
    draw = random.Random(seed)
    each, count, ranks = draw.choice((1, 2, 4)), draw.randint(1, 8), draw.choice((1, 2, 4))
    settings = "[training]\nlocal_batch_size = {}\n[parallelism]\npipeline_parallel_degree = 2\n"
    text = settings.format(each * count)
    size = "pipeline_parallel_microbatch_size = {}\n".format
    said = size(each) if each > 1 or draw.random() < 0.5 else ""
    run = import_plan(text + said, "run.toml", "torchtitan", gpus=2 * ranks).run
    assert (run.micro_batch, run.batch) == (each, each * count * ranks)
    with pytest.raises(CompileError, match="microbatches of 100"):
        import_plan(text + size(100), "run.toml", "torchtitan", gpus=2 * ranks)


def test_who_divides_gradients():
    """A kernel, unless the collective is asked to; where ranks have no gradients of others to add, nothing is said."""
    for flags, says in (("", True), ("--ddp-average-in-collective", False)):
        imported = import_plan(f"GPUS=8\n{MEGATRON} {flags}", "train.sh", "megatron")
        assert ("average = before" in imported.text) == says
    alone = import_plan("GPUS=8\nNNODES=4\n" + MEGATRON, "train.sh", "megatron")
    assert "average" not in alone.text


def test_whose_optimizer_copies():
    """Megatron-LM's, of weights in 16 bits, but under its FSDP; its own flag for another one is refused."""
    for flags, says in (("", True), ("--optimizer-cpu-offload", False)):
        imported = import_plan(f"GPUS=8\n{MEGATRON} {flags}", "train.sh", "megatron")
        assert ("copies = true" in imported.text) == says
    wide = import_plan("GPUS=8\n" + MEGATRON.replace("--bf16 ", ""), "train.sh", "megatron")
    assert "copies" not in wide.text


def test_whose_hosts_look_for_nan():
    """Megatron-LM's, unless they are told not to, in bf16; of recipes those that say so."""
    for flags, says in (("", True), ("--no-check-for-nan-in-loss-and-grad", False)):
        imported = import_plan(f"GPUS=8\n{MEGATRON} {flags}", "train.sh", "megatron")
        assert ("check = true" in imported.text) == says
    half = import_plan("GPUS=8\n" + MEGATRON.replace("--bf16", "--fp16"), "train.sh", "megatron")
    assert "loss_scale = dynamic" in half.text and "check" not in half.text


def test_tables_of_the_page():
    """`python -m tests.unit.launch_tables` writes them."""
    assert tables() in (DOCS / "importing.md").read_text("utf-8")


def test_levels_of_deepspeed_are_its_own_and_what_a_trainer_fills_in_is_named():
    """`auto` of `gradient_clipping` is `max_grad_norm` of the trainer, 1.0 (`HfTrainerDeepSpeedConfig.trainer_config_process`)."""
    settings = (
        '{"zero_optimization": {"stage": 2}, "gradient_clipping": "auto", '
        '"train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": true}}'
    )
    made = import_plan(settings, "ds.json", "deepspeed", gpus=8)
    assert "zero 2 over dp { like = deepspeed }" in made.text
    assert "clip = 1 }" in made.text
    assert "(`auto`): `train_micro_batch_size_per_gpu`." in made.text


SMALL = (
    """dim B = 16
dim S = 64
dim D = 256
dim F = 512
dim V = 1024
dim L = 2
"""
    + FEED_FORWARD
    + """
model Net(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[V, D], head[D, V]
  x = embedding(tokens, embed)
  repeat L { x = Block(x) }
  loss = cross_entropy(x @ head, targets)
}
"""
)


USUAL = "torchrun pretrain_gpt.py --micro-batch-size 2 --global-batch-size 16 --bf16"


def imported_with(flags: str, tmp_path: Path) -> Compiled:
    """The small model under a launch of four GPUs."""
    model = tmp_path / "small.stg"
    model.write_text(SMALL)
    dims = dims_of(parse_file(model))
    imported = import_plan(f"{USUAL} {flags}", "run.sh", "megatron", 4, model.name, dims, tmp_path)
    (tmp_path / "run.stg").write_text(imported.text)
    return compile_model(tmp_path / "run.stg")


def test_weights_in_fp8_are_those_that_products_in_fp8_read(tmp_path: Path) -> None:
    """Megatron-LM's buffers of parameters are by dtype: the table, the head and norms are gathered in bf16 all the same."""
    flags = "--fp8-format hybrid --fp8-param-gather --use-distributed-optimizer"
    gathered = {"fp8": 0, "bf16": 0}
    traces = imported_with(flags, tmp_path).trace_set
    program = traces.classes[0].program
    for index in program.segment.tolist():
        for node in program.segments[index].nodes:
            if isinstance(node.action, Collective) and node.action.kind == "all_gather":
                gathered[node.action.dtype] += node.action.result_bytes
    matrices, others = 2 * 2 * 256 * 512, 2 * 256 * 1024 + 2 * 256
    assert gathered == {"fp8": matrices, "bf16": 2 * others}
    unread = import_plan(f"{USUAL} --fp8-param-gather", "run.sh", "megatron", gpus=4)
    assert "Not in the plan: weights in fp8" in unread.text


@pytest.mark.parametrize(
    ("recipe", "optimizer", "is_wide"),
    [
        ("mxfp8", "--use-distributed-optimizer", True),
        ("mxfp8", "", False),
        ("delayed", "--use-distributed-optimizer", False),
    ],
)
def test_weights_in_mxfp8_are_gathered_in_the_buffer_of_gradients(
    tmp_path: Path, recipe: str, optimizer: str, is_wide: bool
) -> None:
    """`_post_param_sync` of Megatron-LM's `param_and_grad_buffer.py`; its `arguments.py` asks for the flag beside weights in mxfp8."""
    flags = f"--fp8-format hybrid --fp8-recipe {recipe} --fp8-param-gather --reuse-grad-buf-for-mxfp8-param-ag"
    imported_with(f"{flags} {optimizer}", tmp_path)
    assert ("product_gather = bf16" in (tmp_path / "run.stg").read_text()) == is_wide


@pytest.mark.parametrize(
    ("flags", "is_kept"),
    [
        ("--fp8-format hybrid", True),
        ("--fp4-format e2m1", True),
        ("--fp8-format hybrid --fp8-param-gather --use-distributed-optimizer", False),
        ("--fp8-format hybrid --use-torch-fsdp2", False),
        ("--fp8-format hybrid --disable-parameter-transpose-cache", False),
        ("", False),
    ],
)
def test_what_products_read_of_weights_is_kept_for_a_step(
    tmp_path: Path, flags: str, is_kept: bool
) -> None:
    """Transformer Engine's layers are told the first microbatch (`is_first_microbatch` in Megatron-LM's `extensions/transformer_engine.py`)."""
    imported_with(flags, tmp_path)
    assert ("cached_weights = true" in (tmp_path / "run.stg").read_text()) == is_kept


@pytest.mark.parametrize(
    ("flags", "said", "reduced"),
    [
        ("", "products = fp8 }", [("dp", "tp")] * 2),
        ("--fp8-recipe delayed --tp-only-amax-red", "maxima = [tp] }", [("tp",)] * 2),
        ("--fp8-recipe tensorwise --tp-only-amax-red", "products = fp8, scaling = current }", []),
        ("--fp8-recipe blockwise", "products = fp8_1x128 }", []),
        ("--fp8-recipe mxfp8", "products = mxfp8 }", []),
    ],
)
def test_how_products_in_fp8_are_scaled(
    tmp_path: Path, flags: str, said: str, reduced: list[tuple[str, ...]]
) -> None:
    """Ranks agree on the maxima of delayed scaling alone, and along the axes that Megatron-LM has for it."""
    split = "--tensor-model-parallel-size 2 --fp8-format hybrid"
    found = imported_with(f"{split} {flags}", tmp_path).trace_set
    assert said in (tmp_path / "run.stg").read_text()
    nodes = [node for segment in found.classes[0].program.segments for node in segment.nodes]
    made = [node.action for node in nodes if node.made_by == "reduce-maxima"]
    assert [each.axes for each in made if isinstance(each, Collective)] == reduced


def test_scales_that_no_plan_knows() -> None:
    with pytest.raises(CompileError, match="none of delayed, tensorwise, blockwise, mxfp8"):
        import_plan(f"{USUAL} --fp8-recipe custom", "run.sh", "megatron", gpus=4)


@pytest.mark.parametrize("tp", some([2, 4], 2))
def test_what_linear_layers_hide_by_themselves_is_hidden(tmp_path: Path, tp: int) -> None:
    """Without rings of Transformer Engine backward passes gather and scatter beside products: as many bytes, whole."""
    split = f"--tensor-model-parallel-size {tp} --sequence-parallel"
    found = imported_with(split, tmp_path)
    overlap = found.plan.overlap
    assert (overlap.tp, overlap.pieces) == (True, 1)
    rings = imported_with(f"{split} --tp-comm-overlap", tmp_path)
    assert (rings.plan.overlap.tp, rings.plan.overlap.pieces) == (True, 4)
    unsplit = imported_with(f"--tensor-model-parallel-size {tp}", tmp_path)
    assert not unsplit.plan.overlap.tp
    text = (tmp_path / "run.stg").read_text()
    assert "overlap" not in text


FLEX = "--num-experts 8 --expert-model-parallel-size 4 --moe-token-dispatcher-type flex"


@pytest.mark.parametrize("experts", ["", "--num-experts 8"])
@pytest.mark.parametrize(
    ("products", "has_kernels"),
    [
        ("", False),
        ("--fp4-format e2m1", False),
        *((f"--fp8-format hybrid --fp8-recipe {each}", each != "blockwise") for each in RECIPES),
    ],
)
def test_activations_of_the_op_fuser(experts: str, products: str, has_kernels: bool):
    """In `TEFusedMLP`, of layers without experts, for formats that its kernels write. Else the plan, or a note, says that it is not in it."""
    flag = "--use-transformer-engine-op-fuser"
    line = f"--bf16 --micro-batch-size 1 {experts} {products}"
    plain, fused = (import_plan(f"{line} {more}", "run.sh", "megatron", 8) for more in ("", flag))
    said = "device { fused_activations = true }"
    assert said not in plain.text
    assert (said in fused.text) == (has_kernels and not experts)
    without = [each for each in fused.text.splitlines() if said not in each]
    if said in fused.text or not products:
        assert without == plain.text.splitlines()
    else:
        assert "# Not in the plan: Transformer Engine's op fuser" in fused.text
    assert (flag in fused.idle) == (not products)


@pytest.mark.parametrize(
    ("flags", "clause", "idle"),
    [
        (f"{FLEX} --moe-deepep-num-sms 24", "device { exchange_units = 24 }", ""),
        (f"{FLEX} --moe-flex-dispatcher-num-sms 8", "device { exchange_units = 8 }", ""),
        (FLEX, "", ""),
        (
            f"{FLEX.replace('flex', 'alltoall')} --moe-hybridep-num-sms 8",
            "",
            "--moe-hybridep-num-sms",
        ),
        ("--moe-token-dispatcher-type flex --moe-hybridep-num-sms 8", "", "--moe-hybridep-num-sms"),
        ("--optimizer muon --muon-num-ns-steps 7", "optimizer muon { clip = 1, steps = 7 }", ""),
        ("--optimizer adam --muon-num-ns-steps 7", "", "--muon-num-ns-steps"),
    ],
)
def test_settings_of_what_a_run_has(flags: str, clause: str, idle: str):
    """They are in the plan where the run has what they are about."""
    found = import_plan(f"--bf16 --micro-batch-size 1 {flags}", "run.sh", "megatron", 8)
    assert clause in found.text
    assert ("exchange_units" in found.text) == ("exchange_units" in clause)
    assert ("steps" in found.text) == ("steps" in clause)
    assert [*found.idle] == [idle][: bool(idle)]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("uniform --recompute-num-layers 1", ""),
        ("uniform --recompute-num-layers 2", "that inputs of every 2 layers are kept"),
        ("block --recompute-num-layers 1", "only the first layer of each stage is"),
        ("block --recompute-num-layers 2", "only the first 2 layers of each stage are"),
        ("block --recompute-num-layers 3", ""),
        (
            "block --recompute-num-layers 1 --num-virtual-stages-per-pipeline-rank 2",
            "only the first layer of each virtual stage is",
        ),
        ("block --recompute-num-layers 2 --num-virtual-stages-per-pipeline-rank 2", ""),
    ],
)
def test_layers_that_are_computed_again(flags: str, told: str):
    """`checkpointed_forward` of Megatron-LM: `block` computes the first layers of each virtual stage again, `uniform` all, some at once."""
    line = f"--pipeline-model-parallel-size 3 --num-layers 9 --micro-batch-size 1 --recompute-granularity full --recompute-method {flags}"
    found = import_plan(f"pretrain_gpt.py {line}", "run.sh", "megatron", 6)
    assert "recompute whole" in found.text
    assert told in found.text
    assert ("Not in the plan" in found.text) == bool(told)
    idle = ["--recompute-method", "--recompute-num-layers"]
    assert [*found.idle] == idle * (not told)


def layers_to_build(flags: dict[str, int], rank: int, stages: int, chunk: int, chunks: int) -> int:
    """What `get_num_layers_to_build` of Megatron-LM's `core/transformer/transformer_block.py` returns where all stages have as many layers."""
    embedding, loss = flags["account-for-embedding"], flags["account-for-loss"]
    found, left = divmod(flags["num-layers"] + embedding + loss, stages * chunks)
    assert not left
    found -= embedding * (rank == chunk == 0)
    return found - loss * (rank == stages - 1 and chunk == chunks - 1)


@pytest.mark.parametrize("seed", range(12))
def test_blocks_beside_the_embedding_and_the_loss(seed: int):
    """These count as a layer: a stage that has one has a layer less, and may compute all of its own again."""
    draws = random.Random(seed)
    stages, chunks = draws.choice([(2, 1), (2, 2), (3, 1), (4, 1), (1, 1)])
    embedding, loss = draws.choice([(1, 1), (1, 0), (0, 1)])
    each = draws.randint(2, 4)
    flags = {"account-for-embedding": embedding, "account-for-loss": loss}
    flags["num-layers"] = each * stages * chunks - embedding - loss
    again = draws.randint(1, 4)
    line = f"--num-layers {flags['num-layers']} --pipeline-model-parallel-size {stages} --micro-batch-size 1 --recompute-granularity full"
    line += f" --recompute-method block --recompute-num-layers {again}"
    for what in ("embedding", "loss"):
        line += f" --account-for-{what}-in-pipeline-split" * flags[f"account-for-{what}"]
    line += f" --num-virtual-stages-per-pipeline-rank {chunks}" * (chunks > 1)
    built = [
        layers_to_build(flags, rank, stages, chunk, chunks)
        for rank in range(stages)
        for chunk in range(chunks)
    ]
    assert sum(built) == flags["num-layers"]
    text = import_plan(f"pretrain_gpt.py {line}", "run.sh", "megatron", 12).text
    assert ("Not in the plan" in text) == (again < max(built))


def test_two_stages_that_are_both_said():
    """Nothing is left for stages between them."""
    line = "--num-layers 8 --pipeline-model-parallel-size 2 --micro-batch-size 1 --decoder-first-pipeline-num-layers 3 --decoder-last-pipeline-num-layers 5"
    text = import_plan(f"pretrain_gpt.py {line}", "run.sh", "megatron", 2).text
    assert "layers = [3, 5]" in text


@pytest.mark.parametrize("seed", range(6))
def test_blocks_that_are_computed_again_in_part(seed: int):
    """Told where a stage, as it is written, has more layers than are computed again; and where nothing says how many it has."""
    draws = random.Random(seed)
    stages = [draws.randint(1, 4), *[draws.randint(1, 4)] * 2, draws.randint(1, 4)]
    layers = draws.randint(1, 4)
    said = f"--recompute-granularity full --recompute-method block --recompute-num-layers {layers}"
    flags = f"--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers {stages[0]} --micro-batch-size 1"
    flags += f" --decoder-last-pipeline-num-layers {stages[-1]} --num-layers {sum(stages)} {said}"
    text = import_plan(f"pretrain_gpt.py {flags}", "run.sh", "megatron", 8).text
    assert ("Not in the plan" in text) == (layers < max(stages))
    unknown = import_plan(f"pretrain_gpt.py --micro-batch-size 1 {said}", "run.sh", "megatron", 8)
    assert "Not in the plan" in unknown.text


@pytest.mark.parametrize(
    ("flags", "gpus", "message", "shown", "help_"),
    [
        ("--bf16 --fp16", 8, "`--fp16`: bf16 is said too", "--fp16", "leave one of them out"),
        ("--fp16 --bf16", 8, "`--bf16`: fp16 is said too", "--bf16", "leave one of them out"),
        (
            "--micro-batch-size 7 --global-batch-size 60",
            12,
            "does not divide into microbatches of 7 on 12 ranks",
            "--global-batch-size",
            "choose a multiple of 84, or other microbatches",
        ),
        (
            "--pipeline-model-parallel-size 3 --bf16",
            8,
            "8 GPUs do not divide over 3",
            "--pipeline-model-parallel-size",
            "choose a multiple of 3 GPUs, or other degrees",
        ),
        (
            "--pipeline-model-parallel-size 4 --num-layers 8 --decoder-first-pipeline-num-layers 1",
            8,
            "7 layers do not divide over the other 3 stages",
            "--decoder-first-pipeline-num-layers",
            "choose other numbers of layers for the first and the last stage",
        ),
        (
            "--pipeline-model-parallel-size 2 --num-layers 8 --decoder-first-pipeline-num-layers 1 --decoder-last-pipeline-num-layers 6",
            8,
            "7 layers are said of 2 of 2 stages, and there are 8",
            "--decoder-first-pipeline-num-layers",
            "choose other numbers of layers for the first and the last stage",
        ),
        (
            "--pipeline-model-parallel-size 2 --num-layers 8 --decoder-last-pipeline-num-layers 9",
            8,
            "9 layers are said of 1 of 2 stages, and there are 8",
            "--decoder-last-pipeline-num-layers",
            "choose other numbers of layers for the first and the last stage",
        ),
        (
            "--pipeline-model-parallel-size 2 --decoder-last-pipeline-num-layers 9",
            8,
            "not how many layers there are",
            "--decoder-last-pipeline-num-layers",
            "say how many layers the model has, too",
        ),
        (
            "--pipeline-model-parallel-size 2 --num-layers 8 --decoder-last-pipeline-num-layers 3 --account-for-loss-in-pipeline-split",
            8,
            "the loss counts as a layer too",
            "--account-for-loss-in-pipeline-split",
            "leave one of the two out",
        ),
        (
            "--pipeline-model-parallel-size 2 --num-layers 8 --num-layers-per-virtual-pipeline-stage 3",
            8,
            "8 layers do not divide over 2 stages into virtual stages of 3",
            "--num-layers-per-virtual-pipeline-stage",
            "choose another number of layers for a virtual stage, or of layers",
        ),
        (
            "--num-experts 8 --expert-model-parallel-size 3",
            8,
            "experts over 3 ranks are spread over",
            "--expert-model-parallel-size",
            "choose a number that divides 8",
        ),
        (
            "--num-experts 8 --expert-model-parallel-size 2 --expert-tensor-parallel-size 2",
            8,
            "experts cut 2 ways beside 1 of the rest",
            "--expert-tensor-parallel-size",
            "have them whole: 1",
        ),
        (
            "--num-experts 8 --expert-model-parallel-size 3 --expert-tensor-parallel-size 1 --tensor-model-parallel-size 2",
            8,
            "experts over 3 ranks do not contain all 2",
            "--expert-model-parallel-size",
            "choose a multiple of 2, or cut experts as the rest is cut",
        ),
        (
            "--micro-batch-size one",
            8,
            "`one` is not a whole",
            "--micro-batch-size",
            "write a whole number",
        ),
        (
            "--recompute-method blocks",
            8,
            "is none of",
            "--recompute-method",
            "did you mean `block`?",
        ),
    ],
)
def test_what_does_not_go_together_is_shown_where_it_is_said(
    flags: str, gpus: int, message: str, shown: str, help_: str
):
    text = f"pretrain_gpt.py {flags}"
    with pytest.raises(CompileError) as refused:
        import_plan(text, "run.sh", "megatron", gpus)
    (found,) = refused.value.diagnostics
    assert found.code == "E0805"
    assert message in found.message
    assert found.span is not None
    assert text[found.span.column - 1 : found.span.end_column - 1] == shown
    assert found.helps == (help_,)


def test_two_dtypes_of_16_bits_in_settings_of_deepspeed():
    """`DeepSpeedConfig` asserts that they are not both enabled."""
    text = '{"bf16": {"enabled": true}, "fp16": {"enabled": %s}, "train_batch_size": 8}'
    assert "bf16" in import_plan(text % "false", "ds.json", "deepspeed", 8).text
    with pytest.raises(CompileError, match=r"`fp16\.enabled`: bf16 is said too"):
        import_plan(text % "true", "ds.json", "deepspeed", 8)


@pytest.mark.parametrize("layers", [7, 8])
@pytest.mark.parametrize("dims", [{"L": 7, "B": 8}, {"L": None}, {"B": 7}])
def test_layers_that_the_model_has_not_are_told(layers: int, dims: dict[str, int | None]):
    flags = f"pretrain_gpt.py --num-layers {layers} --micro-batch-size 1"
    text = import_plan(flags, "run.sh", "megatron", 8, "m.stg", dims).text
    assert ("`--num-layers`, 8 where `dim L` of the model is 7" in text) == (
        layers == 8 and dims.get("L") == 7
    )


def test_what_a_batch_script_says_is_shown_there():
    text = "#!/bin/bash\n#SBATCH --nodes=3\npretrain_gpt.py --bf16\n"
    with pytest.raises(CompileError) as refused:
        import_plan(text, "run.sh", "megatron")
    (found,) = refused.value.diagnostics
    assert found.message == "3 nodes are said, but not how many GPUs each has"
    assert found.span == Span("run.sh", 2, 9, 2, 16)


def test_stages_without_a_pipeline_are_told():
    flags = "--num-layers 8 --account-for-loss-in-pipeline-split --num-virtual-stages-per-pipeline-rank 2"
    found = import_plan(f"pretrain_gpt.py {flags}", "run.sh", "megatron", 8)
    assert "pipeline" not in found.text
    assert found.idle == (
        "--num-virtual-stages-per-pipeline-rank",
        "--account-for-loss-in-pipeline-split",
    )


@pytest.mark.parametrize("kind", ["megatron", "nemo", "mlperf"])
def test_a_file_of_another_kind_says_nothing_of_a_plan(kind: str) -> None:
    """Each of its settings would be lost."""
    text = '{"train_batch_size": 96, "zero_optimization": {"stage": 3}}'
    with pytest.raises(CompileError) as found:
        import_plan(text, "ds.json", kind, gpus=16)
    (told,) = found.value.diagnostics
    assert (told.code, *told.helps) == ("E0804", "`--kind deepspeed`")


@pytest.mark.parametrize(
    ("file", "line", "meant"),
    [
        ("run.yaml", "  micro_batch_siz: 2", "`micro_batch_size`"),
        ("run.yaml", "  weigt_decay: null", "`weight_decay`"),
        ("run.yaml", "  zzz: 3", "leave it out"),
        ("run.txt", "model.micro_batch_siz=2", "`micro_batch_size`"),
        ("run.py", "    micro_batch_siz=2,", "`micro_batch_size`"),
    ],
)
def test_a_field_that_nemo_has_not_is_refused(file: str, line: str, meant: str) -> None:
    """As flags of Megatron-LM are: it is no field without effect."""
    with pytest.raises(CompileError) as found:
        import_plan(f"tensor_model_parallel_size: 2\n{line}\n", file, "nemo", gpus=8)
    (told,) = found.value.diagnostics
    assert told.code == "E0804"
    assert told.span is not None
    assert told.span.line == 2
    assert any(meant in each for each in told.helps)


def test_names_that_are_no_fields_of_nemo_are_listed() -> None:
    """A script's own, and a process's."""
    script = "recipe = make(\n    tensor_model_parallel_size=2,\n    num_steps=3,\n)\n"
    assert import_plan(script, "run.py", "nemo", gpus=8).idle == ("recipe", "num_steps")
    fields = "tensor_model_parallel_size: 2\nenv_vars:\n  NCCL_ALGO: ring\nweight_decay: 0.1\n"
    assert import_plan(fields, "run.yaml", "nemo", gpus=8).idle == ("NCCL_ALGO", "weight_decay")


@pytest.mark.parametrize(
    ("field", "clause"),
    [
        ("moe_token_dispatcher_type: allgather", "exchange = all_gather"),
        ("overlap_moe_expert_parallel_comm: true", "ep = true"),
        ("use_tp_pp_dp_mapping: true", "rank_order"),
        ("make_vocab_size_divisible_by: 64", "pad = 64"),
    ],
)
def test_fields_say_what_the_flags_of_their_names_say(field: str, clause: str) -> None:
    fields = (
        "tensor_model_parallel_size: 2\nexpert_model_parallel_size: 2\npipeline_model_parallel_size: 2\n"
        f"num_moe_experts: 8\nmicro_batch_size: 1\n{field}\n"
    )
    made = import_plan(fields, "run.yaml", "nemo", gpus=16, dims={"X": 8, "V": 1000, "L": 4})
    assert clause in made.text
