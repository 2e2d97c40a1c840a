// Chunks of a tensor along one dim.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[B/dp, S/cp, D], bf16>

// CHECK: %c = stg.chunk %x dim "S" : !stg.tensor<[B/dp, S/cp, D], bf16> -> !stg.stack<"loss.chunk" x !stg.tensor<[B/dp, S/(loss.chunk*cp), D], bf16>>
%c = stg.chunk %x dim "S" : !stg.tensor<[B/dp, S/cp, D], bf16> -> !stg.stack<"loss.chunk" x !stg.tensor<[B/dp, S/(loss.chunk*cp), D], bf16>>

// In pieces of what is gathered or scattered, a piece has a part of each rank's part.
// CHECK: %p = stg.chunk %x dim "S" within [tp] : !stg.tensor<[B/dp, S/cp, D], bf16> -> !stg.stack<"tp.piece" x !stg.tensor<[B/dp, S/(tp.piece*cp), D], bf16>>
%p = stg.chunk %x dim "S" within [tp] : !stg.tensor<[B/dp, S/cp, D], bf16> -> !stg.stack<"tp.piece" x !stg.tensor<[B/dp, S/(tp.piece*cp), D], bf16>>
// CHECK: stg.join_chunks %p dim "S" within [tp] : !stg.stack<"tp.piece" x !stg.tensor<[B/dp, S/(tp.piece*cp), D], bf16>> -> !stg.tensor<[B/dp, S/cp, D], bf16>
%j = stg.join_chunks %p dim "S" within [tp] : !stg.stack<"tp.piece" x !stg.tensor<[B/dp, S/(tp.piece*cp), D], bf16>> -> !stg.tensor<[B/dp, S/cp, D], bf16>
