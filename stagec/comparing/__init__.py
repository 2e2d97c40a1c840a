"""`stagec diff`: what differs between two jobs, or between two sets of traces.

`jobs` adds up a compiled job, `traces` a set of traces of any tool; both as `Section`s of amounts,
which `comparison` sets side by side.
"""
