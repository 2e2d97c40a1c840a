"""Telling what a file of a launcher is, and reading it: `import_plan`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stagec.diagnostics import (
    CompileError,
    Diagnostic,
    Span,
    did_you_mean,
    quoted,
    slips,
)
from stagec.importing.launch.flags import (
    DEEPSPEED,
    FIELDS,
    MEGATRON,
    MLPERF,
    NEMO_OPTIMIZERS,
    TORCHTITAN,
    Word,
)
from stagec.importing.launch.ignored import (
    FIELDS_IDLE,
    FIELDS_UNSAID,
    MEGATRON_UNSAID,
    SETTINGS_UNSAID,
    idle,
)
from stagec.importing.launch.roles import Names, letters_in
from stagec.importing.launch.shell import assignments, expanded, with_sourced, words
from stagec.importing.launch.training_run import Launch, NotAPlan, plan_text
from stagec.reading import parse_json
from stagec.text_places import JSON_HELP, NoToml, TomlText, json_place, read_toml

BATCH = "#SBATCH"
"""What lines of a batch script begin with that Slurm reads."""
KINDS = ("megatron", "torchtitan", "deepspeed", "nemo", "mlperf")


VOCABULARY_MULTIPLE = 128
"""Megatron-LM's default of `--make-vocab-size-divisible-by`: times tensor parallel ranks, the vocabulary is a multiple of it."""


@dataclass
class Reading:
    """What was read of a launcher's file."""

    file: str
    text: str = ""
    run: Launch = field(default_factory=Launch)
    idle: list[str] = field(default_factory=list)
    unsaid: list[str] = field(default_factory=list)
    mistakes: list[Diagnostic] = field(default_factory=list)
    said: dict[str, str] = field(default_factory=dict)
    """What said each field of the run."""

    def wrong(
        self,
        message: str,
        help: str = "",
        code: str = "E0804",
        *,
        name: str = "",
        at: Span | None = None,
    ) -> None:
        """What is wrong, where `name` is said last, or at a place that is known."""
        span = at or (self.place(name) if name else None)
        origin = self.file if span is None else ""
        self.mistakes.append(Diagnostic(code, message, span, origin=origin, help=help))

    def unknown(self, name: str, what: str, meant: str) -> None:
        help_ = meant or "leave it out, if nothing of a plan depends on it"
        self.wrong(f"`{name}` is not a {what} that is known", help_, name=name)

    def place(self, name: str) -> Span | None:
        """Where a flag, a variable or a setting stands in the text, the last of several."""
        if self.file.endswith(".toml") and (
            found := TomlText(self.text, self.file).place(*name.split("."))
        ):
            return found
        word = re.compile(rf"(?<![\w-]){re.escape(name.rpartition('.')[2])}(?![\w-])")
        for number, line in reversed([*enumerate(self.text.split("\n"), 1)]):
            if found := [
                *word.finditer(line if line.startswith(BATCH) else line.partition("#")[0])
            ]:
                start, end = found[-1].span()
                return Span(self.file, number, start + 1, number, end + 1)
        return None

    def apply(self, name: str, word: Word, value: Any) -> None:
        before = dict(vars(self.run))
        try:
            word.apply(self.run, value)
            changed = {key for key, new in vars(self.run).items() if new != before[key]}
            self.said |= dict.fromkeys(changed, name)
        except NotAPlan as error:
            self.wrong(f"`{name}`: {error.message}", error.help, "E0805", name=name)


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
    dims: Mapping[str, int | None] | None = None,
    folder: Path | None = None,
    names: Names | None = None,
) -> ImportedPlan:
    """The plan of a run. `CompileError` with all that keeps it from being one.

    `model` is the file that it imports, and `dims` are those of that model, with their sizes where these are numbers; `names` says what it calls
    those that plans speak of, if not as they do.
    In `folder` stand the scripts that a script sources.
    """
    reading, written = Reading(file, text), text
    if kind in ("megatron", "mlperf"):
        text, missing = with_sourced(text, folder)
        reading.unsaid += [f"what `{name}` says, which it sources" for name in missing]
    READERS[kind](text, reading)
    check_kind(kind, reading)
    if gpus:
        reading.run.gpus = gpus
    reading.run.sequence_parallel &= reading.run.tp > 1
    reading.run.keeps_shard = kind in ("megatron", "nemo", "mlperf")
    if reading.run.stores_fp8 and reading.run.products != "fp8":
        reading.unsaid.append("weights in fp8, which no product in fp8 reads")
    if reading.run.vocabulary_multiple is None and kind in ("megatron", "nemo", "mlperf"):
        reading.run.vocabulary_multiple = VOCABULARY_MULTIPLE
    run = reading.run
    names = letters_in(dims) if names is None and dims is not None else names
    run.has_experts |= names is not None and "X" in names
    if run.fuses_ops and run.products and not run.fuses_activations:
        what = "Transformer Engine's op fuser, which a plan says of layers without experts, in fp8 or mxfp8"
        reading.unsaid.append(what)
    if not reading.mistakes:
        try:
            said = reading.said
            reading.idle += [said[name] for name in run.without_effect if name in said]
            if run.layers and (has := (dims or {}).get("L")) not in (None, run.layers):
                what = f"{run.layers} where `dim L` of the model is {has}: `set L = {run.layers}` if these are all layers"
                reading.unsaid.append(f"`{reading.said['layers']}`, {what}")
            reading.unsaid += [run.recomputed_otherwise] * bool(run.recomputed_otherwise)
            remarks = [f"From {Path(file).name} ({kind})."]
            remarks += [f"Not in the plan: {what}." for what in dict.fromkeys(reading.unsaid)]
            name = re.sub(r"\W", "_", Path(file).stem) or "run"
            name = name if not name[0].isdigit() else f"run_{name}"
            made = plan_text(reading.run, name.lower(), remarks, model, names)
            return ImportedPlan(made, reading.run, tuple(dict.fromkeys(reading.idle)))
        except NotAPlan as error:
            said = [reading.said[each] for each in error.about if each in reading.said]
            reading.wrong(error.message, error.help, "E0805", name=said[0] if said else "")
    raise CompileError(reading.mistakes, {file: written})


