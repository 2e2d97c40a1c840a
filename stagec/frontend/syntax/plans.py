"""Plans and their clauses."""

from __future__ import annotations

from stagec.frontend.syntax.expressions import (
    Expr,
    ListValue,
    Name,
    Reference,
    SyntaxNode,
    Text,
    Value,
)


class Setting(SyntaxNode):
    """`schedule = interleaved_1f1b`."""

    name: Name
    value: Value


class Settings(SyntaxNode):
    """`{ schedule = gpipe, microbatch = 1 }`."""

    entries: tuple[Setting, ...]


class Path(SyntaxNode):
    """`Block.Attention.q`."""

    names: tuple[Name, ...]

    def __str__(self) -> str:
        return ".".join(name.text for name in self.names)


class NewSize(SyntaxNode):
    """`S = 131072`."""

    name: Name
    size: Expr


class Resize(SyntaxNode):
    """`set S = 131072, tp = 4`."""

    sizes: tuple[NewSize, ...]


class MeshAxis(SyntaxNode):
    """`tp = 8`, `tp`, or `dp = edp * ep`."""

    name: Name
    size: Expr | None


class Mesh(SyntaxNode):
    """`mesh dp = 128, tp = 8`, slowest first."""

    axes: tuple[MeshAxis, ...]


class RankOrder(SyntaxNode):
    """`rank_order pp, dp, tp`, slowest first."""

    axes: tuple[Name, ...]


class ShardTarget(SyntaxNode):
    """A dim `H`, or a value `Block.h[S]`."""

    path: Path
    dims: tuple[Name, ...] | None


class Shard(SyntaxNode):
    """`shard H, K over tp`, `shard V over tp { pad = 128 }`."""

    targets: tuple[ShardTarget, ...]
    axes: tuple[Name, ...]
    settings: Settings | None


class Pipeline(SyntaxNode):
    """`pipeline L over pp { schedule = gpipe }` or `pipeline none`."""

    counts: tuple[Name, ...]
    axis: Name | None
    settings: Settings | None


class Microbatch(SyntaxNode):
    """`microbatch 1`."""

    size: Expr


class Zero(SyntaxNode):
    """`zero 3 over dp { reshard = false }` or `zero none`."""

    level: Expr
    axes: tuple[Name, ...] | None
    settings: Settings | None


class Unit(SyntaxNode):
    """`unit Block, Head`, or `unit none`."""

    modules: tuple[Path, ...]


class Freeze(SyntaxNode):
    """`freeze embed, Block.Attention`, or `freeze none`."""

    weights: tuple[Path, ...]


class Replacement(SyntaxNode):
    """`Absorbed for Attention`."""

    module: Name
    replaced: Name


class Use(SyntaxNode):
    """`use Absorbed for Attention`, or `use none`."""

    what: Reference | tuple[Replacement, ...]


class Recompute(SyntaxNode):
    """`recompute attention in Block`."""

    what: tuple[Path, ...]
    modules: tuple[Path, ...] | None


class Precision(SyntaxNode):
    """`precision { weights = bf16 }`."""

    settings: Settings


class Optimizer(SyntaxNode):
    """`optimizer adamw`."""

    name: Name
    settings: Settings | None


class Collectives(SyntaxNode):
    """`collectives { reduce = eager }`."""

    settings: Settings


class Context(SyntaxNode):
    """`context cp { method = ring }`, or `context none`."""

    axis: Name
    settings: Settings | None


class Gradients(SyntaxNode):
    """`gradients { bucket_bytes = 25MiB }`."""

    settings: Settings


class Overlap(SyntaxNode):
    """`overlap { tp = false }`."""

    settings: Settings


class Offload(SyntaxNode):
    """`offload { optimizer = true }`."""

    settings: Settings


class Process(SyntaxNode):
    """`process { context = 600MB }`."""

    settings: Settings


class LossChunks(SyntaxNode):
    """`loss_chunks 8`."""

    count: Expr


class Device(SyntaxNode):
    """`device h100 { memory = 64GiB }`, `device "mine.toml"`."""

    preset: Name | Text | None
    settings: Settings | None


class Link(SyntaxNode):
    """`link tp { latency_us = 2 }`, or `link none`."""

    axis: Name
    settings: Settings | None


class Load(SyntaxNode):
    """`load { zipf = 1.2 }`, or `load uniform`."""

    name: Name | None
    settings: Settings | None


class Lengths(SyntaxNode):
    """`file "lengths.csv"`, or `uniform { most = 4000, seed = 1 }`: a length of each sequence."""

    form: Name
    what: Text | Settings


class Documents(SyntaxNode):
    """`documents S file "lengths.csv"`, or `documents none`."""

    dim: Name
    lengths: ListValue | Lengths | None


class Measure(SyntaxNode):
    """`x 2048`: new tokens of each sequence; `at 1500`: tokens before them; `at [100, 250]`: of one after the other."""

    word: Name
    number: Expr | ListValue | Lengths


class Prefill(SyntaxNode):
    """`prefill 4 x 2048 at 512`: so many sequences, of so many new tokens, after so many others."""

    count: Expr
    measures: tuple[Measure, ...]


class Decode(SyntaxNode):
    """`decode 128 at 1500`, or `decode 128 x 4 at 1500` where drafted tokens are verified."""

    count: Expr
    measures: tuple[Measure, ...]


class Served(SyntaxNode):
    """`{ prefill 4 x 2048, decode 128 at 1500, logits = last }`."""

    entries: tuple[Prefill | Decode | Setting, ...]


class Serve(SyntaxNode):
    """`serve { decode 128 at 1500 }`, or `serve none`."""

    what: Served | Reference


class Pool(SyntaxNode):
    """`pool prefill extends serve_tp8 { mesh tp = 8 }`: a part of the ranks, with a plan of its own."""

    name: Name
    base: Name | None
    clauses: tuple[Clause, ...]


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


class Plan(SyntaxNode):
    """`plan long extends short { ... }`."""

    name: Name
    base: Name | None
    clauses: tuple[Clause, ...]
