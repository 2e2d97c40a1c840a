"""What a text says: one frozen class per rule of `grammar/stg.lark`, the fields in the rule's order.

Nothing is resolved here: a `Reference` may name a tensor, a dim, or nothing at all. Two nodes are
equal if they say the same, wherever they stand: spans do not compare.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stagec.diagnostics import Span


@dataclass(frozen=True)
class Node:
    """A piece of text that means something."""

    span: Span = field(kw_only=True, compare=False, repr=False)


@dataclass(frozen=True)
class Name(Node):
    """A word that the user chose."""

    text: str

    def __str__(self) -> str:
        return self.text


# ---- expressions ----


@dataclass(frozen=True)
class Reference(Node):
    """`x`: a value, a dim, an axis, or a choice of an option."""

    name: Name


@dataclass(frozen=True)
class Number(Node):
    """`8192` or `1e-5`, as written."""

    text: str


@dataclass(frozen=True)
class ByteSize(Node):
    """`80GiB`, as written."""

    text: str


@dataclass(frozen=True)
class Boolean(Node):
    """`true` or `false`."""

    text: str


@dataclass(frozen=True)
class Text(Node):
    """`"file.stg"`, without the quotes."""

    text: str


@dataclass(frozen=True)
class ListValue(Node):
    """`[1, 2, 3]`, as the value of an option or a setting."""

    values: tuple[Value, ...]


@dataclass(frozen=True)
class Binary(Node):
    """`left operator right`."""

    left: Expr
    operator: str
    right: Expr


@dataclass(frozen=True)
class Negate(Node):
    """`-operand`."""

    operand: Expr


@dataclass(frozen=True)
class Renaming(Node):
    """`S -> T`."""

    old: Name
    new: Name


@dataclass(frozen=True)
class Rename(Node):
    """`k[S -> T]`."""

    operand: Expr
    renamings: tuple[Renaming, ...]


@dataclass(frozen=True)
class Argument(Node):
    """An operand of a call, or an option if it has a name."""

    name: Name | None
    value: Value


@dataclass(frozen=True)
class Call(Node):
    """`rope(q, theta = 500000)`: of a built-in op, a module, a user's op, or a function of sizes."""

    function: Name
    arguments: tuple[Argument, ...]


Expr = Reference | Number | ByteSize | Boolean | Binary | Negate | Rename | Call
Value = Expr | Text | ListValue


# ---- statements ----


@dataclass(frozen=True)
class Shape(Node):
    """`[B, S, D]`. Dims are names; the checker refuses anything else."""

    dims: tuple[Expr, ...]


@dataclass(frozen=True)
class Weight(Node):
    """`wq[D, H, E]: fp32`."""

    name: Name
    shape: Shape
    dtype: Name | None


@dataclass(frozen=True)
class Weights(Node):
    """`weight wq[D, H, E], wk[D, K, E]`."""

    weights: tuple[Weight, ...]


@dataclass(frozen=True)
class Target(Node):
    """What is assigned: `q` or `q[B, S, H, E]`."""

    name: Name
    shape: Shape | None


@dataclass(frozen=True)
class Assign(Node):
    """`gates, experts = topk(x)`."""

    targets: tuple[Target, ...]
    value: Expr


@dataclass(frozen=True)
class Body(Node):
    """`{ ... }`."""

    statements: tuple[Statement, ...]


@dataclass(frozen=True)
class Repeat(Node):
    """`repeat L { x = Block(x) }`."""

    count: Expr
    body: Body


@dataclass(frozen=True)
class Return(Node):
    """`return a, b`."""

    values: tuple[Expr, ...]


Statement = Weights | Assign | Repeat | Return


# ---- the top level ----


@dataclass(frozen=True)
class ImportFile(Node):
    """`import "blocks.stg"`."""

    path: Text


@dataclass(frozen=True)
class Dim(Node):
    """`dim E = D / H`."""

    name: Name
    size: Expr


@dataclass(frozen=True)
class Require(Node):
    """`require H % K == 0`."""

    condition: Expr


@dataclass(frozen=True)
class Parameter(Node):
    """`tokens[B, S]: i32`."""

    name: Name
    shape: Shape
    dtype: Name | None


@dataclass(frozen=True)
class Result(Node):
    """`[B, S, K]: i32`, after `->`."""

    shape: Shape
    dtype: Name | None


@dataclass(frozen=True)
class Module(Node):
    """`module SwiGLU(x[B, S, D]) -> [B, S, D] { ... }`."""

    name: Name
    parameters: tuple[Parameter, ...]
    results: tuple[Result, ...]
    body: Body


