// Copies in both directions, each on its stream.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[B, D], bf16>

// CHECK: %h = sched.host_copy "store"(%x) bytes "2*B*D" on "host.store" : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
%h = sched.host_copy "store" (%x) bytes "2*B*D" on "host.store" : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
// CHECK: %y = sched.host_copy "load"(%h) bytes "2*B*D" on "host.load" {prefetch = 1 : i64} : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
%y = sched.host_copy "load" (%h) bytes "2*B*D" on "host.load" {prefetch = 1 : i64} : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>

// CHECK: %z = sched.host_copy "read"(%x) bytes "2*B*D" on "host.read" : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
%z = sched.host_copy "read" (%x) bytes "2*B*D" on "host.read" : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
