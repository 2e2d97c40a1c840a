// What a body hands on; a microbatch may hand on nothing.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[D], bf16>
stg.accumulate over "mb" {
  // CHECK: stg.yield{{$}}
  stg.yield
}
%y = stg.accumulate over "mb" -> (!stg.tensor<[D], fp32>) {
  // CHECK: stg.yield %x : !stg.tensor<[D], bf16>
  stg.yield %x : !stg.tensor<[D], bf16>
}
