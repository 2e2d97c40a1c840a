"""Answers of two roads to the same place, on random models and plans.

    python -m tests.differential [--seed 1] [--number 100]

compares each row of a sweep with a whole compilation of its plan, and compiles each point that a sweep leaves out.
With `--serving` plans serve. With `--ways` it compares a text with the same program written otherwise.
With `--track` it adds up the tensors of traces and compares them with the plan of memory.
"""
