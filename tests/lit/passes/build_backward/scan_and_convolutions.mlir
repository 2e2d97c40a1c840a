// A scan's five gradients are one op, a filter looks ahead on the way back, and nobody asks for the gradient of an image.
// RUN: stagec-opt %s -p build-backward | filecheck %s

stg.program "M" (%i : !stg.tensor<[C, Y, X], fp32>) {
  %k = stg.weight "kernel" : !stg.tensor<[C, I, J, E], fp32>
  %f = stg.weight "filter" : !stg.tensor<[W, E], fp32>
  %u = stg.weight "u" : !stg.tensor<[P, H, E], fp32>
  %t = stg.weight "dt" : !stg.tensor<[P, H], fp32>
  %a = stg.weight "a" : !stg.tensor<[H], fp32>
  %b = stg.weight "b" : !stg.tensor<[P, N], fp32>
  %p = stg.patch_embedding %i, %k to "P" : (!stg.tensor<[C, Y, X], fp32>, !stg.tensor<[C, I, J, E], fp32>) -> !stg.tensor<[P, E], fp32>
  %c = stg.causal_conv %p, %f over "P" : (!stg.tensor<[P, E], fp32>, !stg.tensor<[W, E], fp32>) -> !stg.tensor<[P, E], fp32>
  %x = stg.mul %u, %c : (!stg.tensor<[P, H, E], fp32>, !stg.tensor<[P, E], fp32>) -> !stg.tensor<[P, H, E], fp32>
  %y = stg.ssd_scan %x, %t, %a, %b, %b chunk "256" : (!stg.tensor<[P, H, E], fp32>, !stg.tensor<[P, H], fp32>, !stg.tensor<[H], fp32>, !stg.tensor<[P, N], fp32>, !stg.tensor<[P, N], fp32>) -> !stg.tensor<[P, H, E], fp32>
  %loss = stg.reduce "sum" %y over [P, H, E] : (!stg.tensor<[P, H, E], fp32>) -> !stg.tensor<[], fp32>
  // CHECK:      %[[DY:[^ ]*]] = stg.broadcast
  // CHECK-NEXT: %[[DX:[^ ]*]], %[[DT:[^ ]*]], %[[DA:[^ ]*]], %[[DB:[^ ]*]], %[[DC:[^ ]*]] = stg.ssd_scan_grad %[[DY]], %x, %t, %a, %b, %b chunk "256"
  // CHECK:      stg.mul %[[DX]], %c
  // CHECK:      %[[SUM:[^ ]*]] = stg.reduce "sum" {{.*}} over [H]
  // CHECK:      %[[DP:[^ ]*]] = stg.causal_conv reverse %[[SUM]], %f over "P"
  // CHECK-NEXT: %[[DF:[^ ]*]] = stg.causal_conv_kernel_grad %[[SUM]], %p over "P"
  // CHECK-NEXT: %[[DK:[^ ]*]] = stg.patch_kernel_grad %[[DP]], %i
  // CHECK-NOT:  stg.patch_image_grad
  stg.output %loss : !stg.tensor<[], fp32>
}
