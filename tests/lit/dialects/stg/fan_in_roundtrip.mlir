// What experts made of a token is added up on their device, weighted, and what devices made in their node; linear in it.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%y, %g = "test.op"() : () -> (!stg.tensor<[X/(en*el), T, D], bf16, partial [tp]>, !stg.tensor<[B/(en*el), A], bf16>)

// CHECK: %s = stg.fan_in %y weights %g to "Q" "V" : (!stg.tensor<[X/(en*el), T, D], bf16, partial [tp]>, !stg.tensor<[B/(en*el), A], bf16>) -> !stg.tensor<[Q/(en*el), V, D], bf16, partial [tp]>
%s = stg.fan_in %y weights %g to "Q" "V"
  : (!stg.tensor<[X/(en*el), T, D], bf16, partial [tp]>, !stg.tensor<[B/(en*el), A], bf16>) -> !stg.tensor<[Q/(en*el), V, D], bf16, partial [tp]>

// CHECK: %t = stg.fan_in %s to "P" "U" : (!stg.tensor<[Q/(en*el), V, D], bf16, partial [tp]>) -> !stg.tensor<[P/(en*el), U, D], bf16, partial [tp]>
%t = stg.fan_in %s to "P" "U" : (!stg.tensor<[Q/(en*el), V, D], bf16, partial [tp]>) -> !stg.tensor<[P/(en*el), U, D], bf16, partial [tp]>
