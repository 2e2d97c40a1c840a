// The step of all weights of a device; a master copy where weights are narrower.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%w, %g, %ws, %gs = "test.op"() : () -> (!stg.tensor<[D], bf16>, !stg.tensor<[D], fp32>, !stg.stack<"L" x !stg.tensor<[D], bf16>>, !stg.stack<"L" x !stg.tensor<[D], fp32>>)

// CHECK: stg.optimizer_step "adamw" states "fp32" master "fp32"(%w, %ws) from(%g, %gs) : !stg.tensor<[D], bf16>, !stg.stack<"L" x !stg.tensor<[D], bf16>> from !stg.tensor<[D], fp32>, !stg.stack<"L" x !stg.tensor<[D], fp32>>
stg.optimizer_step "adamw" states "fp32" master "fp32" (%w, %ws) from (%g, %gs)
  : !stg.tensor<[D], bf16>, !stg.stack<"L" x !stg.tensor<[D], bf16>> from !stg.tensor<[D], fp32>, !stg.stack<"L" x !stg.tensor<[D], fp32>>

// CHECK: stg.optimizer_step "sgd" states "fp32"(%w) from(%g) : !stg.tensor<[D], bf16> from !stg.tensor<[D], fp32>
stg.optimizer_step "sgd" states "fp32" (%w) from (%g)
  : !stg.tensor<[D], bf16> from !stg.tensor<[D], fp32>

// What it keeps, where that comes from the host, comes out updated.
// CHECK: %m = stg.optimizer_step "sgd_momentum" states "fp32"(%w) from(%g) with(%g) : !stg.tensor<[D], bf16> from !stg.tensor<[D], fp32> with !stg.tensor<[D], fp32> -> !stg.tensor<[D], fp32>
%m = stg.optimizer_step "sgd_momentum" states "fp32" (%w) from (%g) with (%g)
  : !stg.tensor<[D], bf16> from !stg.tensor<[D], fp32> with !stg.tensor<[D], fp32> -> !stg.tensor<[D], fp32>

// Muon's step says of each weight which matrix it is.
// CHECK: stg.optimizer_step "muon" states "fp32" matrices [#stg.matrix<[] x []>](%w) from(%g)
stg.optimizer_step "muon" states "fp32" matrices [#stg.matrix<[] x []>] (%w) from (%g)
  : !stg.tensor<[D], bf16> from !stg.tensor<[D], fp32>

// That of Shampoo how matrices and vectors are cut into blocks.
// CHECK: stg.optimizer_step "shampoo" states "fp32" matrices [#stg.matrix<[D] x []>] factors <block 64 every 10 grafted>(%w) from(%g)
stg.optimizer_step "shampoo" states "fp32" matrices [#stg.matrix<[D] x []>] factors <block 64 every 10 grafted> (%w) from (%g)
  : !stg.tensor<[D], bf16> from !stg.tensor<[D], fp32>
