// Copies for nodes become copies for their devices, and those copies for experts; linear in them.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%c, %d, %g = "test.op"() : () -> (!stg.tensor<[P/en, U/el, D], bf16>, !stg.tensor<[Q/(en*el), V, D], bf16, partial [tp]>, !stg.tensor<[B/(en*el), A], bf16>)

// CHECK: %f, %n = stg.fan_out %c to "Q" "V" dropless : (!stg.tensor<[P/en, U/el, D], bf16>) -> (!stg.tensor<[Q/en, V/el, D], bf16>, !stg.tensor<[Q/en], i64>)
%f, %n = stg.fan_out %c to "Q" "V" dropless : (!stg.tensor<[P/en, U/el, D], bf16>) -> (!stg.tensor<[Q/en, V/el, D], bf16>, !stg.tensor<[Q/en], i64>)

// CHECK: %r, %m = stg.fan_out %d weights %g to "X" "T" : (!stg.tensor<[Q/(en*el), V, D], bf16, partial [tp]>, !stg.tensor<[B/(en*el), A], bf16>) -> (!stg.tensor<[X/(en*el), T, D], bf16, partial [tp]>, !stg.tensor<[X/(en*el)], i64>)
%r, %m = stg.fan_out %d weights %g to "X" "T"
  : (!stg.tensor<[Q/(en*el), V, D], bf16, partial [tp]>, !stg.tensor<[B/(en*el), A], bf16>) -> (!stg.tensor<[X/(en*el), T, D], bf16, partial [tp]>, !stg.tensor<[X/(en*el)], i64>)

// CHECK: stg.fan_out %c to "Q" "V" dropless forwards :
%o, %p = stg.fan_out %c to "Q" "V" dropless forwards : (!stg.tensor<[P/en, U/el, D], bf16>) -> (!stg.tensor<[Q/en, V/el, D], bf16>, !stg.tensor<[Q/en], i64>)

// CHECK: stg.fan_in %o to "P" "U" forwards :
%q = stg.fan_in %o to "P" "U" forwards : (!stg.tensor<[Q/en, V/el, D], bf16>) -> !stg.tensor<[P/en, U/el, D], bf16>
