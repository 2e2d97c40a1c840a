// Each gradient is reduced on its own, in the order in which the backward pass makes them.
// RUN: stagec-opt %s -p 'reduce-gradients{axes="dp"}' | filecheck %s

stg.program "M" () {
  %v = stg.weight "v" : !stg.tensor<[D], bf16>
  %w = stg.weight "w" : !stg.tensor<[F], bf16>
  %dw = "test.op"() : () -> !stg.tensor<[F], fp32, partial [dp]>
  %dv = "test.op"() : () -> !stg.tensor<[D], fp32, partial [dp]>
  // CHECK: %[[W:[^ ]*]] = dist.all_reduce_gradient(%dw) over [dp]
  // CHECK: %[[V:[^ ]*]] = dist.all_reduce_gradient(%dv) over [dp]
  // CHECK: gradients %[[V]], %[[W]]
  stg.output weights %v, %w : !stg.tensor<[D], bf16>, !stg.tensor<[F], bf16>
    gradients %dv, %dw : !stg.tensor<[D], fp32, partial [dp]>, !stg.tensor<[F], fp32, partial [dp]>
}
