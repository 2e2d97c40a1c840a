// A loss that is no fused cross-entropy has no chunks.
// RUN: not stagec-opt %s -p 'chunk-loss{chunks=2}' 2>&1 | filecheck %s

// CHECK:      error[E0412]: there is no cross-entropy to compute in chunks
// CHECK:        = help: the loss is `cross_entropy(logits, targets)`, fused, outside of repeats
stg.dim "S" = "8"
stg.program "M" (%x : !stg.tensor<[S], bf16>) {
  %m = stg.reduce "mean" %x over [S] : (!stg.tensor<[S], bf16>) -> !stg.tensor<[], bf16>
  stg.output %m : !stg.tensor<[], bf16>
}
