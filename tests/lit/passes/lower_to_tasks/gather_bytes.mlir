// A gather puts in a shard and makes n of them; a reduce-scatter the reverse.
// RUN: stagec-opt %s -p lower-to-tasks | filecheck %s

dist.mesh <tp = 4>
stg.program "M" (%x : !stg.tensor<[B/tp, D], bf16>, %p : !stg.tensor<[B, D], bf16, partial [tp]>) {
  // CHECK: sched.collective "all_gather"(%x) over [tp] in "bf16" bytes "2*B*D/tp" to "2*B*D" on "comm.tp"
  %g = dist.all_gather %x dim "B" over [tp] : !stg.tensor<[B/tp, D], bf16> -> !stg.tensor<[B, D], bf16>
  // CHECK: sched.collective "reduce_scatter"(%p) over [tp] in "bf16" bytes "2*B*D" to "2*B*D/tp" on "comm.tp"
  %s = dist.reduce_scatter %p dim "B" over [tp] : !stg.tensor<[B, D], bf16, partial [tp]> -> !stg.tensor<[B/tp, D], bf16>
  stg.output
}
