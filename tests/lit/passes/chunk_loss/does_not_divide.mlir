// Chunks are equal.
// RUN: not stagec-opt %s -p 'chunk-loss{chunks=3}' 2>&1 | filecheck %s

// CHECK:      error[E0412]: 3 chunks do not divide the 4 of `S` on each rank
// CHECK:        = note: `S = 8` in all
// CHECK:        = help: choose a number of `loss_chunks` that divides it
stg.dim "S" = "8"
dist.mesh <cp = 2>
stg.program "M" (%l : !stg.tensor<[S/cp, V], bf16>, %t : !stg.tensor<[S/cp], i32>) {
  %loss, %lse = stg.cross_entropy %l, %t : (!stg.tensor<[S/cp, V], bf16>, !stg.tensor<[S/cp], i32>) -> (!stg.tensor<[], fp32, partial [cp]>, !stg.tensor<[S/cp], fp32>)
  stg.output
}
