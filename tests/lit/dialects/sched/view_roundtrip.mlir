// Another type for the same memory.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[B, S], bf16>

// CHECK: %y = sched.view %x : !stg.tensor<[B, S], bf16> -> !stg.tensor<[B, T], bf16>
%y = sched.view %x : !stg.tensor<[B, S], bf16> -> !stg.tensor<[B, T], bf16>
