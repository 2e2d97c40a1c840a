// Microbatches add up what they yield, in a dtype that may be wider; stacks too.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x, %s = "test.op"() : () -> (!stg.tensor<[D], bf16, partial [dp]>, !stg.stack<"L" x !stg.tensor<[D], bf16>>)

// CHECK: %g, %gs = stg.accumulate over "mb" -> (!stg.tensor<[D], fp32, partial [dp]>, !stg.stack<"L" x !stg.tensor<[D], fp32>>) {
%g, %gs = stg.accumulate over "mb" -> (!stg.tensor<[D], fp32, partial [dp]>, !stg.stack<"L" x !stg.tensor<[D], fp32>>) {
  stg.yield %x, %s : !stg.tensor<[D], bf16, partial [dp]>, !stg.stack<"L" x !stg.tensor<[D], bf16>>
}

// CHECK: stg.accumulate over "mb" attributes {phase = "fwd"} {
stg.accumulate over "mb" attributes {phase = "fwd"} {
  stg.yield
}
