// A load is one of two things, over some axis; an exchange with a load is still an exchange.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.expert_load`: a load is `zipf` or `shares`
dist.expert_load "T.load" of "T" experts "X" chosen [B, S, A] over [ep] among []

// -----

// CHECK: error[E0709]: `dist.expert_load`: experts are split over some axis
dist.expert_load "T.load" of "T" experts "X" chosen [B, S, A] over [] among [] zipf "1"

// -----

// CHECK: error[E0709]: `dist.expert_load`: shares are whole numbers, not `1 x`
dist.expert_load "T.load" of "T" experts "X" chosen [B, S, A] over [ep] among [] shares ["1 x"]

// -----

// CHECK: error[E0709]: `dist.expert_load`: an exponent is a number, not `steep`
dist.expert_load "T.load" of "T" experts "X" chosen [B, S, A] over [ep] among [] zipf "steep"

// -----

// CHECK: error[E0709]: `dist.all_to_all`: <[X, T/ep], bf16> does not become <[X/ep, T.load], bf16>
%r = "test.op"() : () -> !stg.tensor<[X, T/ep], bf16>
%e = dist.all_to_all %r gather "T" scatter "X" over [ep] : !stg.tensor<[X, T/ep], bf16> -> !stg.tensor<[X/ep, T.load], bf16>

// -----

// CHECK: error[E0709]: `dist.all_to_all`: <[X, T/ep], bf16> becomes <[X/ep, T], bf16>, not <[X, T.load], bf16>
%r = "test.op"() : () -> !stg.tensor<[X, T/ep], bf16>
%e = dist.all_to_all %r gather "T" scatter "X" over [ep] load "T.load" : !stg.tensor<[X, T/ep], bf16> -> !stg.tensor<[X, T.load], bf16>

// -----

// CHECK: error[E0709]: `dist.expert_load`: copies are for nodes and for devices, along two axes
dist.expert_load "T.load" of "T" experts "X" chosen [B, S, A] over [ep] among [] copies [T.outer, T.inner] zipf "1"

// -----

// CHECK: error[E0709]: `dist.expert_load`: groups have a limit, and a limit is of groups
dist.expert_load "T.load" of "T" experts "X" chosen [B, S, A] over [en, el] among [] copies [T.outer, T.inner] groups "4" zipf "1"
