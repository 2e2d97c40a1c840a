// The same numbers in another dtype.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[B/dp, D], bf16, partial [tp]>

// CHECK: %y = stg.cast %x : (!stg.tensor<[B/dp, D], bf16, partial [tp]>) -> !stg.tensor<[B/dp, D], fp32, partial [tp]>
%y = stg.cast %x : (!stg.tensor<[B/dp, D], bf16, partial [tp]>) -> !stg.tensor<[B/dp, D], fp32, partial [tp]>
