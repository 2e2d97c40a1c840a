"""The compiler for programs and notebooks: `import stagec`.

    job = stagec.compile("examples/gpt.stg", set={"tp": 4}, device="h100")
    job.step_time, job.mfu
    job.memory.to_pandas()
    job.explain("flops").form
    for rank, data in job.traces(ranks="0-7"): ...

What is named here is stable: names and meanings stay, new ones may be added. A user's mistake is a `stagec.CompileError`, whose text is
the diagnostic that the command line shows.
"""

from stagec.api.job import Explanation, Job, compile_job
from stagec.api.pools import PoolsJob, compile_pools_job
from stagec.api.tables import Table
from stagec.api.traces import traces

__all__ = [
    "Explanation",
    "Job",
    "PoolsJob",
    "Table",
    "compile_job",
    "compile_pools_job",
    "traces",
]
