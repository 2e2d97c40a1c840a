// The backward repeat slices what gradient rules read of the forward one, and no more.
// RUN: stagec-opt %s -p build-backward | filecheck %s

stg.program "M" (%x : !stg.tensor<[B], fp32>) {
  %w = stg.weight "w" : !stg.stack<"L" x !stg.tensor<[B], fp32>>
  // CHECK: stg.yield %[[NEXT:[^ ,]*]], %{{[^ ,]*}} :
  %y = stg.repeat "L" carry(%h = %x : !stg.tensor<[B], fp32>) slice(%v = %w : !stg.stack<"L" x !stg.tensor<[B], fp32>>) -> (!stg.tensor<[B], fp32>) {
    %p = stg.mul %h, %v : (!stg.tensor<[B], fp32>, !stg.tensor<[B], fp32>) -> !stg.tensor<[B], fp32>
    %n = stg.add %p, %h : (!stg.tensor<[B], fp32>, !stg.tensor<[B], fp32>) -> !stg.tensor<[B], fp32>
    stg.yield %n : !stg.tensor<[B], fp32>
  }
  // CHECK: stg.repeat "L" reverse
  // CHECK: phase = "wgrad"
  %loss = stg.reduce "sum" %y over [B] : (!stg.tensor<[B], fp32>) -> !stg.tensor<[], fp32>
  stg.output %loss : !stg.tensor<[], fp32>
}
