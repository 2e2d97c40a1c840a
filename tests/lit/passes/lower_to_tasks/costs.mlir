// A task states what its op costs on one device: 2 FLOPs per multiply-add, a lookup reads rows, not the table.
// RUN: stagec-opt %s -p lower-to-tasks | filecheck %s

dist.mesh <dp = 2, tp = 4>
stg.program "M" (%t : !stg.tensor<[B/dp, S], i32>, %q : !stg.tensor<[B/dp, S, H/tp, E], bf16>) {
  %w = stg.weight "w" : !stg.tensor<[V/tp, D], bf16>
  %v = stg.weight "v" : !stg.tensor<[H/tp, E, D], bf16>
  // CHECK: sched.compute "embedding"(%t, %w) flops "0" reads "2*B*D*S/dp + 4*B*S/dp" writes "2*B*D*S/dp" on "compute"
  %x = stg.embedding %t, %w : (!stg.tensor<[B/dp, S], i32>, !stg.tensor<[V/tp, D], bf16>) -> !stg.tensor<[B/dp, S, D], bf16, partial [tp]>
  // CHECK: sched.compute "contract"(%q, %v) flops "2*B*D*E*H*S/(dp*tp)"
  %o = stg.contract %q, %v over [H, E]
    : (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[H/tp, E, D], bf16>) -> !stg.tensor<[B/dp, S, D], bf16, partial [tp]>
  // Half of the pairs of a query and a key, twice 2 FLOPs for each and each element of a head.
  // CHECK: sched.compute "attention"(%q, %q, %q) flops "2*B*E*H*S**2/(dp*tp)" reads "6*B*E*H*S/(dp*tp)" writes "2*B*E*H*S/(dp*tp) + 4*B*H*S/(dp*tp)"
  %a, %l = stg.attention %q, %q, %q causal count "causal"
    : (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, H/tp, E], bf16>)
    -> (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, H/tp], fp32>)
  stg.output
}
