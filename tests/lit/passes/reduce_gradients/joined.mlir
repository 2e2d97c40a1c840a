// With `join` the gradients of a layer travel as one buffer.
// RUN: stagec-opt %s -p 'reduce-gradients{axes="dp" shard_axes="dp" join=true}' | filecheck %s

stg.program "M" () {
  %v = stg.weight "Block.v" : !stg.stack<"L" x !stg.tensor<[D], bf16>>
  %w = stg.weight "Block.w" : !stg.stack<"L" x !stg.tensor<[F], bf16>>
  %dv, %dw = "test.op"() : () -> (!stg.stack<"L" x !stg.tensor<[D], fp32, partial [dp]>>, !stg.stack<"L" x !stg.tensor<[F], fp32, partial [dp]>>)
  // CHECK:     stg.repeat "L" reverse
  // CHECK:     dist.reduce_shard(%{{[^,]*}}, %{{[^,]*}}) over [dp] in "fp32" {copied,
  // CHECK-NOT: dist.reduce_shard
  stg.output weights %v, %w : !stg.stack<"L" x !stg.tensor<[D], bf16>>, !stg.stack<"L" x !stg.tensor<[F], bf16>>
    gradients %dv, %dw : !stg.stack<"L" x !stg.tensor<[D], fp32, partial [dp]>>, !stg.stack<"L" x !stg.tensor<[F], fp32, partial [dp]>>
}
