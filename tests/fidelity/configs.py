"""`python -m tests.fidelity.configs DIR [NAME...]`: import configurations and compare them with what transformers makes of them.

DIR has `configs/NAME.json` and `oracles/NAME.json`. Each configuration is imported, its text checked and lowered, and what is
compared is read off that IR, never off the configuration:

- parameters: each weight of the program is so many tensors of the class, of the same elements, up to fusing and reshaping; none
  is left over on either side, and the totals agree. Weights that are buffers of the class (biases for the choice of experts) are matched
  with its buffers and are not counted.
- FLOPs of products and attention of one forward pass of 2 sequences of 128 tokens, without images where the class was given none. All
  scores of a mask count, as they do there. Not compared is what the class computes of a recurrence: its fallback
  is not the kernel that one trains with. A convolution along a sequence counts as its definition, without the class's padding.
- bytes of cache for a token, of what the text appends to its caches under a plan that serves.

A configuration that is not imported ends in a diagnostic; that is neither right nor wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from stagec import symbolic
from stagec.diagnostics import CompileError
from stagec.dialects import stg
from stagec.dialects.types import StackType, TensorType
from stagec.frontend import check, parse_text
from stagec.frontend.lowering import lower
from stagec.importing import Imported, import_configuration
from stagec.rewriting import programs
from stagec.symbolic import ONE, Size

BATCH, TOKENS, CACHE_BYTES = 2, 128, 2
PRODUCTS = (stg.ContractOp, stg.AttentionOp, stg.PatchEmbeddingOp, stg.UserOp)


@dataclass
class Verdict:
    """What became of one configuration."""

    name: str
    wrong: list[str] = field(default_factory=list)
    refused: str = ""
    parameters: int = 0
    claimed: bool = True
    """Whether the oracle says anything of it."""

    @property
    def is_exact(self) -> bool:
        return not self.wrong and not self.refused and self.claimed

    @property
    def line(self) -> str:
        if self.refused:
            return f"refused  {self.name}: {self.refused}"
        if self.wrong:
            return f"WRONG    {self.name}: " + "\n         ".join(self.wrong)
        return f"exact    {self.name}: {self.parameters:,} parameters"


def judge(name: str, config: Mapping[str, Any], oracle: Mapping[str, Any]) -> Verdict:
    """Import one and compare."""
    verdict = Verdict(name, claimed=oracle.get("status") != "config only")
    try:
        imported = import_configuration(config, name)
    except CompileError as error:
        verdict.refused = "; ".join(d.message for d in error.diagnostics)
        return verdict
    try:
        module = lower(check(parse_text(imported.text, f"{name}.stg")))
    except CompileError as error:
        verdict.wrong.append(f"the text does not compile: {error}")
        return verdict
    if not verdict.claimed:
        verdict.wrong.append("imported, though transformers has no class for it")
        return verdict
    values = sizes(module, imported, ())
    compare_parameters(verdict, imported, module, values, oracle)
    sees = any(word in (oracle.get("inputs") or "") for word in ("pixel", "features"))
    absent = () if sees else (*imported.writer.images, *imported.writer.seeing)
    values = sizes(module, imported, absent)
    compare_flops(verdict, module, values, absent, oracle)
    compare_cache(verdict, imported, module, oracle)
    return verdict


def sizes(module: ModuleOp, imported: Imported, absent: Sequence[str]) -> dict[str, Fraction]:
    """The sizes of dims for 2 sequences of 128 tokens, those of images being 0 if they are absent."""
    given = {"B": BATCH} | dict.fromkeys(imported.writer.lengths, TOKENS) | dict.fromkeys(absent, 0)
    return own_sizes(module, given)


def own_sizes(module: ModuleOp, given: Mapping[str, int] | None = None) -> dict[str, Fraction]:
    """The sizes of dims that a text says, but for those that are given."""
    expressions = {op.dim.data: op.size.data for op in module.body.ops if isinstance(op, stg.DimOp)}
    found: dict[str, Fraction] = {name: Fraction(value) for name, value in (given or {}).items()}

    def value(name: str) -> Fraction:
        if name not in found:
            expression = expressions[name]
            found[name] = expression.evaluate({n: value(n) for n in expression.names})
        return found[name]

    for name in expressions:
        value(name)
    return found


def ops(module: ModuleOp) -> Iterator[tuple[Operation, Size]]:
    """Each op of the program, and how often it runs."""

    def walk(block: Any, times: Size) -> Iterator[tuple[Operation, Size]]:
        for op in block.ops:
            yield op, times
            inner = times * op.count.data if isinstance(op, stg.RepeatOp) else times
            for region in op.regions:
                for each in region.blocks:
                    yield from walk(each, inner)

    (program,) = programs(module)
    yield from walk(program.body.block, ONE)


# Parameters


def expanded(entries: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, ...]]:
    """Each tensor by its full name, with its shape."""
    found = {}
    for entry in entries:
        rest = [x for x in ("j", "k") if f"{{{x}}}" in entry["name"]]
        names = [entry["name"]]
        for letter in ("i", *rest):
            if letter in entry:
                names = [
                    n.replace(f"{{{letter}}}", str(v))
                    for n in names
                    for v in numbers(entry[letter])
                ]
        for name in names:
            found[name] = tuple(entry["shape"])
    return found


def numbers(text: str) -> list[int]:
    """`0-2,5`, `3-39/4`."""
    found: list[int] = []
    for part in str(text).split(","):
        bounds, _, step = part.partition("/")
        first, _, last = bounds.partition("-")
        found += range(int(first), int(last or first) + 1, int(step or 1))
    return found


def weights(
    module: ModuleOp, values: Mapping[str, Fraction]
) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Of each weight, how many there are and the shape of one."""
    found = {}
    for op, _ in ops(module):
        if isinstance(op, stg.WeightOp):
            kind, count = op.weight.type, Fraction(1)
            while isinstance(kind, StackType):
                count *= kind.count.evaluate(values)
                kind = kind.element
            assert isinstance(kind, TensorType)
            shape = tuple(d.size.integer(values) for d in kind.dims)
            found[op.path.data] = int(count), shape
    return found


