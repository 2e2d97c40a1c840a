"""The schedules that stagec knows by name, and which sizes each of them takes.

p is the number of pp ranks, v the stages of a rank, m the microbatches of a step. For each schedule
its entry says how it places stages, how it orders transfers unless a plan says how, what it demands, and where it is from.
Bubbles are per step, F, B and W per stage and microbatch; B is the whole backward, so the
zero-bubble papers' B is B - W here.
"""

from collections.abc import Callable
from dataclasses import dataclass

from stagec.schedules import looped, v_shaped
from stagec.schedules.errors import ScheduleError
from stagec.schedules.table import ActionColumns, Schedule
from stagec.schedules.transfers import Rule, as_sent, batched, beside_compute, in_pairs

Rows = Callable[[int, int, int], list[ActionColumns]]
Check = Callable[[str, int, int, int], None]


@dataclass(frozen=True)
class Entry:
    """A schedule that `build` can make."""

    rows: Rows
    about: str
    source: str
    stages_per_rank: int | None = None
    """The only v it takes; any if None."""
    checks: tuple[Check, ...] = ()
    placement: str = "loop"
    transfers: Rule = as_sent
    settled: float = 3
    """After how many microbatches for each rank its times mostly repeat themselves, where its last stage takes longest: seen, not derived. Steps that may
    repeat themselves are looked for from there on, and whether they do is asked of each, so that another number changes how long that takes and no answer."""


def as_many_microbatches_as_ranks(name: str, p: int, v: int, m: int) -> None:
    if m < p:
        raise ScheduleError(
            f"schedule `{name}` needs at least as many microbatches as stages: m = {m}, p = {p}",
            f"choose m >= {p}, or `gpipe` or `interleaved_1f1b`, which take any number below p",
            "too-few-microbatches",
        )


def as_many_microbatches_as_stages(name: str, p: int, v: int, m: int) -> None:
    if m < 2 * p:
        raise ScheduleError(
            f"schedule `{name}` needs at least as many microbatches as stages: "
            f"m = {m}, 2 p = {2 * p}",
            f"choose m >= {2 * p}, or `zb_v`, which takes any number",
            "too-few-microbatches",
        )


def microbatches_for_both_ends(name: str, p: int, v: int, m: int) -> None:
    if p % 2 or m % 2:
        odd = "p" if p % 2 else "m"
        raise ScheduleError(
            f"schedule `{name}` feeds microbatches from both ends and needs p and m to be even: "
            f"p = {p}, m = {m}",
            f"choose an even {odd}, or `dualpipe_v`, which takes any",
            "odd",
        )
    if m < 2 * p:
        raise ScheduleError(
            f"schedule `{name}` needs at least two microbatches per rank: m = {m}, 2 p = {2 * p}",
            f"choose an even m >= {2 * p}",
            "too-few-microbatches",
        )


