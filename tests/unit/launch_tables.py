"""The tables of docs/importing.md: what each flag becomes. `python -m tests.unit.launch_tables` writes them."""

from __future__ import annotations

from stagec.importing.families import FAMILIES
from stagec.importing.launch.flags import DEEPSPEED, FIELDS, MEGATRON, MLPERF, TORCHTITAN, Word
from stagec.importing.launch.ignored import FIELDS_UNSAID, MEGATRON_UNSAID, idle
from tests.unit.doc_examples import DOCS

PAGE = DOCS / "importing.md"
START = "<!-- tables -->\n"


def table(title: str, words: dict[str, Word], prefix: str = "") -> str:
    rows = "".join(f"| `{prefix}{name}` | {word.clause} |\n" for name, word in words.items())
    return f"### {title}\n\n| | becomes |\n|---|---|\n{rows}"


def tables() -> str:
    unsaid = "".join(
        f"| `{name}` | {what} |\n"
        for name, what in {
            **{f"--{n}": w for n, w in MEGATRON_UNSAID.items()},
            **{
                n: w for n, w in FIELDS_UNSAID.items() if n.replace("_", "-") not in MEGATRON_UNSAID
            },
        }.items()
    )
    without = ", ".join(f"`--{name}`" for name in idle("megatron"))
    fields = ", ".join(f"`{name}`" for name in idle("nemo"))
    parts = [
        f"Architectures, by `model_type`: {', '.join(f'`{name}`' for name in sorted(FAMILIES))}.\n",
        table("Megatron-LM and Megatron-Core", MEGATRON, "--"),
        table("NeMo and Megatron-Bridge", FIELDS),
        table("MLPerf configuration scripts", MLPERF),
        table("torchtitan", TORCHTITAN),
        table("DeepSpeed", DEEPSPEED),
        f"### What no clause says\n\n| | |\n|---|---|\n{unsaid}",
        f"### Without effect on a plan\n\n{without}.\n",
        f"Fields of NeMo and Megatron-Bridge that are named like these flags (`weight_decay`), and {fields}.\n",
    ]
    return START + "\n".join(parts)


if __name__ == "__main__":
    head = PAGE.read_text("utf-8").partition(START)[0]
    PAGE.write_text(head + tables(), "utf-8")
