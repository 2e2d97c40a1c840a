"""The words of the language that name nothing else."""

DEFINITIONS = ("import", "dim", "require", "module", "model", "op", "plan")
"""Each starts an item of a file."""

PARAMETER_WORDS = frozenset((*DEFINITIONS, "weight", "cache", "repeat", "return"))
"""Reserved words that a pass may still call its parameters."""

SETTING_WORDS = frozenset(("context", "gradients", "microbatch", "optimizer", "overlap", "zero"))
"""Words of clauses that settings are called, too."""

RESERVED = PARAMETER_WORDS | {"and", "or", "true", "false"}
"""Words that can name nothing. Those of plan clauses (`mesh`, `over`) are free elsewhere."""
