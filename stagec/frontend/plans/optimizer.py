"""What updates weights, and what it keeps of them."""

from __future__ import annotations

from dataclasses import replace

from stagec.diagnostics import did_you_mean, quoted
from stagec.dialects.stg import NUM_STATES, PRECONDITIONED
from stagec.frontend import syntax
from stagec.frontend.plans.host_memory import read_offload
from stagec.frontend.plans.plan_reader import PlanReader
from stagec.plans import clauses as resolved

STAYS_ON_DEVICE = {
    "adafactor": (
        "the sums that `adafactor` keeps are small, and stay on the device",
        "keeps no moments",
    ),
    "muon": (
        "the momenta of `muon` are gathered for all layers at once, and stay on the device",
        "reads whole matrices",
    ),
    **dict.fromkeys(
        PRECONDITIONED,
        (
            "products with the factors of matrices need them on the device",
            "keeps factors of matrices",
        ),
    ),
}
"""Optimizers whose state is not offloaded, and why."""
OF_OPTIMIZERS = {
    "momentum": (("sgd",), "momentum is a setting of `sgd`"),
    "steps": (("muon",), "iterations are a setting of `muon`"),
    "block": (PRECONDITIONED, "`shampoo` and `soap` cut matrices into blocks"),
    "frequency": (
        PRECONDITIONED,
        "`shampoo` and `soap` compute roots, or eigenvectors, every so many steps",
    ),
    "graft": (("shampoo",), "a step of `shampoo` may have the length of Adam's"),
    "copies": (
        ("sgd", "adagrad", "adam", "adamw", "lion"),
        "it is of optimizers whose step is one kernel: others read gradients elsewhere",
    ),
}
"""Settings of single optimizers: whose, and what to say of others."""


def read_optimizer(reader: PlanReader) -> resolved.Optimizer:
    clause = reader.merged.get(syntax.Optimizer)
    if clause is None:
        return resolved.Optimizer()
    name = clause.name.text
    if name not in resolved.OPTIMIZERS:
        help_ = did_you_mean(name, resolved.OPTIMIZERS)
        help_ = help_ or f"there are {quoted(resolved.OPTIMIZERS)}"
        reader.error("E0403", f"there is no optimizer `{name}`", clause.name, help_)
        name = "adamw"
    others = {s for s, (owners, _) in OF_OPTIMIZERS.items() if name not in owners}
    read = reader.settings.read(clause.settings, resolved.Optimizer, "`optimizer`", others)
    for setting, (owners, help_) in OF_OPTIMIZERS.items():
        if setting in read and name not in owners:
            message = f"`{name}` has no setting `{setting}`"
            reader.findings.say("E0402", message, read["given"][setting], help=help_)
    found = resolved.Optimizer(name=name, span=clause.span, **read)
    if found.bits not in (8, 32):
        message = f"states of an optimizer have 8 or 32 bits, not {found.bits}"
        help_ = "`precision { optimizer = bf16 }` has other widths"
        reader.findings.say("E0403", message, found.given["bits"], help=help_)
    if found.bits == 8 and not NUM_STATES[found.algorithm]:
        message = f"`{name}` has no states as large as weights to keep in 8 bits"
        reader.findings.say("E0402", message, found.given["bits"], help="leave `bits` out")
    offload = reader.merged.get(syntax.Offload)
    stays = STAYS_ON_DEVICE.get(name)
    if stays is not None and offload is not None and read_offload(reader).optimizer:
        message, reason = stays
        where = [(clause.span, reason)]
        help_ = "leave `optimizer` out of `offload`"
        reader.findings.say("E0401", message, offload.span, secondary=where, help=help_)
    if found.tables is not None and offload is not None and read_offload(reader).parameters:
        message = "tables whose rows are updated in the backward pass are on the device"
        where = [(found.given["tables"], "updates rows")]
        help_ = "leave `parameters` out of `offload`"
        reader.findings.say("E0401", message, offload.span, secondary=where, help=help_)
    return found


def of_eight_bits(
    reader: PlanReader, precision: resolved.Precision, optimizer: resolved.Optimizer
) -> resolved.Precision:
    """States in blocks of 256 elements that share a scale (arXiv:2110.02861); those of small tensors, and master weights, stay in fp32."""
    if "optimizer" in precision.given and precision.optimizer != "fp32":
        message = f"`bits = 8` keeps states in 8 bits, not in {precision.optimizer}"
        where = [(precision.given["optimizer"], "the optimizer's dtype")]
        span, help_ = optimizer.given["bits"], "leave one of them out"
        reader.findings.say("E0401", message, span, secondary=where, help=help_)
    return replace(precision, optimizer="fp8_1x256")
