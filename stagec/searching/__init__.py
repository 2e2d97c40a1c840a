"""Search for the best plan of a model on a number of devices: closed forms find it, and whole compilations prove it.

What is searched: `model` reads off the IR which dims can be split and for what, `space` lists the choices that practitioners have, as far as the model and
the nodes permit, and `texts` writes a choice (a *point*) as a plan. `objective` is what is minimised.

How it is searched: `search` starts with all points as `candidates`. `bounds` leaves out those that cannot fit or cannot be fast enough (`memory_bound`,
`in_flight`), `rounds` evaluates the most promising others *in outline* (a rough time by closed forms: `evaluation`, `coarse_times`, `passes_alone`,
`last_reductions`, `term_prices`), and `proofs` compiles the best ones whole (`whole_plans`). `results` has what was found. Plans that serve are few, and
are evaluated exactly (`exact`, `serving_space`). `questions` sends work to other processes, and `cache` keeps the answers of earlier searches.
"""
