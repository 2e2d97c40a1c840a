// What the host makes is on the host.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `sched.host_update`: what it makes is on the host
%g = "test.op"() : () -> !stg.tensor<[D], bf16>
%n = sched.host_update (%g) flops "9*D" bytes "12*D" on "host.update" : (!stg.tensor<[D], bf16>) -> !stg.tensor<[D], fp32>
