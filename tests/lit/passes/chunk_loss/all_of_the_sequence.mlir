// Logits that are normalised over the sequence need all of it.
// RUN: not stagec-opt %s -p 'chunk-loss{chunks=2}' 2>&1 | filecheck %s

// CHECK: error[E0412]: this needs all of `S`, and is part of a chunked loss
stg.dim "S" = "8"
stg.program "M" (%x : !stg.tensor<[S, V], bf16>, %t : !stg.tensor<[S], i32>) {
  %l = stg.softmax %x over [S] : (!stg.tensor<[S, V], bf16>) -> !stg.tensor<[S, V], bf16>
  %loss, %lse = stg.cross_entropy %l, %t : (!stg.tensor<[S, V], bf16>, !stg.tensor<[S], i32>) -> (!stg.tensor<[], fp32>, !stg.tensor<[S], fp32>)
  stg.output %loss : !stg.tensor<[], fp32>
}
