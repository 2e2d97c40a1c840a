"""The best plan of a model on so many devices: found by closed forms, proved by compilations.

`model` reads off the IR which dims can be split for what; `space` is what practitioners choose from, as far as the model and the
nodes permit; `texts` writes a choice as a plan; `forms` evaluates all sizes of a choice at once. A search (`search`) goes from what
leaves `candidates` out (`bounds`) by the best in outline (`rounds`) to the winners, which are compiled whole (`proofs`). `questions` says what
is asked of workers for that, and `cache` what was answered before.
"""
