"""Keep of a model what one pool of a plan trains, and hand values over to the other pools.

Before `cut-towers`:

    dist.towers ["vision" 1 ["K"], "text" 2 ["L"]]
    dist.pool "vision" ranks 0 to 4 of 8
    stg.program "M" (%i : !stg.tensor<[B, D], bf16>, %t : !stg.tensor<[B, D], bf16>) {
      %w = stg.weight "w" : !stg.tensor<[D], bf16>
      %e = stg.weight "e" : !stg.tensor<[D], bf16>
      %x = stg.mul %i, %w : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
      %v = stg.repeat "K" carry(%h = %x : !stg.tensor<[B, D], bf16>) -> (!stg.tensor<[B, D], bf16>) {
        %n = stg.unary "exp" %h : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
        stg.yield %n : !stg.tensor<[B, D], bf16>
      }
      %j = stg.mul %t, %e : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
      %z = stg.repeat "L" carry(%g = %j : !stg.tensor<[B, D], bf16>) -> (!stg.tensor<[B, D], bf16>) {
        %m = stg.mul %g, %v : (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
        stg.yield %m : !stg.tensor<[B, D], bf16>
      }
      stg.output %z : !stg.tensor<[B, D], bf16>
    }

After:

    dist.towers ["vision" 1 ["K"], "text" 2 ["L"]]
    dist.pool "vision" ranks 0 to 4 of 8
    stg.program "M" (%i : !stg.tensor<[B, D], bf16>) {
      %w = stg.weight "w" : !stg.tensor<[D], bf16>
      %x = stg.mul %i, %w : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
      %v = stg.repeat "K" carry(%h = %x : !stg.tensor<[B, D], bf16>) -> (!stg.tensor<[B, D], bf16>) {
        %n = stg.unary "exp" %h : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
        stg.yield %n : !stg.tensor<[B, D], bf16>
      }
      dist.tower_send "forward" 0 to "text" %v {made_by = "cut-towers"} : !stg.tensor<[B, D], bf16>
      stg.output
    }

A repeat is on the pool that names its count. What depends on repeats of one pool is on that pool, too: a projector behind a tower is
the tower's. What depends on none, or joins what comes from a tower with what does not, is on the first pool that reads it: embeddings, and
their concatenation with patches. What does not depend on inputs and weights both, every pool computes that reads it. The forward pass is
cut before anything is placed, so that each pool's is placed, differentiated and cut into stages as a model by itself: the gradient of a
receive is a send.

A value goes straight from the pool that makes it to each pool that reads it. Values have one number each in the whole model, in its
order, so that all pools number them alike.

A weight that several pools read is in each of them, and `dist.shared` says so: `sum-over-pools` adds up what they have of its gradient.

E0423: pools that stand in another order than values go, a pool that runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from stagec.analysis.dependence import Dependence
from stagec.diagnostics import CompileError, quoted, refused, span_of
from stagec.dialects import dist, stg
from stagec.dialects.op import ancestor_in, block_of, first_op
from stagec.dialects.types import TensorType
from stagec.rewriting import inherit, insert_after, insert_before, output_of, programs
from stagec.symbolic import size

NAME = "cut-towers"


@dataclass(frozen=True)
class CutTowers(ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        pool, towers = dist.pool_of(op), first_op(op, dist.TowersOp)
        if pool is None or towers is None:
            return
        for program in programs(op):
            homes = Homes(program, towers)
            homes.find()
            shared = [each for each in homes.shared() if pool.pool.data in each.pools.data]
            op.body.block.insert_ops_after(shared, pool)
            Cut(program, towers, homes.homes, towers.number_of(pool.pool.data)).make()


@dataclass(frozen=True)
class Ancestry:
    """What a value depends on: pools, by the repeats that they run, inputs, weights."""

    pools: frozenset[int] = frozenset()
    data: bool = False
    weights: bool = False
    joins: bool = False
    """Whether what comes from a tower and what does not were joined on the way."""

    def __or__(self, other: Ancestry) -> Ancestry:
        own, others = self.is_branch, other.is_branch
        return Ancestry(
            self.pools | other.pools,
            self.data or other.data,
            self.weights or other.weights,
            self.joins
            or other.joins
            or (own and bool(other.pools))
            or (others and bool(self.pools)),
        )

    @property
    def is_branch(self) -> bool:
        """Whether it is computed with weights, of inputs, and before any tower."""
        return not self.pools and self.data and self.weights


@dataclass
class Homes:
    """On which pool each op of a program's own block is; nothing of what every pool may compute."""

    program: stg.ProgramOp
    towers: dist.TowersOp
    behind: dict[SSAValue, Ancestry] = field(default_factory=dict)
    homes: dict[Operation, int] = field(default_factory=dict)

    def find(self) -> None:
        block, last = self.program.body.block, output_of(self.program)
        counts = {size(c): n for n, each in enumerate(self.names) for c in each.counts}
        self.behind = {argument: Ancestry(data=True) for argument in block.args}
        open_ops: list[Operation] = []
        for op in block.ops:
            found = Ancestry(weights=isinstance(op, SOURCES))
            for operand in read_by(op):
                found |= self.behind[operand]
            runs = counts.get(op.count.data) if isinstance(op, stg.RepeatOp) else None
            if runs is not None:
                self.check_order(op, runs, found.pools)
                self.homes[op], found = runs, Ancestry(frozenset((runs,)), True, True)
            elif len(found.pools) == 1 and not found.joins:
                (self.homes[op],) = found.pools
            elif op is not last and (found.pools or found.is_branch):
                open_ops.append(op)
            self.behind.update(dict.fromkeys(op.results, found))
        self.check_all_run()
        final = max(self.homes.values())
        self.homes[last] = final
        for op in reversed(open_ops):
            self.homes[op] = min(pools_reading(op, self.homes), default=final)

    @property
    def names(self) -> Sequence[dist.PoolPart]:
        return self.towers.towers.data

    def check_order(self, op: Operation, runs: int, pools: frozenset[int]) -> None:
        late = [n for n in sorted(pools) if n > runs]
        if late:
            here, there = self.names[runs].pool, self.names[late[0]].pool
            message = f"`{here}` reads what `{there}` computes, and stands before it"
            help_ = f"write `pool {there}` before `pool {here}`: pools are stages of one pipeline"
            raise wrong(message, op, help_)

    def check_all_run(self) -> None:
        run = set(self.homes.values())
        for number, tower in enumerate(self.names):
            if number not in run:
                counts = quoted(tower.counts)
                message = f"the pool `{tower.pool}` runs no part of the model: no repeat of its own body runs {counts} times"
                raise wrong(message, self.program, "name the count of a repeat in `pipeline`")

    def shared(self) -> Iterator[dist.SharedOp]:
        """The weights that several pools train, and numbers of what these tell each other of their gradients."""
        number = 0
        for op in self.program.body.block.ops:
            if isinstance(op, stg.WeightOp) and op.frozen is None:
                owners = sorted(pools_reading(op, self.homes))
                if len(owners) > 1:
                    pools = [self.names[n].pool for n in owners]
                    found = dist.SharedOp(op.path, number, pools)
                    found.location = op.location
                    yield found
                    number += len(owners) ** 2