def compare_parameters(
    verdict: Verdict,
    imported: Imported,
    module: ModuleOp,
    values: Mapping[str, Fraction],
    oracle: Mapping[str, Any],
) -> None:
    theirs, buffers = expanded(oracle["tensors"]), expanded(oracle.get("buffers", ()))
    tied = {name: theirs[other] for name, other in oracle.get("tied", ()) if other in theirs}
    claims: dict[str, list[tuple[str, tuple[int, ...]]]] = defaultdict(list)
    for path, (count, shape) in weights(module, values).items():
        for weight, groups in imported.tensors(path):
            if len(groups) != count:
                verdict.wrong.append(f"`{path}` is {count} weights, said to be {len(groups)}")
            if not weight.buffer:
                verdict.parameters += count * prod(shape)
            for group in groups:
                for tensor in group:
                    claims[tensor].append((path, shape))
                if len(group) > 1:  # the checkpoint has it in parts
                    whole = sum(prod(theirs.get(t, (0,))) for t in group)
                    if whole != prod(shape):
                        verdict.wrong.append(f"`{path}` {shape} is not all of {group}")
    known = theirs | buffers | tied
    for tensor, holders in claims.items():
        if tensor not in known:
            verdict.wrong.append(f"there is no tensor `{tensor}` ({holders[0][0]})")
        elif not alike(known[tensor], [shape for _, shape in holders]):
            parts = [path for path, _ in holders]
            if prod(known[tensor]) < sum(prod(s) for _, s in holders) and len(parts) == 1:
                continue  # in parts: compared above
            verdict.wrong.append(f"`{tensor}` {known[tensor]} is not {holders}")
    named = {*claims, *(other for name, other in oracle.get("tied", ()) if name in claims)}
    for tensor in theirs:
        if tensor not in named:
            verdict.wrong.append(f"no weight for `{tensor}` {theirs[tensor]}")
    expected = oracle["parameters"]
    published = oracle.get("published") or {}
    if "An importer should give the published count" in published.get("note", ""):
        expected = published[
            "parameters"
        ]  # a head of its own, which the class ties against the file
    if verdict.parameters != expected:
        verdict.wrong.append(f"{verdict.parameters:,} parameters, not {expected:,}")
    if f"# Parameters: {verdict.parameters:,}" not in imported.text:
        verdict.wrong.append(f"the header does not say {verdict.parameters:,} parameters")
    del verdict.wrong[12:]


def alike(tensor: tuple[int, ...], parts: list[tuple[int, ...]]) -> bool:
    """Whether a tensor is these weights side by side: as many elements, and the same sizes where it is one alone."""
    if prod(tensor) != sum(map(prod, parts)):
        return False
    return len(parts) > 1 or groups_into(
        [n for n in parts[0] if n > 1], sorted(n for n in tensor if n > 1)
    )


def groups_into(small: list[int], large: list[int]) -> bool:
    """Whether dims can be joined, in any order, so that they are the dims of another shape, or the other way round."""
    return fits(tuple(sorted(small)), tuple(large)) or fits(tuple(large), tuple(sorted(small)))