def even_rounds(name: str, p: int, v: int, m: int) -> None:
    rounds = max(1, m // p)
    if m % rounds:
        below = next(n for n in range(m - 1, 0, -1) if n % max(1, n // p) == 0)
        above = next(n for n in range(m + 1, m + p + 1) if n % max(1, n // p) == 0)
        raise ScheduleError(
            f"schedule `{name}` takes microbatches in rounds of equal size: m = {m} does not "
            f"divide into m div p = {rounds} rounds (p = {p})",
            f"choose m = {below} or m = {above}, or a multiple of {p}",
            "uneven-rounds",
        )


def one_by_one(schedule: Schedule) -> Schedule:
    """Blocking receives where a rank has one stage, PyTorch's runtime order where it has more."""
    if schedule.stages_per_rank > 1:
        return as_sent(schedule)
    return beside_compute(schedule)


TRANSFERS: dict[str, Rule] = {"as_sent": as_sent, "batched": batched}
"""Rules that a plan can ask for, for any schedule."""

QI = "Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024 (arXiv:2401.10241)"
DUALPIPE = "DeepSeek-V3 Technical Report (arXiv:2412.19437), section 3.2.1, and its code"
NARAYANAN = "Narayanan et al., Efficient Large-Scale Training, SC'21 (arXiv:2104.04473)"

FORWARD_ONLY = "forward_only"
"""The schedule without backward passes."""

CATALOGUE: dict[str, Entry] = {
    "gpipe": Entry(
        looped.gpipe,
        "all forwards, then all backwards; bubble (p-1)(F+B), m in flight",
        "Huang et al., GPipe, 2019 (arXiv:1811.06965), section 2.3",
        stages_per_rank=1,
        transfers=one_by_one,
    ),
    "1f1b": Entry(
        looped.one_f_one_b,
        "p - r forwards, then one backward, one forward; bubble (p-1)(F+B), p - r in flight",
        f"Narayanan et al., PipeDream-Flush, 2021 (arXiv:2006.09503); {NARAYANAN}, section 2.2.1",
        stages_per_rank=1,
        checks=(as_many_microbatches_as_ranks,),
        transfers=in_pairs,
        settled=1.25,
    ),
    "interleaved_1f1b": Entry(
        looped.interleaved_1f1b,
        "1F1B over v stages per rank; bubble (p-1)(F+B) of stages v times smaller",
        f"{NARAYANAN}, section 2.2.2; p not dividing m: arXiv:2407.21783, section 3.3.2",
        checks=(even_rounds,),
    ),
    "overlapped_1f1b": Entry(
        looped.overlapped_1f1b,
        "interleaved 1F1B, one forward earlier, so that each overlaps a backward; "
        "bubble (p-1)(F+B) of stages v times smaller",
        "Megatron-LM, `combined_1f1b.py` and `get_pp_rank_microbatches` with `--overlap-moe-expert-parallel-comm`",
        checks=(even_rounds,),
        transfers=batched,
    ),
    "looped_bfs": Entry(
        looped.looped_bfs,
        "all microbatches through one stage, then the next; backwards in reverse; v m in flight",
        "Lamy-Poirier, Breadth-First Pipeline Parallelism, MLSys 2023 (arXiv:2211.05953), 4.1",
        transfers=one_by_one,
    ),
    "zb_h1": Entry(
        looped.interleaved_zero_bubble,
        "1F1B with late weight gradients; bubble (p-1)(F+B-2W), p in flight on every rank",
        f"{QI}, section 2.1 (ZB-H1) and table 2",
        stages_per_rank=1,
        settled=2,
    ),
    "zb_h2": Entry(
        looped.zb_h2,
        "more warm-up, so that ranks end as late as they start; from m = 2p - 1 on bubble "
        "(p-1)(F+B-3W), 2p - 1 in flight on every rank",
        f"{QI}, section 2.2 (ZB-H2) and table 2",
        stages_per_rank=1,
        settled=4,
    ),
    "interleaved_zero_bubble": Entry(
        looped.interleaved_zero_bubble,
        "ZB-H1 over v stages per rank",
        f"{QI}, section 2.1, over the stages of {NARAYANAN}; as in PyTorch",
        checks=(even_rounds,),
    ),
    "zb_v": Entry(
        v_shaped.zb_v,
        "two stages per rank in a V; no bubble if F = B - W = W and m >= 2p - 1, 2p in flight",
        f"{QI}, section 6 (ZB-V)",
        stages_per_rank=2,
        placement="v",
    ),
    "dualpipe": Entry(
        v_shaped.dualpipe,
        "microbatches from both ends, F and B overlapped; each rank holds stages r and p - 1 - r; "
        "bubble (p/2-1)(F&B+B-3W), p + 1 in flight",
        DUALPIPE,
        stages_per_rank=2,
        checks=(microbatches_for_both_ends,),
        placement="bidirectional",
        transfers=batched,
    ),
    "dualpipe_v": Entry(
        v_shaped.dualpipe_v,
        "DualPipe cut in half: stages r and 2p - 1 - r in a V, one stream; "
        "bubble (p-1)(F&B+B-3W), 2p + 1 in flight",
        "Qi et al., DualPipe could be better without the Dual, 2025; " + DUALPIPE,
        stages_per_rank=2,
        checks=(as_many_microbatches_as_stages,),
        placement="v",
        transfers=batched,
    ),
    FORWARD_ONLY: Entry(
        looped.forward_only,
        "forwards alone, for serving; p microbatches through all stages, then the next p",
        "the forward half of interleaved 1F1B",
        transfers=one_by_one,
        settled=1,
    ),
}


def names() -> list[str]:
    """The schedules that `build` knows, in the order of the documentation."""
    return list(CATALOGUE)


def has_one_stage(name: str) -> bool:
    """Whether a rank has one stage by this schedule: then there is one order of its forward passes."""
    entry = CATALOGUE.get(name)
    return entry is not None and entry.stages_per_rank == 1


MOST_STAGES = 2**16
MOST_TASKS = 2**25
"""A forward and a backward pass of each microbatch through each stage: more than any machine has time for."""


def check_sizes(name: str, p: int, v: int, m: int) -> None:
    """Raise `ScheduleError` unless the named schedule exists for these sizes."""
    for letter, what, size in (
        ("p", "pipeline ranks", p),
        ("v", "stages per rank", v),
        ("m", "microbatches", m),
    ):
        if size < 1:
            raise ScheduleError(
                f"schedule `{name}` needs {what}: {letter} = {size}",
                f"choose {letter} >= 1",
                "not-positive",
            )
    for what, count, most in (
        ("stages", p * v, MOST_STAGES),
        ("tasks", p * v * m, MOST_TASKS),
    ):
        if count > most:
            raise ScheduleError(
                f"schedule `{name}` has {count} {what}, more than {most}",
                "choose fewer stages or larger microbatches",
                "too-many",
            )
    only = CATALOGUE[name].stages_per_rank
    if only is not None and v != only:
        others = "`interleaved_1f1b`, `interleaved_zero_bubble` or `looped_bfs`"
        raise ScheduleError(
            f"schedule `{name}` has {only} stage{'s' * (only > 1)} per rank: v = {v}",
            f"choose v = {only}, or {others}, which take any",
            "stages-per-rank",
        )
    for check in CATALOGUE[name].checks:
        check(name, p, v, m)


def usual_transfers(name: str, v: int) -> tuple[str, ...]:
    """By which of `TRANSFERS` a schedule's transfers stand in the order in which they do without a word."""
    rule = CATALOGUE[name].transfers if name in CATALOGUE else as_sent
    if rule is one_by_one and v == 1:
        return tuple(TRANSFERS)
    return ("as_sent",) if rule in (as_sent, one_by_one) else ("batched",)


def rule_of(transfers: str) -> Rule:
    """The rule of that name. Raises `ScheduleError` if there is none."""
    if transfers not in TRANSFERS:
        raise ScheduleError(
            f"no order `{transfers}` of transfers",
            f"choose one of {', '.join(TRANSFERS)}",
            "unknown",
        )
    return TRANSFERS[transfers]


def build_named(name: str, p: int, v: int, m: int, transfers: str | None = None) -> Schedule:
    """A schedule of the catalogue, with its transfers: by its own rule, or by one of `TRANSFERS`."""
    check_sizes(name, p, v, m)
    entry = CATALOGUE[name]
    rule = entry.transfers if transfers is None else rule_of(transfers)
    return rule(Schedule.of_rows(name, p, v, m, entry.rows(p, v, m)))
