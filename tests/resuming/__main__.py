"""Every example, every plan, every pass: `python -m tests.resuming [NAME]`. Exit status 1 where traces differ."""

import sys

from stagec.driver import compile_program
from stagec.frontend import check
from tests.resuming.cuts import differences, differing_steps, texts_after_passes
from tests.unit.examples import CASES, parsed, smaller


def main(wanted: str) -> int:
    num_wrong = 0
    for path, plan in CASES:
        name = f"{path.stem}-{plan}"
        if wanted not in name:
            continue
        checked = check(parsed(path), plan, smaller(path, plan))
        texts, whole = texts_after_passes(lambda stops, c=checked: compile_program(c, stops=stops))
        last = list(texts)[-1]
        found = [*differing_steps(texts), *differences({last: texts[last]}, whole)]
        num_wrong += len(found)
        print(f"{name}: {len(texts)} cuts", *found, sep="\n  ", flush=True)
    return int(num_wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
