// Without overlap reductions are marked to wait for the end of the backward pass.
// RUN: stagec-opt %s -p 'reduce-gradients{axes="dp" overlap=false}' | filecheck %s

stg.program "M" () {
  %w = stg.weight "w" : !stg.tensor<[F], bf16>
  %dw = "test.op"() : () -> !stg.tensor<[F], fp32, partial [dp]>
  // CHECK: dist.all_reduce_gradient(%dw) {{.*}}late
  stg.output weights %w : !stg.tensor<[F], bf16> gradients %dw : !stg.tensor<[F], fp32, partial [dp]>
}
