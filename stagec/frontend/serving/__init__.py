"""What a plan's `serve` makes of sizes: a batch of sequences that differ in length, as sums.

Sequences of one kind are rows of the batch. Of several kinds, each device has one row: the tokens of all its sequences, one after the
other, as engines run them (a flattened batch with a table of where each sequence starts). Either way products count tokens, caches
count positions, and attention counts pairs of a query and a key of the same sequence.

With n sequences of s new positions after c others, of each kind: s n tokens, (c + s) n positions, n (s c + s (s + 1) / 2) pairs under
a causal mask.
"""
