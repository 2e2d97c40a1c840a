// The tokens of each expert are as many as the batch is large: microbatches split them too.
// RUN: stagec-opt %s -p 'split-microbatches{dim="B" size=2}' | filecheck %s

stg.dim "B" = "32"
dist.mesh <dp = 4>
stg.program "M" (%t : !stg.tensor<[B, D], bf16>) {
  %x, %i = "test.op"() : () -> (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp, A], i32>)
  // CHECK: stg.dispatch {{.*}} -> (!stg.tensor<[X, C/(mb*dp), D], bf16>, !stg.tensor<[X], i64>)
  %r, %n = stg.dispatch %x by %i to "X" "C"
    : (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp, A], i32>) -> (!stg.tensor<[X, C/dp, D], bf16>, !stg.tensor<[X], i64>)
  stg.output
}
