// A loss stays partial until something asks for its sum.
// RUN: stagec-opt %s -p localize-shapes | filecheck %s

stg.program "M" () {
  %x = "test.op"() : () -> !stg.tensor<[B/dp, D], bf16>
  // CHECK-NOT: dist.reshard
  // CHECK:     stg.reduce {{.*}} -> !stg.tensor<[], bf16, partial [dp]>
  // CHECK-NOT: dist.reshard
  %loss = stg.reduce "sum" %x over [B, D] {placement = #dist.placement<[B/dp]>} : (!stg.tensor<[B/dp, D], bf16>) -> !stg.tensor<[], bf16>
  stg.output %loss : !stg.tensor<[], bf16>
}