def check_kind(kind: str, reading: Reading) -> None:
    """E0804 for a text in which nothing is a setting of this kind of launcher: what it says would all be lost."""
    others = (
        [*reading.idle, *reading.mistakes] if kind != "nemo" else []
    )  # which finds fields in any text
    if reading.said or reading.unsaid or others:
        return
    found = kind_of(Path(reading.file), reading.text)
    if reading.mistakes and found in ("", kind):
        return
    reading.mistakes.clear()
    help_ = (
        f"`--kind {found}`" if found not in ("", kind) else f"`--kind` is one of {quoted(KINDS)}"
    )
    reading.wrong(f"nothing in it is a setting of `--kind {kind}`", help_, "E0804")


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
        data = parse_json(text)
        if not isinstance(data, dict) or DEEPSPEED_KEYS.isdisjoint(data):
            return ""
        return "" if "model_type" in data else "deepspeed"
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


SLURM = {
    "nodes": r"--nodes[= ](\d+)|-N ?(\d+)",
    "gpus_per_node": r"--gpus-per-node[= ](?:\w+:)?(\d+)|--gres[= ]gpu:(?:\w+:)?(\d+)",
}
"""What the head of a batch script of Slurm says."""


def read_slurm(text: str, reading: Reading) -> None:
    """Nodes and their GPUs, where nothing else says them; as many GPUs as tasks if only these are said."""
    run = reading.run
    head = "\n".join(line for line in text.splitlines() if line.startswith(BATCH))
    for name, pattern in {**SLURM, "tasks": r"--ntasks-per-node[= ](\d+)()"}.items():
        found = re.search(pattern, head)
        name = "gpus_per_node" if name == "tasks" else name
        if found and getattr(run, name) is None:
            run.set(name, int(found[1] or found[2]))
            reading.said[name] = re.split("[= ]", found[0])[0]


def read_megatron(text: str, reading: Reading) -> None:
    """Flags after the name of a training script, and torchrun's before it; all flags of a text without either."""
    reading.run.clip = 1.0  # unless said, as `OptimizerConfig` has it
    reading.run.widens_loss, reading.run.fuses_loss = True, False
    reading.run.averages_before = reading.run.checks = reading.run.copies = True
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
    if reading.run.exchange is None:
        # Unless a dispatcher is named (`--moe-token-dispatcher-type` in `arguments.py`).
        reading.run.exchange = "all_gather"
    read_slurm(text, reading)


def punctuation(token: str) -> bool:
    return bool(re.fullmatch(r"[();<>|&]+|\d?>&?\d?", token))


