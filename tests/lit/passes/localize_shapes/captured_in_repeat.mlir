// A captured value that a repeat's ops need otherwise is moved in the body, where it is read.
// RUN: stagec-opt %s -p localize-shapes | filecheck %s

stg.program "M" () {
  %x = "test.op"() : () -> !stg.tensor<[S/tp, D], bf16>
  // CHECK:      stg.repeat "L" {
  // CHECK-NEXT:   %[[WHOLE:[^ ]*]] = dist.reshard %x
  // CHECK-NEXT:   stg.unary "exp" %[[WHOLE]]
  stg.repeat "L" {
    %y = stg.unary "exp" %x {placement = #dist.placement<[]>} : (!stg.tensor<[S/tp, D], bf16>) -> !stg.tensor<[S, D], bf16>
    stg.yield
  }
  stg.output
}
