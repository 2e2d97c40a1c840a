// The most minor axes of a dim are gathered, one or several, or of several dims at once.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[B/dp, S/(cp*tp), D], bf16>

// CHECK: %g = dist.all_gather %x dim "S" over [tp] : !stg.tensor<[B/dp, S/(cp*tp), D], bf16> -> !stg.tensor<[B/dp, S/cp, D], bf16>
%g = dist.all_gather %x dim "S" over [tp]
  : !stg.tensor<[B/dp, S/(cp*tp), D], bf16> -> !stg.tensor<[B/dp, S/cp, D], bf16>

// CHECK: %a = dist.all_gather %x dim "S" over [cp, tp] : !stg.tensor<[B/dp, S/(cp*tp), D], bf16> -> !stg.tensor<[B/dp, S, D], bf16>
%a = dist.all_gather %x dim "S" over [cp, tp]
  : !stg.tensor<[B/dp, S/(cp*tp), D], bf16> -> !stg.tensor<[B/dp, S, D], bf16>

// CHECK: %b = dist.all_gather %x dim "B" over [dp, tp] with <[S/tp]> : !stg.tensor<[B/dp, S/(cp*tp), D], bf16> -> !stg.tensor<[B, S/cp, D], bf16>
%b = dist.all_gather %x dim "B" over [dp, tp] with <[S/tp]>
  : !stg.tensor<[B/dp, S/(cp*tp), D], bf16> -> !stg.tensor<[B, S/cp, D], bf16>
