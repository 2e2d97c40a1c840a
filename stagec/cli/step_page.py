"""`stagec explain MODEL.stg step_time`: where a step's time goes, and what it comes to."""

from __future__ import annotations

from collections.abc import Iterator

from stagec.cli.tables import folded, seconds
from stagec.compiled import Compiled
from stagec.estimate.step import StepSummary, step_summary
from stagec.pictures.scales import digits
from stagec.pipeline_schedule import is_part


def step_page(compiled: Compiled, is_named: bool) -> str:
    """E0410 where neither the plan nor `--device` says how fast the device is. With the plan's name above, if it is one of several."""
    name = [f"{compiled.name}, plan {compiled.plan.name}"] if is_named else []
    said = [*lines(step_summary(compiled))]
    if is_part(compiled.module):
        shown = "`stagec MODEL.stg` with the plan of all shows them on one time axis"
        said += [
            "",
            f"note: this pool by itself, as if what the others hand over were there; {shown}",
        ]
    found = [part for line in said for part in folded(line) or [""]]
    return "\n".join([*name, *found]) + "\n"


def lines(found: StepSummary) -> Iterator[str]:
    device = f" on {found.device}" if found.device else ""
    plural = "" if found.num_ranks == 1 else "s"
    yield f"step time: {seconds(found.step_s)}{device}, {found.num_ranks:,} device{plural}"
    yield ""
    which = found.breakdown.rank_class
    yield f"where it goes{f', on {which}, which computes longest' if which else ''}; the parts add up"
    parts = sorted(found.breakdown.parts.items(), key=lambda item: -item[1])
    for name, us in parts:
        yield f"  {name:<24}{seconds(us / 1e6):>12}{us / 1e6 / found.step_s:>8.1%}"
    yield f"  {'total':<24}{seconds(found.breakdown.total_us / 1e6):>12}{1:>8.1%}"
    hidden = seconds(found.breakdown.hidden_us / 1e6)
    yield f"  computation hides {hidden} of communication besides"
    yield ""
    yield (
        f"of the time outside bubbles {found.measured:.0%} rests on measured operators, "
        f"{found.rules:.0%} on rules, {found.roofline:.0%} on the roofline"
    )
    yield ""
    yield (
        f"MFU {found.mfu:.2%}: matrix FLOPs that the model asks for, each once, attention scores as its mask has "
        "them and nothing that is computed again, over the peak of bf16 products of all devices"
    )
    yield (
        f"HFU {found.hfu:.2%}: all matrix FLOPs that devices do, also what recomputation and the backward pass of a "
        "fused attention compute again, what several ranks repeat, and padding"
    )
    if found.tokens_per_s is not None and found.tokens_per_s_per_device is not None:
        yield (
            f"{found.tokens or 0:,} tokens in a step: {digits(found.tokens_per_s)} per second, "
            f"{digits(found.tokens_per_s_per_device)} per second and device"
        )
    else:
        yield f"{found.samples:,} samples in a step: {digits(found.samples / found.step_s)} per second"
    if found.cost_per_million is not None:
        made = "samples" if found.tokens is None else "tokens"
        yield (
            f"a million {made} cost {digits(found.cost_per_million)}, "
            f"at {found.price_per_hour:g} for an hour of a device"
        )
    for note in found.notes:
        yield ""
        yield f"note: {note}"
