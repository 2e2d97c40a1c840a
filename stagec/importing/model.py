"""A configuration to the text of a model: `import_configuration`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stagec.diagnostics import CompileError, did_you_mean, refused
from stagec.formatting import format_text
from stagec.importing.config import Config, Place, Unsupported, classes
from stagec.importing.families import FAMILIES
from stagec.importing.quantized import quantized
from stagec.importing.starters import counted, starter_plans
from stagec.importing.text import Module, Weight, Writer
from stagec.reading import parse_json, read_whole_text
from stagec.text_places import JSON_HELP, json_key, json_place

CONFIGURATION = "config.json"
"""What it is called in the folder of a model."""


@dataclass(frozen=True)
class Imported:
    """A model as text, and what of a checkpoint each of its weights is."""

    text: str
    writer: Writer
    model: Module

    def tensors(self, path: str) -> list[tuple[Weight, list[list[str]]]]:
        """What a weight is in a checkpoint: the names of its tensors, for each instance of it.

        `path` is that of the weight in the program: `Block.Attention.q_proj`.
        """
        *instances, name = path.split(".")
        module = self.model
        layers: list[int] | list[None] = [None]
        for instance in instances:
            stem, _, count = instance.rpartition("_")
            called, place = (stem, int(count)) if count.isdigit() and stem else (instance, 1)
            module = self.writer.modules[called]
            if called in self.writer.layers:
                layers = self.writer.layers[called][place - 1]
        (weight,) = (w for w in module.all_weights if w.name == name)
        groups = [
            [t if i is None else t.replace("{i}", str(i)) for t in weight.tensors] for i in layers
        ]
        return [(weight, groups)]


def import_configuration(
    data: Mapping[str, Any], file: str, source: str = "", text: str = ""
) -> Imported:
    """The text of the model that a configuration describes. `CompileError` if it cannot be written; `text` is that of its file, where the mistake is shown."""
    model_type = data.get("model_type")
    if not isinstance(model_type, str):
        raise failure(
            file,
            "there is no `model_type` in this configuration",
            "E0801",
            'a `config.json` of Hugging Face has one, such as `"model_type": "llama"`',
        )
    family = FAMILIES.get(model_type)
    if family is None:
        known = did_you_mean(model_type, FAMILIES) or (
            f"`stagec import --architectures` lists the {len(FAMILIES)} that are"
        )
        what = "is not imported" if model_type in classes() else "is not known"
        message = f"the architecture `{model_type}` {what}"
        raise refused_at([("model_type",)], file, text, message, known)
    refuse_other_heads(data, model_type, file, text)
    config = Config.of(data, model_type)
    writer = Writer()
    try:
        architecture = family(config)
        model = architecture.write(writer)
        stored = quantized(config, writer, model)
    except Unsupported as error:
        message = f"`{model_type}`: {error.message}"
        # What its class takes without a key, the class says.
        places = [*error.at, *(place[:-1] for place in error.at), ("model_type",)]
        raise refused_at(places, file, text, message, error.help) from None
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
        last = config.asked[-1:]
        keys = f": the last that was read is `{last[0][-1]}`" if last else ""
        said = f"`{model_type}`: a value is not of the form that its class reads{keys}"
        help_ = "compare it with a configuration of this class that Hugging Face has"
        raise refused_at(last, file, text, said, help_) from error
    writer.even_batch()
    header = header_text(writer, model, source or Path(file).stem, config, stored.remark)
    plans = starter_plans(writer, model, model_types(data, model_type), stored.precision)
    return Imported(format_text(writer.text(header, model, plans), file), writer, model)


def model_types(data: Mapping[str, Any], model_type: str) -> list[str]:
    """The types of the model and of its language model, if it has parts."""
    inner = data.get("text_config")
    known = classes().get(model_type, {}).get("parts", {}).get("text_config", "")
    given = inner.get("model_type", known) if isinstance(inner, Mapping) else known
    return [model_type, *([str(given)] if given else [])]


def header_text(w: Writer, model: Module, source: str, config: Config, remark: str) -> str:
    """The comment that a file begins with."""
    parameters, buffers = counted(w, model)
    lines = [
        f"{source}, imported from its configuration. Weights are called as in checkpoints of transformers (`{config.model_type}`).",
        "",
        f"Parameters: {parameters:,}" + (f", and {buffers:,} biases of routers" if buffers else ""),
        *([remark] if remark else []),
    ]
    return "\n".join(lines)


HEADS = {
    "bert": ("ForMaskedLM",),
    "roberta": ("ForMaskedLM",),
    "xlm-roberta": ("ForMaskedLM",),
    "camembert": ("ForMaskedLM",),
    "xlm-roberta-xl": ("ForMaskedLM",),
    "electra": ("ForMaskedLM",),
    "mpnet": ("ForMaskedLM",),
    "albert": ("ForMaskedLM",),
    "deberta-v2": ("ForMaskedLM",),
    "modernbert": ("ForMaskedLM",),
    "distilbert": ("ForMaskedLM",),
    "vit": ("ForImageClassification",),
    "beit": ("ForImageClassification",),
    "deit": ("ForImageClassification",),
    "dinov2": ("ForImageClassification",),
    "clip": ("CLIPModel",),
}
OTHER_HEADS = ("Classification", "QuestionAnswering", "ForPreTraining", "Model", "ForMaskedLM")


def refuse_other_heads(data: Mapping[str, Any], model_type: str, file: str, text: str) -> None:
    """A class with another head than that which is written."""
    given = data.get("architectures") or []
    for name in given[:1] if isinstance(given, list) else ():
        written = HEADS.get(model_type, ())
        wrong = not str(name).endswith(written) if written else str(name).endswith(OTHER_HEADS)
        if wrong and not str(name).endswith("LMHeadModel"):
            message = f"`{model_type}`: the head of `{name}` is not imported"
            help_ = "leave out `architectures` for the usual head"
            raise refused_at([("architectures",)], file, text, message, help_)


def refused_at(
    places: Sequence[Place], file: str, text: str, message: str, help: str
) -> CompileError:
    """E0802 at the first of some keys that the text has; else of the file."""
    found = (json_key(text, file, place) for place in places)
    span = next((each for each in found if each is not None), None)
    origin, sources = ("", {file: text}) if span is not None else (file, None)
    return refused("E0802", message, span, origin=origin, help=help, sources=sources)


def failure(file: str, message: str, code: str, help: str = "") -> CompileError:
    return refused(code, message, origin=file, help=help)


def no_json(file: str, error: ValueError) -> CompileError:
    """E0801 where the text of a file stops being JSON."""
    span, why = json_place(error, file)
    message, origin = f"`{file}` is no JSON: {why}", "" if span else file
    return refused("E0801", message, span, origin=origin, help=JSON_HELP)


def read_configuration(path: Path) -> Mapping[str, Any]:
    """The configuration in a file, or in `config.json` of a folder."""
    file = path / CONFIGURATION if path.is_dir() else path
    if path.is_dir() and not file.exists():
        help_ = (
            "the folder of a model of Hugging Face has one; of a launcher's settings name the file"
        )
        raise failure(str(path), f"there is no `config.json` in `{path}`", "E0701", help_)
    try:
        data = parse_json(read_whole_text(file))
    except OSError as error:
        raise failure(
            str(path), f"cannot read `{path}`: {str(error.strerror).lower()}", "E0701"
        ) from None
    except ValueError as error:
        raise no_json(str(file), error) from None
    if not isinstance(data, dict):
        help_ = 'a configuration is a mapping, such as `{"model_type": "llama"}`'
        raise failure(str(path), f"`{path}` is not a configuration", "E0801", help_)
    return data
