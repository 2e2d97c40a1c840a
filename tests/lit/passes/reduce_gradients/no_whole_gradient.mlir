// A gradient that is no partial sum is as it should be.
// RUN: stagec-opt %s -p 'reduce-gradients{axes="dp"}' | filecheck %s

stg.program "M" () {
  %w = stg.weight "w" : !stg.tensor<[F], bf16>
  %dw = "test.op"() : () -> !stg.tensor<[F], fp32>
  // CHECK-NOT: dist.
  // CHECK:     gradients %dw
  stg.output weights %w : !stg.tensor<[F], bf16> gradients %dw : !stg.tensor<[F], fp32>
}
