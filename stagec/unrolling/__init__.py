"""What the IR of ranks says, unrolled: which rows a stage runs, where each value comes from, where each row of a rank stands.

`stage` reads one `sched.tasks`, `rank` a `sched.program`. Nothing is decided here, and nothing has numbers but counts of repeats.
"""