@dataclass(frozen=True)
class Model(Node):
    """`model Llama(tokens[B, S]: i32) { ... }`."""

    name: Name
    parameters: tuple[Parameter, ...]
    body: Body


@dataclass(frozen=True)
class Op(Node):
    """`op scan(x[B, S, D]) -> [B, S, D] { flops = 6*B*S*D }`."""

    name: Name
    parameters: tuple[Parameter, ...]
    results: tuple[Result, ...]
    settings: Settings


# ---- plans ----


@dataclass(frozen=True)
class Setting(Node):
    """`schedule = interleaved_1f1b`."""

    name: Name
    value: Value


@dataclass(frozen=True)
class Settings(Node):
    """`{ schedule = gpipe, microbatch = 1 }`."""

    entries: tuple[Setting, ...]


@dataclass(frozen=True)
class Path(Node):
    """`Block.Attention.q`."""

    names: tuple[Name, ...]

    def __str__(self) -> str:
        return ".".join(name.text for name in self.names)


@dataclass(frozen=True)
class NewSize(Node):
    """`S = 131072`."""

    name: Name
    size: Expr


@dataclass(frozen=True)
class Resize(Node):
    """`set S = 131072, tp = 4`."""

    sizes: tuple[NewSize, ...]


@dataclass(frozen=True)
class MeshAxis(Node):
    """`tp = 8`, `tp`, or `dp = edp * ep`."""

    name: Name
    size: Expr | None


@dataclass(frozen=True)
class Mesh(Node):
    """`mesh dp = 128, tp = 8`, slowest first."""

    axes: tuple[MeshAxis, ...]


@dataclass(frozen=True)
class RankOrder(Node):
    """`rank_order pp, dp, tp`, slowest first."""

    axes: tuple[Name, ...]


@dataclass(frozen=True)
class ShardTarget(Node):
    """A dim `H`, or a value `Block.h[S]`."""

    path: Path
    dims: tuple[Name, ...] | None


@dataclass(frozen=True)
class Shard(Node):
    """`shard H, K over tp`."""

    targets: tuple[ShardTarget, ...]
    axes: tuple[Name, ...]


@dataclass(frozen=True)
class Pipeline(Node):
    """`pipeline L over pp { schedule = gpipe }` or `pipeline none`."""

    counts: tuple[Name, ...]
    axis: Name | None
    settings: Settings | None


@dataclass(frozen=True)
class Microbatch(Node):
    """`microbatch 1`."""

    size: Expr


@dataclass(frozen=True)
class Zero(Node):
    """`zero 3 over dp { reshard = false }` or `zero none`."""

    level: Expr
    axes: tuple[Name, ...] | None
    settings: Settings | None


@dataclass(frozen=True)
class Unit(Node):
    """`unit Block, Head`, or `unit none`."""

    modules: tuple[Path, ...]


@dataclass(frozen=True)
class Recompute(Node):
    """`recompute attention in Block`."""

    what: tuple[Path, ...]
    modules: tuple[Path, ...] | None


@dataclass(frozen=True)
class Precision(Node):
    """`precision { weights = bf16 }`."""

    settings: Settings


@dataclass(frozen=True)
class Optimizer(Node):
    """`optimizer adamw`."""

    name: Name
    settings: Settings | None


@dataclass(frozen=True)
class Collectives(Node):
    """`collectives { reduce = eager }`."""

    settings: Settings


@dataclass(frozen=True)
class Context(Node):
    """`context cp { method = ring }`, or `context none`."""

    axis: Name
    settings: Settings | None


@dataclass(frozen=True)
class Gradients(Node):
    """`gradients { bucket_bytes = 25MiB }`."""

    settings: Settings


@dataclass(frozen=True)
class Overlap(Node):
    """`overlap { tp = false }`."""

    settings: Settings


@dataclass(frozen=True)
class Device(Node):
    """`device h100 { memory = 64GiB }`."""

    preset: Name | None
    settings: Settings | None


@dataclass(frozen=True)
class Pass(Node):
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
    | Recompute
    | Precision
    | Optimizer
    | Collectives
    | Context
    | Gradients
    | Overlap
    | Device
    | Pass
)


@dataclass(frozen=True)
class Plan(Node):
    """`plan long extends short { ... }`."""

    name: Name
    base: Name | None
    clauses: tuple[Clause, ...]


Item = ImportFile | Dim | Require | Module | Model | Op | Plan


@dataclass(frozen=True)
class Program(Node):
    """One file."""

    items: tuple[Item, ...]
