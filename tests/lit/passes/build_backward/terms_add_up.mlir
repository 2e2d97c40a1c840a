// A value that is read twice has a gradient of two terms.
// RUN: stagec-opt %s -p build-backward | filecheck %s

stg.program "M" () {
  %w = stg.weight "w" : !stg.tensor<[B], fp32>
  %a = stg.unary "exp" %w : (!stg.tensor<[B], fp32>) -> !stg.tensor<[B], fp32>
  %b = stg.unary "sin" %w : (!stg.tensor<[B], fp32>) -> !stg.tensor<[B], fp32>
  %y = stg.add %a, %b : (!stg.tensor<[B], fp32>, !stg.tensor<[B], fp32>) -> !stg.tensor<[B], fp32>
  // CHECK-DAG: %[[EXP:[^ ]*]] = stg.unary_grad "exp"
  // CHECK-DAG: %[[SIN:[^ ]*]] = stg.unary_grad "sin"
  // CHECK:     stg.add {{.*}}made_by = "build-backward"
  %loss = stg.reduce "sum" %y over [B] : (!stg.tensor<[B], fp32>) -> !stg.tensor<[], fp32>
  stg.output %loss : !stg.tensor<[], fp32>
}
