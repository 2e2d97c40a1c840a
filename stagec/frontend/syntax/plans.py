"""Plans and their clauses."""

from __future__ import annotations

from dataclasses import dataclass

from stagec.frontend.syntax.expressions import (
    Expr,
    ListValue,
    Name,
    Reference,
    SyntaxNode,
    Text,
    Value,
)


@dataclass(frozen=True)
class Setting(SyntaxNode):
    """`schedule = interleaved_1f1b`."""

    name: Name
    value: Value


@dataclass(frozen=True)
class Settings(SyntaxNode):
    """`{ schedule = gpipe, microbatch = 1 }`."""

    entries: tuple[Setting, ...]


@dataclass(frozen=True)
class Path(SyntaxNode):
    """`Block.Attention.q`."""

    names: tuple[Name, ...]

    def __str__(self) -> str:
        return ".".join(name.text for name in self.names)


@dataclass(frozen=True)
class NewSize(SyntaxNode):
    """`S = 131072`."""

    name: Name
    size: Expr


@dataclass(frozen=True)
class Resize(SyntaxNode):
    """`set S = 131072, tp = 4`."""

    sizes: tuple[NewSize, ...]


@dataclass(frozen=True)
class MeshAxis(SyntaxNode):
    """`tp = 8`, `tp`, or `dp = edp * ep`."""

    name: Name
    size: Expr | None


@dataclass(frozen=True)
class Mesh(SyntaxNode):
    """`mesh dp = 128, tp = 8`, slowest first."""

    axes: tuple[MeshAxis, ...]


@dataclass(frozen=True)
class RankOrder(SyntaxNode):
    """`rank_order pp, dp, tp`, slowest first."""

    axes: tuple[Name, ...]


@dataclass(frozen=True)
class ShardTarget(SyntaxNode):
    """A dim `H`, or a value `Block.h[S]`."""

    path: Path
    dims: tuple[Name, ...] | None


@dataclass(frozen=True)
class Shard(SyntaxNode):
    """`shard H, K over tp`, `shard V over tp { pad = 128 }`."""

    targets: tuple[ShardTarget, ...]
    axes: tuple[Name, ...]
    settings: Settings | None


@dataclass(frozen=True)
class Pipeline(SyntaxNode):
    """`pipeline L over pp { schedule = gpipe }` or `pipeline none`."""

    counts: tuple[Name, ...]
    axis: Name | None
    settings: Settings | None


@dataclass(frozen=True)
class Microbatch(SyntaxNode):
    """`microbatch 1`."""

    size: Expr


@dataclass(frozen=True)
class Zero(SyntaxNode):
    """`zero 3 over dp { reshard = false }` or `zero none`."""

    level: Expr
    axes: tuple[Name, ...] | None
    settings: Settings | None


@dataclass(frozen=True)
class Unit(SyntaxNode):
    """`unit Block, Head`, or `unit none`."""

    modules: tuple[Path, ...]


@dataclass(frozen=True)
class Freeze(SyntaxNode):
    """`freeze embed, Block.Attention`, or `freeze none`."""

    weights: tuple[Path, ...]


@dataclass(frozen=True)
class Replacement(SyntaxNode):
    """`Absorbed for Attention`."""

    module: Name
    replaced: Name


@dataclass(frozen=True)
class Use(SyntaxNode):
    """`use Absorbed for Attention`, or `use none`."""

    what: Reference | tuple[Replacement, ...]


@dataclass(frozen=True)
class Recompute(SyntaxNode):
    """`recompute attention in Block`."""

    what: tuple[Path, ...]
    modules: tuple[Path, ...] | None


@dataclass(frozen=True)
class Precision(SyntaxNode):
    """`precision { weights = bf16 }`."""

    settings: Settings


@dataclass(frozen=True)
class Optimizer(SyntaxNode):
    """`optimizer adamw`."""

    name: Name
    settings: Settings | None


@dataclass(frozen=True)
class Collectives(SyntaxNode):
    """`collectives { reduce = eager }`."""

    settings: Settings


