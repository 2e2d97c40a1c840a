"""Telling what a file of a launcher is, and reading it: `import_plan`."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stagec.diagnostics import CompileError, Diagnostic, did_you_mean
from stagec.importing.launch.idle import FIELDS_UNSAID, MEGATRON_UNSAID, idle
from stagec.importing.launch.launch import Launch, NotAPlan, plan_text
from stagec.importing.launch.shell import assignments, expanded, words
from stagec.importing.launch.words import DEEPSPEED, FIELDS, MEGATRON, MLPERF, TORCHTITAN, Word

KINDS = ("megatron", "torchtitan", "deepspeed", "nemo", "mlperf")


@dataclass
class Reading:
    """What was read of a launcher's file."""

    file: str
    run: Launch = field(default_factory=Launch)
    idle: list[str] = field(default_factory=list)
    unsaid: list[str] = field(default_factory=list)
    mistakes: list[Diagnostic] = field(default_factory=list)

    def wrong(self, message: str, help: str = "", code: str = "E0804") -> None:
        self.mistakes.append(Diagnostic(code, message, origin=self.file, help=help))

    def apply(self, name: str, word: Word, value: Any) -> None:
        try:
            word.apply(self.run, value)
        except NotAPlan as error:
            self.wrong(f"`{name}`: {error.message}", error.help, "E0805")


@dataclass(frozen=True)
class ImportedPlan:
    text: str
    run: Launch
    idle: tuple[str, ...]


def import_plan(
    text: str,
    file: str,
    kind: str,
    gpus: int | None = None,
    model: str = "",
    dims: Collection[str] | None = None,
) -> ImportedPlan:
    """The plan of a run. `CompileError` with all that keeps it from being one.

    `model` is the file that it imports, and `dims` are those of that model.
    """
    reading = Reading(file)
    READERS[kind](text, reading)
    if gpus:
        reading.run.gpus = gpus
    reading.run.sequence_parallel &= reading.run.tp > 1
    if not reading.mistakes:
        remarks = [f"From {Path(file).name} ({kind})."]
        remarks += [f"Not in the plan: {what}." for what in dict.fromkeys(reading.unsaid)]
        try:
            name = re.sub(r"\W", "_", Path(file).stem) or "run"
            name = name if not name[0].isdigit() else f"run_{name}"
            made = plan_text(reading.run, name.lower(), remarks, model, dims)
            return ImportedPlan(made, reading.run, tuple(dict.fromkeys(reading.idle)))
        except NotAPlan as error:
            reading.wrong(error.message, error.help, "E0805")
    raise CompileError(reading.mistakes)


DEEPSPEED_KEYS = frozenset(
    {
        "bf16",
        "fp16",
        "gradient_accumulation_steps",
        "optimizer",
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "zero_optimization",
    }
)
"""Any of them tells settings of DeepSpeed from a model's configuration."""


def kind_of(path: Path, text: str) -> str:
    """Which launcher a file is of; nothing if of none."""
    if path.suffix == ".toml":
        return "torchtitan"
    if path.suffix == ".json":
        data = json.loads(text)
        known = isinstance(data, dict) and not DEEPSPEED_KEYS.isdisjoint(data)
        return "deepspeed" if known and "model_type" not in data else ""
    if re.search(
        r"--tensor-model-parallel-size|--micro-batch-size|--num-layers|--use-mcore-models", text
    ):
        return "megatron"
    if re.search(
        r"(?m)^\s*export\s+(DGXNNODES|MINIBS|TENSOR_MODEL_PARALLEL|TP|PP|MICRO_BATCH_SIZE)=", text
    ):
        return "mlperf"
    if re.search(
        r"(?m)^[^#\n]*\b(tensor_model_parallel_size|micro_batch_size|global_batch_size)\s*[:=]",
        text,
    ):
        return "nemo"
    return ""


def read_megatron(text: str, reading: Reading) -> None:
    """Flags after the name of a training script, and torchrun's before it; all flags of a text without either."""
    found = words(text)
    starts = [i for i, w in enumerate(found) if w.endswith(".py")]
    launchers = [
        i for i, w in enumerate(found) if Path(w).name in ("torchrun", "python", "python3")
    ]
    begin = 0
    if starts:
        before = [i for i in launchers if i < starts[-1]]
        begin = before[-1] if before else starts[-1]
    i = begin
    tokens = found
    seen: set[str] = set()
    while i < len(tokens):
        token = tokens[i]
        i += 1
        if not token.startswith("--") or len(token) < 3:
            if (
                token in (";", "|", "&", "&&", "||", ">", ">>", "2>&1")
                and starts
                and i > starts[-1]
            ):
                break
            continue
        name, _, value = token[2:].partition("=")
        values = [value] if value else []
        while (
            not value
            and i < len(tokens)
            and not tokens[i].startswith("--")
            and not punctuation(tokens[i])
        ):
            if tokens[i].endswith(".py"):
                break
            values.append(tokens[i])
            i += 1
        take_megatron(name, values, reading, seen)


def punctuation(token: str) -> bool:
    return bool(re.fullmatch(r"[();<>|&]+|\d?>&?\d?", token))


