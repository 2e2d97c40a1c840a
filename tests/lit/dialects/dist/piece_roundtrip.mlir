// A shard as a piece: what splits it over devices now splits it in time.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[S/(cp*tp), D], bf16>

// CHECK: %p = dist.piece %x dim "S" over [tp] : !stg.tensor<[S/(cp*tp), D], bf16> -> !stg.tensor<[S/(cp*tp.piece), D], bf16>
%p = dist.piece %x dim "S" over [tp] : !stg.tensor<[S/(cp*tp), D], bf16> -> !stg.tensor<[S/(cp*tp.piece), D], bf16>
