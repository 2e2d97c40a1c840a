// What was joined is cut again, and summed where it was repeated; what was cut is joined, zeros where nobody read it.
// RUN: stagec-opt %s -p build-backward | filecheck %s

stg.program "M" (%x : !stg.tensor<[S, H, E], fp32>) {
  %w = stg.weight "w" : !stg.tensor<[S, C], fp32>
  %u = stg.weight "u" : !stg.tensor<[S, H, N], fp32>
  %a, %r = stg.split %w over "C" to [A, R] : (!stg.tensor<[S, C], fp32>) -> (!stg.tensor<[S, A], fp32>, !stg.tensor<[S, R], fp32>)
  %k = stg.concat %u, %r over [N, R] to "E" : (!stg.tensor<[S, H, N], fp32>, !stg.tensor<[S, R], fp32>) -> !stg.tensor<[S, H, E], fp32>
  %y = stg.mul %k, %x : (!stg.tensor<[S, H, E], fp32>, !stg.tensor<[S, H, E], fp32>) -> !stg.tensor<[S, H, E], fp32>
  %loss = stg.reduce "sum" %y over [S, H, E] : (!stg.tensor<[S, H, E], fp32>) -> !stg.tensor<[], fp32>
  // CHECK:      %loss = 
  // CHECK:      %[[DK:[^ ]*]] = stg.mul
  // CHECK-NEXT: %[[DU:[^ ]*]], %[[DR:[^ ]*]] = stg.split %[[DK]] over "E" to [N, R]
  // CHECK-NEXT: %[[SUM:[^ ]*]] = stg.reduce "sum" %[[DR]] over [H]
  // CHECK-NEXT: %[[ZEROS:[^ ]*]] = stg.zeros {{.*}} : !stg.tensor<[S, A], fp32>
  // CHECK-NEXT: %[[DW:[^ ]*]] = stg.concat %[[ZEROS]], %[[SUM]] over [A, R] to "C"
  // CHECK-NEXT: stg.output %loss : {{.*}} gradients %[[DW]], %[[DU]]
  stg.output %loss : !stg.tensor<[], fp32>
}
