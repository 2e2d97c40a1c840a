// Of the new positions the last one of each sequence. Linear, so a partial value may be picked from.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[B/dp, S, D], bf16, partial [tp]>

// CHECK: %last = stg.last_positions %x over "S" to "sequences" : (!stg.tensor<[B/dp, S, D], bf16, partial [tp]>) -> !stg.tensor<[B/dp, sequences, D], bf16, partial [tp]>
%last = stg.last_positions %x over "S" to "sequences" : (!stg.tensor<[B/dp, S, D], bf16, partial [tp]>) -> !stg.tensor<[B/dp, sequences, D], bf16, partial [tp]>
