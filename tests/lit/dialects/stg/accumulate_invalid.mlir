// A sum over microbatches has the dims of its terms, and is partial as they are.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.accumulate`: one result per yielded value
%x = "test.op"() : () -> !stg.tensor<[D], bf16>
stg.accumulate over "mb" {
  stg.yield %x : !stg.tensor<[D], bf16>
}

// -----

// CHECK: error[E0709]: `stg.accumulate`: !stg.tensor<[D], bf16> adds up to !stg.tensor<[F], bf16>
%x = "test.op"() : () -> !stg.tensor<[D], bf16>
%g = stg.accumulate over "mb" -> (!stg.tensor<[F], bf16>) {
  stg.yield %x : !stg.tensor<[D], bf16>
}

// -----

// CHECK: error[E0709]: `stg.accumulate`: !stg.tensor<[D], bf16, partial [dp]> adds up to !stg.tensor<[D], fp32>
%x = "test.op"() : () -> !stg.tensor<[D], bf16, partial [dp]>
%g = stg.accumulate over "mb" -> (!stg.tensor<[D], fp32>) {
  stg.yield %x : !stg.tensor<[D], bf16, partial [dp]>
}
