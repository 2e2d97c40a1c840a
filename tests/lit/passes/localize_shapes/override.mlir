// An override is a change of placement.
// RUN: stagec-opt %s -p localize-shapes | filecheck %s

stg.program "M" () {
  %x = "test.op"() : () -> !stg.tensor<[S/tp, D], bf16>
  // CHECK:     dist.reshard %x {{.*}} : !stg.tensor<[S/tp, D], bf16> -> !stg.tensor<[S, D/tp], bf16>
  // CHECK-NOT: stg.place
  %y = stg.place %x [D] over [tp] : (!stg.tensor<[S/tp, D], bf16>) -> !stg.tensor<[S, D/tp], bf16>
  stg.output %y : !stg.tensor<[S, D/tp], bf16>
}
