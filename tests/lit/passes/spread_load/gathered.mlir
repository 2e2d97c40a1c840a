// Experts that take their tokens from those of all devices have loads too: what is gathered is as large as without.
// RUN: stagec-opt %s -p 'spread-load{zipf="1.2" seed=3}' | filecheck %s

stg.dim "X" = "8"
stg.dim "A" = "2"
stg.dim "T" = "64"
dist.mesh <ep = 4>
// CHECK: dist.expert_load "T.load" of "T" experts "X" chosen [S, A] over [ep] among [] zipf "1.2" seed 3
stg.program "M" (%x : !stg.tensor<[S/ep, D], bf16>, %i : !stg.tensor<[S, A], i32>) {
  // CHECK: dist.all_gather %x dim "S" over [ep] : !stg.tensor<[S/ep, D], bf16> -> !stg.tensor<[S, D], bf16>
  %y = dist.all_gather %x dim "S" over [ep] : !stg.tensor<[S/ep, D], bf16> -> !stg.tensor<[S, D], bf16>
  // CHECK-NEXT: stg.dispatch %y by %i to "X" "T.load" dropless : {{.*}} -> (!stg.tensor<[X/ep, T.load, D], bf16>
  %e, %n = stg.dispatch %y by %i to "X" "T" dropless
    : (!stg.tensor<[S, D], bf16>, !stg.tensor<[S, A], i32>) -> (!stg.tensor<[X/ep, T, D], bf16>, !stg.tensor<[X], i64>)
  // CHECK-NEXT: stg.unary "silu" {{.*}} -> !stg.tensor<[X/ep, T.load, D], bf16>
  %z = stg.unary "silu" %e : (!stg.tensor<[X/ep, T, D], bf16>) -> !stg.tensor<[X/ep, T, D], bf16>
  stg.output
}
