// Patches of whole images: a device makes its share of them; over split channels they are partial.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%i, %k = "test.op"() : () -> (!stg.tensor<[B/dp, C, Y, X], bf16>, !stg.tensor<[C, I, J, D], bf16>)

// CHECK: %p = stg.patch_embedding %i, %k to "P" : (!stg.tensor<[B/dp, C, Y, X], bf16>, !stg.tensor<[C, I, J, D], bf16>) -> !stg.tensor<[B/dp, P/tp, D], bf16>
%p = stg.patch_embedding %i, %k to "P"
  : (!stg.tensor<[B/dp, C, Y, X], bf16>, !stg.tensor<[C, I, J, D], bf16>) -> !stg.tensor<[B/dp, P/tp, D], bf16>

%j, %w = "test.op"() : () -> (!stg.tensor<[B, C/tp, Y, X], bf16>, !stg.tensor<[C/tp, I, J, D], bf16>)

// CHECK: %q = stg.patch_embedding %j, %w to "P" : (!stg.tensor<[B, C/tp, Y, X], bf16>, !stg.tensor<[C/tp, I, J, D], bf16>) -> !stg.tensor<[B, P, D], bf16, partial [tp]>
%q = stg.patch_embedding %j, %w to "P"
  : (!stg.tensor<[B, C/tp, Y, X], bf16>, !stg.tensor<[C/tp, I, J, D], bf16>) -> !stg.tensor<[B, P, D], bf16, partial [tp]>
