"""The best plan of a model on so many devices: found by closed forms, proved by compilations.

`model` reads off the IR which dims can be split for what; `space` is what practitioners choose from, as far as the model and the
nodes permit; `texts` writes a choice as a plan; `forms` evaluates all sizes of a choice at once; `search` goes from the bounds to
the winners, which are compiled whole.
"""