SOURCES = (stg.WeightOp, stg.CacheOp)


@dataclass
class Cut:
    """Makes of a program that of one pool."""

    program: stg.ProgramOp
    towers: dist.TowersOp
    homes: Mapping[Operation, int]
    own: int

    def make(self) -> None:
        block = self.program.body.block
        trained = Dependence(self.program)
        crossing = list(self.crossing(block))
        for number, value, maker, reader in crossing:
            if maker == self.own:
                send = dist.TowerSendOp(value, self.pool(reader), "forward", number)
                assert isinstance(value.owner, Operation)
                insert_after(value.owner, [send], NAME)
            elif reader == self.own:
                first = next(op for op in block.ops if self.is_here(op) and value in read_by(op))
                value_type = value.type
                # A stack is sliced by a repeat of its own count, which is on the same pool.
                assert isinstance(value_type, TensorType)
                made = dist.TowerRecvOp(
                    trained.on_weights(value),
                    pool=self.pool(maker),
                    direction="forward",
                    number=number,
                    like=value_type,
                )
                made.value.name_hint = value.name_hint
                insert_before(first, [made], NAME)
                value.replace_uses_with_if(
                    made.value, lambda use: self.is_here(ancestor_in(block, use.operation))
                )
        self.prune(block)

    def pool(self, number: int) -> str:
        return self.towers.towers.data[number].pool

    def is_here(self, op: Operation) -> bool:
        return self.homes.get(op, self.own) == self.own

    def crossing(self, block: Block) -> Iterator[tuple[int, SSAValue, int, int]]:
        """What crosses: a number, the value, the pool that makes it, one that reads it."""
        number = 0
        for op in block.ops:
            maker = self.homes.get(op)
            if maker is None:
                continue
            for value in op.results:
                readers = {self.homes[ancestor_in(block, use.operation)] for use in value.uses}
                for reader in sorted(readers - {maker}):
                    yield number, value, maker, reader
                    number += 1

    def prune(self, block: Block) -> None:
        """Erase what other pools compute, and inputs and weights that nobody here reads."""
        output = output_of(self.program)
        if not self.is_here(output):
            empty = stg.OutputOp([])
            inherit(empty, output)
            Rewriter.replace_op(output, empty)
        for op in reversed(list(block.ops)):
            is_away = not self.is_here(op)
            is_idle = (
                op not in self.homes and bool(op.results) and not any(r.uses for r in op.results)
            )
            if not isinstance(op, stg.OutputOp | dist.TowerSendOp) and (is_away or is_idle):
                op.detach()
                op.erase()
        for argument in reversed(list(block.args)):
            if not argument.uses:
                block.erase_arg(argument)


def read_by(op: Operation) -> list[SSAValue]:
    """What an op, and what is in it, reads of the block that it is in."""
    block = op.parent_block()
    found = {x: None for inner in op.walk() for x in inner.operands if home_of(x) is block}
    return list(found)


def readers_of(op: Operation) -> list[Operation]:
    """The ops of the same block that read an op's results, themselves or in their regions."""
    block = block_of(op)
    return [ancestor_in(block, use.operation) for result in op.results for use in result.uses]


def pools_reading(op: Operation, homes: Mapping[Operation, int]) -> set[int]:
    """The pools of the ops that read what an op makes, also by way of ops that every pool may compute."""
    found: set[int] = set()
    for reader in readers_of(op):
        found |= {homes[reader]} if reader in homes else pools_reading(reader, homes)
    return found


def home_of(value: SSAValue) -> Block | None:
    owner = value.owner
    return owner if isinstance(owner, Block) else owner.parent_block()


def wrong(message: str, op: Operation, help_: str) -> CompileError:
    return refused("E0423", message, span_of(op.location), help=help_)
