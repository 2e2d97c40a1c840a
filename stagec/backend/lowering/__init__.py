"""From what the IR says that ranks run to segments and instances of traces: unrolled and in numbers, with nothing left to decide.

`templates` makes a node of each op, `streams` a dependency of each queue, `programs` a trace program of each rank class.
"""