def fits(small: tuple[int, ...], large: tuple[int, ...]) -> bool:
    if not large:
        return not small

    def chosen(rest: int, start: int, left: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if rest == 1:
            yield left
        for i in range(start, len(left)):
            if rest % left[i] == 0 and left[i] > 1:
                yield from chosen(rest // left[i], i, left[:i] + left[i + 1 :])

    return any(fits(left, large[1:]) for left in chosen(large[0], 0, small))


# FLOPs


def product_flops(
    module: ModuleOp, values: Mapping[str, Fraction], absent: Sequence[str] = ()
) -> Fraction:
    """Of contractions, attention with all scores, patches and declared ops, but for those of blocks that are absent."""
    total = Fraction(0)
    for op, times in ops(module):
        block = str(stg.scope_of(op) or "").partition(".")[0].partition("_")[0]
        if isinstance(op, PRODUCTS) and not is_recurrence(op) and block not in absent:
            total += times.evaluate(values) * op_flops(op).evaluate(values)
    return total


def is_recurrence(op: Operation) -> bool:
    """A declared op whose module has a convolution along the sequence, as those of state spaces and delta nets do."""
    block = op.parent
    assert block is not None
    scope = stg.scope_of(op)
    return isinstance(op, stg.UserOp) and any(
        isinstance(other, stg.CausalConvOp) and stg.scope_of(other) == scope for other in block.ops
    )


def op_flops(op: stg.TensorOp) -> Size:
    if not isinstance(op, stg.AttentionOp):
        return op.flops()
    q, k, v = (stg.tensor_type(x) for x in (op.q, op.k, op.v))
    rows = symbolic.product(d.size for d in q.dims[:-1])
    return 2 * rows * k.dims[-3].size * (q.dims[-1].size + v.dims[-1].size)


def compare_flops(
    verdict: Verdict,
    module: ModuleOp,
    values: Mapping[str, Fraction],
    absent: Sequence[str],
    oracle: Mapping[str, Any],
) -> None:
    if "flops" not in oracle:
        return
    ours, theirs = product_flops(module, values, absent), counted(oracle)
    if ours != theirs:
        verdict.wrong.append(f"{float(ours):.0f} FLOPs, not {theirs} ({float(ours / theirs):.6f})")


def counted(oracle: Mapping[str, Any]) -> int:
    """FLOPs of the class, without what its fallbacks compute of recurrences and their convolutions."""
    total = oracle["flops"]["total"]
    if "flops_total_sparse" in oracle:
        sparse = oracle["flops_total_sparse"]
        total = sparse if isinstance(sparse, int) else sparse["total"]
    filters: dict[str, set[int]] = defaultdict(set)
    for tensor in oracle["tensors"]:
        if len(tensor["shape"]) == 3 and tensor["shape"][1] == 1 and "i" in tensor:
            filters[tensor["name"].rsplit(".", 2)[0]] |= {*numbers(tensor["i"])}
    for own in oracle["flops_own"]:
        if filters.get(own["name"], set()) & {*numbers(own.get("i", 0))}:
            left_out = sum(own["ops"].get(kind, 0) for kind in ("bmm", "convolution", "baddbmm"))
            total -= left_out * own["count"]
    return total


# Cache


def cache_bytes(text: str, name: str, values: Mapping[str, Fraction]) -> Fraction:
    """Bytes of a token in all layers: of what the text appends to its caches when it is served."""
    plan = f"plan judged {{ serve {{ prefill {values['B']} x {values['S']} }} }}\n"
    module = lower(check(parse_text(text + plan, f"{name}.stg"), "judged"))
    values, kept = own_sizes(module), Fraction(0)
    for op, times in ops(module):
        if isinstance(op, stg.AppendOp):
            kept += times.evaluate(values) * stg.tensor_type(op.new).num_elements.evaluate(values)
    return kept * CACHE_BYTES / (values["B"] * values["S"])


def kept_by_class(oracle: Mapping[str, Any]) -> Fraction | None:
    """What the class keeps of a token, keys of indexers too: these stand among its states."""
    kept = (oracle.get("kv_cache") or {}).get("self", {})
    total = kept.get("bytes_per_token_all_layers")
    if total is None:
        return None
    extra = 0
    for layer in kept.get("layers", ()):
        keys = [shape for name, shape in layer["shapes"].items() if name.endswith("_keys")]
        extra += sum(map(prod, keys)) * layer["count"]
    return total + Fraction(extra * CACHE_BYTES, BATCH * TOKENS)


def compare_cache(
    verdict: Verdict, imported: Imported, module: ModuleOp, oracle: Mapping[str, Any]
) -> None:
    theirs = kept_by_class(oracle)
    if theirs is None:
        return
    declares = any(m.caches for m in imported.writer.modules.values())
    ours = Fraction(0)
    if declares:
        own = own_sizes(module)
        ours = cache_bytes(imported.text, verdict.name, own)
    if ours != theirs:
        verdict.wrong.append(f"{float(ours):.1f} bytes of cache for a token, not {theirs}")


def read(folder: Path, name: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    return tuple(
        json.loads((folder / kind / f"{name}.json").read_text()) for kind in ("configs", "oracles")
    )  # pyright: ignore[reportReturnType]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("-q", "--quiet", action="store_true", help="only what is not exact")
    options = parser.parse_args(arguments)
    names = options.names or sorted(p.stem for p in (options.folder / "configs").glob("*.json"))
    verdicts = []
    for name in names:
        verdict = judge(name, *read(options.folder, name))
        verdicts.append(verdict)
        if not (options.quiet and verdict.is_exact):
            print(verdict.line)
    exact = sum(v.is_exact for v in verdicts)
    refused = sum(bool(v.refused) for v in verdicts)
    wrong = len(verdicts) - exact - refused
    print(f"{len(verdicts)} configurations: {exact} exact, {refused} refused, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
