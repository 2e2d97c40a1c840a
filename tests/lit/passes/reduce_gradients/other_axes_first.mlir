// First over axes that are not data parallel, in the plan's own precision: `tp` for norms under sequence parallelism.
// RUN: stagec-opt %s -p 'reduce-gradients{axes="dp" dtype="bf16"}' | filecheck %s

stg.program "M" () {
  %w = stg.weight "norm" : !stg.tensor<[D], bf16>
  %g = "test.op"() : () -> !stg.tensor<[D], fp32, partial [dp, tp]>
  // CHECK:      %[[TP:[^ ]*]] = dist.reshard %g {{.*}} : !stg.tensor<[D], fp32, partial [dp, tp]> -> !stg.tensor<[D], fp32, partial [dp]>
  // CHECK-NEXT: %[[DP:[^ ]*]] = dist.all_reduce_gradient(%[[TP]]) over [dp] in "bf16"
  // CHECK-NEXT: stg.output {{.*}} gradients %[[DP]]
  stg.output weights %w : !stg.tensor<[D], bf16> gradients %g : !stg.tensor<[D], fp32, partial [dp, tp]>
}
