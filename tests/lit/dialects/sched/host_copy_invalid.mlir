// There are four directions, and as many results as values.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `sched.host_copy`: `swap` is not a direction
%x = "test.op"() : () -> !stg.tensor<[B, D], bf16>
%h = sched.host_copy "swap" (%x) bytes "2*B*D" on "host.store" : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>

// -----

// CHECK: error[E0709]: `sched.host_copy`: one result per value
%x = "test.op"() : () -> !stg.tensor<[B, D], bf16>
sched.host_copy "store" (%x) bytes "2*B*D" on "host.store" : (!stg.tensor<[B, D], bf16>) -> ()
