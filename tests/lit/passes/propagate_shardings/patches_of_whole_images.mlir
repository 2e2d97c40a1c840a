// Rules for rows and columns of pixels leave a patch embedding alone; one for patches splits it.
// RUN: stagec-opt %s -p propagate-shardings | filecheck %s

dist.mesh <tp = 2, cp = 2>
dist.rule [Y, X] over [cp]
dist.rule [P] over [tp]
stg.program "M" (%i : !stg.tensor<[C, Y, X], fp32>) {
  // CHECK: stg.weight "kernel" : !stg.tensor<[C, I, J, D], fp32>
  %k = stg.weight "kernel" : !stg.tensor<[C, I, J, D], fp32>
  // CHECK:      stg.patch_embedding {{.*}} to "P" {placement = #dist.placement<[P/tp]>}
  // CHECK-SAME: -> !stg.tensor<[P/tp, D], fp32>
  %p = stg.patch_embedding %i, %k to "P" : (!stg.tensor<[C, Y, X], fp32>, !stg.tensor<[C, I, J, D], fp32>) -> !stg.tensor<[P, D], fp32>
  stg.output %p : !stg.tensor<[P, D], fp32>
}