@dataclass(frozen=True)
class Context(SyntaxNode):
    """`context cp { method = ring }`, or `context none`."""

    axis: Name
    settings: Settings | None


@dataclass(frozen=True)
class Gradients(SyntaxNode):
    """`gradients { bucket_bytes = 25MiB }`."""

    settings: Settings


@dataclass(frozen=True)
class Overlap(SyntaxNode):
    """`overlap { tp = false }`."""

    settings: Settings


@dataclass(frozen=True)
class Offload(SyntaxNode):
    """`offload { optimizer = true }`."""

    settings: Settings


@dataclass(frozen=True)
class Process(SyntaxNode):
    """`process { context = 600MB }`."""

    settings: Settings


@dataclass(frozen=True)
class LossChunks(SyntaxNode):
    """`loss_chunks 8`."""

    count: Expr


@dataclass(frozen=True)
class Device(SyntaxNode):
    """`device h100 { memory = 64GiB }`, `device "mine.toml"`."""

    preset: Name | Text | None
    settings: Settings | None


@dataclass(frozen=True)
class Link(SyntaxNode):
    """`link tp { latency_us = 2 }`, or `link none`."""

    axis: Name
    settings: Settings | None


@dataclass(frozen=True)
class Load(SyntaxNode):
    """`load { zipf = 1.2 }`, or `load uniform`."""

    name: Name | None
    settings: Settings | None


@dataclass(frozen=True)
class Lengths(SyntaxNode):
    """`file "lengths.csv"`, or `uniform { most = 4000, seed = 1 }`: a length of each sequence."""

    form: Name
    what: Text | Settings


@dataclass(frozen=True)
class Documents(SyntaxNode):
    """`documents S file "lengths.csv"`, or `documents none`."""

    dim: Name
    lengths: ListValue | Lengths | None


@dataclass(frozen=True)
class Measure(SyntaxNode):
    """`x 2048`: new tokens of each sequence; `at 1500`: tokens before them; `at [100, 250]`: of one after the other."""

    word: Name
    number: Expr | ListValue | Lengths


@dataclass(frozen=True)
class Prefill(SyntaxNode):
    """`prefill 4 x 2048 at 512`: so many sequences, of so many new tokens, after so many others."""

    count: Expr
    measures: tuple[Measure, ...]


@dataclass(frozen=True)
class Decode(SyntaxNode):
    """`decode 128 at 1500`, or `decode 128 x 4 at 1500` where drafted tokens are verified."""

    count: Expr
    measures: tuple[Measure, ...]


@dataclass(frozen=True)
class Served(SyntaxNode):
    """`{ prefill 4 x 2048, decode 128 at 1500, logits = last }`."""

    entries: tuple[Prefill | Decode | Setting, ...]


@dataclass(frozen=True)
class Serve(SyntaxNode):
    """`serve { decode 128 at 1500 }`, or `serve none`."""

    what: Served | Reference


@dataclass(frozen=True)
class Pool(SyntaxNode):
    """`pool prefill extends serve_tp8 { mesh tp = 8 }`: a part of the ranks, with a plan of its own."""

    name: Name
    base: Name | None
    clauses: tuple[Clause, ...]


@dataclass(frozen=True)
class Pass(SyntaxNode):
    """`pass decompose-all-reduce { axis = "tp" }`."""

    name: Name
    settings: Settings | None


Clause = (
    Resize
    | Mesh
    | RankOrder
    | Shard
    | Pipeline
    | Microbatch
    | Zero
    | Unit
    | Freeze
    | Use
    | Recompute
    | Precision
    | Optimizer
    | Collectives
    | Context
    | Gradients
    | Overlap
    | Offload
    | Process
    | LossChunks
    | Device
    | Link
    | Load
    | Documents
    | Serve
    | Pool
    | Pass
)


@dataclass(frozen=True)
class Plan(SyntaxNode):
    """`plan long extends short { ... }`."""

    name: Name
    base: Name | None
    clauses: tuple[Clause, ...]
