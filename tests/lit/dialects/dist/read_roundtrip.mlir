// What the host keeps comes to the device.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%h = "test.op"() : () -> !stg.tensor<[B, D], bf16>

// CHECK: %x = dist.read(%h) {prefetch = 1 : i64} : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
%x = dist.read (%h) {prefetch = 1 : i64} : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