def take_megatron(name: str, values: list[str], reading: Reading, seen: set[str]) -> None:
    word = MEGATRON.get(name)
    if word is not None:
        if word.has_value and not values:
            reading.wrong(
                f"`--{name}` has no value: a variable that the script does not set?",
                "write the number instead of the variable",
            )
            return
        reading.apply(f"--{name}", word, values[0] if values else None)
    elif name in MEGATRON_UNSAID:
        reading.unsaid.append(f"`--{name}`, {MEGATRON_UNSAID[name]}")
    elif name in idle("megatron"):
        reading.idle.append(f"--{name}")
    elif name not in seen:
        seen.add(name)
        known = [*MEGATRON, *idle("megatron"), *MEGATRON_UNSAID]
        reading.wrong(f"`--{name}` is not a flag that is known", did_you_mean(name, known))


FIELD = re.compile(r"^[\s\"'+.\w\[\]]*?\b(\w+)[\"']?\s*[:=]\s*([^,#\n]+?)\s*,?\s*(?:#.*)?$")


def read_nemo(text: str, reading: Reading) -> None:
    """Fields of a recipe: YAML, Python or overrides, one a line. Nothing of it is run."""
    for line in text.splitlines():
        match = FIELD.match(line.split("#")[0].rstrip())
        if match is None:
            continue
        name, value = match[1], match[2].strip().strip("\"'")
        if name in FIELDS:
            if value.lower() in ("null", "none", "~"):
                continue
            reading.apply(name, FIELDS[name], value)
        elif name in FIELDS_UNSAID and value.lower() not in ("null", "none", "false", "~", "0"):
            reading.unsaid.append(f"`{name}`, {FIELDS_UNSAID[name]}")
        elif is_about_parallelism(name):
            reading.wrong(f"`{name}` is not a field that is known", did_you_mean(name, FIELDS))
        else:
            reading.idle.append(name)


def is_about_parallelism(name: str) -> bool:
    """A field whose effect on a plan would be lost."""
    return bool(re.search(r"parallel_size$|_parallel$|batch_size$|pipeline_stage", name.lower()))


def read_mlperf(text: str, reading: Reading) -> None:
    """Variables that a configuration script of a submission exports."""
    variables = assignments(text)
    for name, raw in variables.items():
        value = expanded(raw, variables).strip()
        if name in MLPERF:
            if value.lower() in ("", "null", "none"):
                continue
            reading.apply(name, MLPERF[name], value)
        elif name.upper().startswith("FP8"):
            if value not in ("", "0", "False"):
                reading.unsaid.append(f"`{name}`, products in fp8")
        elif re.search(r"PARALLEL|BATCH", name) and "TEST" not in name and "VAL" not in name:
            reading.wrong(f"`{name}` is not a variable that is known", did_you_mean(name, MLPERF))
        else:
            reading.idle.append(name)
    run = reading.run
    if run.accumulation and not run.global_batch and run.micro_batch:
        # MINIBS is what a data-parallel rank has of the batch.
        run.global_batch = run.accumulation * run.data
        run.accumulation = None


def flattened(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def read_settings(
    data: Mapping[str, Any], words_: Mapping[str, Word], kind: str, reading: Reading
) -> None:
    for name, value in flattened(data):
        if name in words_:
            if value in (None, "auto", ""):
                continue
            reading.apply(name, words_[name], value)
        elif name.startswith(idle(kind)):
            reading.idle.append(name)
        else:
            reading.wrong(f"`{name}` is not a setting that is known", did_you_mean(name, words_))


def read_torchtitan(text: str, reading: Reading) -> None:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reading.wrong(f"this is no TOML: {error}", code="E0801")
        return
    run = reading.run
    run.sequence_parallel = True
    run.zero = 3
    run.precision = {
        "weights": "fp32",
        "activations": "bf16",
        "gradients": "fp32",
        "gather": "bf16",
        "reduce": "fp32",
        "optimizer": "fp32",
        "master": "none",
    }
    run.optimizer = "adamw"
    read_settings(data, TORCHTITAN, "torchtitan", reading)
    degrees = data.get("parallelism", {})
    shards, replicas = (
        degrees.get("data_parallel_shard_degree", -1),
        degrees.get("data_parallel_replicate_degree", 1),
    )
    run.dp = shards * replicas if shards > 0 else None
    run.shards = shards if shards > 0 and replicas > 1 else None
    if replicas > 1 and shards < 0:
        reading.wrong(
            "replicas of shards are said, but not how many shards there are",
            "say `data_parallel_shard_degree`",
            "E0805",
        )
    run.zero = 0 if shards == 1 and replicas > 1 else 3
    run.accumulation = 1


def read_deepspeed(text: str, reading: Reading) -> None:
    data = json.loads(text)
    if not isinstance(data, dict):
        reading.wrong("these are no settings of DeepSpeed", code="E0801")
        return
    read_settings(data, DEEPSPEED, "deepspeed", reading)
    if reading.run.cp > 1:
        reading.run.context = "ulysses"
    if not reading.run.optimizer:
        reading.run.optimizer = "adamw"
    reading.run.accumulation = reading.run.accumulation or 1


READERS = {
    "megatron": read_megatron,
    "torchtitan": read_torchtitan,
    "deepspeed": read_deepspeed,
    "nemo": read_nemo,
    "mlperf": read_mlperf,
}
