// Methods, rotations and balances are those of the language; a context has an axis.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.context`: there is no method `star`
dist.context "star" over [cp] rotate "all_to_all" balance "head_tail"

// -----

// CHECK: error[E0709]: `dist.context`: there is no rotation `broadcast`
dist.context "ring" over [cp] rotate "broadcast" balance "head_tail"

// -----

// CHECK: error[E0709]: `dist.context`: there is no balance `tail`
dist.context "ring" over [cp] rotate "all_to_all" balance "tail"

// -----

// CHECK: error[E0709]: `dist.context`: a context is over some axis
dist.context "ring" over [] rotate "all_to_all" balance "none"
