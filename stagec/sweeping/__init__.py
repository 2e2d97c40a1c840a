"""A sweep evaluates thousands of plans of one model, which differ in dims, mesh axes and microbatches, without compiling each of them.

`grid` reads from the command line what varies. `run` compiles one plan of each structure (all plans that make the same program with other sizes) and
evaluates that program's closed forms for the other plans; it makes the table of the sweep. `conditions` keeps which plans are left and why others were
dropped, `plans` compiles single plans, and `structures` and `peaks` compute memory: they find the few moments of a rank class that can be its peak.
`step_times`, `op_costs` and `actions` compute how long a step takes. `pools` and `towers` sweep plans that consist of several pools.
"""
