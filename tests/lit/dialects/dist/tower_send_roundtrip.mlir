// What another pool reads goes to it, by the number that it has in the whole model.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%v = "test.op"() : () -> !stg.tensor<[B, P, D], bf16>

// CHECK: dist.tower_send "forward" 1 to "text" %v : !stg.tensor<[B, P, D], bf16>
dist.tower_send "forward" 1 to "text" %v : !stg.tensor<[B, P, D], bf16>
