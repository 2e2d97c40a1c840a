"""`stagec.compile_pools(...)`: a model and a plan of several pools, compiled as one job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp

from stagec.api.arguments import checks_arguments
from stagec.api.asked import Asked, Files, Sizes, asked_for, while_allowed
from stagec.api.job import Job
from stagec.api.tables import SweptTable
from stagec.api.traces import WithTraces, chosen
from stagec.backend.program import PooledTraces
from stagec.diagnostics import Diagnostic, refused
from stagec.driver import Stops
from stagec.estimate.pools import PoolsEstimate, estimate_pools
from stagec.frontend import warnings_by_pool
from stagec.frontend.checker import CheckedModel, pools_in
from stagec.frontend.plans.merge import DOT
from stagec.pools import CompiledPools, compile_pools, overrides_by_pool


@checks_arguments("stagec.compile_pools")
def compile_pools_job(
    source: str | Path,
    plan: str | None = None,
    set: Sizes | None = None,
    device: str | Path | None = None,
    network: str | Path | None = None,
    load_pass: Files = (),
    *,
    allow_code: bool = False,
    trust: Files = (),
) -> PoolsJob:
    """Likewise, under a plan of several pools. A size is of all that have the name, or of one: `set={"decode.tp": 8}`."""
    asked = asked_for(
        source, plan, set, device, network, load_pass, allow_code=allow_code, trust=trust
    )
    if not pools_in(asked.text, plan):
        message = f"the plan `{plan}` has no pools" if plan else "the first plan has no pools"
        raise refused("E0422", message, help="`stagec.compile` compiles it")
    return PoolsJob(asked)


Seen = Callable[[Sequence[tuple[CheckedModel, ModuleOp]]], object]


class PoolsJob(WithTraces):
    """A compiled model whose plan has several pools: each pool as a job, and the whole of them."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        doubts: list[list[Diagnostic]] = []
        self._compiled = self._compile(
            Stops(), lambda pools: doubts.extend(warnings_by_pool(pools))
        )
        names = list(self._compiled.pools)
        sizes = overrides_by_pool(asked.text, asked.plan, names, asked.sizes)
        self.pools: Mapping[str, Job] = {
            name: Job(
                each,
                replace(asked, plan=f"{self.plan}{DOT}{name}", sizes=sizes[name]),
                lambda name=name: self._rolled.pools[name],
                lambda own=own: own,
            )
            for (name, each), own in zip(self._compiled.pools.items(), doubts, strict=True)
        }
        """Each pool as a job by itself. Its `step_time` takes what the other pools hand over to be there already."""

    @property
    def plan(self) -> str:
        """The plan's name."""
        return self._compiled.name

    @property
    def num_ranks(self) -> int:
        return self._compiled.traces.num_ranks

    @property
    def step_time(self) -> float:
        """The time until all pools are done, in seconds. E0410 if the plan of one names no device."""
        return self._estimate.end_us / 1e6

    @property
    @while_allowed
    def mfu(self) -> float | None:
        """Model FLOPs utilisation of all devices until all pools are done; None where pools serve."""
        return self._estimate.mfu

    @checks_arguments("PoolsJob.sweep")
    def sweep(self, *quantities: str, **varied: int | str | Sequence[int]) -> SweptTable:
        """A row per plan: `job.sweep("step_time", "text.memory.peak", **{"text.tp": [2, 4]})`. Of plans that do not compile `infeasible` says why."""
        return self._asked.sweep(quantities, varied)

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.pools.values()))

    # Inside

    @while_allowed
    def _chosen(self, track_memory: bool) -> PooledTraces:
        return self._compiled.pooled(lambda each: chosen(each, track_memory))

    def _compile(self, stops: Stops, seen: Seen | None = None) -> CompiledPools:
        asked = self._asked
        with asked.working():
            return compile_pools(
                asked.text,
                asked.plan,
                asked.sizes,
                known=asked.plug_ins,
                stops=lambda pool: stops,
                seen=seen,
                adapt=asked.adapt,
            )

    @cached_property
    def _rolled(self) -> CompiledPools:
        return self._compile(Stops(unroll=False))

    @cached_property
    @while_allowed
    def _estimate(self) -> PoolsEstimate:
        return estimate_pools(self._compiled.pools)
