"""Thousands of plans from closed forms: `sweep` of one model over sizes, axes and microbatches.

`points` reads what to vary; `conditions` says which plans are left; `plans` compiles one of them; `structures` compiles a plan of each structure once
and adds up its forms; `peaks` reduces the memory of a rank class to the few moments that can be its peak; `run` puts rows together.
"""