def take_megatron(name: str, values: list[str], reading: Reading, seen: set[str]) -> None:
    word = MEGATRON.get(name)
    if word is not None:
        if word.has_value and not values:
            reading.wrong(
                f"`--{name}` has no value: a variable that the script does not set?",
                "write the number instead of the variable",
                name=f"--{name}",
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
        reading.unknown(f"--{name}", "flag", did_you_mean(name, known))


FIELD = re.compile(
    r"^(?P<path>[\s\"'+.\w\[\]]*?)\b(?P<name>\w+)[\"']?\s*(?P<sign>[:=])\s*(?P<value>[^,#\n]+?)\s*,?\s*(?:#.*)?$"
)
NOTHING = ("", "null", "none", "~", "false", "0")


def read_nemo(text: str, reading: Reading) -> None:
    """Fields of a recipe: YAML, Python or overrides, one a line. Nothing of it is run."""
    reading.run.clip = 1.0  # unless said, as Megatron-LM's `OptimizerConfig` has it
    reading.run.widens_loss = True
    lines = [line.split("#")[0].rstrip() for line in text.splitlines()]
    fields = [found for line in lines if (found := FIELD.match(line))]
    known = {each["name"]: value_of(each) for each in fields}
    seen: set[str] = set()
    for field_ in fields:
        name = field_["name"]
        # `${training.model.encoder_seq_length}` is the value of another field.
        value = re.sub(
            r"^\$\{(?:[\w.]*\.)?(\w+)\}$", lambda m: known.get(m[1], m[0]), value_of(field_)
        )
        of_parallelism = is_about_parallelism(name)
        if name == "name" and value.lower() in NEMO_OPTIMIZERS:
            reading.apply(name, NEMO_OPTIMIZERS[value.lower()], value)
        elif value.lower() in ("null", "none", "~") and (is_field(name) or of_parallelism):
            continue
        elif name in FIELDS:
            reading.apply(name, FIELDS[name], value)
        elif name in FIELDS_UNSAID:
            if value.lower() not in NOTHING:
                reading.unsaid.append(f"`{name}`, {FIELDS_UNSAID[name]}")
        elif not of_parallelism and (name in FIELDS_IDLE or is_free(field_, reading.file)):
            reading.idle.append(name)
        elif name not in seen:
            seen.add(name)
            reading.unknown(name, "field", field_meant(name))


def value_of(field_: re.Match[str]) -> str:
    return field_["value"].strip().strip("\"'")


def is_field(name: str) -> bool:
    """Whether NeMo, Megatron-Bridge or what they build on has a field of that name."""
    return name in FIELDS or name in FIELDS_UNSAID or name in FIELDS_IDLE


def is_free(field_: re.Match[str], file: str) -> bool:
    """Whether a name may be no field: a variable of a process or a script, or an argument of what a recipe in Python calls. These are
    called anything but what a field is mistyped as.
    """
    name = field_["name"]
    free = file.endswith(".py") or (field_["sign"] == "=" and "." not in field_["path"])
    return name.isupper() or (free and all(slips(name, each)[1] > 1 for each in FIELDS))


def field_meant(name: str) -> str:
    """`did you mean ...?` for a misspelt field: one that becomes a clause or is told, or else any that begins alike."""
    alike = [each for each in FIELDS_IDLE if each.startswith(name[0])]
    return did_you_mean(name, [*FIELDS, *FIELDS_UNSAID]) or did_you_mean(name, alike)


def is_about_parallelism(name: str) -> bool:
    """A field whose effect on a plan would be lost."""
    if name in ("model_parallel_size", "pad_samples_to_global_batch_size"):
        return False  # of checkpoints, and of data
    return bool(re.search(r"parallel_size$|_parallel$|batch_size$|pipeline_stage", name.lower()))


def read_mlperf(text: str, reading: Reading) -> None:
    """Variables that a configuration script of a submission exports. All of NeMo's train in bf16 and reduce gradients in it."""
    reading.run.precision = {
        "weights": "bf16",
        "activations": "bf16",
        "gradients": "bf16",
        "optimizer": "fp32",
    }
    reading.run.optimizer = "adamw"
    reading.run.clip = 1.0  # its rules have all submissions clip, to 1 or to 0.3
    reading.run.copies = True
    reading.run.widens_loss = True
    # `tp_only_amax_red` in `conf/custom.yaml` of Llama 3.1's, unless said.
    reading.run.agrees_in_tp = True
    variables = assignments(text)
    for name, raw in variables.items():
        value = expanded(raw, variables).strip()
        if name in MLPERF:
            if value.lower() in ("", "null", "none"):
                continue
            reading.apply(name, MLPERF[name], value)
        elif re.search(r"PARALLEL(?!ISM)|(?<!S)BATCH", name) and not re.search(
            "TEST|VAL|TOKEN", name
        ):
            reading.unknown(name, "variable", did_you_mean(name, MLPERF))
        else:
            reading.idle.append(name)
    run = reading.run
    run.minibatch, run.accumulation = run.accumulation, None
    if run.minibatch and not run.micro_batch:
        run.micro_batch = 1  # the default of the submissions' `conf`


def flattened(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def name_in(name: str, beginnings: Mapping[str, str]) -> str:
    """The one of some beginnings that a name has."""
    return next((each for each in beginnings if name.startswith(each)), "")


def read_settings(
    data: Mapping[str, Any], words_: Mapping[str, Word], kind: str, reading: Reading
) -> None:
    left_open: list[str] = []
    for name, value in flattened(data):
        if name in words_:
            if value == "auto" and name != "gradient_clipping":
                left_open.append(f"`{name}`")
                continue
            if value in (None, ""):
                continue
            reading.apply(name, words_[name], value)
        elif known := name_in(name, SETTINGS_UNSAID[kind]):
            what = SETTINGS_UNSAID[kind][known]
            if value not in (False, None, "auto"):
                said = name.partition(".")[0] if kind == "deepspeed" else name
                reading.unsaid.append(f"`{said}`, {what}")
        elif name.startswith(idle(kind)):
            reading.idle.append(name)
        else:
            reading.unknown(name, "setting", did_you_mean(name, words_))
    if left_open:
        reading.unsaid.append(f"what the trainer fills in (`auto`): {', '.join(left_open)}")


def read_torchtitan(text: str, reading: Reading) -> None:
    try:
        data = read_toml(text, reading.file)
    except NoToml as error:
        help_ = "write a value for each name: `local_batch_size = 8`"
        reading.wrong(f"this is no TOML: {error.message}", help_, "E0801", at=error.span)
        return
    run = reading.run
    run.sequence_parallel = True
    run.zero = 3
    run.like = "fsdp2"
    # Shards are fp32; they are gathered, and computed with, in bf16 (`MixedPrecisionPolicy`).
    run.precision = {
        "weights": "fp32",
        "activations": "bf16",
        "gradients": "fp32",
        "optimizer": "fp32",
        "reduce": "fp32",
    }
    run.optimizer = "adamw"
    run.clip = 1.0  # `max_norm`, unless said
    run.widens_loss = True  # `pred.float()` in `components/loss.py`
    read_settings(data, TORCHTITAN, "torchtitan", reading)
    checkpoint = data.get("activation_checkpoint")
    if isinstance(checkpoint, Mapping) and checkpoint.get("mode") == "selective":
        # `SelectiveAC` keeps what attention and collectives make, and every second product.
        what = "all but attention and every second product computed again: write which values"
        reading.unsaid.append(f"`activation_checkpoint.mode`, {what}")
    if run.pp > 1 and not cuts_stages(data.get("parallelism")):
        what = "the embedding and the head counting as a layer each: write `layers = [...]`"
        reading.unsaid.append(f"how layers are cut into stages, {what}")
    run.dp = run.shards * run.replicas if run.shards else None
    run.shards = run.shards if run.replicas > 1 else None
    run.accumulation = None if run.global_batch else 1
    if run.pp == 1:
        run.virtual_stages = 1
    else:
        cut_local_batch(reading)


def cut_local_batch(reading: Reading) -> None:
    """A pipeline of torchtitan runs what a rank has at once (`local_batch_size`) as microbatches of one sequence, unless said (`build_pipeline_schedule` in
    `distributed/pipeline_parallel.py`), and once for each part of a larger batch.
    """
    run = reading.run
    local, each = run.micro_batch, run.pipeline_batch or 1
    run.micro_batch = each
    if local is None:
        run.accumulation = None
    elif local % each:
        reading.wrong(
            f"a batch of {local} on each rank does not divide into microbatches of {each}"
        )
    elif run.global_batch is None:
        run.accumulation = local // each
    else:
        what = f"that the pipeline ends and begins again between parts of {local} sequences of a rank, if there are several"
        reading.unsaid.append(what)


CUTS = (
    *("module_fqns", "pipeline_parallel_layers_per_stage"),
    *("pipeline_parallel_first", "pipeline_parallel_last"),
)
"""How settings of torchtitan begin that say how layers are cut into stages."""


def cuts_stages(settings: Any) -> bool:
    """Whether some of `[parallelism]` say so, which is told of them."""
    named = settings if isinstance(settings, Mapping) else {}
    return any(value and name.startswith(CUTS) for name, value in named.items())


def read_deepspeed(text: str, reading: Reading) -> None:
    try:
        data = parse_json(text)
    except ValueError as error:
        span, why = json_place(error, reading.file)
        reading.wrong(f"this is no JSON: {why}", JSON_HELP, "E0801", at=span)
        return
    if not isinstance(data, dict):
        reading.wrong("these are not settings of DeepSpeed", code="E0801")
        return
    reading.run.like = "deepspeed"
    read_settings(data, DEEPSPEED, "deepspeed", reading)
    if reading.run.cp > 1:
        reading.run.context = "ulysses"
    if not reading.run.optimizer:
        reading.run.optimizer = "adamw"
    if not reading.run.global_batch:
        reading.run.accumulation = reading.run.accumulation or 1


READERS = {
    "megatron": read_megatron,
    "torchtitan": read_torchtitan,
    "deepspeed": read_deepspeed,
    "nemo": read_nemo,
    "mlperf": read_mlperf,
}
