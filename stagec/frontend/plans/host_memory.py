"""What is kept on the host or on NVMe, and what a process keeps besides: `offload` and `process`."""

from __future__ import annotations

from dataclasses import replace

from stagec.frontend import syntax
from stagec.frontend.plans.plan_reader import PlanReader
from stagec.frontend.plans.precision import read_precision
from stagec.plans import clauses as resolved


def read_offload(reader: PlanReader) -> resolved.Offload:
    found = reader.only_settings(syntax.Offload, resolved.Offload)
    if found.update == "host" and not found.optimizer:
        message = "the host updates what the optimizer keeps there, and it keeps nothing there"
        help_ = "write `optimizer = true` too"
        reader.findings.say("E0402", message, found.given["update"], help=help_)
    found = on_nvme(reader, found)
    zero = reader.merged.get(syntax.Zero)
    level = zero.level.text if zero and isinstance(zero.level, syntax.Number) else None
    if zero is not None and found.parameters and level in ("1", "2"):
        reader.findings.say(
            "E0401",
            f"parameters on the host do not go with `zero {level}`",
            found.given["parameters"],
            secondary=[(zero.span, "gathers all of them on the device after the update")],
            help="split them too, with `zero 3`, or offload `optimizer` alone",
        )
    return found


def on_nvme(reader: PlanReader, found: resolved.Offload) -> resolved.Offload:
    """What is on NVMe is offloaded, and the optimizer's state passes through no device."""
    known = resolved.Offload.__dataclass_fields__["nvme"].metadata["kind"].choices
    offloaded = tuple(word for word in known if getattr(found, word))
    wanted = offloaded if found.nvme == (resolved.ALL,) else found.nvme
    if found.nvme and not wanted:
        wanted = found.nvme
    for word in wanted:
        message, help_ = "", ""
        if word == resolved.ALL:
            message = "nothing is offloaded that could be on NVMe"
            help_ = "write `optimizer = true, update = host`, `parameters = true` or `activations = all` too"
        elif word not in offloaded:
            message = f"`{word}` of `nvme` are not offloaded"
            help_ = f"write `{word} = {'all' if word == 'activations' else 'true'}` too"
        elif word == "optimizer" and found.update != "host":
            message = "what the optimizer keeps is on NVMe only where the host updates"
            help_ = "write `optimizer = true, update = host` too"
        if message:
            reader.findings.say("E0402", message, found.given["nvme"], help=help_)
            break
    return replace(found, nvme=wanted)


def read_process(reader: PlanReader) -> resolved.Process:
    found = reader.only_settings(syntax.Process, resolved.Process)
    if not found.transposed_weights and not found.cached_weights:
        return found
    precision = read_precision(reader)
    stored = precision.product_weights
    setting, copy, has_copies = (
        "cached_weights",
        "quantized",
        precision.is_quantized and not stored,
    )
    if not found.cached_weights:
        setting, copy = "transposed_weights", "transposed"
        has_copies = precision.is_quantized and bool(stored)
    zero = reader.merged.get(syntax.Zero)
    level = zero.level.text if zero and isinstance(zero.level, syntax.Number) else None
    message, where = "no weight is stored in 8 bits, and kept a second time transposed", []
    help_ = "`precision { products = fp8, product_weights = fp8 }` stores them so"
    if found.cached_weights:
        message = "no product is of quantized weights, and there are no copies of them"
        help_ = "`precision { products = fp8 }` makes some"
        if precision.is_quantized:
            message = "weights are stored as products read them, and there are no copies"
            help_ = "leave `cached_weights` out, or `product_weights`"
    if has_copies:
        if level != "3" and not read_offload(reader).parameters:
            return found
        message = f"weights that come and go leave no {copy} copy"
        help_ = f"leave `{setting}` out"
        clause = zero if zero is not None and level == "3" else reader.merged.get(syntax.Offload)
        assert clause is not None
        where = [(clause.span, "they are stored elsewhere")]
    span = found.given[setting]
    reader.findings.say("E0401", message, span, secondary=where, help=help_)
    return found
