// Nobody asks for the gradient of an input: the product with it has one gradient, not two.
// RUN: stagec-opt %s -p build-backward | filecheck %s

stg.program "M" (%x : !stg.tensor<[B, D], fp32>) {
  %w = stg.weight "w" : !stg.tensor<[D], fp32>
  %y = stg.contract %x, %w over [D] : (!stg.tensor<[B, D], fp32>, !stg.tensor<[D], fp32>) -> !stg.tensor<[B], fp32>
  %loss = stg.reduce "sum" %y over [B] : (!stg.tensor<[B], fp32>) -> !stg.tensor<[], fp32>
  // CHECK:     stg.contract {{.*}}phase = "wgrad"
  // CHECK-NOT: stg.contract
  // CHECK:     stg.output
  stg.output %loss : !stg.tensor<[], fp32>
}
