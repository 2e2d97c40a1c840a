"""Programs computed with numbers, on every device of a small mesh at once.

What sharding, gradients and collectives are for is that a program spread over devices computes what the same program
does on one. `interpreter` runs a module on arrays; `meaning` says what each op on tensors computes, `machine` what
a value spread over devices is and what collectives do to it.
"""
