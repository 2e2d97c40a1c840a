// Communication of a serial kind is marked, and no other.
// RUN: stagec-opt %s -p 'lower-to-tasks{serial="tp"}' | filecheck %s

dist.mesh <dp = 2, tp = 4>
stg.program "M" (%x : !stg.tensor<[B/tp, D], bf16>, %w : !dist.shard<!stg.tensor<[D], fp32> over [dp]>) {
  // CHECK: sched.collective "all_gather"(%x) {{.*}}serial
  %g = dist.all_gather %x dim "B" over [tp] : !stg.tensor<[B/tp, D], bf16> -> !stg.tensor<[B, D], bf16>
  // CHECK-NOT: serial
  %u = dist.unshard (%w) over [dp] in "bf16" : (!dist.shard<!stg.tensor<[D], fp32> over [dp]>) -> !stg.tensor<[D], bf16>
  stg.output
}
