"""The words of the language that name nothing else."""

DEFINITIONS = ("import", "dim", "require", "module", "model", "op", "plan")
"""Each starts an item of a file."""

RESERVED = frozenset((*DEFINITIONS, "weight", "repeat", "return", "and", "or", "true", "false"))
"""Words that can name nothing. Those of plan clauses (`mesh`, `over`) are free elsewhere."""
