"""How a checkpoint stores the weights of its linear layers (`quantization_config`), as `precision` of a plan that serves.

What is read are the formats of transformers (`quantizers`), of compressed-tensors and of NVIDIA's ModelOpt: fp8 with a scale for each tensor,
row or block of 128 x 128, mxfp8 and nvfp4, of activations too. Anything else, such as GPTQ, AWQ and mxfp4, `precision` has no word for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from stagec.importing.config import Config, Unsupported, shown
from stagec.importing.text import Module, Weight, Writer

IN_BLOCKS = "products = fp8_1x128, product_weights = fp8_128x128"
IN_FP8, IN_MXFP8, IN_NVFP4 = "products = fp8", "products = mxfp8", "products = fp4"
OF_ALGORITHM = {"FP8": IN_FP8, "NVFP4": IN_NVFP4, "MXFP8": IN_MXFP8}
"""`quant_algo` of ModelOpt."""
IGNORED = ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers")
"""What keys call the modules that are left as they are."""


@dataclass(frozen=True)
class Quantized:
    """What a plan that serves says of it, and what the head of the text does."""

    precision: str = ""
    remark: str = ""


def quantized(c: Config, w: Writer, model: Module) -> Quantized:
    """Nothing for a checkpoint that is not quantized."""
    data, key = c.data, "quantization_config"
    parts = [(c.path, data), ((*c.path, "text_config"), data.get("text_config") or {})]
    path, said = next(((path, p[key]) for path, p in parts if p.get(key)), ((), None))
    if said is None:
        return Quantized()
    if not isinstance(said, Mapping):
        message = f"`{key}` is {shown(said)}, and no mapping"
        help_ = 'write `{"quant_method": "fp8"}`, or leave it out'
        raise Unsupported(message, [(*path, key)], help_)
    method = said.get("quant_method") or said.get("quant_algo") or "no method"
    form = format_of(said)
    # Of DeepSeek-V4: experts in mxfp4, everything else in fp8.
    if not form or data.get("expert_dtype", "fp8") != "fp8":
        remark = f"Its weights are quantized (`{method}`) in a way that `precision` cannot say: plans have them in bf16."
        return Quantized(remark=remark)
    remark = f"Its weights are quantized (`{method}`): `precision {{ {form} }}` where it serves; plans that train have bf16."
    patterns = [str(each) for key in IGNORED for each in said.get(key) or ()]
    wide, partly = left_as_they_are(patterns, w, model)
    not_decoded = {*w.idle}.union(*(reached(w, name) for name in w.towers))
    seeing = [each for each in wide if module_of(each) in not_decoded]
    wide = [each for each in wide if each not in seeing]
    partly = [each for each in partly if module_of(each) not in not_decoded]
    if seeing:
        names = ", ".join(f"`{module_of(name)}`" for name in seeing)
        remark += f" It leaves {names} as they are, which a plan that decodes does not run."
    if wide:
        form += f", unquantized = [{', '.join(wide)}]"
    cache = said.get("kv_cache_scheme")
    if cache == "FP8" or (isinstance(cache, Mapping) and cache.get("num_bits") == 8):
        form += ", cache = fp8"
    if partly:
        names = ", ".join(f"`{name}`" for name in partly)
        remark += f" Of some layers alone it leaves {names} as they are: all are quantized here."
    return Quantized(form, remark)


def format_of(said: Mapping[str, Any]) -> str:
    """`products` and `product_weights`; empty for what these cannot say."""
    method = said.get("quant_method")
    if method == "fp8":
        blocks = {None: IN_FP8, (128, 128): IN_BLOCKS}
        size = said.get("weight_block_size")
        return blocks.get(tuple(size) if size else None, "")
    if method == "fbgemm_fp8":
        return IN_FP8
    groups = said.get("config_groups") or {}
    found = {format_of_group(group) for group in groups.values()}
    if found:
        return found.pop() if len(found) == 1 else ""
    return OF_ALGORITHM.get(str(said.get("quant_algo")), "")


def format_of_group(group: Mapping[str, Any]) -> str:
    """The format of the `weights` and `input_activations` of a group, which have numbers of equally many bits."""
    weights, read = group.get("weights") or {}, group.get("input_activations") or {}
    bits = weights.get("num_bits")
    if weights.get("type") != "float" or (read.get("type"), read.get("num_bits")) != (
        "float",
        bits,
    ):
        return ""
    if (bits, weights.get("group_size")) == (4, 16):
        return IN_NVFP4
    if bits != 8:
        return ""
    size = weights.get("block_structure") or weights.get("group_size")
    sizes = {"None": IN_FP8, "[128, 128]": IN_BLOCKS, "32": IN_MXFP8}
    return sizes.get(str(size), "")


def left_as_they_are(
    patterns: Sequence[str], w: Writer, model: Module
) -> tuple[list[str], list[str]]:
    """Modules and weights of repeated blocks that patterns name, in the words of `unquantized`; and those that they name in some layers only.

    Routers are no linear layers in transformers and engines (they have a parameter of their own), whether they are named or not.
    """
    ignored: dict[str, dict[str, set[bool]]] = {}
    for module, weight, names in of_layers(w, model, [], {}):
        said = ignored.setdefault(module.name, {}).setdefault(weight.name, set())
        said |= {module.is_router or any(matches(p, name) for p in patterns) for name in names}
    wide, partly = [], []
    for name, weights in ignored.items():
        whole = [weight for weight, said in weights.items() if said == {True}]
        wide += [name] if len(whole) == len(weights) else [f'"{name}.{each}"' for each in whole]
        partly += [f"{name}.{weight}" for weight, said in weights.items() if len(said) == 2]
    return wide, partly


def module_of(name: str) -> str:
    """The module of a word of `unquantized`, or of one without quotes."""
    return name.strip('"').partition(".")[0]


def reached(w: Writer, name: str) -> set[str]:
    """A module, and those that it calls."""
    return {name}.union(*(reached(w, callee) for callee in w.modules[name].calls))


def of_layers(
    w: Writer, module: Module, layers: Sequence[int], places: dict[str, int]
) -> Iterator[tuple[Module, Weight, list[str]]]:
    """Matrices in repeated blocks, each with the modules of a checkpoint that it is of."""
    if layers:
        for weight in module.all_weights:
            tensors = [t for t in weight.tensors if not t.endswith("bias")]
            if len(weight.dims) > 1 and tensors:
                names = [t.replace("{i}", str(i)) for t in tensors for i in layers]
                yield module, weight, [name.removesuffix(".weight") for name in names]
    for callee in module.calls:
        inner = layers
        if callee in w.layers:
            place = places[callee] = places.get(callee, -1) + 1
            inner = w.layers[callee][place]
        yield from of_layers(w, w.modules[callee], inner, places)


WRAPPERS = re.compile(r"^((language_)?model\.)+")
"""What a model that sees has around the one that reads, in another order in each version of transformers."""


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern names a module, or what it is in: an expression after `re:`, one with `*`, or a name, whole or from some step on."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], name) is not None
    pattern, name = (WRAPPERS.sub("", each, 1) for each in (pattern, name))
    return fnmatchcase(name, pattern) or f".{pattern.rstrip('.')}." in f".{name}."
