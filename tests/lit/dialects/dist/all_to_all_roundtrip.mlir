// The split moves from one dim to another.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[B/dp, S/(cp*tp), H], bf16>

// CHECK: %y = dist.all_to_all %x gather "S" scatter "H" over [tp] : !stg.tensor<[B/dp, S/(cp*tp), H], bf16> -> !stg.tensor<[B/dp, S/cp, H/tp], bf16>
%y = dist.all_to_all %x gather "S" scatter "H" over [tp]
  : !stg.tensor<[B/dp, S/(cp*tp), H], bf16> -> !stg.tensor<[B/dp, S/cp, H/tp], bf16>
