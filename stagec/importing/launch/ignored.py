"""Names of launchers that change nothing in a plan, and those that say what the language has no word for.

`idle.json` has the former: flags of Megatron-LM (data, learning rates, logging, checkpoints, fusions, and the model's own sizes, which its
text says), fields of NeMo and Megatron-Bridge that are no such flags, and beginnings of names in files of torchtitan and DeepSpeed.
And the latter, with what each has an effect on: that is said above the plan.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

_TEXT = resources.files("stagec.importing.launch").joinpath("idle.json").read_text("utf-8")
TABLES: dict[str, Any] = json.loads(_TEXT)

MEGATRON_UNSAID: dict[str, str] = TABLES["megatron unsaid"]
FIELDS_UNSAID: dict[str, str] = {
    **{name.replace("-", "_"): what for name, what in MEGATRON_UNSAID.items()},
    **TABLES["fields unsaid"],
}
"""Fields of Megatron-Core, whose flags Megatron-LM makes of them, and NeMo's own."""
FIELDS_IDLE: frozenset[str] = frozenset(
    (*(name.replace("-", "_") for name in TABLES["megatron idle"]), *TABLES["nemo idle"])
)
"""Fields of them, likewise."""
SETTINGS_UNSAID: dict[str, dict[str, str]] = {
    kind: TABLES[f"{kind} unsaid"] for kind in ("deepspeed", "torchtitan")
}
"""By how names begin."""


def idle(kind: str) -> tuple[str, ...]:
    """Names of a launcher without effect."""
    return tuple(TABLES[f"{kind} idle"])
