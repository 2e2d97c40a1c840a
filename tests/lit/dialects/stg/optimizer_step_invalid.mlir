// An optimizer is known, and each weight has a reduced gradient of its dims.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.optimizer_step`: `sophia` is not an optimizer
%w = "test.op"() : () -> !stg.tensor<[D], fp32>
stg.optimizer_step "sophia" states "fp32" (%w) from (%w) : !stg.tensor<[D], fp32> from !stg.tensor<[D], fp32>

// -----

// CHECK: error[E0709]: `stg.optimizer_step`: !stg.tensor<[F], fp32> for !stg.tensor<[D], fp32>
%w, %g = "test.op"() : () -> (!stg.tensor<[D], fp32>, !stg.tensor<[F], fp32>)
stg.optimizer_step "sgd" states "fp32" (%w) from (%g) : !stg.tensor<[D], fp32> from !stg.tensor<[F], fp32>

// -----

// CHECK: error[E0709]: `stg.optimizer_step`: one gradient per weight
%w = "test.op"() : () -> !stg.tensor<[D], fp32>
stg.optimizer_step "sgd" states "fp32" (%w) from () : !stg.tensor<[D], fp32> from

// -----

// CHECK: error[E0709]: `stg.optimizer_step`: what is kept comes out with its type
%w = "test.op"() : () -> !stg.tensor<[D], fp32>
%m = stg.optimizer_step "sgd" states "fp32" (%w) from (%w) with (%w)
  : !stg.tensor<[D], fp32> from !stg.tensor<[D], fp32> with !stg.tensor<[D], fp32> -> !stg.tensor<[D], bf16>

// -----

// CHECK: error[E0709]: `stg.optimizer_step`: `muon`, `adafactor`, `shampoo`, `soap`, and no other, have matrices
%w = "test.op"() : () -> !stg.tensor<[D], fp32>
stg.optimizer_step "muon" states "fp32" (%w) from (%w) : !stg.tensor<[D], fp32> from !stg.tensor<[D], fp32>

// -----

// CHECK: error[E0709]: `stg.optimizer_step`: one matrix per weight
%w = "test.op"() : () -> !stg.tensor<[D], fp32>
stg.optimizer_step "muon" states "fp32" matrices [] (%w) from (%w) : !stg.tensor<[D], fp32> from !stg.tensor<[D], fp32>

// -----

// CHECK: error[E0709]: `stg.optimizer_step`: `shampoo`, `soap`, and no other, have factors
%w = "test.op"() : () -> !stg.tensor<[D], fp32>
stg.optimizer_step "soap" states "fp32" matrices [#stg.matrix<[D] x []>] (%w) from (%w) : !stg.tensor<[D], fp32> from !stg.tensor<[D], fp32>

// -----

// CHECK: error[E0709]: `stg.optimizer_step`: there is no dtype `fp31`
%w = "test.op"() : () -> !stg.tensor<[D], fp32>
stg.optimizer_step "sgd" states "fp31" (%w) from (%w) : !stg.tensor<[D], fp32> from !stg.tensor<[D], fp32>
