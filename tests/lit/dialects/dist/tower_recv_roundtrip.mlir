// What another pool makes: its gradient goes back if that pool trains it. Tokens of experts are counted by a dim.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: %v = dist.tower_recv "forward" 0 of "vision" trained : !stg.tensor<[B, P, D], bf16>
%v = dist.tower_recv "forward" 0 of "vision" trained : !stg.tensor<[B, P, D], bf16>
// CHECK: dist.tower_recv "backward" 1 of "text" : !stg.tensor<[B, P, D], bf16>
%g = dist.tower_recv "backward" 1 of "text" : !stg.tensor<[B, P, D], bf16>
// CHECK: dist.tower_recv "forward" 2 of "attention" tokens "T" chosen [B, S, A] : !stg.tensor<[X, T, D], bf16>
%r = dist.tower_recv "forward" 2 of "attention" tokens "T" chosen [B, S, A] : !stg.tensor<[X, T, D], bf16>
