// The gradient of a function of the loss is known when all chunks are.
// RUN: not stagec-opt %s -p 'chunk-loss{chunks=2}' 2>&1 | filecheck %s

// CHECK: error[E0412]: a gradient depends on the loss, which needs all chunks
stg.dim "S" = "8"
stg.program "M" (%l : !stg.tensor<[S, V], bf16>, %t : !stg.tensor<[S], i32>) {
  %loss, %lse = stg.cross_entropy %l, %t : (!stg.tensor<[S, V], bf16>, !stg.tensor<[S], i32>) -> (!stg.tensor<[], fp32>, !stg.tensor<[S], fp32>)
  %d = stg.unary "exp" %loss {phase = "bwd"} : (!stg.tensor<[], fp32>) -> !stg.tensor<[], fp32>
  %dl = stg.cross_entropy_grad %d, %l, %t, %lse {phase = "bwd"}
    : (!stg.tensor<[], fp32>, !stg.tensor<[S, V], bf16>, !stg.tensor<[S], i32>, !stg.tensor<[S], fp32>) -> !stg.tensor<[S, V], bf16>
  stg.output
}
