"""The words of the language that name nothing else."""

DEFINITIONS = ("import", "dim", "require", "module", "model", "op", "plan")
"""Each starts an item of a file."""

DEFINED = {
    "import": 'import "other.stg"',
    "dim": "dim B = 64",
    "require": "require D % H == 0",
    "module": "module Block(x[B, S, D]) -> [B, S, D] { ... }",
    "model": "model Gpt(x[B, S, D]) { ... }",
    "op": "op scan(x[B, S, D]) -> [B, S, D] { flops = 6*B*S*D, bytes = 4*B*S*D }",
    "plan": "plan small { ... }",
}
"""Each of them as it is written."""

PARAMETER_WORDS = frozenset((*DEFINITIONS, "weight", "cache", "repeat", "return"))
"""Reserved words that a pass may still call its parameters."""

SETTING_WORDS = frozenset(("context", "gradients", "microbatch", "optimizer", "overlap", "zero"))
"""Words of clauses that settings are called, too."""

RESERVED = PARAMETER_WORDS | {"and", "or", "true", "false"}
"""Words that can name nothing. Those of plan clauses (`mesh`, `over`) are free elsewhere."""

CLAUSES = {
    "set": "set B = 64",
    "mesh": "mesh dp = 4, tp = 8",
    "rank_order": "rank_order tp, dp",
    "shard": "shard B over dp",
    "pipeline": "pipeline L over pp { schedule = 1f1b }",
    "microbatch": "microbatch 1",
    "zero": "zero 3 over dp",
    "unit": "unit Block",
    "freeze": "freeze Tower",
    "use": "use Absorbed for Attention",
    "recompute": "recompute full",
    "precision": "precision { weights = bf16 }",
    "optimizer": "optimizer adamw",
    "collectives": "collectives { keep = shard }",
    "context": "context cp { method = ring }",
    "gradients": "gradients { overlap = true }",
    "overlap": "overlap { tp = true }",
    "offload": "offload { optimizer = true }",
    "process": "process { reserve = 1GiB }",
    "loss_chunks": "loss_chunks 8",
    "device": "device h100",
    "link": "link dp { bytes_per_s = 50GB }",
    "load": "load { zipf = 1.2 }",
    "documents": "documents S [1000, 3000, 96]",
    "serve": "serve { decode 128 at 1500 }",
    "pool": "pool decode { ... }",
    "pass": "pass split-collectives { axes = [dp, tp] }",
}
"""Each clause of a plan as it is written."""
