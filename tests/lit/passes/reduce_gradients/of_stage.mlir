// Reductions that the schedule of a pipeline places are marked so.
// RUN: stagec-opt %s -p 'reduce-gradients{axes="dp" overlap=false of_stage=true}' | filecheck %s

stg.program "M" () {
  %w = stg.weight "w" : !stg.tensor<[F], bf16>
  %dw = "test.op"() : () -> !stg.tensor<[F], fp32, partial [dp]>
  // CHECK: dist.all_reduce_gradient(%dw) {{.*}}of_stage
  // CHECK-NOT: late
  stg.output weights %w : !stg.tensor<[F], bf16> gradients %dw : !stg.tensor<[F], fp32, partial [dp]>
}
