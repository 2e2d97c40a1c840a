// An op between a weight and the loss that has no gradient rule: here, a gradient.
// RUN: not stagec-opt %s -p build-backward 2>&1 | filecheck %s

stg.dim "B" = "8"
stg.program "M" () {
  %w = stg.weight "w" : !stg.tensor<[B], fp32>
  // CHECK: error[E0218]: `stg.unary_grad` has no gradient rule
  %y = stg.unary_grad "exp" %w, %w : (!stg.tensor<[B], fp32>, !stg.tensor<[B], fp32>) -> !stg.tensor<[B], fp32>
  %loss = stg.reduce "sum" %y over [B] : (!stg.tensor<[B], fp32>) -> !stg.tensor<[], fp32>
  stg.output %loss : !stg.tensor<[], fp32>
}
