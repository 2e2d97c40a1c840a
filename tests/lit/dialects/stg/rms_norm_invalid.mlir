// A norm of a term of a sum is no term of a norm; its statistic is spread as the rest of the value.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.rms_norm`: it is not linear in operand 0, which is partial: <[B, D], bf16, partial [tp]>
%x = "test.op"() : () -> !stg.tensor<[B, D], bf16, partial [tp]>
%y, %rstd = stg.rms_norm %x over [D] : (!stg.tensor<[B, D], bf16, partial [tp]>) -> (!stg.tensor<[B, D], bf16>, !stg.tensor<[B], fp32>)

// -----

// CHECK: error[E0709]: `stg.rms_norm`: the result is <[B], fp32>, but its operands make it <[B/dp], fp32>
%x = "test.op"() : () -> !stg.tensor<[B/dp, D], bf16>
%y, %rstd = stg.rms_norm %x over [D] : (!stg.tensor<[B/dp, D], bf16>) -> (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B], fp32>)

// -----

// CHECK: error[E0709]: `stg.rms_norm`: operands disagree about `D`: split over [] and over [tp]
%x, %w = "test.op"() : () -> (!stg.tensor<[B, D], bf16>, !stg.tensor<[D/tp], bf16>)
%y, %rstd = stg.rms_norm %x weight %w over [D] : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D/tp], bf16>) -> (!stg.tensor<[B, D], bf16>, !stg.tensor<[B], fp32>)
