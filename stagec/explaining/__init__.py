"""Where the numbers of a plan come from: closed forms in its dims and mesh axes, and what they add up to.

`names` says what stands behind a name that the compiler made; `rolled_operations` lists what a rank class runs, each op with its costs
and how often it runs; `quantities` adds up what a question is about; `algebra` is sympy, for people.
"""
